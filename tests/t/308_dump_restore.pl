# pg_dump and restore into a new cluster: guards and stamps come along, a new
# epoch begins, and no token of before is good.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $old = new_server('old');
$old->start;
$old->safe_psql('postgres', 'CREATE DATABASE shop');
with_extension($old, 'shop');
$old->safe_psql(
	'shop', q{
	CREATE TABLE "odd ""table" ("the id" text PRIMARY KEY, n int);
	INSERT INTO "odd ""table" VALUES ('x', 1);
	SELECT lease_fence.protect(relation => '"odd ""table"', resource => 'odd:{the id}', token_column => 'my stamp', lapsed => 'accept');
	CREATE TABLE watched (id int PRIMARY KEY);
	SELECT lease_fence.protect(relation => 'watched', resource => 'watched:{id}', mode => 'observe');
});
my $token = token_of($old, 'shop', 'stock:1');
my $odd = token_of($old, 'shop', 'odd:x');
is(write_as($old, 'shop', $token), '', 'a lease writes, and leaves its stamp');
is(sqlstate_of($old, 'shop',
		qq{BEGIN; SET LOCAL lease_fence.token = '$odd'; UPDATE "odd ""table" SET n = 2; COMMIT}),
	'', 'in an odd table as well');
is(write_as($old, 'shop', 1), 'LF004', 'a write is rejected, and in the audit');
my $guards = 'SELECT * FROM lease_fence.guards ORDER BY relation::text';
my $guarded = $old->safe_psql('shop', $guards);
my $rejected = $old->safe_psql('shop', 'SELECT count(*) FROM lease_fence.rejected_writes');
is($rejected, '1', 'one row in the audit');

my $dir = PostgreSQL::Test::Utils::tempdir;
$old->command_ok([ 'pg_dump', '-d', $old->connstr('shop'), '-f', "$dir/plain.sql" ], 'pg_dump, plain');
$old->command_ok([ 'pg_dump', '-Fc', '-d', $old->connstr('shop'), '-f', "$dir/custom" ], 'pg_dump, custom');
$old->command_ok([ 'pg_dump', '--data-only', '-d', $old->connstr('shop'), '-t', 'stock', '-f', "$dir/data.sql" ],
	'pg_dump, data of a guarded table only');

my $new = new_server('new');
$new->start;

# How the restored database must look, however it came there.
sub check_restored
{
	my ($node, $database, $what) = @_;

	is($node->safe_psql($database, $guards), $guarded, "$what: the guards are as before, with their modes");
	is($node->safe_psql($database, 'SELECT fence_token FROM stock WHERE id = 1'), $token, "$what: so are the stamps");
	is($node->safe_psql($database, "SELECT count(*) FROM lease_fence.grants WHERE token IN ($token, $odd)"),
		'2', "$what: so are the grants");
	is($node->safe_psql($database, 'SELECT count(*) FROM lease_fence.rejected_writes'),
		$rejected, "$what: so is the audit");
	is(sqlstate_of($node, $database, 'UPDATE stock SET n = 1 WHERE id = 1'), 'LF003',
		"$what: the guard stands at once");
	like(write_as($node, $database, $token), qr/^LF0(04|21)$/, "$what: a token of before is not good");
	my $fresh = token_of($node, $database, 'stock:1');
	cmp_ok($fresh, '>', $token, "$what: a new one is greater than all stamps");
	is(write_as($node, $database, $fresh), '', "$what: and writes to the row of before");
	is(write_as($node, $database, $token), 'LF004', "$what: the token of before is unknown");
	is(sqlstate_of($node, $database, "SELECT lease_fence.renew(token => $token)"), 'LF004',
		"$what: it cannot be renewed");
	is($node->safe_psql($database, 'SELECT count(*) FROM lease_fence.epochs'), '2', "$what: in a new epoch");
	return;
}

# ---- psql ----

$new->safe_psql('postgres', 'CREATE DATABASE plain');
$new->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $new->connstr('plain'), '-f', "$dir/plain.sql" ],
	'psql restores it without an error');
check_restored($new, 'plain', 'psql');

# ---- pg_restore, with the worker there from the beginning ----

$new->append_conf('postgresql.conf', "lease_fence.databases = 'custom'");
$new->reload;
$new->safe_psql('postgres', 'CREATE DATABASE custom');
await_worker($new, 'custom');
$new->command_ok([ 'pg_restore', '-e', '-j', '2', '-d', $new->connstr('custom'), "$dir/custom" ],
	'pg_restore restores it in parallel, while a worker runs');
check_restored($new, 'custom', 'pg_restore');

# A dump that takes long: the worker sees the extension before the rows of its
# tables come.
$new->safe_psql('postgres', 'ALTER DATABASE custom RENAME TO custom_before; CREATE DATABASE custom');
await_worker($new, 'custom');
$new->safe_psql('custom', 'CREATE EXTENSION lease_fence');
my $now = $new->safe_psql('custom', 'SELECT clock_timestamp()');
ok( await_sql(
		$new, 'postgres',
		"SELECT query_start > '$now' AND state = 'idle' FROM pg_stat_activity WHERE datname = 'custom' AND backend_type = 'lease_fence worker'"
	),
	'a worker sees an extension that is to be restored');
is($new->safe_psql('custom', 'SELECT count(*) FROM lease_fence.epochs'), '0', 'it begins no epoch while nobody asks');
$new->command_ok([ 'pg_restore', '-e', '-d', $new->connstr('custom'), "$dir/custom" ],
	'pg_restore restores into that');
check_restored($new, 'custom', 'slowly restored');

# ---- into the same cluster, beside the original ----

$old->safe_psql('postgres', 'CREATE DATABASE twin');
$old->command_ok([ 'pg_restore', '-e', '-1', '-d', $old->connstr('twin'), "$dir/custom" ],
	'pg_restore beside the original');
check_restored($old, 'twin', 'beside it');
is(write_as($old, 'shop', $token), '', 'the original goes on');

# ---- data only ----

$new->safe_psql('postgres', 'CREATE DATABASE data');
with_extension($new, 'data');
my $held = token_of($new, 'data', 'seen');
$new->safe_psql('data', 'ALTER TABLE stock DISABLE TRIGGER zzz_lease_fence; DELETE FROM stock; ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence');
isnt($new->psql('data', slurp_file("$dir/data.sql"), on_error_stop => 1), 0,
	'data only: a guarded table takes no rows from somebody without a lease');
$new->safe_psql('data', "SELECT lease_fence.set_mode(relation => 'stock', mode => 'off')");
$new->safe_psql('data', slurp_file("$dir/data.sql"));
$new->safe_psql('data', "SELECT lease_fence.set_mode(relation => 'stock', mode => 'enforce')");
my $fresh = token_of($new, 'data', 'stock:1');
is(write_as($new, 'data', $fresh), '', 'loaded while the guard was off: a new lease writes');

stop_fast_is_quick($new, 'after a restore');
$old->stop('fast');
done_testing();
