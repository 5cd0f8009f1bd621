# The worker dies between any two steps of a mint, by each kind of death.
#
# After each: the older token writes nothing, whoever was answered holds what it
# was told, no token is there twice, a new grant is to be had, nothing is left
# draining.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('killed', conf => <<'CONF');
lease_fence.drain_timeout = '5min'
lease_fence.audit_timeout = '100ms'
CONF
if (!has_test_points($node))
{
	$node->stop;
	plan(skip_all => 'needs a build with -DLF_TEST_HOOKS');
}

my $highest = 0;

# A new grant for the one holder, which takes over from its former self.
sub lease
{
	my ($id) = @_;
	return "SELECT token FROM lease_fence.acquire('stock:$id', scope => 'detached', holder => 'batch', wait => '1min')";
}

sub write_under
{
	my ($session, $id, $token) = @_;
	$session->query('ROLLBACK');
	$session->must('BEGIN');
	$session->must("SELECT set_config('lease_fence.token', '$token', true)");
	$session->query("UPDATE stock SET quantity = quantity - 1 WHERE id = $id");
	my $state = $session->{state};
	$session->must($state eq '00000' ? 'COMMIT' : 'ROLLBACK');
	return $state;
}

sub rises
{
	my ($token) = @_;
	my $rises = $token > $highest;
	$highest = $token if $rises;
	return $rises;
}

# exit: the process ends itself.  error: an ERROR ends it, or its transaction.
# term: SIGTERM.  kill: kill -9, which takes all of shared memory along.
sub die_at
{
	my ($point, $way) = @_;
	my $what = "$way at $point";
	my ($asker, $other) = (session($node), session($node));
	my $old = $other->must(lease(1));

	$highest = $old if $old > $highest;
	is(write_under($other, 1, $old), '00000', "$what: before it, the holder writes");
	my $left = stock($node, 1);

	my $from = point($node, $point . '=' . ($way =~ /term|kill/ ? 'wait' : $way));
	$asker->send(lease(1));
	if ($way eq 'term' || $way eq 'kill')
	{
		my $pid = at_point($node, $point, $from);

		isnt(write_under($other, 1, $old), '00000', "$what: the older token is dead already");
		kill($way eq 'term' ? 'TERM' : 'KILL', $pid);
	}
	my $state = $asker->result;
	my $new = $state eq '00000' ? $asker->{out} : undef;
	$node->poll_query_until('postgres', 'SELECT true') if $way eq 'kill';
	point($node, '');
	if ($way eq 'kill')
	{
		$_->quit for $asker, $other;
		($asker, $other) = (session($node), session($node));
		like($state, qr/^(gone|00000)$/, "$what: the asker is not told of a grant that it does not have");
	}
	elsif ($point eq 'mint-answered')
	{
		is($state, '00000', "$what: the asker had been answered");
	}
	else
	{
		is($state, 'LF021', "$what: the asker hears that nothing was granted");
	}

	# A crash before the commit has granted nothing: then a detached lease lives on.
	isnt(write_under($other, 1, $old), '00000', "$what: the older token is dead")
	  unless $way eq 'kill' && $point =~ /begun|drained|inserted/;
	is(stock($node, 1), $left, "$what: no stale write");
	if (defined $new)
	{
		ok(rises($new), "$what: the token that was answered is a new one");
		is(write_under($asker, 1, $new), '00000', "$what: and writes");
	}
	is($asker->query(lease(1)), '00000', "$what: a new grant is to be had") or diag($asker->{error});
	ok(rises($asker->{out}), "$what: under a token that was never there");
	is($asker->{out}, $node->safe_psql('postgres', 'SELECT max(token) FROM lease_fence.grants'),
		"$what: the highest of all");
	is(write_under($asker, 1, $asker->{out}), '00000', "$what: which writes");
	isnt(write_under($other, 1, $old), '00000', "$what: and no older one does");
	is($node->safe_psql('postgres',
			"SELECT count(*) FROM lease_fence.leases WHERE state NOT IN ('live', 'lapsed', 'released', 'revoked', 'taken over')"),
		'0', "$what: nothing is left draining");
	until_true($node, 'SELECT count(*) = 1 FROM lease_fence.grants WHERE ended_at IS NULL',
		"$what: one grant of the resource has no end");
	$_->quit for $asker, $other;
	return;
}

my %ways = (
	'mint-begun' => [qw(exit error kill)],
	'mint-drained' => [qw(exit term kill)],
	'mint-inserted' => [qw(error term kill)],
	'mint-committed' => [qw(exit term kill)],
	'mint-published' => [qw(exit error kill)],
	'mint-unanswered' => [qw(term kill)],
	'mint-answered' => [qw(exit kill)]);

for my $point (sort keys %ways)
{
	die_at($point, $_) for @{ $ways{$point} };
}

# ---- while it waits for a writer ----
{
	my ($writer, $asker, $other) = map { session($node) } 1 .. 3;
	my $old = $writer->must(lease(2));

	$writer->must('BEGIN');
	$writer->must("SELECT set_config('lease_fence.token', '$old', true)");
	$writer->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 2');
	$asker->send(lease(2));
	wait_for_drain($node, $asker);
	my $pid = $node->safe_psql('postgres', 'SELECT pid FROM lease_fence.worker_status');
	kill('TERM', $pid);
	is($asker->result, 'LF021', 'the worker is ended while a writer is waited for');
	until_true($node, "SELECT pid <> $pid FROM lease_fence.worker_status", 'there is another worker');
	$other->send(lease(2));
	wait_for_drain($node, $other);
	is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.grants WHERE resource = 'stock:2'"),
		'1', 'the next one waits for the same writer');
	is($writer->query('UPDATE stock SET quantity = 0 WHERE id = 2'), 'LF001', 'whose token stays dead');
	$writer->must('ROLLBACK');
	is($other->result, '00000', 'and gets the lease after it');
	is(stock($node, 2), '100', 'nothing was written');
	$_->quit for $writer, $asker, $other;
}

# ---- between the first and the second of several leases ----
{
	my ($asker, $other) = (session($node), session($node));
	my $all = "SELECT max(token) FROM lease_fence.acquire_all(ARRAY['stock:3', 'stock:4'], scope => 'detached')";

	point($node, 'mint-published=exit');
	is($asker->query($all), 'LF021', 'the worker ends when one of two leases is published');
	point($node, '');
	is($other->query($all), '00000', 'neither of them is left to anybody') or diag($other->{error});
	is($node->safe_psql('postgres',
			"SELECT count(*) FROM lease_fence.leases WHERE resource IN ('stock:3', 'stock:4') AND state = 'live'"),
		'2', 'both are to be had');
	$_->quit for $asker, $other;
}

$node->stop;
done_testing();
