# An asynchronous standby without the last grants is promoted: no number is
# handed out twice, and every token from before is refused.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('old', streaming => 1);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('new');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

my $session = session($node);
my $lease = "SELECT token FROM lease_fence.acquire('stock:%d', scope => 'detached', ttl => '1h')";
my @tokens = $session->must(sprintf($lease, 1));
$session->must("BEGIN; SET LOCAL lease_fence.token = '$tokens[0]'");
$session->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 1; COMMIT');
$node->wait_for_catchup($standby);

# On a standby, a clear error.
my $reader = session($standby);
for my $call ("acquire('stock:1', scope => 'detached')", "try_acquire('stock:1', scope => 'detached')",
	"acquire_all(ARRAY['stock:1'], scope => 'detached')", "present($tokens[0])", "renew($tokens[0])",
	"remaining($tokens[0])", "release($tokens[0])", "revoke('stock:1')", "begin_epoch('here')")
{
	is($reader->query("SELECT * FROM lease_fence.$call"), '55000', "on a standby: $call");
	like($reader->{error}, qr/only be taken on the primary/, 'says that it is one');
}
is($reader->query("SELECT count(*) FROM lease_fence.grants"), '00000', 'the history can be read there');
$reader->quit;

# What the standby does not get.
$standby->stop;
push @tokens, $session->must(sprintf($lease, $_)) for 2 .. 5;
$session->must("BEGIN; SET LOCAL lease_fence.token = '$tokens[1]'");
$session->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 2; COMMIT');
$node->stop('immediate');
$session->quit;
$standby->start;
$standby->promote;

my $after = session($standby);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.grants'), '1', 'the last grants are lost');
for my $i (0 .. $#tokens)
{
	my $id = $i + 1;

	$after->must("BEGIN; SET LOCAL lease_fence.token = '$tokens[$i]'");
	# Until the epoch is confirmed nothing is admitted, which the client may repeat.
	for (1 .. 100)
	{
		last if $after->query("UPDATE stock SET quantity = 0 WHERE id = $id") ne 'LF021';
		$after->must("ROLLBACK; SELECT pg_sleep(0.1); BEGIN; SET LOCAL lease_fence.token = '$tokens[$i]'");
	}
	is($after->{state}, 'LF004', 'a token from before the promotion is refused, whether its grant is here or lost')
	  or diag($after->{error});
	$after->must('ROLLBACK');
}
is($standby->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.epochs'), '2', 'a new epoch has begun');

my @again = map { $after->must(sprintf($lease, $_)) } 1 .. 5;
is(scalar(grep { $_ <= $tokens[-1] } @again), 0, 'the next tokens are above every one that was handed out');
$after->must("BEGIN; SET LOCAL lease_fence.token = '$again[0]'");
is($after->query('UPDATE stock SET quantity = quantity - 1 WHERE id = 1'), '00000', 'and write');
$after->must('COMMIT');
is(stock($standby, 1), '98', 'on what was replicated');
$after->quit;

$standby->stop;
done_testing();
