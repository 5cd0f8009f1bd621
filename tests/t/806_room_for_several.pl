# acquire_all where there is room for some of its names: refused, not waited for
# until the wait runs out.  Where room is being made, it is not refused either.

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

# ---- more ends than can be written at once ----

# Each of them takes a millisecond, a batch longer than one waits for room.
my $slow = new_server('slow', 'lease_fence.max_leases = 1000');
$slow->safe_psql(
	'postgres', q{
	CREATE EXTENSION lease_fence;
	CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_catalog.pg_sleep(0.001);
		RETURN NEW;
	END $$;
	CREATE TRIGGER linger BEFORE UPDATE ON lease_fence.grants FOR EACH ROW EXECUTE FUNCTION linger();
});
my $thousand = q{SELECT count(*) FROM lease_fence.acquire_all(resources => ARRAY(SELECT '%s' || i
	FROM generate_series(1, 1000) i), scope => 'session', wait => '60s')};
foreach my $name ('a', 'b', 'c')
{
	is(state_of($slow, 'postgres', sprintf($thousand, $name)), '',
		"all of max_leases, over as soon as they are granted, '$name': there is room as fast as their ends are written");
}
$slow->stop('fast');
$node->stop('fast');
done_testing();
