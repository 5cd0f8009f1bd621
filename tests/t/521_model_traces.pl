# The runs by which models of the protocol broke designs that looked right, played
# with a real Redis.  Stopping the worker at a point needs a build with test points
# (lease_fence.test_point); without one only those traces are left out.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseSessions qw(wait_until has_points);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedisProxy;
use RedisServer;
use RemoteLocks;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $node = lock_node('model_traces', 'restart_after_crash = on', "lease_fence.drain_timeout = '2min'",
	"lease_fence.audit_timeout = '100ms'");
my $redis = RedisServer->new;
my $proxy = RedisProxy->new($redis->port);

add_server('s', $redis->port, options => "set_events 'on'");
add_server('far', $proxy->port, options => "command_timeout '60s'");
ask("SELECT lease_fence.add_profile(name => 'blind', prefix => 'blind:', servers => '{s}', watch => false)");
redis('SET', 's:first', 'a', 'PX', 60000);
wait_until('the worker is there', sub { adopt('s:first', 'a') =~ /^\d+$/ });
redis('DEL', 's:first');
await_over(adopt_last('s:first'));

sub redis { return $redis->must(@_); }

sub adopt_last { return ask("SELECT max(token) FROM lease_fence.grants WHERE resource = " . quote($_[0])); }

sub grants_of { return ask("SELECT count(*) FROM lease_fence.grants WHERE resource = " . quote($_[0])); }

sub n_of { return ask("SELECT n FROM work WHERE name = " . quote($_[0])); }

# Scripts that Redis has run.
sub scripts { return $redis->cli('INFO', 'commandstats') =~ /cmdstat_evalsha:calls=(\d+)/ ? $1 : 0; }

sub session { return LeaseSessions->new($node); }

# Runs statements that must succeed; the last one's answer.
sub must
{
	my ($session, @statements) = @_;
	my $answer;
	foreach my $statement (@statements)
	{
		$answer = $session->query($statement);
		die "$statement: $answer" unless $session->state eq '00000';
	}
	return $answer;
}

# Until that session waits for the transactions of writers under an older grant.
sub await_drain
{
	my ($session) = @_;
	my $pid = $session->pid;
	return wait_until('the adoption waits for a transaction', sub {
		ask("SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $pid") eq 't'
	});
}

# ---- the worker dies between seeing a takeover and minting for who took over ----

