# A guarded write that was prepared before a promotion: until it is ended on the
# new primary, no grant of its resource is made there, so its commit is not stale.

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
for my $id (1, 2)
{
	my $token = $session->must(
		"SELECT token FROM lease_fence.acquire('stock:$id', scope => 'detached', ttl => '1h')");
	$session->must("BEGIN; SET LOCAL lease_fence.token = '$token'");
	$session->must("UPDATE stock SET quantity = quantity - 1 WHERE id = $id; PREPARE TRANSACTION 'p$id'");
}
$node->wait_for_catchup($standby);
$node->stop('immediate');
$session->quit;
$standby->promote;

my $after = session($standby);
$after->must("SET lock_timeout = '500ms'");
for my $id (1, 2)
{
	is($after->query("SELECT token FROM lease_fence.acquire('stock:$id', scope => 'detached', ttl => '1h')"),
		'55P03', "resource $id: not granted while the old write can still be committed");
}
$after->must("COMMIT PREPARED 'p1'");
$after->must("ROLLBACK PREPARED 'p2'");
for my $id (1, 2)
{
	my $token = $after->must(
		"SELECT token FROM lease_fence.acquire('stock:$id', scope => 'detached', ttl => '1h')");
	$after->must("BEGIN; SET LOCAL lease_fence.token = '$token'");
	is($after->query("UPDATE stock SET quantity = quantity - 1 WHERE id = $id"), '00000',
		"resource $id: granted when it has ended");
	$after->must('COMMIT');
}
is(stock($standby, 1), '98', 'on what the old write left');
is(stock($standby, 2), '99', 'and without what was rolled back');
$after->quit;

$standby->stop;
done_testing();
