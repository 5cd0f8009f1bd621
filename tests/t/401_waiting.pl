# Who waits for a lease gets it in the order of asking, at once when it is free,
# and hears who is in the way when the wait runs out.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use LeaseSessions qw(lease_node wait_until now has_points);

my $node = lease_node('waiting', "deadlock_timeout = '10s'");
my $dba = LeaseSessions->new($node, name => 'dba');

$dba->query('CREATE TABLE stock (id int PRIMARY KEY, n int)');
$dba->query(q{SELECT lease_fence.protect('stock', 'stock:{id}')});
$dba->query(q{SELECT lease_fence.set_mode('stock', 'off')});
$dba->query('INSERT INTO stock SELECT g, 0 FROM generate_series(1, 5) g');
$dba->query(q{SELECT lease_fence.set_mode('stock', 'enforce')});

sub waiters
{
	my ($resource) = @_;
	return $dba->query(
		"SELECT waiters FROM lease_fence.leases WHERE resource = '$resource'");
}

sub wait_for_waiters
{
	my ($resource, $count) = @_;
	wait_until("$count wait for $resource",
		sub { waiters($resource) eq $count });
}

# ---- first come, first served ----
{
	my $holder = LeaseSessions->new($node);
	my @waiter = map { LeaseSessions->new($node, name => "w$_") } 0 .. 9;

	# not the order of the backends
	my @order = (3, 8, 0, 5, 9, 1, 7, 2, 6, 4);

	my $first = $holder->lease(q{'queue', scope => 'session'});
	my $n = 0;
	for my $i (@order)
	{
		$waiter[$i]->send(
			"SELECT token FROM lease_fence.acquire('queue', wait => '100s', scope => 'session', holder => 'w$i')"
		);
		wait_for_waiters('queue', ++$n);
	}
	# each of them wakes up for a moment now and then
	wait_until('ten sessions wait', sub {
		$dba->query(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'
					  AND application_name LIKE 'w_'}) eq '10' });
	pass('pg_stat_activity shows that ten sessions wait');

	my $asked = $node->safe_psql('postgres',
		q{SELECT token IS NULL, retry_after > '0s' FROM lease_fence.try_acquire('queue', scope => 'detached')});
	is($asked, 't|t', 'try_acquire behind a queue: no token, and when to come again');

	$holder->query("SELECT lease_fence.release($first)");
	my @tokens;
	for my $i (@order)
	{
		my $token = $waiter[$i]->answer;
		push @tokens, $token;
		$waiter[$i]->query("SELECT lease_fence.release($token)");
	}
	is($dba->query(
			q{SELECT string_agg(convert_from(holder, 'UTF8'), ' ' ORDER BY token) FROM lease_fence.grants
			  WHERE resource = 'queue' AND holder LIKE 'w%'}),
		join(' ', map { "w$_" } @order),
		'ten waiters: the order of grants is the order of asking');
	is_deeply(\@tokens, [ sort { $a <=> $b } @tokens ], 'their tokens grow');
	$_->quit for @waiter, $holder;
}

# A lease that is given back while the worker goes through the queue, just after
# it has looked at the first in it, is not for the second.
SKIP:
{
	skip 'a build without test points', 1 unless has_points($node);
	my $holder = LeaseSessions->new($node);
	my @waiter = map { LeaseSessions->new($node) } 0 .. 1;

	my $held = $holder->lease(q{'overtaken', scope => 'session'});
	for my $i (0 .. 1)
	{
		$waiter[$i]->send(
			"SELECT token FROM lease_fence.acquire('overtaken', wait => '60s', scope => 'session')");
		wait_for_waiters('overtaken', $i + 1);
	}
	my $from = -s $node->logfile;
	$node->append_conf('postgresql.conf', "lease_fence.test_point = 'request-waits=wait'");
	$node->reload;
	$node->wait_for_log(qr/waits at point request-waits/, $from);
	$holder->query("SELECT lease_fence.release($held)");
	$node->append_conf('postgresql.conf', "lease_fence.test_point = ''");
	$node->reload;
	wait_until('one of them has it', sub { !$waiter[0]->busy || !$waiter[1]->busy });
	ok(!$waiter[0]->busy, 'nobody is overtaken when a lease is given back in the middle of a pass');
	$_->quit for $holder, @waiter;
}

