# A Redis that says nothing: leases are refused in time, and nothing waits for the
# network: no other lease, no audit, no DROP DATABASE, no stop of the server.

use strict;
use warnings;

use LeaseSessions qw(wait_until);
use RedisFaults;
use RedisProxy;
use RedisServer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $redis = RedisServer->new;
my $proxy = RedisProxy->new($redis->port);
my $it = RedisFaults->new($proxy->port, name => 'silent');
my $node = $it->node;

sub seconds_of
{
	my ($what) = @_;
	my $started = time;
	$what->();
	return time - $started;
}

# Does somebody have the lock of that name still?
sub is_free
{
	my ($key) = @_;
	return wait_until("$key is free", sub { $redis->command('EXISTS', $key) == 0 });
}

# ---- it does not answer in time ----

$it->works_again('at first');

# What comes too late is nobody's: it is not taken for the answer to who asked next.
foreach my $round (1, 2)
{
	my @asker = map { LeaseSessions->new($node) } 1 .. 4;
	my @name = map { $_ % 2 ? "stock:taken$_" : "stock:late$round$_" } 0 .. 3;
	$redis->command('SET', $_, 'somebody', 'PX', 60000) foreach @name[ 1, 3 ];
	$proxy->delay(350);			# each way: longer than command_timeout, but for who is lucky
	$asker[$_]->send("SELECT lease_fence.acquire('$name[$_]', ttl => '50s', scope => 'detached', wait => '3s')")
	  foreach 0 .. 3;
	foreach my $i (1, 3)
	{
		$asker[$i]->answer;
		like($asker[$i]->state, qr/^(LF020|55P03)$/, "late answers, $round: who asks for $name[$i] is refused");
		is($it->sql("SELECT count(*) FROM lease_fence.grants WHERE resource = '$name[$i]'"), '0',
			"late answers, $round: $name[$i] has another holder, and is granted to nobody");
	}
	$proxy->delay(0);
	$_->quit foreach @asker;
	$it->works_again("late answers, $round");
}
my $client = $redis->client;
$client->send('DEBUG', 'SLEEP', 2);
my $session = LeaseSessions->new($node);
$session->query("SELECT lease_fence.acquire('stock:slow', ttl => '50s', scope => 'detached', wait => '20s')");
is($session->state, 'LF020', 'DEBUG SLEEP: a lease is refused with LF020');
like($session->{text}, qr/no answer within command_timeout/, 'DEBUG SLEEP: the message says why');
$client->answer;
ok(is_free('stock:slow'), 'DEBUG SLEEP: what was granted to nobody is given back');
$it->works_again('DEBUG SLEEP is over');

