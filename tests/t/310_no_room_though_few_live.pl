# Many leases are taken at once, in short transactions, again and again, and never
# the same names: "no room for another lease" although hardly any is live.  Room
# comes with the ends that are written, and these must keep up with the grants.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = new_server('busy', 'fsync = off');
$node->start;
with_extension($node, 'postgres');
my $first = token_of($node, 'postgres', 'stock:1');

# At most 9000 of 10000 are live, and as a rule 1000: 9 clients, one after the other.
my $script = $node->basedir . '/all.sql';
append_to_file($script, <<'SQL');
\set batch random(1, 1000000000)
BEGIN;
SELECT count(*) FROM lease_fence.acquire_all(
	resources => ARRAY(SELECT format('%s:%s:%s', :client_id, :batch, i) FROM generate_series(1, 1000) i), wait => '60s');
COMMIT;
SQL
my ($out, $err) = run_command([ 'pgbench', '-n', '-c', '9', '-t', '12', '-f', $script, $node->connstr('postgres') ]);
unlike($err, qr/no room/, 'there is room all the time');
like($out, qr{actually processed: 108/108}, 'every request is granted');

ok(await_sql($node, 'postgres', "SELECT count(*) = 0 FROM lease_fence.grants WHERE ended_at IS NULL AND resource <> 'stock:1'"),
	'all their ends are in the table');
is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.grants WHERE how_ended = 'released'"),
	'108000', 'each as it was');
is(write_as($node, 'postgres', $first), '', 'the one that is live has its place');

stop_fast_is_quick($node, 'after that');
done_testing();
