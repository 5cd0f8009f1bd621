# Whatever happens to Redis, leases that it cannot give are refused with LF020 and
# the reason, nothing else is held up, and it works again when Redis does.

use strict;
use warnings;

use POSIX ();
use LeaseSessions qw(wait_until);
use RedisFaults;
use RedisServer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $redis = RedisServer->new('enable-protected-configs' => 'yes');
$redis->kill9;
my $it = RedisFaults->new($redis->port);

# So that what happens next meets a connection that is not there yet.
sub cut_connections
{
	$redis->must('CLIENT', 'KILL', 'TYPE', $_, 'SKIPME', 'yes') foreach 'normal', 'pubsub';
	return;
}

sub connected
{
	$it->await('SELECT connected FROM lease_fence.worker_status');
	return;
}

# ---- it is not there ----

$it->is_refused(qr/Connection refused/, 'Redis absent at start');
$it->goes_on('Redis absent at start');
$redis->start;
$it->works_again('Redis started');

my $token = $it->lease('stock:1');
is($it->write_as($token, 1), '', 'a lease is written under');
$redis->kill9;
$it->is_refused(qr/connection lost|Connection refused/, 'Redis killed');
is($it->write_as($token, 1), '', 'Redis killed: the lease lives until its deadline');
$it->goes_on('Redis killed');

# ---- it is another one than before ----

$redis->start;
$it->works_again('Redis restarted empty');
is($it->write_as($token, 1), 'LF002', 'Redis restarted empty: what was granted before is over');
like($it->said, qr/ran out/, "Redis restarted empty: as lapsed");
my $next = $it->lease('stock:1');
cmp_ok($next, '>', $token, 'Redis restarted empty: the next grant has a higher token');
is($it->write_as($token, 1), 'LF001', 'Redis restarted empty: the token before it is superseded');

my $old = $it->lease('stock:2', '4s');
$redis->must('SAVE');
$it->sql("SELECT lease_fence.release($old)");
$next = $it->lease('stock:2');
$redis->restart;
$it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $next AND state = 'live'");
is($it->write_as($next, 2), 'LF002', 'Redis restarted with an old RDB: what was granted since is over');
is($it->write_as($old, 2), 'LF001', 'Redis restarted with an old RDB: a lock that came back revives no token');
cmp_ok($it->lease('stock:2'), '>', $next, 'Redis restarted with an old RDB: the next one comes when it runs out');

# ---- it has lost something ----

# Redis tells nobody: it is seen at a third of the time left.
$token = $it->lease("stock:3", "9s");
$redis->flushall;
$it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $token AND state = 'live'");
is($it->write_as($token, 3), 'LF002', 'FLUSHALL: the lease is over');
cmp_ok($it->lease('stock:3'), '>', $token, 'FLUSHALL: the next grant has a higher token');

$token = $it->lease('stock:4');
$redis->must('SCRIPT', 'FLUSH');
cmp_ok($it->sql("SELECT lease_fence.renew($token, '5min') > '4min'"), 'eq', 't', 'SCRIPT FLUSH: a lease is renewed');
is($it->sql("SELECT lease_fence.release($token)"), 't', 'SCRIPT FLUSH: a lease is released');
ok(wait_until('it is gone', sub { $redis->command('EXISTS', 'stock:4') == 0 }), 'SCRIPT FLUSH: its lock is gone');

# ---- it refuses to write ----

$token = $it->lease('stock:5');
$redis->memory_full;
$it->is_refused(qr/OOM/, 'maxmemory reached');
is($it->write_as($token, 5), '', 'maxmemory reached: a lease lives on');
is($it->sql("SELECT lease_fence.release($token)"), 't', 'maxmemory reached: and is released');
is($redis->command('EXISTS', 'stock:5'), 0, 'maxmemory reached: its lock is gone');
$it->goes_on('maxmemory reached');
$redis->memory_free;
$it->works_again('memory is there again');

mkdir $redis->dir . '/folder';
$redis->config_set('save', '3600 1');
$redis->config_set('dbfilename', 'folder');
$redis->command('BGSAVE');
for (1 .. 600)
{
	last if $redis->cli('INFO', 'persistence') =~ /rdb_last_bgsave_status:err/;
	select undef, undef, undef, 0.05;
}
$it->is_refused(qr/MISCONF/, 'MISCONF');
$it->goes_on('MISCONF');
$redis->config_set('save', '');
$redis->config_set('dbfilename', 'dump.rdb');
$it->works_again('MISCONF is over');

$token = $it->lease('stock:6');
$redis->must('REPLICAOF', '127.0.0.1', RedisServer::free_port());
$it->is_refused(qr/replica/, 'a replica');
$it->await("SELECT last_error = 'it is a replica' FROM lease_fence.worker_status");
is($it->write_as($token, 6), 'LF002', 'a replica: what was granted before is over');
$it->goes_on('a replica');
$redis->must('REPLICAOF', 'NO', 'ONE');
$it->works_again('a master again');

