# What is announced about a table while we work with it, its analysis, say, makes
# what PostgreSQL keeps of it be read anew: nothing of ours may point into the old.
# Only a server with assertions can be told to do so at each chance.

use strict;
use warnings;

use LeaseSessions qw(lease_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_node('discarded');

if ($node->psql('postgres', 'SET debug_discard_caches = 1') != 0)
{
	$node->stop;
	plan skip_all => 'the server was built without assertions';
}

$node->safe_psql('postgres', q{
	CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
	CREATE TABLE stock (id int PRIMARY KEY, n int);
	CREATE TRIGGER a_trigger BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION nothing();
	INSERT INTO stock SELECT g, 10 FROM generate_series(1, 3) g;
	SELECT lease_fence.protect('stock', 'stock:{id}');
});

my $s = LeaseSessions->new($node);
$s->query('SET debug_discard_caches = 1');

# In this order.
my @steps = (
	[ "SELECT lease_fence.protect('stock', 'the stock')", '' ],
	[ "SELECT token > 0 FROM lease_fence.acquire('the stock', scope => 'session')", 't' ],
	[ "SELECT outcome FROM lease_fence.guarded_update('stock', '1', '{\"n\": 5}', NULL)", 'applied' ],
	[ "SELECT outcome || remaining FROM lease_fence.guarded_decrement('stock', '1', 'n', amount => 2)", 'applied3' ],
	[ "SELECT outcome FROM lease_fence.guarded_delete('stock', '{\"id\": 2}', NULL, '{\"n\": 10}')", 'applied' ],
	[ "UPDATE stock SET n = 0 WHERE id = 3 RETURNING n", '0' ],
	[ "SELECT problem, stamp_ahead FROM lease_fence.examine_guard('stock')", '|f' ],
	[ "TRUNCATE stock", '' ],
	[ "SELECT lease_fence.set_mode('stock', 'observe')", '' ],
	[ "SELECT lease_fence.unprotect('stock', drop_column => true)", '' ]);

foreach my $step (@steps)
{
	my ($sql, $expected) = @$step;
	my $answer = $s->query($sql);
	is($s->state, '00000', "$sql: no error");
	is($answer, $expected, '... and the right answer');
}

unlike(slurp_file($node->logfile), qr/was terminated by signal|TRAP/, 'nothing crashed');
$s->quit;
$node->stop;
done_testing();