# ---- woken up at once ----
# A tick of the worker is one second: what takes less than half of it at every
# one of several tries was woken up.  How often, out of five, is counted.
sub takes_at_once
{
	my ($what, $take, $end) = @_;
	my $fast = 0;

	for my $round (1 .. 4)
	{
		my $holder = LeaseSessions->new($node);
		my $waiter = LeaseSessions->new($node);
		$take->($holder);
		$waiter->send(
			q{SELECT token FROM lease_fence.acquire('wake', wait => '60s', scope => 'detached', ttl => '1h')});
		wait_for_waiters('wake', 1);

		my $begun = now();
		$end->($holder);
		my $token = $waiter->answer;
		my $taken = now() - $begun;
		$fast++ if $taken < 0.4;
		like($token, qr/^\d+$/, "$what: the waiter got it") if $round == 1;
		$dba->query("SELECT lease_fence.release($token)");
		$_->quit for $waiter, $holder;
	}
	cmp_ok($fast, '>=', 3, "$what: at once, not at the next tick");
}

my $token;
my $in_session = sub { $token = $_[0]->lease(q{'wake', scope => 'session'}) };
my $in_transaction = sub { $_[0]->query('BEGIN'); $_[0]->lease(q{'wake'}) };

takes_at_once('release', $in_session, sub { $_[0]->query("SELECT lease_fence.release($token)") });
takes_at_once('release from elsewhere',
	sub { $token = $_[0]->lease(q{'wake', scope => 'detached', ttl => '1h'}) },
	sub { $dba->query("SELECT lease_fence.release($token)") });
takes_at_once('commit', $in_transaction, sub { $_[0]->query('COMMIT') });
takes_at_once('rollback', $in_transaction, sub { $_[0]->query('ROLLBACK') });
takes_at_once('commit of a writer',
	sub {
		$_[0]->query('BEGIN');
		$_[0]->lease(q{'stock:1'});
		$_[0]->query('UPDATE stock SET n = n + 1 WHERE id = 1');
		$_[0]->lease(q{'wake'});
	},
	sub { $_[0]->query('COMMIT') });
takes_at_once('disconnect', $in_session, sub { $_[0]->quit });
takes_at_once('disconnect in a transaction', $in_transaction, sub { $_[0]->vanish });
takes_at_once('pg_terminate_backend', $in_transaction,
	sub { $dba->query('SELECT pg_terminate_backend(' . $_[0]->pid . ')') });
takes_at_once('DISCARD ALL', $in_session, sub { $_[0]->query('DISCARD ALL') });
takes_at_once('revoke', $in_session,
	sub { $dba->query(q{SELECT lease_fence.revoke('wake')}) });

# A ttl that ends between two ticks.
{
	my $fast = 0;
	for my $round (1 .. 4)
	{
		my $holder = LeaseSessions->new($node);
		my $waiter = LeaseSessions->new($node);
		$holder->lease(q{'lapse', ttl => '300ms', scope => 'session'});
		$waiter->send(
			q{SELECT token FROM lease_fence.acquire('lapse', wait => '60s', scope => 'session')});
		my $begun = now();
		like($waiter->answer, qr/^\d+$/, 'a fixed ttl lapses: the waiter gets it') if $round == 1;
		$waiter->answer;
		$fast++ if now() - $begun < 0.7;
		$_->quit for $holder, $waiter;
	}
	cmp_ok($fast, '>=', 3, 'a fixed ttl lapses: the waiter gets it then, not at the next tick');
}

# 200 hand-overs between two sessions: at a tick each they would take minutes.
{
	my @player = map { LeaseSessions->new($node, name => "p$_") } 0 .. 1;
	my $begun = now();
	for my $s (@player)
	{
		$s->send(
			q{DO $$ DECLARE t bigint; BEGIN
				FOR i IN 1..100 LOOP
					SELECT token INTO t FROM lease_fence.acquire('ball', wait => '60s', scope => 'session');
					PERFORM lease_fence.release(t);
				END LOOP;
			END $$});
	}
	$_->answer for @player;
	cmp_ok(now() - $begun, '<', 30, '200 hand-overs take seconds');
	is($dba->query(q{SELECT count(*), count(DISTINCT token) FROM lease_fence.grants WHERE resource = 'ball'}),
		'200|200', 'each of them is a grant of its own');
	$_->quit for @player;
}

