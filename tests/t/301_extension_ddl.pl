# CREATE and DROP EXTENSION, committed and rolled back, with leases live and
# under load: a worker follows, and nothing of an extension that is gone counts.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = new_server('extension', "lease_fence.databases = 'named'");
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE named');

# Its worker retires while the others are tried.
$node->safe_psql('postgres', 'CREATE DATABASE quiet');
with_extension($node, 'quiet');
my $quiet = token_of($node, 'quiet', 'stock:1', '1s');

# ---- not there ----

my $pid = await_worker($node, 'named');
$node->psql('named', 'BEGIN; CREATE EXTENSION lease_fence; ROLLBACK');
is(worker_pid($node, 'named'), $pid, 'CREATE EXTENSION rolled back leaves the worker alone');

# Within the transaction that creates it: the worker cannot see it yet.
is( sqlstate_of($node, 'named',
		"BEGIN; CREATE EXTENSION lease_fence; SELECT * FROM lease_fence.acquire(resource => 'a', ttl => '1min'); COMMIT"
	),
	'LF021', 'a lease in the transaction that creates the extension is refused');
is($node->safe_psql('named', "SELECT count(*) FROM pg_extension WHERE extname = 'lease_fence'"),
	'0', 'and leaves nothing');

# ---- dropped, rolled back, while a lease is live ----

with_extension($node, 'named');
my $token = token_of($node, 'named', 'stock:1');
$node->psql('named', 'BEGIN; DROP EXTENSION lease_fence CASCADE; ROLLBACK');
is(write_as($node, 'named', $token), '', 'DROP EXTENSION rolled back: the lease goes on');
is($node->safe_psql('named', "SELECT lease_fence.remaining(token => $token) IS NOT NULL"),
	't', 'and is held');

# While a DROP is under way, everybody waits or is refused; nobody writes unguarded.
my $session = $node->background_psql('named', on_error_stop => 0);
$session->query('BEGIN; DROP EXTENSION lease_fence CASCADE');
is(sqlstate_of($node, 'named', "SET lock_timeout = '300ms'; UPDATE stock SET n = 0 WHERE id = 1"),
	'55P03', 'while a DROP EXTENSION is open, its guarded tables are locked');
$session->query('ROLLBACK');
is(sqlstate_of($node, 'named', "UPDATE stock SET n = 0 WHERE id = 1"),
	'LF003', 'and guarded again when it rolls back');
my $again = token_of($node, 'named', 'stock:2');
cmp_ok($again, '>', $token, 'the worker minted on');
is(worker_pid($node, 'named'), $pid, 'it is still the same worker');

# ---- dropped and created, committed ----

$node->safe_psql('named', 'DROP EXTENSION lease_fence CASCADE');
is(sqlstate_of($node, 'named', 'UPDATE stock SET n = 9 WHERE id = 1'),
	'', 'DROP EXTENSION committed: the table is a table again');
$node->safe_psql('named', 'CREATE EXTENSION lease_fence');
$node->safe_psql('named', "SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}')");
like(write_as($node, 'named', $token), qr/^LF0(04|21)$/, 'a token of the extension before is not good');
await_sql($node, 'named', 'SELECT epoch_confirmed FROM lease_fence.worker_status');
is(write_as($node, 'named', $token), 'LF004', 'it is unknown once the new epoch has begun');
is(sqlstate_of($node, 'named', "SELECT lease_fence.renew(token => $token)"),
	'LF004', 'and cannot be renewed');
is($node->safe_psql('named', "SELECT count(*) FROM lease_fence.leases WHERE state = 'live'"),
	'0', 'no lease of it is live');
my $new = token_of($node, 'named', 'stock:1');
cmp_ok($new, '>', $again, 'tokens go on growing over DROP and CREATE');
is(write_as($node, 'named', $new), '', 'and the new one writes');
is($node->safe_psql('named', 'SELECT count(*), max(id) FROM lease_fence.epochs'),
	'1|1', 'the new extension has an epoch of its own');

# Both in one transaction: the extension's OID is another one all the same.
$node->safe_psql('named',
	'BEGIN; DROP EXTENSION lease_fence CASCADE; CREATE EXTENSION lease_fence; COMMIT');
