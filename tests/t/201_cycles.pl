# Cycles of waits that lead through leases, drains and row locks: one of those
# in it fails with 40P01, after deadlock_timeout, and the others go on.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('cycles', conf => "lease_fence.drain_timeout = '5min'\n");

sub lease
{
	my ($id, $options) = @_;
	$options //= '';
	return "SELECT token FROM lease_fence.acquire('stock:$id', wait => '1min'$options)";
}

# Of the sessions that have sent something one fails with 40P01.  That ends its
# transaction, which lets the others through.
sub one_is_the_victim
{
	my ($what, @sessions) = @_;
	my @states = sort map { $_->result } @sessions;

	is("@states", join(' ', ('00000') x (@sessions - 1), '40P01'),
		"$what: one of them fails, after deadlock_timeout, and the others go on");
	$_->must($_->{state} eq '00000' ? 'COMMIT' : 'ROLLBACK') for @sessions;
	return;
}

# ---- lease against lease ----
{
	my ($a, $b) = (session($node), session($node));

	$_->must('BEGIN') for $a, $b;
	$a->must(lease(1));
	$b->must(lease(2));
	$a->send(lease(2));
	wait_for_lease_wait($node, $a);
	$b->send(lease(1));
	one_is_the_victim('lease against lease', $a, $b);
	$_->quit for $a, $b;
}

# ---- three in a ring ----
{
	my @ring = map { session($node) } 1 .. 3;

	$_->must('BEGIN') for @ring;
	$ring[$_]->must(lease($_ + 1)) for 0 .. 2;
	$ring[$_]->send(lease(($_ + 1) % 3 + 1)) for 0 .. 2;
	# Each one that ends lets the one before it through.
	my %ended;
	until (keys %ended == 3)
	{
		my ($done) = grep { !exists $ended{$_} && $ring[$_]->is_done } 0 .. 2;
		if (defined $done)
		{
			$ended{$done} = $ring[$done]->result;
			$ring[$done]->must('ROLLBACK');
		}
		select(undef, undef, undef, 0.05);
	}
	is(join(' ', sort values %ended), '00000 00000 40P01', 'three in a ring: one of them fails');
	$_->quit for @ring;
}

# ---- several at once have one order ----
{
	my ($a, $b) = (session($node), session($node));
	my $first = "SELECT count(*) FROM lease_fence.acquire_all(ARRAY['stock:1', 'stock:2', 'stock:3'], wait => '1min')";
	my $second = "SELECT count(*) FROM lease_fence.acquire_all(ARRAY['stock:3', 'stock:2', 'stock:1'], wait => '1min')";

	$_->must('BEGIN') for $a, $b;
	$a->must($first);
	$b->send($second);
	wait_for_lease_wait($node, $b);
	is($a->must($second), '3', 'who has them all re-enters');
	$a->must('COMMIT');
	is($b->result, '00000', 'acquire_all in another order makes no cycle');
	$b->must('COMMIT');
	$_->quit for $a, $b;
}

