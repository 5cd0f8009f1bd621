# acquire_all where there is room for some of its names: refused, not waited for
# until the wait runs out.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('node', 'lease_fence.max_leases = 16');
$node->safe_psql('postgres', 'CREATE EXTENSION lease_fence');

my @live;
while (@live < 1000)
{
	my $out;

	last if $node->psql('postgres',
		"SELECT token FROM lease_fence.acquire(resource => 'live:@{[ scalar @live ]}', ttl => '10min', scope => 'detached')",
		stdout => \$out) != 0;
	push @live, $out;
}
cmp_ok(scalar(@live), '>=', 16, 'every entry is in use');
$node->safe_psql('postgres', 'SELECT lease_fence.release(token => ' . pop(@live) . ')');
my $both = "SELECT lease_fence.acquire_all(resources => ARRAY['x1', 'x2'], ttl => '1min', scope => 'detached', wait => '60s')";
is(state_of($node, 'postgres', $both), 'LF021', 'room for one of two: both are refused, soon');
isnt(token_of($node, 'postgres', 'x1'), '', 'and the one can still be had');
$node->safe_psql('postgres', "SELECT lease_fence.release(token => $_)") foreach splice(@live, 0, 2);
is(state_of($node, 'postgres', "SELECT lease_fence.acquire_all(resources => ARRAY['y1', 'y2'], ttl => '1min', scope => 'detached', wait => '60s')"),
	'', 'room for two: both are granted');
$node->stop('fast');
done_testing();