$client->send('DEBUG', 'SLEEP', 2);
$session->send("SELECT lease_fence.acquire('stock:cancelled', ttl => '50s', scope => 'detached', wait => '20s')");
$it->await("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $session->pid);
$it->sql('SELECT pg_cancel_backend(' . $session->pid . ')');
$session->answer;
is($session->state, '57014', 'DEBUG SLEEP: a wait can be cancelled');
$client->answer;
wait_until('the lock is there or given back', sub { $redis->cli('INFO', 'commandstats') =~ /evalsha/ });
$it->works_again('DEBUG SLEEP is over again');
ok(is_free('stock:cancelled'), 'DEBUG SLEEP: so is what was granted to one who had gone');

# ---- it is stopped ----

$redis->stop_signal;
$session->send("SELECT lease_fence.acquire('stock:silent', ttl => '5s', scope => 'detached', wait => '20s')");
my $worker = $it->worker_pid;
my ($passes, $bad) = (0, 0);
while ($session->busy)
{
	$passes++;
	$bad++ if $it->sql("SELECT count(*) FROM pg_stat_activity WHERE pid = $worker"
		  . " AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR xact_start < now() - interval '200 ms')");
}
cmp_ok($passes, '>', 0, 'SIGSTOP: the worker was seen waiting for the network');
is($bad, 0, 'SIGSTOP: with no transaction open and no xmin');
is($session->state, 'LF020', 'SIGSTOP: a lease is refused with LF020');
$it->is_refused(qr/no answer within|connecting took longer/, 'SIGSTOP');
$it->goes_on('SIGSTOP', 2);
$redis->continue;
$it->works_again('SIGCONT');

# ---- the network has forgotten us ----

my $token = $it->lease('stock:1');
$proxy->lose;
$it->is_refused(qr/no answer within|connecting took longer/, 'a half-open connection');
is($it->write_as($token, 1), '', 'a half-open connection: a lease lives on');
$it->goes_on('a half-open connection', 2);
$proxy->resume;
$it->works_again('the network is back');
is($it->write_as($token, 1), '', 'the network is back: the lease is the same');

# A release that was lost is made good.
$token = $it->lease('stock:lost', '50s');
$proxy->lose;
is($it->sql("SELECT lease_fence.release($token)"), 't', 'a release is answered while the network is dead');
$proxy->resume;
ok(is_free('stock:lost'), 'the lock is released when the network is back');

# ---- databases and workers come and go meanwhile ----

$node->safe_psql('postgres', 'CREATE DATABASE other');
$it->set_up('other', '', host => '127.0.0.1', port => $proxy->port, command_timeout => '20s',
	connect_timeout => '20s');
is($it->try("SELECT lease_fence.acquire('stock:9', ttl => '1s', scope => 'detached', wait => '20s')", 'other'),
	'', 'two databases use one Redis');
$proxy->lose;
my $other = LeaseSessions->new($node, dbname => 'other');
$other->send("SELECT lease_fence.acquire('stock:2', ttl => '5s', scope => 'detached', wait => '30s')");
$it->await("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $other->pid);
my $others = $it->worker_pid('other');
$it->sql("SELECT pg_terminate_backend($others)");
$it->await("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND datname = 'other' AND pid <> $others");
pass('a worker that waits for Redis can be terminated, and another one comes');
$it->sql('SELECT pg_terminate_backend(' . $other->pid . ')');
$other->vanish;
$other = LeaseSessions->new($node, dbname => 'other');
$other->send("SELECT lease_fence.acquire('stock:3', ttl => '5s', scope => 'detached', wait => '30s')");
$it->await("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $other->pid);
$other->vanish;
$it->sql('SELECT pg_terminate_backend(' . $other->pid . ')');
$it->await("SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'other' AND backend_type = 'client backend'");
cmp_ok(seconds_of(sub { $it->sql('ALTER DATABASE other RENAME TO another') }), '<', 6,
	'a database is renamed while its worker waits for Redis');
$other = LeaseSessions->new($node, dbname => 'another');
$other->send("SELECT lease_fence.acquire('stock:4', ttl => '5s', scope => 'detached', wait => '30s')");
$it->await("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $other->pid);
cmp_ok(seconds_of(sub { $it->sql('DROP DATABASE another WITH (FORCE)') }), '<', 6,
	'a database is dropped while its worker waits for Redis');
$other->vanish;
$proxy->resume;
$it->works_again('the network is back once more');

# ---- lease_fence.coordinators ----

sub set
{
	my ($value) = @_;
	$it->sql("ALTER SYSTEM SET lease_fence.coordinators = $value");
	$node->reload;
	$it->await("SELECT current_setting('lease_fence.coordinators') = '$value'");
	return;
}

sub sockets
{
	my $pid = $it->worker_pid;
	return scalar grep { (readlink($_) // '') =~ /^socket/ } glob "/proc/$pid/fd/*";
}

$token = $it->lease('stock:5', '8s');
my $sockets = sockets();
set('off');
$it->await("SELECT NOT connected AND last_error LIKE '%coordinators is off%' FROM lease_fence.worker_status");
cmp_ok(sockets(), '<', $sockets, 'coordinators = off: connections are closed');
my $made = $proxy->connections;
$it->is_refused(qr/coordinators is off/, 'coordinators = off');
is($it->write_as($token, 5), '', 'coordinators = off: a lease lives on');
$it->goes_on('coordinators = off');
$it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $token AND state = 'live'");
is($it->write_as($token, 5), 'LF002', 'coordinators = off: until its deadline');
is($proxy->connections, $made, 'coordinators = off: nothing was connected meanwhile');
set('on');
$it->works_again('coordinators = on');

# ---- and the server stops ----

$redis->stop_signal;
$session = LeaseSessions->new($node);
$session->send("SELECT lease_fence.acquire('stock:6', ttl => '5s', scope => 'detached', wait => '30s')");
$it->await("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $session->pid);
cmp_ok(seconds_of(sub { $node->stop('fast') }), '<', 5, 'the server stops quickly while Redis is silent');
$session->vanish;
done_testing();
