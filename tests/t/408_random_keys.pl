# Keys and JSON that nobody would write, given to the guarded functions: each ends
# with an outcome or with an error that says what is wrong, and nothing but the row
# whose lease is held changes.  RANDOM_KEYS says how many (3000), RANDOM_SEED of
# which kind.

use strict;
use warnings;

use LeaseSessions qw(lease_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $number = $ENV{RANDOM_KEYS} // 3000;
my $seed = $ENV{RANDOM_SEED} // int(rand(2**31));
srand $seed;
note "RANDOM_SEED=$seed";

my @seeds = ('1', '2', ' 1', '{"id": 1}', '{"id": "1"}', '{"id": 1, "region": "a"}', '{"id": null}',
	'{"id": [1]}', '{"tags": ["a", "b"]}', '{"at": "2020-01-01"}', '{"doc": {"a": {"b": [1, 2]}}}',
	'{"price": 1e400}', '{"price": NaN}', '{}', '[1]', 'null', '', '{"id": 1, "id": 2}', '{"fence_token": 0}',
	'{"ctid": "(0,1)"}', '{"point": {"x": 1, "y": "z"}}', '99999999999999999999', "{\"text\": \"\xc3\xa4\"}");
my @pieces = ('{', '}', '[', ']', '"', ':', ',', '\\', '\\u0000', '\\ud800', '\\u00e4', "'", 'id', 'text', 'doc',
	'tags', 'point', 'price', 'null', 'true', '1', '-', '.5', 'e9', "\n", ' ', "\xc3\xa4", 'x' x 100, '[' x 200);

# Of some seed, with pieces put in, bytes taken out, and halves exchanged.
sub random_key
{
	my $key = $seeds[ rand @seeds ];
	for (1 .. rand 3)
	{
		my $place = int(rand(length($key) + 1));
		my $what = int(rand 4);
		if ($what < 2) { substr($key, $place, 0) = $pieces[ rand @pieces ]; }
		elsif ($what == 2) { substr($key, $place, 1) = ''; }
		else { $key = substr($key, 0, $place) . substr($seeds[ rand @seeds ], $place % 5); }
	}
	utf8::decode(my $text = $key) or return random_key();
	utf8::encode($text);
	return $text;
}

sub quoted { my ($text) = @_; $text =~ s/\\/\\\\/g; $text =~ s/'/\\'/g; return "E'$text'"; }

my $node = lease_node('keys');
$node->safe_psql('postgres', q{
	CREATE TYPE place AS (x int, y text);
	CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0);
	CREATE TABLE stock (id int PRIMARY KEY, region text DEFAULT 'a', text text, doc jsonb, tags text[],
		at timestamptz, price numeric(6,2), point place, twice even, n int DEFAULT 0);
	INSERT INTO stock (id, n) SELECT g, 100 FROM generate_series(1, 20) g;
	SELECT lease_fence.protect('stock', 'stock:{id}');
	CREATE TABLE before AS SELECT * FROM stock WHERE id <> 1;
	CREATE TABLE outcomes (outcome text, key text);

	CREATE PROCEDURE try(a text, b text) LANGUAGE plpgsql AS $$
	DECLARE
		call text;
		found text;
	BEGIN
		FOREACH call IN ARRAY ARRAY[
			'SELECT outcome FROM lease_fence.guarded_update(''stock'', $1, $2::jsonb)',
			'SELECT outcome FROM lease_fence.guarded_update(''stock'', $1, ''{"text": "x"}'', expected => $2::jsonb)',
			'SELECT outcome FROM lease_fence.guarded_decrement(''stock'', $1, ''n'', operation_key => $2)',
			'SELECT outcome FROM lease_fence.guarded_insert(''stock'', $2::jsonb, operation_key => $1)',
			'SELECT outcome FROM lease_fence.guarded_delete(''stock'', $1, expected => $2::jsonb)']
		LOOP
			BEGIN
				EXECUTE call INTO found USING a, b;
				RAISE EXCEPTION 'undone' USING ERRCODE = 'UN000', DETAIL = found;
			EXCEPTION WHEN OTHERS THEN
				IF SQLSTATE = 'UN000' THEN
					GET STACKED DIAGNOSTICS found = PG_EXCEPTION_DETAIL;
				ELSE
					found := SQLSTATE;
				END IF;
			END;
			INSERT INTO outcomes VALUES (found, a || ' / ' || b);
		END LOOP;
	END $$;
});

my $calls = join '', map { sprintf "CALL try(%s, %s);\n", quoted(random_key()), quoted(random_key()) } 1 .. $number / 5;
my ($code, $out, $error) = $node->psql('postgres', "BEGIN;\n"
	  . "SELECT token > 0 FROM lease_fence.acquire('stock:1', '10 min');\n$calls COMMIT;");
is($code, 0, 'all keys were tried') or diag substr $error, 0, 2000;

my $other = $node->safe_psql('postgres', q{
	SELECT outcome, count(*), min(key) FROM outcomes
	WHERE outcome NOT IN ('applied', 'not_met', 'not_found', 'replayed')
	  -- what is wrong with a value, a row, a constraint, or the lease
	  AND outcome !~ '^(22...|23...|21000|42804|LF0..)$' GROUP BY 1});
is($other, '', 'each ends with an outcome, or an error about the argument');
note $node->safe_psql('postgres', 'SELECT outcome, count(*) FROM outcomes GROUP BY 1 ORDER BY 2 DESC');
cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM outcomes WHERE outcome = 'applied'"), '>', 0, 'some are good');
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM (SELECT * FROM stock WHERE id <> 1 EXCEPT SELECT * FROM before) x}), '0',
	'no other row has changed');
unlike(slurp_file($node->logfile), qr/was terminated by signal|TRAP/, 'nothing crashed');
$node->stop;
done_testing();
