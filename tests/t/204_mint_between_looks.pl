# A mint passes between the steps of a writer's check: between its first look
# and the lock, and between the lock and its second look.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('between', conf => "lease_fence.drain_timeout = '5min'\n");
if (!has_test_points($node))
{
	$node->stop;
	plan(skip_all => 'needs a build with -DLF_TEST_HOOKS');
}

# A session that has named the present token, and comes to a point of its check.
sub writer_at
{
	my ($point, $id, $token) = @_;
	my $writer = session($node);

	$writer->must('BEGIN');
	$writer->must("SELECT set_config('lease_fence.token', '$token', true)");
	my $from = point($node, "$point=wait");
	$writer->send("UPDATE stock SET quantity = 0 WHERE id = $id");
	at_point($node, $point, $from);
	return $writer;
}

sub lease
{
	my ($id) = @_;
	return "SELECT token FROM lease_fence.acquire('stock:$id', scope => 'detached', holder => 'batch', wait => '1min')";
}

my $next = session($node);

# The whole mint, and the new holder's write, pass between the first look and
# the lock.  The row is free, and the token's lock to be had again.
{
	my $old = $next->must(lease(1));
	my $writer = writer_at('check-looked', 1, $old);
	my $new = $next->must(lease(1));

	# The new holder commits nothing to this row: the row cannot tell.
	point($node, '');
	is($writer->result, 'LF001', 'a mint between the first look and the lock is seen');
	like($writer->{error}, qr/superseded by $new/, 'and named');
	$writer->must('ROLLBACK');
	is(stock($node, 1), '100', 'the stale writer, first at its row, gets nothing through');
	$writer->quit;
}

# The mint has begun to drain, and is not through: it waits for another writer.
{
	my $old = $next->must(lease(2));
	my $sharer = session($node);

	$sharer->must('BEGIN');
	$sharer->must("SELECT lease_fence.present($old)");
	my $writer = writer_at('check-looked', 2, $old);
	$next->send(lease(2));
	wait_for_drain($node, $next);
	point($node, '');
	is($writer->result, 'LF001', 'a drain between the first look and the lock is seen');
	$writer->must('ROLLBACK');
	$sharer->must('COMMIT');
	is($next->result, '00000', 'the mint goes on');
	$_->quit for $writer, $sharer;
}

# The writer has the lock: the mint has to wait for it, though it is refused.
{
	my $old = $next->must(lease(3));
	my $writer = writer_at('check-locked', 3, $old);

	$next->send(lease(3));
	wait_for_drain($node, $next);
	is($node->safe_psql('postgres',
			"SELECT count(*) FROM lease_fence.grants WHERE resource = 'stock:3'"),
		'1', 'no token is minted while a writer has the lock');
	point($node, '');
	is($writer->result, 'LF001', 'a drain between the lock and the second look is seen');
	$writer->must('ROLLBACK');
	is($next->result, '00000', 'and the mint goes on when the writer has gone');
	is(stock($node, 3), '100', 'nothing was written');
	$writer->quit;
}

# Released, lapsed and revoked between lock and second look.
{
	my $old = $next->must(lease(4));
	my $writer = writer_at('check-locked', 4, $old);

	$next->must("SELECT lease_fence.release($old)");
	point($node, '');
	is($writer->result, 'LF002', 'so is a release');
	$writer->must('ROLLBACK');
	$writer->quit;

	$old = $next->must(
		"SELECT token FROM lease_fence.acquire('stock:5', scope => 'detached', ttl => '2s', wait => '1min')");
	$writer = writer_at('check-locked', 5, $old);
	until_true($node, "SELECT lease_fence.remaining($old) IS NULL", 'the lease lapses');
	point($node, '');
	is($writer->result, 'LF002', 'and a lapse');
	$writer->must('ROLLBACK');
	$writer->quit;
}

# A writer that passed its second look is waited for: its commit comes first.
{
	my $old = $next->must(lease(6));
	my $writer = session($node);

	$writer->must('BEGIN');
	$writer->must("SELECT set_config('lease_fence.token', '$old', true)");
	$writer->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 6');
	$next->send(lease(6));
	wait_for_drain($node, $next);
	$writer->must('COMMIT');
	is($next->result, '00000', 'a check that was passed is honoured');
	$writer->quit;
}

is($node->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.rejected_writes'), '5',
	'I5: each refusal is in the audit, once');
$next->quit;
$node->stop;
done_testing();
