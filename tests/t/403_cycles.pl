# Who waits in a circle hears of it, with 40P01, whether the circle leads through
# leases, row locks or both; and acquire_all takes all or none, in one order.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use LeaseSessions qw(lease_node wait_until now);

my $node = lease_node('cycles', "deadlock_timeout = '300ms'");
my $dba = LeaseSessions->new($node, name => 'dba');

$dba->query('CREATE TABLE plain (id int PRIMARY KEY, n int)');
$dba->query('INSERT INTO plain SELECT g, 0 FROM generate_series(1, 9) g');

sub wait_for
{
	my ($what, $query) = @_;
	wait_until($what, sub { $dba->query($query) eq 't' });
}

# These sessions each have an open statement: one of them fails with 40P01 and
# ends its transaction, then the others get what they waited for.
sub is_broken
{
	my ($what, @sessions) = @_;
	my $begun = now();
	my @failed;

	while (my @open = grep { $_->busy } @sessions)
	{
		wait_until("$what: one of them is answered",
			sub { grep { !$_->busy } @open });
		for my $s (grep { !$_->busy } @open)
		{
			push @failed, $s->state if $s->state ne '00000';
			$s->query('ROLLBACK; DISCARD ALL');
		}
	}
	for my $s (@sessions) { $s->query('ROLLBACK; DISCARD ALL') }
	is("@failed", '40P01', "$what: one fails with 40P01, the others go on");
	cmp_ok(now() - $begun, '<', 20, "$what: found after deadlock_timeout");
}

sub acquire
{
	my ($resource, $scope) = @_;
	return "SELECT token FROM lease_fence.acquire('$resource', wait => '100s', scope => '"
	  . ($scope // 'transaction') . "')";
}

my @s = map { LeaseSessions->new($node, name => "s$_") } 0 .. 2;

# SQLSTATE is that of the last statement: BEGIN alone, the waiting one alone.
sub begin_all { $_->query('BEGIN') for @_ }

begin_all(@s[0, 1]);
$s[0]->lease(q{'a'});
$s[1]->lease(q{'b'});
$s[0]->send(acquire('b'));
$s[1]->send(acquire('a'));
is_broken('two leases', @s[0, 1]);

$s[0]->lease(q{'a', scope => 'session'});
$s[1]->lease(q{'b', scope => 'session'});
$s[0]->send(acquire('b', 'session'));
$s[1]->send(acquire('a', 'session'));
is_broken('two leases of sessions', @s[0, 1]);

begin_all(@s[0, 1]);
$s[0]->lease(q{'a'});
$s[1]->query('UPDATE plain SET n = 1 WHERE id = 1');
$s[0]->send('UPDATE plain SET n = 1 WHERE id = 1');
wait_for('it waits for the row', q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = } . $s[0]->pid);
$s[1]->send(acquire('a'));
is_broken('a lease and a row lock', @s[0, 1]);

begin_all(@s[0, 1]);
$s[0]->lease(q{'a'});
$s[1]->query('UPDATE plain SET n = 1 WHERE id = 1');
$s[1]->send(acquire('a'));
wait_for('it waits for the lease', q{SELECT waiters = 1 FROM lease_fence.leases WHERE resource = 'a'});
$s[0]->send('UPDATE plain SET n = 1 WHERE id = 1');
is_broken('a row lock and a lease', @s[0, 1]);

begin_all(@s);
$s[$_]->lease("'$_'") for 0 .. 2;
$s[0]->send(acquire('1'));
$s[1]->send(acquire('2'));
$s[2]->send(acquire('0'));
is_broken('three parties', @s);

begin_all(@s);
$s[0]->lease(q{'a'});
$s[1]->lease(q{'b'});
$s[2]->query('UPDATE plain SET n = 1 WHERE id = 1');
$s[0]->send(acquire('b'));
$s[1]->send('UPDATE plain SET n = 1 WHERE id = 1');
wait_for('it waits for the row', q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = } . $s[1]->pid);
$s[2]->send(acquire('a'));
is_broken('three parties, leases and a row lock', @s);

# behind writers, who wait for a row lock of who asks
$dba->query('CREATE TABLE stock (id int PRIMARY KEY, n int)');
$dba->query('INSERT INTO stock VALUES (1, 0), (2, 0)');
$dba->query(q{SELECT lease_fence.protect('stock', 'stock:{id}')});
begin_all(@s[0, 1]);
my $token = $s[0]->lease(q{'stock:1', ttl => '10min'});
$s[0]->query('UPDATE stock SET n = n + 1 WHERE id = 1');
$s[0]->query("SELECT lease_fence.release($token)");
$s[1]->query('UPDATE plain SET n = 1 WHERE id = 2');
$s[0]->send('UPDATE plain SET n = 1 WHERE id = 2');
wait_for('it waits for the row', q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = } . $s[0]->pid);
$s[1]->send(acquire('stock:1'));
is_broken('behind a writer who waits for a row lock', @s[0, 1]);

# alone: another holder's name is another holder
$s[0]->query('BEGIN');
$s[0]->lease(q{'a', holder => 'one'});
$s[0]->query(q{SELECT lease_fence.acquire('a', wait => '100s', holder => 'two')});
is($s[0]->state, '40P01', 'a session that waits for itself under another name: 40P01');
$s[0]->query('ROLLBACK');

# no cycle: a wait for somebody who goes on
$s[0]->lease(q{'a', scope => 'session'});
$s[1]->send(acquire('a', 'session'));
$dba->query('SELECT pg_sleep(0.7)');
ok($s[1]->busy, 'a wait longer than deadlock_timeout is no cycle');
$s[0]->query('DISCARD ALL');
$s[1]->answer;
is($s[1]->state, '00000', 'and ends with the lease');
$s[1]->query('DISCARD ALL');