# ---- the wait runs out ----
{
	my $holder = LeaseSessions->new($node);
	my $waiter = LeaseSessions->new($node);
	my $held = $holder->lease(q{'busy', scope => 'session'});

	my $begun = now();
	my $text = $waiter->query(
		q{SELECT lease_fence.acquire('busy', wait => '300ms', scope => 'session')});
	is($waiter->state, '55P03', 'the wait runs out: 55P03');
	like($text, qr/HINT:.*Process @{[$holder->pid]} has it/, 'the hint names who has it');
	cmp_ok(now() - $begun, '>=', 0.29, 'not before its time');
	is(waiters('busy'), '0', 'and nobody is left in the queue');

	is($waiter->query(
			q{SELECT token IS NULL, expires_in IS NULL, retry_after BETWEEN '1s' AND '30s'
			  FROM lease_fence.try_acquire('busy', scope => 'session')}),
		't|t|t', 'try_acquire: no token, and how long the lease still runs');
	is($waiter->query(
			q{SELECT token IS NULL FROM lease_fence.try_acquire('busy', wait => '100ms', scope => 'session')}),
		't', 'try_acquire with a wait: the same after it');
	is($waiter->query(
			q{SELECT token IS NOT NULL, expires_in BETWEEN '20s' AND '30s', retry_after IS NULL
			  FROM lease_fence.try_acquire('free', scope => 'session')}),
		't|t|t', 'try_acquire of a free one: token, how long, no retry_after');

	# zero wait: acquire fails at once
	$waiter->query(q{SELECT lease_fence.acquire('busy', wait => '0', scope => 'session')});
	is($waiter->state, '55P03', 'acquire without a wait: 55P03');

	# wait NULL: as long as statement_timeout lets it
	$waiter->query(q{SET statement_timeout = '300ms'});
	$text = $waiter->query(q{SELECT lease_fence.acquire('busy', wait => NULL, scope => 'session')});
	is($waiter->state, '57014', 'wait NULL is bounded by statement_timeout');
	$waiter->query('RESET statement_timeout');
	$holder->query("SELECT lease_fence.release($held)");
	like($waiter->query(q{SELECT token FROM lease_fence.acquire('busy', wait => NULL, scope => 'session')}),
		qr/^\d+$/, 'wait NULL gets a free one');

	# behind a writer, not a holder: the hint names the writer
	$holder->query('BEGIN');
	$held = $holder->lease(q{'stock:2', ttl => '1min'});
	$holder->query('UPDATE stock SET n = n + 1 WHERE id = 2');
	$holder->query("SELECT lease_fence.release($held)");
	$text = $waiter->query(
		q{SELECT lease_fence.acquire('stock:2', wait => '300ms', scope => 'session')});
	is($waiter->state, '55P03', 'released before COMMIT: who asks waits for the writer');
	like($text, qr/HINT:.*Process @{[$holder->pid]} has written under token $held/,
		'the hint names the writer');
	$holder->query('COMMIT');
	like($waiter->query(q{SELECT token FROM lease_fence.acquire('stock:2', scope => 'session')}),
		qr/^\d+$/, 'after its COMMIT the lease is to be had');

	# behind a prepared transaction
	$held = $holder->lease(q{'stock:3', scope => 'detached', ttl => '1h'});
	$holder->query('BEGIN');
	$holder->query("SELECT lease_fence.present($held)");
	$holder->query('UPDATE stock SET n = n + 1 WHERE id = 3');
	$holder->query(q{PREPARE TRANSACTION 'two phases'});
	is($holder->state, '00000', 'PREPARE TRANSACTION with a detached lease is allowed');
	$holder->query("SELECT lease_fence.release($held)");
	$text = $waiter->query(
		q{SELECT lease_fence.acquire('stock:3', wait => '300ms', scope => 'session')});
	is($waiter->state, '55P03', 'a prepared transaction is in the way: 55P03');
	like($text, qr/HINT:.*Prepared transaction "two phases"/, 'the hint names it');
	$holder->query(q{COMMIT PREPARED 'two phases'});
	like($waiter->query(q{SELECT token FROM lease_fence.acquire('stock:3', scope => 'session')}),
		qr/^\d+$/, 'after COMMIT PREPARED the lease is to be had');
	$_->quit for $holder, $waiter;
}

$dba->quit;
$node->stop;
done_testing();
