# The launcher and the workers: started on demand and by name, seen in
# pg_stat_activity, retired when nobody needs them.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = new_server('workers', "lease_fence.databases = 'named, briefly, nowhere'");
$node->start;

# ---- the launcher ----

ok( await_sql(
		$node, 'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_fence launcher' AND datname IS NULL"
	),
	'pg_stat_activity shows the launcher, connected to no database');

# ---- a name that does not exist (yet) ----

ok($node->wait_for_log(qr/lease_fence worker for database "nowhere" could not be started/),
	'the log tells of a database that is named and does not exist');
$node->safe_psql('postgres', 'CREATE DATABASE named');
$node->safe_psql('postgres', 'CREATE DATABASE briefly');
ok(await_worker($node, 'briefly'), 'each of several names gets one');
ok(await_worker($node, 'named'), 'a database that is created later gets its worker by its name');
is($node->safe_psql('named', "SELECT count(*) FROM pg_extension WHERE extname = 'lease_fence'"),
	'0', 'which runs without the extension as well');
my $log = slurp_file($node->logfile);
my @lines = $log =~ /worker for database "nowhere" could not be started/g;
is(scalar(@lines), 1, 'that the other one cannot be started is said once');

# ---- on demand, several at once ----

foreach my $database ('one', 'two', 'na"med, odd')
{
	(my $quoted = $database) =~ s/"/""/g;
	$node->safe_psql('postgres', qq{CREATE DATABASE "$quoted"});
	with_extension($node, $database);
}
with_extension($node, 'named');
is(worker_pid($node, 'one'), '', 'CREATE EXTENSION and protect need no worker')
  or diag("worker of one runs");

my $token_one = token_of($node, 'one', 'stock:1');
my $token_two = token_of($node, 'two', 'stock:1');
my $token_odd = token_of($node, 'na"med, odd', 'stock:1');
my $token_named = token_of($node, 'named', 'stock:1');

is( $node->safe_psql(
		'postgres',
		"SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE backend_type = 'lease_fence worker'"),
	'5', 'the first lease in each database starts its worker, all at once');
is(write_as($node, 'one', $token_one), '', 'its token writes in the one database');
is(write_as($node, 'two', $token_two), '', 'the same resource is free in another one');
is(write_as($node, 'na"med, odd', $token_odd), '', 'and in one with an odd name');
is(write_as($node, 'named', $token_named), '', 'and in the named one');
is(write_as($node, 'two', $token_one), 'LF004', 'a token of another database is unknown');
is(sqlstate_of($node, 'two', "SELECT lease_fence.renew(token => $token_one)"),
	'LF004', 'and cannot be renewed');
is(write_as($node, 'one', $token_two), 'LF004', 'nor the other way round');
is($node->safe_psql('two', 'SELECT count(*) FROM lease_fence.leases'),
	'1', 'a database sees its own leases');

# ---- what one sees of a worker ----

my $pid = worker_pid($node, 'one');
is( $node->safe_psql(
		'one',
		"SELECT worker, pid = $pid, since <= now(), failures, epoch, floor < $token_one, epoch_confirmed FROM lease_fence.worker_status"
	),
	'running|t|t|0|1|t|t',
	'worker_status tells what the worker is and where the epoch begins');
ok( await_sql(
		$node, 'postgres',
		"SELECT state = 'idle' AND query <> '' AND xact_start IS NULL AND backend_xmin IS NULL AND backend_xid IS NULL AND wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid"
	),
	'a worker that waits has no transaction open, and says what it did last');
is( $node->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'lease_fence%' AND (backend_xmin IS NOT NULL OR xact_start IS NOT NULL) AND state = 'idle'"
	),
	'0', 'nor has anyone else of ours');
$node->safe_psql('postgres', 'CREATE ROLE somebody; CREATE ROLE watcher IN ROLE pg_monitor');
is(sqlstate_of($node, 'one', 'SET ROLE somebody; SELECT * FROM lease_fence.worker_status'),
	'42501', 'worker_status is not for everybody');
$node->safe_psql('one', 'GRANT USAGE ON SCHEMA lease_fence TO watcher');
is(sqlstate_of($node, 'one', 'SET ROLE watcher; SELECT * FROM lease_fence.worker_status'),
	'', 'but for members of pg_monitor');

# ---- retiring ----

$node->safe_psql('two', "SELECT lease_fence.release(token => $token_two)");
$node->safe_psql('na"med, odd', "SELECT lease_fence.release(token => $token_odd)");
$node->safe_psql('named', "SELECT lease_fence.release(token => $token_named)");
$node->append_conf('postgresql.conf', "lease_fence.databases = 'named'");
$node->reload;
ok(await_no_worker($node, 'two'), 'a worker with nothing to do retires');
ok(await_no_worker($node, 'briefly'), 'so does the one of a database that is no longer named');
ok(await_no_worker($node, 'na"med, odd'), 'so does the one of the odd name');
is(worker_pid($node, 'one'), $pid, 'one with a live lease stays');
isnt(worker_pid($node, 'named'), '', 'one that lease_fence.databases names stays as well');
is($node->safe_psql('two', 'SELECT worker, pid IS NULL, epoch_confirmed FROM lease_fence.worker_status'),
	'stopped|t|t', 'worker_status tells that it stopped');
is(write_as($node, 'two', $token_two), 'LF002', 'without a worker, a token that is over is refused');
my $later = token_of($node, 'two', 'stock:1');
cmp_ok($later, '>', $token_two, 'the next lease starts it again, with a greater token');
is(write_as($node, 'two', $later), '', 'and that one writes');

# ---- another list ----

$node->append_conf('postgresql.conf', "lease_fence.databases = 'two, \"na\"\"med, odd\"'");
$node->reload;
ok(await_worker($node, 'na"med, odd'), 'a database that is named by a reload gets its worker');
$node->append_conf('postgresql.conf', "lease_fence.databases = 'two, ,'");
$node->reload;
ok($node->wait_for_log(qr/invalid list syntax in parameter "lease_fence.databases"/),
	'a broken list is told of');
isnt(worker_pid($node, 'two'), '', 'and stops nothing');

stop_fast_is_quick($node, 'with workers and live leases');
done_testing();