# ---- acquire_all ----

# opposite orders, many times, side by side
for my $i (0, 1)
{
	my $names = $i ? '{z,y,x,w}' : '{w,x,y,z}';
	$s[$i]->send(
		qq{DO \$\$ BEGIN FOR i IN 1..50 LOOP
			PERFORM lease_fence.acquire_all('$names', wait => '100s', scope => 'session');
			PERFORM lease_fence.release(token) FROM lease_fence.leases
				WHERE pid = pg_backend_pid() AND state = 'live';
		END LOOP; END \$\$});
}
$_->answer for @s[0, 1];
is($s[0]->state . ' ' . $s[1]->state, '00000 00000',
	'acquire_all in opposite orders: no cycle in 100 times');

is($s[0]->query(
		q{SELECT string_agg(resource, ' ' ORDER BY ordinality), count(DISTINCT token), bool_and(token > before)
		  FROM (SELECT resource, token, ordinality, lag(token, 1, 0::bigint) OVER (ORDER BY ordinality) AS before
				FROM lease_fence.acquire_all('{b,a,B,é,a,b,aa}', scope => 'session') WITH ORDINALITY) x}),
	'B a aa b é|5|t', 'acquire_all: distinct names in byte order, a token each, growing');
is($s[0]->query(
		q{SELECT count(*), count(DISTINCT xmin::text), count(DISTINCT granted_at) > 0 FROM lease_fence.grants
		  WHERE resource IN ('B', 'a', 'aa', 'b', 'é') AND token >= (SELECT min(token) FROM lease_fence.leases
			WHERE state = 'live' AND pid = pg_backend_pid())}),
	'5|1|t', 'acquire_all: one transaction of the worker for all');

# re-entered ones keep their token, the others are new
my $before = $s[0]->query(q{SELECT token FROM lease_fence.leases WHERE resource = 'a'});
is($s[0]->query(
		qq{SELECT string_agg(resource || ' ' || (token = $before), ', ')
		   FROM lease_fence.acquire_all('{a,c}', scope => 'session')}),
	'a true, c false', 'acquire_all: what is held already keeps its token');
$s[0]->query("SELECT lease_fence.release($before)");
is($s[0]->query(qq{SELECT lease_fence.remaining($before) IS NOT NULL}), 't',
	'acquired twice, released once: still held');
$s[0]->query("SELECT lease_fence.release($before)");
is($s[0]->query(qq{SELECT lease_fence.remaining($before) IS NULL}), 't', 'released twice: over');
$s[0]->query('DISCARD ALL');

# all or none
my $other = $s[1]->lease(q{'m', scope => 'session'});
my $text = $s[0]->query(q{SELECT lease_fence.acquire_all('{l,m,n}', wait => '200ms', scope => 'session')});
is($s[0]->state, '55P03', 'acquire_all: one of them is not to be had: 55P03');
is($dba->query(q{SELECT string_agg(resource, ' ') FROM lease_fence.leases WHERE state = 'live'}),
	'm', 'and none is taken');
like($s[2]->query(q{SELECT token FROM lease_fence.try_acquire('l', scope => 'session')}), qr/^\d+$/,
	'the others are to be had at once');
$s[2]->query('DISCARD ALL');

# what was re-entered is given back, in the scope in which it was taken
$s[0]->query('BEGIN');
my $inside = $s[0]->lease(q{'k'});
$s[0]->query('SAVEPOINT s');
$s[0]->query(q{SELECT lease_fence.acquire_all('{k,m}', wait => '0', scope => 'session')});
is($s[0]->state, '55P03', 'acquire_all, partly held: 55P03');
$s[0]->query('ROLLBACK TO s');
is($s[0]->query("SELECT lease_fence.remaining($inside) IS NOT NULL"), 't',
	'what was held before is held still');
$s[0]->query('COMMIT');
is($dba->query("SELECT lease_fence.remaining($inside) IS NULL"), 't',
	'and ends with its transaction: its count of scope session was given back');

$s[0]->lease(q{'k', scope => 'session'});
$s[0]->query('BEGIN');
my $outside = $s[0]->lease(q{'k'});
$s[0]->query('SAVEPOINT s');
$s[0]->query(q{SELECT lease_fence.acquire_all('{k,m}', wait => '0', scope => 'session')});
$s[0]->query('ROLLBACK TO s');
$s[0]->query("SELECT lease_fence.release($outside)");
is($s[0]->query("SELECT lease_fence.remaining($outside) IS NOT NULL"), 't', 'counts stay right: 2 - 1');
$s[0]->query("SELECT lease_fence.release($outside)");
is($s[0]->query("SELECT lease_fence.remaining($outside) IS NULL"), 't', 'counts stay right: 2 - 2');
$s[0]->query('COMMIT');

# waits its turn for one, while it keeps the others
$s[0]->send(q{SELECT count(token) FROM lease_fence.acquire_all('{l,m,n}', wait => '100s', scope => 'session')});
wait_for('it is in the queue', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid = } . $s[0]->pid);
is($s[2]->query(q{SELECT token IS NULL FROM lease_fence.try_acquire('l', scope => 'session')}), 't',
	'acquire_all keeps for itself what it came to, while it waits for the rest');
$s[1]->query("SELECT lease_fence.release($other)");
is($s[0]->answer, '3', 'and gets all when the last one is free');
$s[0]->query('DISCARD ALL');

$_->quit for @s, $dba;
$node->stop;
done_testing();