# ---- lease against row lock ----
{
	my ($a, $b) = (session($node), session($node));

	$_->must('BEGIN') for $a, $b;
	$a->must(lease(1));
	$b->must('SELECT id FROM stock WHERE id = 9 FOR UPDATE');
	$b->send(lease(1));
	wait_for_lease_wait($node, $b);
	$a->send('SELECT id FROM stock WHERE id = 9 FOR UPDATE');
	one_is_the_victim('lease against row lock', $a, $b);

	# The row lock is waited for first.
	$_->must('BEGIN') for $a, $b;
	$a->must(lease(1));
	$b->must('SELECT id FROM stock WHERE id = 9 FOR UPDATE');
	$a->send('SELECT id FROM stock WHERE id = 9 FOR UPDATE');
	until_true($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $a->{pid}");
	$b->send(lease(1));
	one_is_the_victim('row lock against lease', $a, $b);
	$_->quit for $a, $b;
}

# ---- two resources in opposite order, two writers, two mints ----
# Each has given its lease back, and waits for the other's transaction to end.
{
	my ($a, $b) = (session($node), session($node));

	for ([ $a, 1 ], [ $b, 2 ])
	{
		my ($session, $id) = @$_;

		$session->must('BEGIN');
		my $token = $session->must(lease($id, ", ttl => '10min'"));
		$session->must("UPDATE stock SET quantity = quantity - 1 WHERE id = $id");
		$session->must("SELECT lease_fence.release($token)");
	}
	$a->send(lease(2));
	wait_for_drain($node, $a);
	$b->send(lease(1));
	one_is_the_victim('two writers, two mints', $a, $b);
	is($node->safe_psql('postgres', 'SELECT sum(quantity) FROM stock WHERE id IN (1, 2)'),
		'199', "the victim's write is gone, the other's is there");
	$_->quit for $a, $b;
}

# ---- lease against drain ----
# a waits for the lease that b has; b waits for the end of a, which has written
# under a grant that is over.
{
	my ($a, $b) = (session($node), session($node));

	$_->must('BEGIN') for $a, $b;
	my $token = $a->must(lease(3, ", ttl => '10min'"));
	$a->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 3');
	$a->must("SELECT lease_fence.release($token)");
	$b->must(lease(4));
	$b->send(lease(3));
	wait_for_drain($node, $b);
	$a->send(lease(4));
	one_is_the_victim('lease against drain', $a, $b);
	$_->quit for $a, $b;
}

# ---- row lock against drain: PostgreSQL's own detector sees all of it ----
{
	my ($a, $b) = (session($node), session($node));

	$_->must('BEGIN') for $a, $b;
	my $token = $a->must(lease(5, ", ttl => '10min'"));
	$a->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 5');
	$a->must("SELECT lease_fence.release($token)");
	$b->must('SELECT id FROM stock WHERE id = 9 FOR UPDATE');
	$b->send(lease(5));
	wait_for_drain($node, $b);
	$a->send('SELECT id FROM stock WHERE id = 9 FOR UPDATE');
	one_is_the_victim('row lock against drain', $a, $b);
	$_->quit for $a, $b;
}

# ---- no cycle: a long wait is not one ----
{
	my ($a, $b) = (session($node), session($node));

	$_->must('BEGIN') for $a, $b;
	$a->must(lease(6));
	$b->send(lease(6));
	wait_for_lease_wait($node, $b);
	$a->must('SELECT pg_sleep(1)');		# three times deadlock_timeout
	ok(!$b->is_done, 'who only waits long is let wait');

	# The user's own lock_timeout and statement_timeout, and cancel.
	$a->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 6');
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($b->{pid})");
	is($b->result, '57014', 'a wait for a lease can be cancelled');
	$b->must('ROLLBACK');
	$a->must("SELECT lease_fence.release(token) FROM lease_fence.leases WHERE resource = 'stock:6' AND state = 'live'");
	$b->must("BEGIN; SET LOCAL lock_timeout = '200ms'");
	is($b->query(lease(6)), '55P03', 'lock_timeout ends a wait for writers');
	like($b->{error}, qr/lock timeout/, 'as the error that it is');
	$b->must("ROLLBACK; BEGIN; SET LOCAL statement_timeout = '200ms'");
	is($b->query(lease(6)), '57014', 'so does statement_timeout');
	$b->must('ROLLBACK; BEGIN');
	$b->send(lease(6));
	wait_for_drain($node, $b);
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($b->{pid})");
	is($b->result, '57014', 'so does cancel');
	$b->must('ROLLBACK; BEGIN');
	$b->send(lease(6));
	wait_for_drain($node, $b);
	$a->must('COMMIT');
	is($b->result, '00000', 'and it is to be had after the commit');
	$b->must('COMMIT');
	$_->quit for $a, $b;
}

is($node->safe_psql('postgres',
		"SELECT count(*) FROM lease_fence.leases WHERE state = 'live'"), '0', 'no lease is left behind');
$node->stop;
done_testing();
