# Calls that meet an unusual moment of a lock service or of the worker: none waits
# without need, and none leaves anything behind.

use strict;
use warnings;

use LeaseSessions qw(has_points);
use RedisLeases;
use RedisServer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $redis = RedisServer->new;
my $node = redis_node('interleavings', $redis, 'watch => false');
my $s = session($node);

sub set_point
{
	my ($value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET lease_fence.test_point = '$value'");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
	wait_until("test_point is '$value'", sub { $node->safe_psql('postgres', 'SHOW lease_fence.test_point') eq $value });
	return;
}

# ---- a socket that is not there ----

$s->query("CREATE SERVER nowhere FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (socket '/tmp/no-such-directory/redis.sock')");
$s->query("SELECT lease_fence.add_profile(name => 'nowhere', prefix => 'nowhere:', servers => '{nowhere}')");
my $from = now();
$s->query("SELECT * FROM lease_fence.acquire('nowhere:1', scope => 'session', wait => '20s')");
is($s->state, 'LF020', 'a socket that is not there: LF020');
cmp_ok(now() - $from, '<', 5, 'a socket that is not there: at once');
wait_until('the view says so',
	sub { $s->query("SELECT last_error FROM lease_fence.worker_status WHERE server = 'nowhere'") =~ /could not connect/ });
my $used = cpu_of(worker_of($s));
$s->query('SELECT pg_sleep(1)');
cmp_ok(cpu_of(worker_of($s)) - $used, '<', 0.4, 'a socket that is not there: the worker does not spin');

# ---- in back-off ----

my $slow = 0;
foreach (1 .. 8)
{
	my $begun = now();
	$s->query("SELECT * FROM lease_fence.acquire('nowhere:1', scope => 'session', wait => '20s')");
	$slow++ if $s->state ne 'LF020' || now() - $begun > 0.8;
}
cmp_ok($slow, '<', 2, 'a server in back-off: who asks is told at once');

# ---- acquire_all that cannot prolong one of what it has already ----

my $other = RedisServer->new;
add_server($node, 'other', $other);
$s->query("SELECT lease_fence.add_profile(name => 'other', prefix => 'other:', servers => '{other}')");
my $a = $s->query("SELECT token FROM lease_fence.acquire('a', scope => 'session')");
my $b = $s->query("SELECT token FROM lease_fence.acquire('other:1', scope => 'session')");
$other->stop;
$s->query("SELECT * FROM lease_fence.acquire_all('{a,other:1}', ttl => '40s', scope => 'session')");
is($s->state, 'LF020', 'acquire_all whose second lease cannot be prolonged: LF020');
$s->query("SELECT lease_fence.release($a)");
is($s->query("SELECT lease_fence.remaining($a) IS NULL"), 't', 'nothing was counted: one release ends the first');
is($s->query("SELECT lease_fence.release($b)"), 't', 'and one the second');

# ---- a worker that is restarted ----

sub restart_worker
{
	my $pid = worker_of($s);
	$s->query("SELECT pg_terminate_backend($pid)");
	wait_until('another worker is there', sub { (worker_of($s) || $pid) ne $pid });
	return;
}

SKIP:
{
	skip 'not a build with test points', 1 if !has_points($node);
	my $lease = $s->query("SELECT token FROM lease_fence.acquire('stock:1', scope => 'session')");
	my $renews = session($node);
	my $pid = worker_of($s);
	set_point('renew-unasked=exit');
	$renews->send("SELECT lease_fence.renew($lease) > '0'");
	wait_until('the worker has died', sub { worker_of($s) ne $pid });
	set_point('');
	is($renews->answer, 't', 'a worker that died over a renewal: the next one renews');
}

# ---- one resource whose lock cannot be named any more ----

my $long = 'long:' . 'x' x 400;
foreach my $name ('fine', 'long')
{
	$s->query("SELECT lease_fence.add_profile(name => '$name', prefix => '$name:', servers => '{locks}', ttl => '3s')");
}
my @tokens = map { $s->query("SELECT token FROM lease_fence.acquire('$_', scope => 'session')") } ('fine:1', $long, 'fine:2');
$s->query("SELECT lease_fence.drop_profile('long')");
$s->query("SELECT lease_fence.add_profile(name => 'long', prefix => 'long:', servers => '{locks}', lock_key => '{resource}{resource}{resource}')");
my $offset = -s $node->logfile;
restart_worker();
wait_until('the long one has lapsed', sub { $s->query("SELECT lease_fence.remaining($tokens[1]) IS NULL") eq 't' });
$s->query('SELECT pg_sleep(1)');
is($s->query("SELECT lease_fence.remaining($_) IS NOT NULL"), 't', 'a lock that cannot be named any more: other leases go on')
  foreach @tokens[ 0, 2 ];
unlike(slurp_file($node->logfile, $offset), qr/has more than/, 'and the log is not full of it');

# ---- a lease that its holder takes back, and then not ----

SKIP:
{
	skip 'not a build with test points', 2 if !has_points($node);
	my $ask = "SELECT token FROM lease_fence.acquire('stock:7', scope => 'detached', ttl => '10min', holder => 'me', wait => '20s')";
	my $lease = $s->query($ask);
	my $again = session($node);

	my $log = -s $node->logfile;
	set_point('take-answered=wait');
	$again->send($ask);
	$node->wait_for_log(qr/waits at point take-answered/, $log);
	$s->query("SELECT pg_cancel_backend($again->{pid})");
	$again->answer;
	is($again->state, '57014', 'who takes a lease back gives up');
	set_point('');
	wait_until('the lock is let go of', sub { !defined value_of($redis, 'stock:7') });
	my $begun = now();
	wait_until('the lease is over', sub { $s->query("SELECT lease_fence.remaining($lease) IS NULL") eq 't' });
	cmp_ok(now() - $begun, '<', 5, 'the lease whose lock was taken back is over soon');
}

# ---- a lock that runs out before its turn comes ----

my ($writer, $taker, $dba) = map { session($node) } 1 .. 3;
$s->query("ALTER SYSTEM SET lease_fence.drain_timeout = '60s'");
$s->query('SELECT pg_reload_conf()');
my $written = $writer->query("SELECT token FROM lease_fence.acquire('stock:8', scope => 'session')");
$writer->query("BEGIN; UPDATE stock SET n = n - 1 WHERE id = 8; SELECT lease_fence.release($written)");
wait_until('its lock is released', sub { !defined value_of($redis, 'stock:8') });
$redis->stop_signal;
$taker->send("SELECT token FROM lease_fence.acquire('stock:8', scope => 'session', ttl => '600ms', wait => '20s')");
wait_until('it is asked for', sub { $s->query("SELECT max(queue) > 0 FROM lease_fence.worker_status WHERE server = 'locks'") eq 't' });
$dba->send("SELECT lease_fence.revoke('stock:8')");
wait_until('the revocation waits for the writer',
	sub { $s->query("SELECT count(*) FROM pg_locks WHERE pid = $dba->{pid} AND NOT granted") > 0 });
$redis->continue;
wait_until('it is taken', sub { defined value_of($redis, 'stock:8') });
wait_until('it has run out', sub { !defined value_of($redis, 'stock:8') });
$writer->query('COMMIT');
$dba->answer;
like($taker->answer, qr/^\d+$/, 'a lock that ran out before its turn came is taken anew');

# ---- another Redis, before a new worker has found its leases ----

SKIP:
{
	skip 'not a build with test points', 2 if !has_points($node);
	my $kept = RedisServer->new('appendonly' => 'yes', 'appendfsync' => 'always');
	add_server($node, 'kept', $kept);
	$s->query("SELECT lease_fence.add_profile(name => 'kept', prefix => 'kept:', servers => '{kept}')");
	my $lease = $s->query("SELECT token FROM lease_fence.acquire('kept:1', scope => 'detached', ttl => '10min')");
	my ($asks, $locks) = map { session($node) } 1 .. 2;
	my $log = -s $node->logfile;

	# What the worker leaves behind makes the next one connect at once.
	set_point('take-unasked=wait');
	$asks->send("SELECT * FROM lease_fence.acquire('kept:2', scope => 'detached', ttl => '10min', wait => '20s')");
	$node->wait_for_log(qr/waits at point take-unasked/, $log);
	$kept->restart;
	is(defined value_of($kept, 'kept:1'), 1, 'another Redis has the lock still');
	$locks->query('BEGIN; LOCK TABLE lease_fence.profiles IN ACCESS EXCLUSIVE MODE');
	my $then = $s->query('SELECT clock_timestamp()');
	restart_worker();
	set_point('');
	$asks->answer;
	wait_until('the other Redis has answered',
		sub { $s->query("SELECT last_success > '$then' FROM lease_fence.worker_status WHERE server = 'kept'") eq 't' });
	$locks->query('ROLLBACK');
	$s->query("SELECT token FROM lease_fence.acquire('kept:3', scope => 'detached', wait => '20s')");
	is($s->query("SELECT lease_fence.remaining($lease) IS NULL"), 't', 'its lease is over all the same');
}

# ---- a worker that is gone is connected to nothing ----

add_server($node, 'unused', $redis);
$s->query("SELECT lease_fence.add_profile(name => 'unused', prefix => 'unused:', servers => '{unused}')");
my $short = $s->query("SELECT token FROM lease_fence.acquire('unused:1', scope => 'detached', ttl => '100ms')");
wait_until('it is connected', sub { $s->query("SELECT connected FROM lease_fence.worker_status WHERE server = 'unused'") eq 't' });

# over for longer than it lasted: nothing of it is left to do
wait_until('it is over', sub { $s->query("SELECT ended_at < now() - interval '1 s' FROM lease_fence.grants WHERE token = $short") eq 't' });
restart_worker();
is($s->query("SELECT connected FROM lease_fence.worker_status WHERE server = 'unused'"), 'f', 'nor does the view say so');

done_testing();