# ---- it is loading ----

$redis->must('DEBUG', 'POPULATE', 4000, 'filling', 200);
$redis->must('SAVE');
$redis->kill9;
$redis->{options} = { %{ $redis->{options} }, 'key-load-delay' => 3000, 'loading-process-events-interval-bytes' => 1024 };
$redis->launch;
for (1 .. 600)
{
	my $client = $redis->client;
	my $answer = $client && $client->command('PING');
	last if defined $answer && $answer =~ /LOADING/;
	select undef, undef, undef, 0.02;
}
$it->is_refused(qr/LOADING|connection lost|Connection refused/, 'LOADING');
$it->await("SELECT last_error LIKE '%LOADING%' FROM lease_fence.worker_status")
  if $it->try("SELECT lease_fence.acquire('stock:loading', ttl => '5s', scope => 'detached')") eq 'LF020';
$it->goes_on('LOADING');
$redis->config_set('key-load-delay', 0);
delete $redis->{options}{'key-load-delay'};
$redis->wait_ready;
$it->works_again('loaded');
$redis->flushall;

# ---- it may evict ----

$redis->config_set('maxmemory-policy', 'allkeys-lru');
cut_connections();
$it->works_again('a policy that evicts');
ok($it->await("SELECT warning LIKE '%allkeys-lru%' FROM lease_fence.worker_status"),
	'a policy that evicts: worker_status warns');
$redis->config_set('maxmemory-policy', 'noeviction');
cut_connections();
$it->works_again('a policy that does not evict');
ok($it->await('SELECT warning IS NULL FROM lease_fence.worker_status'),
	'a policy that does not evict: the warning goes');

# ---- who we are ----

$redis->config_set('requirepass', 'right');
my $client = $redis->client;
$client->command('AUTH', 'right');
$client->command('CLIENT', 'KILL', 'TYPE', $_, 'SKIPME', 'yes') foreach 'normal', 'pubsub';
$it->is_refused(qr/NOAUTH|connection lost/, 'AUTH missing');
$it->await("SELECT last_error LIKE '%NOAUTH%' FROM lease_fence.worker_status");
$it->goes_on('AUTH missing');

$it->sql("CREATE USER MAPPING FOR PUBLIC SERVER locks OPTIONS (password 'wrong')");
$it->await("SELECT last_error LIKE '%WRONGPASS%' FROM lease_fence.worker_status")
  if $it->try("SELECT lease_fence.acquire('stock:wrong', ttl => '5s', scope => 'detached')") eq 'LF020';
$it->is_refused(qr/WRONGPASS/, 'a wrong password');
$it->goes_on('a wrong password');

$it->sql("ALTER USER MAPPING FOR PUBLIC SERVER locks OPTIONS (SET password 'right')");
$it->works_again('the right password');

# A user who may do everything but that.
sub as_user
{
	my ($rules, $reason, $situation) = @_;
	$client->command('ACL', 'DELUSER', 'app');
	my $answer = $client->command('ACL', 'SETUSER', 'app', 'on', '>word', split ' ', $rules);
	die $answer unless $answer eq 'OK';
	$it->sql("DROP USER MAPPING IF EXISTS FOR PUBLIC SERVER locks; "
		  . "CREATE USER MAPPING FOR PUBLIC SERVER locks OPTIONS (username 'app', password 'word')");
	return unless defined $reason;
	# a moment before, the user was another one
	$it->try("SELECT lease_fence.acquire('stock:user', ttl => '5s', scope => 'detached')");
	$it->is_refused($reason, $situation);
	$it->goes_on($situation);
	return;
}

as_user('~other:* &* +@all', qr/NOPERM/, 'a user without the key');
as_user('~* &* +@all -info', qr/NOPERM/, 'a user without INFO');
as_user('~* &* +@all -eval -evalsha', qr/NOPERM/, 'a user without EVAL');
as_user('~* resetchannels +@all');
$it->works_again('a user without the channel');
$token = $it->lease('stock:7', '9s');
ok($it->await("SELECT last_error LIKE '%NOPERM%' FROM lease_fence.worker_status"),
	'a user without the channel: worker_status says so');
$it->goes_on('a user without the channel');
$client->command('SET', 'stock:7', 'another', 'PX', 20000);
$it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $token AND state = 'live'");
is($it->write_as($token, 7), 'LF001', 'a user without the channel: a takeover is seen by the next look');
as_user('~* &* +@all -config');
$it->sql("ALTER SERVER locks OPTIONS (ADD set_events 'on')");
$it->works_again('a user who may not turn events on');
as_user('~* &* +@all -config|set');
$client->command('CONFIG', 'SET', 'notify-keyspace-events', '');
$it->works_again('a user who may see whether events are on, and no more');

$it->node->stop('fast');
done_testing();
