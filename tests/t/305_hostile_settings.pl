# Whatever ALTER DATABASE, ALTER ROLE and the schemas say: the worker mints,
# writes the audit and begins epochs all the same.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = new_server('hostile', 'max_worker_processes = 20');
$node->start;
my $user = $node->safe_psql('postgres', 'SELECT rolname FROM pg_roles WHERE oid = 10');
$node->safe_psql('postgres', 'CREATE ROLE powerless');

# Objects that shadow those of pg_catalog, and those of lease_fence, for whoever
# has their schema before them in search_path.
my $trap = q{
	CREATE SCHEMA trap;
	GRANT ALL ON SCHEMA trap TO PUBLIC;
	CREATE TABLE trap.sprung (what text);
	CREATE FUNCTION trap.spring(what text) RETURNS text LANGUAGE sql AS
		$$ INSERT INTO trap.sprung VALUES (what) RETURNING what $$;
	CREATE FUNCTION trap.max(bigint) RETURNS bigint LANGUAGE plpgsql AS
		$$ BEGIN PERFORM trap.spring('max'); RETURN 1; END $$;
	CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
		$$ BEGIN PERFORM trap.spring('clock_timestamp'); RETURN '2001-01-01'; END $$;
	CREATE FUNCTION trap.equal(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS
		$$ BEGIN PERFORM trap.spring('='); RETURN true; END $$;
	CREATE OPERATOR trap.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = trap.equal);
	CREATE FUNCTION trap.equal(text, text) RETURNS boolean LANGUAGE plpgsql AS
		$$ BEGIN PERFORM trap.spring('text ='); RETURN true; END $$;
	CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.equal);
	CREATE TABLE trap.grants (token bigint, resource text);
	CREATE TABLE trap.pg_extension (extname text);
	CREATE TABLE trap.pg_class (relname text);
};

my @settings = (
	"default_transaction_read_only = on",
	"default_transaction_isolation = 'serializable'",
	"default_transaction_deferrable = on",
	"statement_timeout = 1",
	"lock_timeout = 1",
	"idle_in_transaction_session_timeout = 1",
	"idle_session_timeout = 1",
	"transaction_timeout = 1",
	"search_path = trap, pg_catalog, lease_fence, public",
	"synchronous_commit = off",
	"session_replication_role = replica",
	"row_security = off",
	"role = powerless",
	"session_authorization = powerless",
	"default_tablespace = 'nowhere'",
	"client_min_messages = error",
	"log_statement = 'all'",
	"exit_on_error = on",
	"track_activities = off",
	"enable_indexscan = off",
	"plan_cache_mode = force_custom_plan",
	"default_table_access_method = 'heap'",
	"jit = on",
	"work_mem = '64kB'",
	"DateStyle = 'German'",
	"TimeZone = 'Asia/Kathmandu'",
	"IntervalStyle = 'sql_standard'",
	"standard_conforming_strings = off",
	"check_function_bodies = off",
	"force_parallel_mode = on",
	"debug_parallel_query = on",
	"session_preload_libraries = 'no_such_library'",
	"local_preload_libraries = 'no_such_library'",
	"temp_file_limit = 0",
	"commit_delay = 100000",
	"ignore_checksum_failure = on",
	"transform_null_equals = on",
	"array_nulls = off",
	"xmloption = document");

# A client that is not hit by the settings itself: the database's and the role's
# are overridden by its own.
my $mild = join ' ', map { "-c $_" } (
	'default_transaction_read_only=off', 'default_transaction_isolation=read\\ committed',
	# a parallel worker would begin with the hostile ones
	'max_parallel_workers_per_gather=0',
	'statement_timeout=0', 'lock_timeout=0', 'idle_in_transaction_session_timeout=0',
	'idle_session_timeout=0', 'search_path=public', 'session_replication_role=origin',
	'role=none', 'default_tablespace=', 'client_min_messages=notice', 'exit_on_error=off',
	'session_preload_libraries=', 'local_preload_libraries=', 'row_security=on');
# A setting that this version does not have would keep the client out.
$mild .= ' -c transaction_timeout=0'
  if $node->safe_psql('postgres',
	"SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'") eq '1';

# ---- a session's lease, where it cannot be seen whether the session is active ----