sub set_point
{
	my ($value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET lease_fence.test_point = '$value'");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
	$node->poll_query_until('postgres', "SELECT current_setting('lease_fence.test_point') = '$value'") or die;
	return;
}

sub die_at_point
{
	my ($point, $how) = @_;
	my $what = "the worker dies at $point by $how";
	my $r = resource('s');
	redis('SET', $r, 'a', 'PX', 60000);
	my $a = adopt($r, 'a');
	my $worker = worker_pid();
	my $offset = -s $node->logfile;
	my $asker = session();

	set_point("$point=" . ($how eq 'terminate' ? 'wait' : $how));
	redis('SET', $r, 'b', 'XX', 'PX', 60000);
	$asker->send(adopting($r, 'b')) if $point =~ /^mint/;
	if ($how eq 'terminate')
	{
		$node->wait_for_log(qr/process $worker waits at point $point/, $offset);
		is(write_under($r, $a), 'LF001', "$what: the old token is refused already") if $point ne 'look-answered';
		ask("SELECT pg_terminate_backend($worker)");
	}
	elsif ($how eq 'kill')
	{
		$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
		reconnect();
	}
	wait_until('the worker is gone', sub { ask("SELECT count(*) FROM pg_stat_activity WHERE pid = $worker") == 0 });
	set_point('');
	$asker->answer;
	$asker->quit;

	await_over($a);
	like(write_under($r, $a), $how eq 'kill' ? qr/^LF00[12]$/ : qr/^LF001$/, "$what: the old token is refused under the next one");
	my $b;
	wait_until('who took over adopts', sub { ($b = adopt($r, 'b')) =~ /^\d+$/ });
	is_growing($what, $a, $b);
	is(write_under($r, $a), 'LF001', "$what: and superseded when it has");
	is(write_under($r, $b), '', "$what: who took over writes");
	redis('DEL', $r);
	await_over($b);
	return;
}

SKIP:
{
	skip 'not a build with test points', 1 unless has_points($node);
	foreach my $point (qw(look-answered loss-noted mint-begun mint-committed))
	{
		die_at_point($point, $_) foreach qw(terminate exit);
	}
	die_at_point('loss-noted', 'kill');
}

# ---- two threads of one process, with equal bytes, and unlock before COMMIT ----

# With events and without.
foreach my $profile (qw(s blind))
{
	my $what = "equal bytes, unlocked before COMMIT ($profile)";
	my $r = resource($profile);
	my ($first, $second) = (session(), session());

	redis('SET', $r, 'jvm', 'NX', 'PX', 60000);
	my $t1 = must($first, 'BEGIN', adopting($r, 'jvm'));
	is(must($first, "SELECT n FROM work WHERE name = '$r'"), '0', "$what: thread 1 reads");
	must($first, writing($r, 1));
	redis('DEL', $r);
	is(redis('SET', $r, 'jvm', 'NX', 'PX', 60000), 'OK', "$what: thread 2 has the lock, in the same name");

	must($second, 'BEGIN');
	my $before = must($second, "SELECT n FROM work WHERE name = '$r'");
	$second->send(adopting($r, 'jvm'));
	await_drain($second);
	is(grants_of($r), '1', "$what: no token for thread 2 while thread 1 has not committed");
	like(ask_for("SELECT lease_fence.present($t1)"), qr/^LF00[12]$/, "$what: thread 1's token begins nothing new");
	must($first, 'COMMIT');

	my $t2 = $second->answer;
	is_growing($what, $t1, $t2);
	is(must($second, "SELECT n FROM work WHERE name = '$r'"), '1', "$what: thread 2 reads after adopt what thread 1 wrote");
	must($second, writing($r, 2), 'COMMIT');
	is(n_of($r), '2', "$what: no update is lost");

	# The limit that every recipe names: what is read before adopt may be old.
	is($before, '0', "$what: what thread 2 had read before adopt was old");
	$_->quit foreach $first, $second;
}

# A limit, not a promise: who reads, adopts, and writes what it made of what it
# had read.  The fence cannot know; adopt first refuses to help under the
# isolation levels that would make it certain.
{
	my $what = 'read before adopt';
	my $r = resource('s');
	my ($first, $second) = (session(), session());

	redis('SET', $r, 'a', 'NX', 'PX', 60000);
	must($first, 'BEGIN', adopting($r, 'a'), writing($r, 1));
	must($second, 'BEGIN');
	my $n = must($second, "SELECT n FROM work WHERE name = '$r'");
	redis('SET', $r, 'b', 'XX', 'PX', 60000);
	$second->send(adopting($r, 'b'));
	await_drain($second);
	must($first, 'COMMIT');
	$second->answer;
	must($second, writing($r, $n + 1), 'COMMIT');
	is(n_of($r), '1', "$what: computed from the older value, as documented");

	must($second, 'BEGIN ISOLATION LEVEL REPEATABLE READ', "SELECT n FROM work WHERE name = '$r'");
	$second->query(adopting($r, 'b'));
	is($second->state, '25001', "$what: where that would always be so, adopt refuses");
	$_->quit foreach $first, $second;
}

# ---- an event that belongs to an older lease ----

{
	my $what = 'a late event';
	ask("SELECT lease_fence.add_profile(name => 'h', prefix => 'h:', servers => '{s}', shape => 'redisson')");
	my $r = resource('h');
	redis('HSET', $r, 'a', 1);
	redis('PEXPIRE', $r, 60000);
	my $a = adopt($r, 'a');
	redis('DEL', $r);
	redis('HSET', $r, 'a', 1);
	redis('PEXPIRE', $r, 60000);
	my $b = adopt($r, 'a');
	is_growing($what, $a, $b);
	foreach my $late ([ "__keyspace\@0__:$r", 'del' ], [ "__keyspace\@0__:$r", 'expired' ],
		[ "redisson_lock__channel:{$r}", '0' ])
	{
		wait_until('Redis is left alone', sub { my $n = scripts(); select(undef, undef, undef, 0.1); $n == scripts() });
		my $n = scripts();
		cmp_ok(redis('PUBLISH', @$late), '>', 0, "$what: somebody listens to $late->[0]");
		wait_until('it was looked at, or is over', sub { scripts() > $n || !is_live($b) });
		ok(is_live($b), "$what: $late->[1] proves nothing");
		is(write_under($r, $b), '', "$what: the newer lease writes on");
	}
	is(write_under($r, $a), 'LF001', "$what: the older one does not");
	is(grants_of($r), '2', "$what: and nothing was minted for it");
}

# ---- a release that is stuck in a broken connection ----

{
	my $what = 'a release in flight on a broken connection';
	my $r = resource('far');
	my $holder = session();
	my $acquire = "SELECT token FROM lease_fence.acquire(resource => '$r', ttl => '5min', scope => 'session')";

	must($holder, "SELECT lease_fence.release(" . must($holder, $acquire) . ")");	# so that Redis knows the script
	my $t1 = must($holder, $acquire);
	my $value = redis('GET', $r);
	$proxy->hold;
	is(must($holder, "SELECT lease_fence.release($t1)"), 't', "$what: it is released here");
	wait_until('it waits for its answer', sub { $proxy->holds('EVALSHA') });
	is(redis('GET', $r), $value, "$what: and is on its way to Redis");

	# The worker goes another way, as after a failover of the network.
	ask("ALTER SERVER far OPTIONS (SET port '" . $redis->port . "')");
	my $t2;
	wait_until('the session has its next lease', sub { ($t2 = $holder->query($acquire)) =~ /^\d+$/ });
	is_growing($what, $t1, $t2);
	my $next = redis('GET', $r);
	isnt($next, $value, "$what: the next lease has a value of its own");

	my $before = scripts();
	$proxy->resume;
	wait_until('the release arrives', sub { scripts() > $before });
	is(redis('GET', $r), $next, "$what: it does not touch the next lease");
	is(must($holder, "SELECT lease_fence.remaining($t2) IS NOT NULL"), 't', "$what: which is live");
	must($holder, writing($r, 1));
	is(n_of($r), '1', "$what: and writes");
	$holder->quit;
	wait_until('the lease ends with its session', sub { !redis('EXISTS', $r) });
	ask("ALTER SERVER far OPTIONS (SET port '" . $proxy->port . "')");
}

# ---- answers that come late ----

# To an acquire whose client gave up.
{
	my $what = 'an answer to who gave up';
	my $r = resource('far');
	my $acquire = "SELECT token FROM lease_fence.acquire(resource => '$r', scope => 'detached', ttl => '5min', wait => '500ms')";

	wait_until('the proxy is in use again', sub { adopt($r, 'a') eq 'LF005' });
	$proxy->hold;
	is(ask_for($acquire), '55P03', "$what: the wait is over");
	my $before = scripts();
	$proxy->resume;
	wait_until('it was taken and given back', sub { scripts() >= $before + 2 && !redis('EXISTS', $r) });
	is(grants_of($r), '0', "$what: it never was a grant");
	like(ask_for($acquire), qr/^\d+$/, "$what: the next one has it at once");
}

# The same, while another session asks for something else: it is not its answer.
{
	my $what = 'an answer to who gave up, while another one asks';
	my ($r, $taken) = (resource('far'), resource('far'));
	my $other = session();

	redis('SET', $taken, 'somebody', 'PX', 60000);
	$proxy->hold;
	is(ask_for("SELECT token FROM lease_fence.acquire(resource => '$r', scope => 'detached', ttl => '5min', wait => '500ms')"),
		'55P03', "$what: the wait is over");
	$other->send("SELECT token FROM lease_fence.acquire(resource => '$taken', scope => 'detached', ttl => '5min', wait => '2s')");
	wait_until('both are on their way', sub { status('far', 'queue') > 1 });
	$proxy->resume;
	$other->answer;
	is($other->state, '55P03', "$what: it has nothing of it");
	is(grants_of($taken), '0', "$what: nothing was minted");
	is(redis('GET', $taken), 'somebody', "$what: its lock is whose it was");
	ok(wait_until('it was given back', sub { !redis('EXISTS', $r) }), "$what: what was taken is given back");
	$other->quit;
}

# To a renewal: not known is not renewed.
{
	my $what = 'a renewal without an answer';
	my $r = resource('far');
	my $token = ask("SELECT token FROM lease_fence.acquire(resource => '$r', scope => 'detached', ttl => '30s')");
	my $asker = session();

	$proxy->lose;
	$asker->send("SELECT lease_fence.renew($token, '5min')");
	wait_until('it is on its way', sub { status('far', 'queue') > 0 });
	$proxy->cut;
	$asker->answer;
	is($asker->state, 'LF020', "$what: who asked is told so");
	ok(ask("SELECT lease_fence.remaining($token) <= '30s'") eq 't', "$what: and it lasts no longer for it");
	$proxy->resume;
	$asker->quit;
	await_status('far', 'connected');
}

# To an adoption: what counts is when it was asked.
{
	my $what = 'a slow answer';
	my $r = resource('far');
	$proxy->delay(600);
	redis('SET', $r, 'a', 'PX', 8000);
	my $ms = ask("SELECT extract(epoch FROM expires_in) * 1000 FROM lease_fence.adopt(resource => '$r', holder => 'a')");
	my $left = redis('PTTL', $r);
	$proxy->delay(0);
	cmp_ok($ms, '<', $left, "$what: the lease ends before the lock does");
	cmp_ok($ms, '>', $left - 5000, "$what: but not by far");
}

# To a look: it was asked before the deadline and comes after it.
{
	my $what = 'an answer after the deadline';
	my $r = resource('far');
	redis('SET', $r, 'a', 'PX', 3000);
	my $a = adopt($r, 'a');
	$proxy->hold;
	redis('PEXPIRE', $r, 60000);
	await_over($a);
	is(write_under($r, $a), 'LF002', "$what: the deadline has passed");
	my $before = ask('SELECT clock_timestamp()');
	$proxy->resume;
	await_status('far', "last_success > '$before'");
	ok(!is_live($a), "$what: it ends the lease, though its holder has the lock");
	is(write_under($r, $a), 'LF002', "$what: its token does not come back to life");
	is(adopt($r, 'a', $a), 'LF001', "$what: nor is it extended");
	is_growing($what, $a, adopt($r, 'a'));
}

# The same, and the worker itself sees the answer before it sees that the time is over.
{
	my $what = 'an answer after the deadline, to a worker that was stopped';
	my $r = resource('far');
	redis('SET', $r, 'a', 'PX', 3000);
	my $a = adopt($r, 'a');
	my $worker = worker_pid();
	$proxy->hold;
	wait_until('it is looked at', sub { $proxy->holds('EVALSHA') });
	kill 'STOP', $worker;
	redis('PEXPIRE', $r, 60000);
	my $before = scripts();
	$proxy->resume;
	wait_until('Redis has answered', sub { scripts() > $before });
	await_over($a);
	my $then = ask('SELECT clock_timestamp()');
	kill 'CONT', $worker;
	await_status('far', "last_success > '$then'");
	ok(!is_live($a), "$what: it does not revive the lease");
	is(write_under($r, $a), 'LF002', "$what: nor its token");
}

# ---- a lock that is lost while its grant waits for older writers ----

foreach my $profile (qw(s blind))
{
	my $what = "lost while older writers are waited for ($profile)";
	my $r = resource($profile);
	my ($first, $second) = (session(), session());

	redis('SET', $r, 'a', 'NX', 'PX', 60000);
	my $a = must($first, 'BEGIN', adopting($r, 'a'));
	must($first, writing($r, 1));
	redis('SET', $r, 'b', 'XX', 'PX', 60000);
	$second->send(adopting($r, 'b'));
	await_drain($second);
	redis('SET', $r, 'c', 'XX', 'PX', 60000);
	must($first, 'COMMIT');
	like($second->answer, qr/Another holder has the lock/, "$what: it is told so");
	is($second->state, 'LF005', "$what: and has no grant");
	is(grants_of($r), '1', "$what: nothing was minted");
	is(write_under($r, $a), 'LF001', "$what: the older token stays dead");
	is_growing($what, $a, adopt($r, 'c'));
	is(n_of($r), '1', "$what: what was committed is there");
	$_->quit foreach $first, $second;
}

unlike(slurp_file($node->logfile), qr/PANIC|TRAP/, 'nothing crashed but what was killed');
done_testing();
