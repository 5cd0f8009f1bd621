# A session reads a grant from the table and is stopped before it brings that into
# memory.  Meanwhile others load the grant, release it, and it makes room; then one
# more begins to load it.  What the first has read is not to be believed any more.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('loading', conf => "lease_fence.max_leases = 16\n");
if (!has_test_points($node))
{
	$node->stop;
	plan(skip_all => 'needs a build with -DLF_TEST_HOOKS');
}

my $token = $node->safe_psql('postgres',
	"SELECT token FROM lease_fence.acquire('stock:1', scope => 'detached', ttl => '10min')");
is($node->psql('postgres',
		"BEGIN; SET LOCAL lease_fence.token = '$token'; UPDATE stock SET quantity = 99 WHERE id = 1; COMMIT"),
	0, 'the detached grant writes');

# Memory of it is lost; the table has it.
$node->stop('immediate');
$node->start;

# Two rows, so that neither writer waits for the other's.
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE notes (id integer PRIMARY KEY, stock integer NOT NULL);
INSERT INTO notes VALUES (1, 1), (2, 1);
SELECT lease_fence.protect('notes', resource => 'stock:{stock}');
SQL

# A writer that has read the table for its load, and is stopped there.
sub stopped_writer
{
	my ($id) = @_;
	my $writer = session($node);

	$writer->must('BEGIN');
	$writer->must("SELECT set_config('lease_fence.token', '$token', true)");
	my $from = point($node, 'load-read=wait');
	$writer->send("UPDATE notes SET id = id + 10 WHERE id = $id");
	at_point($node, 'load-read', $from);
	kill('STOP', $writer->{pid});
	point($node, '');
	return $writer;
}

my $first = stopped_writer(1);

is($node->safe_psql('postgres', "SELECT lease_fence.release($token)"), 't', 'somebody releases the grant');
until_true($node, "SELECT ended_at IS NOT NULL FROM lease_fence.grants WHERE token = $token",
	'its end is in the table');

# So many others that it makes room.
$node->safe_psql(
	'postgres', q{
	DO $$
	BEGIN
		FOR i IN 1 .. 300 LOOP
			PERFORM lease_fence.release(token => (lease_fence.acquire(
				resource => 'other:' || i, ttl => '1min', scope => 'detached', wait => '10s')).token);
		END LOOP;
	END $$;
});

my $second = stopped_writer(2);

kill('CONT', $first->{pid});
is($first->result, 'LF002', 'a grant that was released while it was read is over, and stays so');
$first->must('ROLLBACK');
kill('CONT', $second->{pid});
is($second->result, 'LF002', 'for who loaded it later too');
$second->must('ROLLBACK');

$_->quit for $first, $second;
is($node->safe_psql('postgres', "SELECT token > $token FROM lease_fence.try_acquire('stock:1', scope => 'detached')"),
	't', 'it can be taken at once');
is($node->safe_psql('postgres', 'SELECT string_agg(id::text, \',\' ORDER BY id) FROM notes'), '1,2', 'nothing was written');
$node->stop;

done_testing();