my $blind = 'blind';
$node->safe_psql('postgres', "CREATE DATABASE $blind");
with_extension($node, $blind);
$node->safe_psql('postgres', "ALTER DATABASE $blind SET track_activities = off");
my $session = $node->background_psql($blind);
my $unseen = $session->query_safe(
	"SELECT token FROM lease_fence.acquire(resource => 'stock:1', scope => 'session')");

# One database a setting would take too long: each way of setting them has one.
my $number = 0;

sub try_settings
{
	my ($what, $alter, @list) = @_;
	my $database = 'hostile' . ++$number;
	my $session;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	with_extension($node, $database);
	$node->safe_psql($database, $trap);
	$node->safe_psql($database, "CREATE TABLE other (id int PRIMARY KEY, n int)");
	foreach my $setting (@list)
	{
		(my $command = $alter) =~ s/DATABASE X/DATABASE $database/;
		$node->psql('postgres', "$command SET $setting");
	}

	cmp_ok(
		$node->safe_psql(
			'postgres',
			"SELECT COALESCE(max(cardinality(setconfig)), 0) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE datname = '$database'"
		),
		'>=', @list > 1 ? 30 : 1, "$what: the settings are there");

	local $ENV{PGOPTIONS} = $mild;
	my $token = token_of($node, $database, 'stock:1');
	is($node->safe_psql($database, 'SELECT count(*) FROM lease_fence.epochs'), '1', "$what: an epoch begins");
	is(write_as($node, $database, $token), '', "$what: a lease is granted, and writes");
	my $second = $node->safe_psql($database,
		"SELECT lease_fence.release(token => $token); SELECT token FROM lease_fence.acquire(resource => 'stock:1', ttl => '1min', scope => 'detached')"
	);
	$second =~ s/.*\n//s;
	cmp_ok($second, '>', $token, "$what: the next one is greater");
	is(write_as($node, $database, $token), 'LF001', "$what: the old one is refused");
	is($node->safe_psql($database, "SELECT count(*) FROM lease_fence.rejected_writes WHERE presented_token = $token"),
		'1', "$what: and that is in the audit");
	is(sqlstate_of($node, $database, "SELECT lease_fence.revoke(resource => 'stock:1', reason => 'test')"),
		'', "$what: it can be revoked");
	is( $node->safe_psql(
			$database,
			"SELECT how_ended, ended_at > '2020-01-01', end_reason FROM lease_fence.grants WHERE token = $second"),
		'revoked|t|test', "$what: which stands in the table");
	is(sqlstate_of($node, $database, "SELECT lease_fence.begin_epoch(reason => 'test')"),
		'', "$what: a new epoch can begin");
	is(write_as($node, $database, $second), 'LF004', "$what: and refuses all before");
	is($node->safe_psql($database, 'SELECT count(*) FROM trap.sprung'), '0',
		"$what: nothing of another schema was run");
	is($node->safe_psql($database, 'SELECT failures FROM lease_fence.worker_status'),
		'0', "$what: the worker has not died");
	return $database;
}

try_settings('ALTER DATABASE', 'ALTER DATABASE X', @settings);
try_settings('ALTER ROLE IN DATABASE', qq{ALTER ROLE "$user" IN DATABASE X}, @settings);

# For each one alone where one may hide another.
try_settings("ALTER DATABASE SET $_", 'ALTER DATABASE X', $_)
  foreach ("default_transaction_isolation = 'serializable'", 'statement_timeout = 1',
	'search_path = trap, pg_catalog, lease_fence', 'role = powerless', 'session_replication_role = replica');

ok( await_sql(
		$node, $blind, "SELECT renewals > 0 FROM lease_fence.leases WHERE token = $unseen"),
	'track_activities = off: a lease of scope session is renewed');
$session->quit;

# ---- postgresql.conf ----

$node->append_conf('postgresql.conf',
	"default_transaction_read_only = on\ndefault_transaction_isolation = 'serializable'\nstatement_timeout = 1\nlock_timeout = 1\nidle_in_transaction_session_timeout = 1\nsynchronous_commit = off");
$node->reload;
{
	local $ENV{PGOPTIONS} = $mild;
	my $token = token_of($node, $blind, 'stock:2');
	is(write_as($node, $blind, $token, 2), '', 'the same in postgresql.conf, reloaded: a running worker goes on');
	my $pid = worker_pid($node, $blind);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	cmp_ok(token_of($node, $blind, 'stock:3'), '>', $token, 'and a new one starts');
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
stop_fast_is_quick($node, 'with all that');
done_testing();