$node->safe_psql('named', "SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}')");
like(write_as($node, 'named', $new), qr/^LF0(04|21)$/, 'DROP and CREATE in one transaction: no token of before is good');
await_sql($node, 'named', 'SELECT epoch_confirmed FROM lease_fence.worker_status');
is(write_as($node, 'named', $new), 'LF004', 'it is unknown as well');
is($node->safe_psql('named', "SELECT lease_fence.remaining(token => " . token_of($node, 'named', 'stock:1') . ') IS NOT NULL'),
	't', 'and new ones are granted');

# ---- under load, in a loop ----

# Sessions that acquire, write and release for as long as the extension comes
# and goes.  Whatever they are told, none may crash, hang, or write unguarded
# while the guard stands.
$node->append_conf('postgresql.conf', "statement_timeout = '30s'");
$node->reload;
$node->safe_psql('named', 'DROP TABLE stock');
my $load = $node->basedir . '/load.sql';
append_to_file($load, <<'SQL');
BEGIN;
SELECT token FROM lease_fence.acquire(resource => 'stock:1', ttl => '5s', wait => '1s');
UPDATE stock SET n = n + 1 WHERE id = 1;
COMMIT;
SELECT token FROM lease_fence.acquire(resource => 'stock:2', ttl => '100ms', wait => '1s', scope => 'detached');
UPDATE stock SET n = n + 1 WHERE id = 2;
SQL
my (@runs, @out);
foreach my $i (0 .. 2)
{
	$out[$i] = '';
	my $command = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do psql -XqAt -v ON_ERROR_STOP=0 -f '$load'; done";
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	local $ENV{PGDATABASE} = 'named';
	push @runs, IPC::Run::start([ 'sh', '-c', $command ], '>', \$out[$i], '2>&1');
}
foreach my $round (1 .. 6)
{
	$node->safe_psql(
		'named', q{
		DROP EXTENSION IF EXISTS lease_fence CASCADE;
		CREATE EXTENSION lease_fence;
		CREATE TABLE IF NOT EXISTS stock (id int PRIMARY KEY, n int NOT NULL);
		INSERT INTO stock VALUES (1, 0), (2, 0) ON CONFLICT DO NOTHING;
		SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}');
	});
	$node->psql('named', 'BEGIN; DROP EXTENSION lease_fence CASCADE; ROLLBACK');
}
$_->finish foreach @runs;
unlike(join('', @out), qr/terminat|server closed|crash/,
	'the extension is dropped and created under load: no session is lost');
$token = token_of($node, 'named', 'stock:1');
is(write_as($node, 'named', $token), '', 'afterwards leases are granted and write');
is( $node->safe_psql(
		'named',
		'SELECT count(*) = count(DISTINCT token), bool_and(token > (SELECT max(floor) FROM lease_fence.epochs)) FROM lease_fence.grants'
	),
	't|t', 'and no token stands twice, or below the floor');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');

# ---- while no worker is there ----

ok(await_no_worker($node, 'quiet'), 'a worker retires');
$node->safe_psql('quiet', 'DROP EXTENSION lease_fence CASCADE; CREATE EXTENSION lease_fence');
$node->safe_psql('quiet', "SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}')");
is(write_as($node, 'quiet', $quiet), 'LF021', 'an extension dropped and created meanwhile: the epoch has yet to begin');
my $after = token_of($node, 'quiet', 'stock:1');
cmp_ok($after, '>', $quiet, 'then leases are granted');
is(write_as($node, 'quiet', $after), '', 'and write');
is(write_as($node, 'quiet', $quiet), 'LF004', 'and the tokens of before are unknown');

# ---- a schema of somebody else ----

$node->safe_psql('postgres', 'CREATE DATABASE squatted');
$node->safe_psql('squatted', 'CREATE SCHEMA lease_fence; CREATE TABLE lease_fence.grants (token bigint)');
is(sqlstate_of($node, 'squatted', 'CREATE EXTENSION lease_fence'),
	'42P06', 'CREATE EXTENSION refuses a schema that somebody else made');

stop_fast_is_quick($node, 'after all that');
done_testing();
