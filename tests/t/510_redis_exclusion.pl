# Locks of other people's programs and SQL sessions exclude each other on one
# name, both ways: redis-py's own Lock, a plain SET NX PX, and a replay of
# Redisson's commands.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use RedisLeases;
use RedisPython;
use RedisServer;

plan skip_all => 'no redis-server here' unless RedisServer::available();
plan skip_all => 'no python with redis-py here' unless RedisPython::available();

my $redis = RedisServer->new('notify-keyspace-events' => 'KA');
my $node = redis_node('exclusion', $redis);
$node->safe_psql('postgres', q{
	SELECT lease_fence.add_profile('hashes', 'job:', '{locks}', shape => 'redisson');
	SELECT lease_fence.add_profile('deeper', 'stock:deep:', '{locks}', lock_key => '{{tag}}:{resource}');
	SELECT lease_fence.add_profile('app', 'a:', '{locks}', lock_key => 'app:{resource}')});
my $python = $redis->python;
my $s = session($node, 'one');
my $t = session($node, 'two');
my $dba = session($node, 'dba');

sub events
{
	my ($on) = @_;
	$redis->config_set('notify-keyspace-events', $on ? 'KA' : '');
	return;
}

# Is a session that was sent something waiting for a lease?
sub wait_for_waiting
{
	my ($session) = @_;
	my $pid = $session->pid;
	return wait_until('a session waits for its lease',
		sub { $dba->query("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Extension' });
}

# ---- redis-py holds it ----

foreach my $on (1, 0)
{
	my $with = $on ? 'with keyspace events' : 'without keyspace events';
	events($on);

	$python->run("lock = r.lock('stock:1', timeout=20)");
	is($python->value('lock.acquire(blocking=False)'), 'True', "$with: redis-py takes the lock");
	my $left = time_left($redis, 'stock:1') / 1000;
	is($t->query("SELECT token IS NULL AND expires_in IS NULL FROM lease_fence.try_acquire('stock:1', scope => 'session')"),
		't', "$with: try_acquire does not get it");
	my $retry = $t->query("SELECT extract(epoch FROM retry_after) FROM lease_fence.try_acquire('stock:1', scope => 'session')");
	cmp_ok(abs($retry - $left), '<', 5, "$with: and says how long redis-py still has it");
	$t->query("SELECT lease_fence.acquire('stock:1', scope => 'session', wait => '300ms')");
	is($t->state, '55P03', "$with: acquire waits in vain");

	$s->send("SELECT token FROM lease_fence.acquire('stock:1', scope => 'session', wait => '60s')");
	wait_for_waiting($s);
	is($python->run('lock.release()'), '', "$with: redis-py releases it");
	my $released = now();
	my $token = $s->answer;
	my $waited = now() - $released;
	like($token, qr/^\d+$/, "$with: then acquire gets it");
	cmp_ok($waited, '<', 5, "$with: soon ($waited s)");

	# ---- and now the other way round ----

	my $holder = $dba->query("SELECT convert_from(holder, 'UTF8') FROM lease_fence.leases WHERE resource = 'stock:1'");
	like(value_of($redis, 'stock:1'), qr/\A\Q$holder\E:[0-9a-f]{16}\z/, "$with: the lock says who has it");
	cmp_ok(time_left($redis, 'stock:1'), '>', 20_000, "$with: for how long");
	cmp_ok(time_left($redis, 'stock:1'), '<=', 30_000, "$with: which is the ttl of the profile");
	is($python->value("r.lock('stock:1', timeout=20).acquire(blocking=False)"), 'False',
		"$with: redis-py does not get a session's lock");
	$python->run("r.lock('stock:1', timeout=20, thread_local=False)");
	like($python->run("x = r.lock('stock:1', timeout=20); x.local.token = b'someone'; x.release()"),
		qr/LockNotOwnedError/, "$with: nor releases it");
	is(write_as($s, 1, $token), '00000', "$with: the session writes");

	$python->send("r.lock('stock:1', timeout=20).acquire(blocking_timeout=60)", 'value');
	is($s->query("SELECT lease_fence.release($token)"), 't', "$with: the session releases");
	is($python->answer, 'True', "$with: redis-py gets it");
	is(write_as($s, 1, $token), 'LF002', "$with: the session writes no more");
	$redis->must('DEL', 'stock:1');
}

# ---- SET NX PX, by hand ----

is($redis->cli(qw(SET stock:2 me NX PX 700)), 'OK', 'a plain client takes the lock');
my $token = $s->lease(q{'stock:2', scope => 'session', wait => '60s'});
is($redis->cli(qw(SET stock:2 me NX PX 700)), '', 'and when it has run out, does not get the session\'s');
isnt(value_of($redis, 'stock:2'), 'me', 'which is there');
is($redis->cli(qw(PEXPIRE stock:2 100000)), 1, 'a client prolongs it by mistake');
$s->query("SELECT lease_fence.release($token)");
wait_until('the lock is gone', sub { !$redis->must('EXISTS', 'stock:2') });
is($redis->cli(qw(SET stock:2 me NX PX 700000)), 'OK', 'after the release it is free all the same');

# A release never touches another's lock.
$token = $s->lease(q{'stock:3', scope => 'session'});
$redis->must(qw(SET stock:3 thief PX 100000));
$s->query("SELECT lease_fence.release($token)");
wait_until('the end of the lease is written',
	sub { $dba->query("SELECT ended_at IS NOT NULL FROM lease_fence.grants WHERE token = $token") eq 't' });
$token = $t->lease(q{'stock:30', scope => 'session'});	# asked after the release
is(value_of($redis, 'stock:3'), 'thief', "a release leaves another's lock alone");

# A lock that never runs out is waited for like any other.
$redis->must(qw(SET stock:4 somebody));
is($t->query("SELECT token IS NULL AND retry_after IS NULL FROM lease_fence.try_acquire('stock:4', scope => 'session')"),
	't', 'who knows how long a lock without expiry lasts');
$redis->must(qw(DEL stock:4));
$redis->must(qw(RPUSH stock:4 x));
$t->query("SELECT lease_fence.acquire('stock:4', scope => 'session')");
is($t->state, 'LF020', 'a list under the key is no lock');

# ---- a replay of Redisson's commands ----

# What its lock() and unlock() do, in words of our own.
my $lock_script = q{
	if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
		return redis.call('PTTL', KEYS[1])
	end
	redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
	redis.call('PEXPIRE', KEYS[1], ARGV[1])
	return false};
my $unlock_script = q{
	if redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then
		return false
	end
	if redis.call('HINCRBY', KEYS[1], ARGV[3], -1) > 0 then
		redis.call('PEXPIRE', KEYS[1], ARGV[2])
		return 0
	end
	redis.call('DEL', KEYS[1])
	redis.call('PUBLISH', KEYS[2], ARGV[1])
	return 1};
my $java = '285475da-9152-4c83-822a-67ee2f116a79:52';

# undef: locked; else how long it is another's.
sub java_lock
{
	my ($name, $holder) = @_;
	return $redis->must('EVAL', $lock_script, 1, $name, 30000, $holder // $java);
}

sub channel { my ($name) = @_; return 'redisson_lock__channel:' . ($name =~ /\{/ ? $name : "{$name}"); }

sub java_unlock
{
	my ($name) = @_;
	return $redis->must('EVAL', $unlock_script, 2, $name, channel($name), 0, 30000, $java);
}

is(java_lock('job:1'), undef, "a replay of Redisson's lock()");
is($t->query("SELECT token IS NULL AND retry_after BETWEEN '20s' AND '30s' FROM lease_fence.try_acquire('job:1', scope => 'session')"),
	't', 'no session gets it');
is(java_lock('job:1'), undef, 'it enters again');
events(0);
$s->send("SELECT token FROM lease_fence.acquire('job:1', scope => 'session', wait => '60s')");
wait_for_waiting($s);
is(java_unlock('job:1'), 0, 'and leaves once');
is($redis->must('HGET', 'job:1', $java), 1, 'which keeps it');
$t->query("SELECT lease_fence.acquire('job:1', scope => 'session', wait => '700ms')");
is($t->state, '55P03', 'also from sessions');
ok($s->busy, 'the one that waits goes on');
is(java_unlock('job:1'), 1, 'it leaves for good');
like($token = $s->answer, qr/^\d+$/, 'and the session gets it');

my @fields = @{ $redis->must('HGETALL', 'job:1') };
my $holder = $dba->query("SELECT convert_from(holder, 'UTF8') FROM lease_fence.leases WHERE resource = 'job:1'");
is(scalar @fields, 2, 'there is one field');
like($fields[0], qr/\A\Q$holder\E:[0-9a-f]{16}\z/, 'with who has it');
is($fields[1], 1, 'once');
cmp_ok(java_lock('job:1'), '>', 20_000, "now a replay of Redisson's lock() is told to wait");
is($s->query("SELECT token FROM lease_fence.acquire('job:1', scope => 'session')"), $token, 'the session enters again');
is($redis->must('HGET', 'job:1', $fields[0]), 1, 'which Redis need not know');

my $subscriber = $redis->client;
$subscriber->command('SUBSCRIBE', channel('job:1'));
$s->query("SELECT lease_fence.release($token)");
is($subscriber->answer(0.3), undef, 'it leaves once: nothing is said');
$s->query("SELECT lease_fence.release($token)");
is_deeply($subscriber->answer, [ 'message', channel('job:1'), '0' ],
	'and for good: waiting clients are told, as Redisson tells them');
is($redis->must('EXISTS', 'job:1'), 0, 'the hash is gone');
is(java_lock('job:1'), undef, "a replay of Redisson's lock() gets it");
java_unlock('job:1');

# A message wakes who waits, long before it would look by itself: not each time
# sooner than a quarter of a second, on a slow machine, but most often.
my $soon = 0;
foreach my $try (1 .. 8)
{
	java_lock('job:wake');
	$s->send("SELECT token FROM lease_fence.acquire('job:wake', scope => 'session', wait => '60s')");
	wait_for_waiting($s);
	# its channel is subscribed to
	wait_until('the worker listens',
		sub { $redis->must('PUBSUB', 'NUMSUB', channel('job:wake'))->[1] > 0 });
	select(undef, undef, undef, 0.06 * $try);
	java_unlock('job:wake');
	my $at = now();
	$token = $s->answer;
	$soon++ if now() - $at < 0.08;
	$s->query("SELECT lease_fence.release($token)");
	wait_until('it is released', sub { !$redis->must('EXISTS', 'job:wake') });
}
cmp_ok($soon, '>=', 5, "a message on Redisson's channel wakes who waits at once: $soon of 8 times");
events(1);

# ---- names ----

my $utf8 = "\xc3\xa4\xe2\x82\xac\xf0\x9f\x94\x92";
foreach my $part ('{tag}x', 'a b  c ', '*', '?', '[a-z]', 'back\\slash', "new\nline", $utf8, "'quote\"", '{{', '}', '%s$1')
{
	foreach my $kind ('stock', 'job')
	{
		my $name = "$kind:$part";
		my $shown = $name =~ s/\n/\\n/r;
		my $quoted = "'" . ($name =~ s/'/''/gr) . "'";
		my @take = $kind eq 'stock' ? ('SET', $name, 'python', 'NX', 'PX', 60000)
		  : ('EVAL', $lock_script, 1, $name, 60000, $java);

		$token = $s->lease("$quoted, scope => 'session'");
		is($redis->must('EXISTS', $name), 1, "$shown: the lock has the name's bytes");
		is($redis->must('DBSIZE') > 0 && $redis->must(@take) // '', $kind eq 'stock' ? '' : $redis->must('PTTL', $name),
			"$shown: nobody else gets it") if $kind eq 'stock';
		cmp_ok($redis->must(@take), '>', 0, "$shown: nobody else gets it") if $kind eq 'job';
		$t->send("SELECT token FROM lease_fence.acquire($quoted, scope => 'session', wait => '60s')");
		wait_for_waiting($t);
		$s->query("SELECT lease_fence.release($token)");
		like($token = $t->answer, qr/^\d+$/, "$shown: handed over");
		$t->query("SELECT lease_fence.release($token)");
		wait_until("$shown is released", sub { !$redis->must('EXISTS', $name) });

		# what happens to it is told under its very name: nobody looks by the clock
		# before a third of its time has passed
		$redis->must(@take);
		my $taker = $kind eq 'stock' ? 'python' : $java;
		$token = $t->query("SELECT token FROM lease_fence.adopt($quoted, '$taker')");
		like($token, qr/^\d+$/, "$shown: adopted");
		$redis->must('DEL', $name);
		my $deleted = now();
		wait_until("$shown is seen as gone", sub { $t->query("SELECT lease_fence.remaining($token) IS NULL") eq 't' });
		cmp_ok(now() - $deleted, '<', 10, "$shown: its deletion is seen at once");
	}
}

# ---- profiles ----

$s->lease(q{'stock:deep:1', scope => 'session'});
is($redis->must('EXISTS', '{tag}:stock:deep:1'), 1, 'the longest prefix decides, with a hash tag in its key');
is($redis->must('EXISTS', 'stock:deep:1'), 0, 'and no other');
$s->lease(q{'a:b', scope => 'session'});
is($redis->must('EXISTS', 'app:a:b'), 1, 'a key with a prefix of its own');
$s->lease(q{'b:1', scope => 'session'});
is($redis->must('EXISTS', 'b:1'), 0, 'without a profile nothing is in Redis');
$s->query('DISCARD ALL');
wait_until('all is released', sub { !$redis->must('EXISTS', '{tag}:stock:deep:1', 'app:a:b') });
pass('DISCARD ALL releases them');

# ---- several at once ----

my $second = RedisServer->new;
add_server($node, 'others', $second);
$node->safe_psql('postgres', q{SELECT lease_fence.add_profile('others', 'zz:', '{others}')});
my $four = q{'{plain:1,stock:10,job:10,zz:10}'};

is($s->query("SELECT string_agg(resource, ' ') FROM lease_fence.acquire_all($four, scope => 'session')"),
	'job:10 plain:1 stock:10 zz:10', 'four resources of three kinds and two servers at once');
is($redis->must('EXISTS', 'stock:10', 'job:10') + $second->must('EXISTS', 'zz:10'), 3, 'are all there');
is($s->query("SELECT count(DISTINCT coordinator) FROM lease_fence.leases WHERE state = 'live'"), 2, 'by two coordinators');
$s->query('DISCARD ALL');
wait_until('all of them are released',
	sub { !$redis->must('EXISTS', 'stock:10', 'job:10') && !$second->must('EXISTS', 'zz:10') });

$second->must(qw(SET zz:10 somebody PX 100000));
$s->send("SELECT * FROM lease_fence.acquire_all($four, scope => 'session', wait => '800ms')");
wait_until('it has the first of them', sub { $redis->must('EXISTS', 'stock:10', 'job:10') == 2 });
$s->answer;
is($s->state, '55P03', "the last one is another's: none");
wait_until('the first are released', sub { !$redis->must('EXISTS', 'stock:10', 'job:10') });
is($dba->query("SELECT count(*) FROM lease_fence.leases WHERE state = 'live' AND resource IN ('plain:1', 'stock:10', 'job:10', 'zz:10')"),
	0, 'and nothing is held');
is(value_of($second, 'zz:10'), 'somebody', "nor is the other's lock touched");
$t->query(q{SELECT lease_fence.acquire('plain:1', scope => 'session', wait => '0')});
is($t->state, '00000', 'nor is the embedded one kept');
$second->must('DEL', 'zz:10');

# What it has already is kept alive while it waits for the rest, beyond its ttl.
$second->must(qw(SET zz:11 somebody PX 1500));
$s->send(q{SELECT count(*) FROM lease_fence.acquire_all('{stock:11,zz:11}', scope => 'session', ttl => '400ms', wait => '60s')});
wait_until('it has the first', sub { $redis->must('EXISTS', 'stock:11') });
my $value = value_of($redis, 'stock:11');
wait_until('the second runs out', sub { !$second->must('EXISTS', 'zz:11') || value_of($second, 'zz:11') ne 'somebody' });
is($s->answer, 2, 'both, when the second has run out after longer than the ttl');
is(value_of($redis, 'stock:11') // 'run out', $value, 'and the first was never let go of') or note $s->state;
$s->query('DISCARD ALL');

# ---- who waits, and does not any more ----

foreach my $end (
	[ 'is cancelled', sub { $dba->query('SELECT pg_cancel_backend(' . $_[0]->pid . ')') }, '57014' ],
	[ 'is terminated', sub { $dba->query('SELECT pg_terminate_backend(' . $_[0]->pid . ')') } ],
	[ 'has waited long enough', sub { }, '55P03', '400ms' ])
{
	my ($what, $do, $state, $wait) = @$end;
	my $waiter = session($node, 'waiter');
	$wait //= '60s';
	$redis->must(qw(SET stock:12 somebody PX 100000));
	$waiter->send("SELECT lease_fence.acquire('stock:12', scope => 'session', wait => '$wait')");
	wait_for_waiting($waiter);
	$do->($waiter);
	$waiter->answer;
	is($waiter->state, $state, "a session that waits $what") if $state;
	wait_until('the session waits no more', sub {
		$dba->query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid = " . $waiter->pid) eq '0' });
	$redis->must('DEL', 'stock:12');
	# the worker has served all that came before this
	$t->query('SELECT lease_fence.release(token) FROM lease_fence.acquire(\'stock:13\', scope => \'session\')');
	is($redis->must('EXISTS', 'stock:12'), 0, "which $what leaves no lock");
	is($redis->cli(qw(SET stock:12 free NX PX 100)), 'OK', 'and the name is free');
	$redis->must('DEL', 'stock:12');
}

# ---- first come first served, without a busy worker ----

$redis->must(qw(SET stock:14 somebody PX 100000));
$dba->query('CREATE TABLE turns (n serial, who int)');
my @queue;
foreach my $number (1 .. 5)
{
	my $waiter = session($node, "waiter $number");
	$waiter->send("BEGIN; SELECT FROM lease_fence.acquire('stock:14', wait => '60s');"
		  . " INSERT INTO turns (who) VALUES ($number); COMMIT");
	wait_for_waiting($waiter);
	push @queue, $waiter;
}
my $worker = worker_of($dba);
my $before = cpu_of($worker);
$dba->query('SELECT pg_sleep(1)');
my $used = cpu_of($worker) - $before;
cmp_ok($used, '<', 0.5, "while they wait the worker has next to nothing to do ($used s of 1 s)");
$redis->must('DEL', 'stock:14');
$_->answer foreach @queue;
is($dba->query('SELECT string_agg(who::text, \' \' ORDER BY n) FROM turns'), '1 2 3 4 5',
	'five sessions get it in the order in which they came');
wait_until('the last one is released', sub { !$redis->must('EXISTS', 'stock:14') });

is($redis->must('DBSIZE') - $redis->must('EXISTS', 'stock:1', 'stock:2', 'stock:3', 'stock:4', 'stock:30'), 0,
	'nothing of all this is left in Redis');
$node->stop;
done_testing();
