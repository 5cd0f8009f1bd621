# Leases that Redis hands out: how they begin, go on and end, of sessions and of
# programs that adopted; and what the end of a worker or of a backend does.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use RedisLeases;
use RedisServer;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $redis = RedisServer->new('notify-keyspace-events' => 'KA');
my $node = redis_node('leases', $redis, undef, 'restart_after_crash = on');
$node->safe_psql('postgres', q{
	SELECT lease_fence.add_profile('brief', 'brief:', '{locks}', ttl => '1500ms');
	SELECT lease_fence.add_profile('hashes', 'job:', '{locks}', shape => 'redisson')});
my ($s, $t, $dba, $listener);
my $token;

sub open_sessions
{
	($s, $t, $dba) = map { session($node, $_) } qw(one two dba);
	return;
}

sub events { my ($on) = @_; $redis->config_set('notify-keyspace-events', $on ? 'KA' : ''); return; }

sub lock
{
	my ($key, $holder, $ttl) = @_;
	$redis->must('SET', $key, $holder, 'PX', $ttl // 60000);
	return;
}

sub adopt
{
	my ($session, $resource, $holder) = @_;
	my $answer = $session->query("SELECT token FROM lease_fence.adopt('$resource', '$holder')");
	die "not adopted: $answer" unless $answer =~ /^\d+$/;
	return $answer;
}

# A lock that its holder has adopted: the token.
sub adopted
{
	my ($resource, $ttl, $holder) = @_;
	lock($resource, $holder // 'me', $ttl);
	return adopt($t, $resource, $holder // 'me');
}

# Until the lease ends; how, and after how long.
sub end_of
{
	my ($resource, $since) = @_;
	my $state;
	wait_until("the lease of $resource ends", sub { ($state = state_of($dba, $resource)) ne 'live' });
	return wantarray ? ($state, now() - $since) : $state;
}

sub is_gone
{
	my ($key, $what) = @_;
	return ok(wait_until("$key is released", sub { !$redis->must('EXISTS', $key) }), $what);
}

open_sessions();

# ---- what takes its time, and is looked at again below ----

my $watched = session($node, 'watched');
my $watched_token = $watched->lease(q{'brief:watched', scope => 'session'});
my $watched_value = value_of($redis, 'brief:watched');
$watched->query('BEGIN');
my $in_transaction = $watched->lease(q{'brief:in transaction'});
my $fixed = session($node, 'fixed');
my $fixed_token = $fixed->lease(q{'brief:fixed', ttl => '1500ms', scope => 'session'});
my $watched_since = now();

# ---- entering again ----

$s->query('BEGIN');
$token = $s->lease(q{'stock:1'});
my $value = value_of($redis, 'stock:1');
is($s->lease(q{'stock:1'}), $token, 'entering again keeps the token');
is(value_of($redis, 'stock:1'), $value, 'and the lock');
is($s->query("SELECT lease_fence.release($token)"), 't', 'left once');
is(value_of($redis, 'stock:1'), $value, 'it is still there');
$s->query('UPDATE stock SET n = n - 1 WHERE id = 1');
is($s->state, '00000', 'and its holder writes');
$s->query('COMMIT');
is_gone('stock:1', 'COMMIT lets go of it');
is_fenced($s, 1, $token, 'LF002', 'the token is over');

$s->query('BEGIN');
$token = $s->lease(q{'job:1'});
$s->lease(q{'job:1'});
is((join ' ', @{ $redis->must('HVALS', 'job:1') }), '1', 'a hash counts one, however often it was entered');
$s->query('ROLLBACK');
is_gone('job:1', 'ROLLBACK lets go of it');

$s->lease(q{'stock:2', scope => 'session', ttl => '5s'});
cmp_ok(time_left($redis, 'stock:2'), '<=', 5000, 'a ttl is that of the lock');
$s->lease(q{'stock:2', scope => 'session', ttl => '100s'});
cmp_ok(time_left($redis, 'stock:2'), '>', 80_000, 'entered again with a longer one the lock is prolonged');
$s->lease(q{'stock:2', scope => 'session', ttl => '1s'});
cmp_ok(time_left($redis, 'stock:2'), '>', 80_000, 'but never shortened');

# ---- whose they are ----

is($dba->query("SELECT coordinator, scope, state, pid FROM lease_fence.leases WHERE resource = 'stock:2'"),
	'redis|session|live|' . $s->pid, 'the view has it');
is($dba->query("SELECT DISTINCT coordinator FROM lease_fence.grants WHERE resource = 'stock:2'"), 'redis',
	'and so has the history');
$s->query('DISCARD ALL');
is_gone('stock:2', 'DISCARD ALL lets go of it');

foreach my $end ([ 'exits', sub { $_[0]->quit } ], [ 'dies', sub { $_[0]->vanish } ],
	[ 'is terminated', sub { $dba->query('SELECT pg_terminate_backend(' . $_[0]->pid . ')') } ])
{
	my $holder = session($node, 'holder');
	$token = $holder->lease(q{'stock:3', scope => 'session'});
	$holder->query('BEGIN');
	$holder->lease(q{'stock:4'});
	is($redis->must('EXISTS', 'stock:3', 'stock:4'), 2, "before a session $end->[0] its locks are there");
	$end->[1]->($holder);
	is_gone($_, "a session that $end->[0] lets go of $_") foreach 'stock:3', 'stock:4';
	is_fenced($s, 3, $token, 'LF002', "and its token is over");
}

# ---- detached ----

$token = $s->lease(q{'stock:5', scope => 'detached', ttl => '20s', holder => 'job-1'});
like($value = value_of($redis, 'stock:5'), qr/\Ajob-1:[0-9a-f]{16}\z/, 'a detached lease is its holder\'s');
cmp_ok(seconds($t, "lease_fence.renew($token, '50s')"), '>', 40, 'renewed from another connection');
cmp_ok(time_left($redis, 'stock:5'), '>', 40_000, 'its lock lasts longer');
cmp_ok(seconds($t, "lease_fence.remaining($token)"), '>', 40, 'as remaining() says');
$s->query('DISCARD ALL');
is(value_of($redis, 'stock:5'), $value, 'it outlives its session');

my $asked = now();
my $again = $t->lease(q{'stock:5', scope => 'detached', ttl => '20s', holder => 'job-1'});
cmp_ok(now() - $asked, '<', 10, 'a restarted job takes its own lease back at once');
cmp_ok($again, '>', $token, 'with a new token');
like(value_of($redis, 'stock:5'), qr/\Ajob-1:[0-9a-f]{16}\z/, 'the lock is its own again');
isnt(value_of($redis, 'stock:5'), $value, 'with another value');
is_fenced($s, 5, $token, 'LF001', 'its former self is superseded');
$s->query("SELECT lease_fence.release($token)");
isnt(value_of($redis, 'stock:5'), undef, 'and cannot release what is not its own any more');
is($s->query(q{SELECT token IS NULL FROM lease_fence.try_acquire('stock:5', scope => 'detached', holder => 'job-2')}), 't',
	'another job does not get it');
is($s->query("SELECT lease_fence.release($again)"), 't', 'anybody releases it who knows the token');
is_gone('stock:5', 'and its lock');

$token = $s->lease(q{'stock:6', scope => 'session'});
is($dba->query(q{SELECT lease_fence.revoke('stock:6', 'a test')}), 't', 'a lease in Redis is revoked');
is_gone('stock:6', 'with its lock');
is_fenced($s, 6, $token, 'LF002', 'it writes no more');

# ---- a program that adopted, and its library ----

# Sees the end of the one below in the meantime.
$listener = session($node, 'listener');
$listener->query('LISTEN lease_fence');
my %notified;

# Notifications come with any answer.
sub hear
{
	my ($event, $of) = @_;
	return wait_until("$event of $of is notified", sub {
		my $text = $listener->query('SELECT 1');
		$notified{"$1 $2"} = 1 while $text =~ /"event": "(\w+)", "resource": "[^"]*", "token": (\d+)/g;
		return $notified{"$event $of"};
	});
}

foreach my $on (1, 0)
{
	my $with = $on ? 'with events' : 'without events';
	my $id = $on ? 10 : 20;
	events($on);

	# These take a third of the time that they have left when nobody tells.
	my %token = map { ($_ => adopted('stock:' . ($id + $_), 9000)) } 0 .. 5;
	my $at = now();
	$redis->must('PEXPIRE', 'stock:' . $id, 100_000);
	lock('stock:' . ($id + 1), 'me', 100_000);
	$redis->must('DEL', 'stock:' . ($id + 2));
	# in one step, or it would be seen as released in between
	$redis->must('EVAL', "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'you', 'PX', 60000)",
		1, 'stock:' . ($id + 3));
	$redis->must('SET', 'stock:' . ($id + 4), 'you', 'XX', 'PX', 60000);
	lock('elsewhere', 'you');
	$redis->must('RENAME', 'elsewhere', 'stock:' . ($id + 5));
	my $most = $on ? 2.5 : 8;

	foreach my $case ([ 2, 'released by its holder', 'released', 'LF002' ], [ 3, 'released, and taken by another', 'taken over', 'LF001' ],
		[ 4, 'overwritten by another', 'taken over', 'LF001' ], [ 5, 'renamed over by another', 'taken over', 'LF001' ])
	{
		my ($number, $what, $how, $state) = @$case;
		my ($is, $after) = end_of('stock:' . ($id + $number), $at);
		is($is, $how, "$with: $what");
		cmp_ok($after, '<', $most, "$with: $what: that is seen in time ($after s)");
		is_fenced($s, $id + $number, $token{$number}, $state, "$with: $what: $state");
		ok(hear('superseded', $token{$number}), "$with: $what: notified") if $state eq 'LF001';
	}
	foreach my $case ([ 0, 'PEXPIRE' ], [ 1, 'SET' ])
	{
		my ($number, $by) = @$case;
		wait_until("it is seen that $by prolonged a lock", sub {
			$dba->query("SELECT expires_in > '30s' FROM lease_fence.leases WHERE resource = 'stock:" . ($id + $number) . "'") eq 't' });
		is(write_as($s, $id + $number, $token{$number}), '00000', "$with: a library that renews by $by keeps its token");
	}
}
events(1);

$token = adopted('stock:30', 60000);
$redis->must(qw(GETSET stock:30 you));
is(end_of('stock:30'), 'taken over', 'overwritten by GETSET, which has no expiry');
is_fenced($s, 30, $token, 'LF001', 'the old holder is superseded');

$token = adopted('stock:31', 60000);
$redis->must(qw(PERSIST stock:31));
$t->query('SELECT lease_fence.adopt(\'stock:31\', \'me\')');
is($t->state, 'LF005', 'without expiry a lock cannot be adopted');
is_fenced($s, 31, $token, '00000', 'but who adopted it before still has it, until the deadline that is known');

$token = adopted('stock:32', 1000);
is(end_of('stock:32'), 'lapsed', 'a lock that runs out: lapsed') or note state_of($dba, 'stock:32');
is_fenced($s, 32, $token, 'LF002', 'and is over');
ok(hear('lost', $token), 'and notified as lost');

$redis->must(qw(HSET job:2 jvm:1 2));
$redis->must(qw(PEXPIRE job:2 60000));
$token = adopt($t, 'job:2', 'jvm:1');
$redis->must('EVAL', "redis.call('HINCRBY', KEYS[1], 'jvm:1', -1) return redis.call('PEXPIRE', KEYS[1], 200000)", 1, 'job:2');
wait_until('the step back is seen', sub { seconds($t, "lease_fence.remaining($token)") > 100 });
pass('a hash that was left once is still held');
$redis->must(qw(HINCRBY job:2 jvm:1 -1));
is(end_of('job:2'), 'released', 'left for good, and not deleted: released');

# An own lease, too, ends when its lock is stolen; its thief's lock stays.
$token = $s->lease(q{'brief:stolen', scope => 'session'});
lock('brief:stolen', 'thief');
is(end_of('brief:stolen'), 'taken over', 'a session whose lock was stolen has lost its lease');
is(value_of($redis, 'brief:stolen'), 'thief', 'and lets go of nothing');

# ---- lost all at once ----

events(0);
$token = adopted('stock:33', 6000);
my $own = $s->lease(q{'brief:flushed', scope => 'session'});
my $at = now();

# before all is flushed: what was begun above
is($watched->query("SELECT lease_fence.remaining($watched_token) > '0'"), 't', 'the watchdog keeps a lease of a session');
wait_until('three times its ttl has passed', sub { now() - $watched_since > 4.6 });
is(value_of($redis, 'brief:watched'), $watched_value, 'with the same lock');
is($dba->query("SELECT renewals >= 3 FROM lease_fence.leases WHERE resource = 'brief:watched'"), 't', 'renewed several times');
is($watched->query("SELECT lease_fence.remaining($in_transaction) > '0'"), 't', 'also a lease of a transaction');
is(state_of($dba, 'brief:fixed'), 'lapsed', 'one with a ttl of its own is not renewed');
is($redis->must('EXISTS', 'brief:fixed'), 0, 'nor its lock');
$fixed->query("SELECT lease_fence.renew($fixed_token)");
is($fixed->state, 'LF002', 'and cannot be prolonged any more');

lock('stock:33', 'me', 6000);
$redis->flushall;
$at = now();
my ($how, $after) = end_of('stock:33', $at);
is($how, 'released', 'flushed, which Redis tells nobody: an adopted lease is over');
cmp_ok($after, '<', 5.5, "before its time is ($after s)");
is(end_of('brief:flushed'), 'released', 'and a session\'s');
is(end_of('brief:watched'), 'released', 'and the other session\'s');
isnt($s->lease(q{'brief:flushed', scope => 'session'}), $own, 'they take it again, as a new grant');
events(1);

$token = adopted('stock:34', 60000);
$redis->config_set('maxmemory-policy', 'allkeys-random');
$redis->memory_full;
is(end_of('stock:34'), 'released', 'evicted: over');
$redis->config_set('maxmemory-policy', 'noeviction');
$redis->memory_free;
$redis->flushall;

# ---- who does nothing is not renewed for ever ----

my $idle = session($node, 'idle');
$dba->query("ALTER SYSTEM SET lease_fence.idle_limit = '1s'");
$dba->query('SELECT pg_reload_conf()');
$idle->lease(q{'brief:idle', scope => 'session'});
like(end_of('brief:idle'), qr/lapsed|released/, 'a session that does nothing loses its lease');
is_gone('brief:idle', 'and its lock');
$dba->query('ALTER SYSTEM RESET lease_fence.idle_limit');
$dba->query('SELECT pg_reload_conf()');

# ---- the worker goes, and the next one comes ----

my $worker = worker_of($dba);
$token = adopted('stock:35', 60000);
$own = $s->lease(q{'brief:kept', scope => 'session'});
$value = value_of($redis, 'brief:kept');
$dba->query("SELECT pg_terminate_backend($worker)");
wait_until('there is another worker', sub { my $new = worker_of($dba); $new =~ /^\d+$/ && $new != $worker });
my $renewals = $dba->query("SELECT renewals FROM lease_fence.leases WHERE resource = 'brief:kept'");
wait_until('the next worker renews', sub {
	$dba->query("SELECT renewals > $renewals + 2 OR state <> 'live' FROM lease_fence.leases WHERE resource = 'brief:kept'") eq 't' });
is(state_of($dba, 'brief:kept'), 'live', 'a session\'s lease outlives the worker');
is(value_of($redis, 'brief:kept'), $value, 'with its lock');
is_fenced($s, 35, $token, '00000', 'and an adopted one');
$redis->must('DEL', 'stock:35');
($how, $after) = end_of('stock:35', now());
is($how, 'released', 'which the next worker watches');
cmp_ok($after, '<', 10, 'as the one before did');
$s->query("SELECT lease_fence.release($own)");
is_gone('brief:kept', 'and the lock of the session\'s is released by it');

# Redis is another one when the next worker comes: also if somebody has put back
# a lock of the same name and bytes.
$token = adopted('stock:36', 300_000);
$own = $s->lease(q{'stock:37', scope => 'session'});
$value = value_of($redis, 'stock:37');
$worker = worker_of($dba);
kill 'STOP', $worker;
$redis->restart;
lock('stock:36', 'me', 300_000);
lock('stock:37', $value, 300_000);
$node->safe_psql('template1', "SELECT pg_terminate_backend($worker)");
kill 'CONT', $worker;
is(end_of('stock:36'), 'lapsed', 'after a restart of Redis that no worker saw an adopted lease has lapsed');
is(end_of('stock:37'), 'lapsed', 'and a session\'s');
isnt(worker_of($dba), $worker, 'as the next worker finds out');
is_fenced($s, 36, $token, 'LF002', 'they write no more');
cmp_ok(adopt($t, 'stock:36', 'me'), '>', $token, 'and can be adopted anew');

# ---- a crash ----

foreach my $crash ([ 'a backend', sub { $_[0]->pid } ], [ 'the worker', sub { worker_of($_[0]) } ])
{
	my ($who, $victim) = @$crash;
	$redis->flushall;
	$token = adopted('stock:38', 60000);
	$own = $s->lease(q{'brief:crash', scope => 'session'});
	my $detached = $t->lease(q{'stock:39', scope => 'detached', ttl => '60s', holder => 'job'});
	my $pid = $victim->($t);
	kill 'KILL', $pid;
	$_->quit foreach $s, $t, $dba;
	$node->poll_query_until('postgres', "SELECT worker = 'running'"
		  . " AND epoch_confirmed AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)"
		  . " FROM lease_fence.worker_status LIMIT 1");
	open_sessions();
	is_fenced($s, 38, $token, 'LF002', "after a crash of $who an adopted lease is over");
	is_fenced($s, 39, $detached, 'LF002', 'and a detached one');
	isnt($s->query("SELECT lease_fence.remaining($own) IS NULL"), 'f', "and a session's");
	cmp_ok(adopt($t, 'stock:38', 'me'), '>', $token, 'whose holder adopts again');
	is(value_of($redis, 'stock:39') =~ /\Ajob:/, 1, 'the locks run on until their time is over');
	like($s->lease(q{'brief:crash', scope => 'session', wait => '60s'}), qr/^\d+$/, 'then they are free');
	$s->query('DISCARD ALL');
}

$node->stop;
done_testing();
