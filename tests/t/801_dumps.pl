# What pg_dump brings along, and what it must not: no token of before is good in
# any copy, the next one is above all of them, and a restore ends without errors,
# also where a worker runs and leases are live.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir;
my $old = new_server('old');
$old->safe_psql('postgres', 'CREATE DATABASE shop');
with_shop($old, 'shop');

# A little of everything that our tables can hold.
my %tokens = map { $_ => token_of($old, 'shop', $_) } 'stock:1', 'stock:2';
$old->safe_psql(
	'shop', qq{
	SELECT lease_fence.guarded_decrement(relation => 'stock', key => '1', column_name => 'n',
		token => $tokens{'stock:1'}, operation_key => 'order-1');
	CREATE TABLE "odd ""name" (id int PRIMARY KEY);
	SELECT lease_fence.protect(relation => '"odd ""name"', resource => 'odd:{id}', mode => 'observe');
	CREATE TABLE dropped (id int PRIMARY KEY);
	SELECT lease_fence.protect(relation => 'dropped', resource => 'dropped:{id}', mode => 'off');
	SELECT lease_fence.guarded_decrement(relation => 'stock', key => '2', column_name => 'n',
		token => $tokens{'stock:2'}, operation_key => 'order-2');
	SELECT lease_fence.add_profile(name => 'etcd', prefix => 'etcd:', policy => 'external');
	SELECT lease_fence.import_grant(resource => 'etcd:1', number => 41);
	CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host 'redis', port '6380');
	CREATE USER MAPPING FOR PUBLIC SERVER locks OPTIONS (password 'secret');
	SELECT lease_fence.add_profile(name => 'jobs', prefix => 'job:', servers => '{locks}');
});
is(write_as($old, 'shop', 1), 'LF004', 'a write is rejected, and audited');
$old->safe_psql('shop', 'DROP TABLE dropped');
my $last = $old->safe_psql('shop', 'SELECT max(token) FROM lease_fence.grants');
my $counts = q{SELECT (SELECT count(*) FROM lease_fence.rejected_writes),
	(SELECT string_agg(key, ' ' ORDER BY key) FROM lease_fence.operations),
	(SELECT string_agg(name || '=' || array_to_string(servers, ','), ' ' ORDER BY name) FROM lease_fence.profiles),
	(SELECT string_agg(array_to_string(srvoptions || umoptions, ' '), ' ')
	 FROM pg_foreign_server s JOIN pg_user_mapping ON umserver = s.oid),
	(SELECT string_agg(relation || '=' || mode, ' ' ORDER BY relation::text) FROM lease_fence.guard_modes m
	 WHERE EXISTS (SELECT FROM pg_class WHERE oid = m.relation)),
	(SELECT count(*) FROM lease_fence.grants WHERE token <= } . $last . ')';
my $kept = $old->safe_psql('shop', $counts);
my $foreign = qr/^profile etcd: it was added in another system or database and is off here$/m;

$old->command_ok([ 'pg_dump', '-Fc', '-d', $old->connstr('shop'), '-f', "$dir/custom" ], 'pg_dump');

# What holds in each restored database.
sub check_restored
{
	my ($node, $database, $what) = @_;

	is($node->safe_psql($database, $counts), $kept, "$what: our tables' rows, and Redis servers, are as before");
	is($node->safe_psql($database, 'SELECT count(*) FROM lease_fence.guard_modes WHERE relation::text ~ \'^[0-9]+$\''),
		'0', "$what: but for the mode of a table that was dropped");
	is($node->safe_psql($database, 'SELECT string_agg(DISTINCT enabled, \' \') FROM lease_fence.guards'),
		'always', "$what: the guards fire always");
	is(state_of($node, $database, 'UPDATE stock SET n = 0'), 'LF003', "$what: they refuse a write without a lease");
	# a token of before asks for the epoch, if nobody has yet
	isnt(write_as($node, $database, $tokens{'stock:1'}), '', "$what: no token of before is good, from the first moment");
	await_epoch($node, $database, $what);
	check_copy($node, $database, $what, $last, %tokens);
	is( $node->safe_psql(
			$database,
			"SELECT outcome FROM lease_fence.guarded_decrement(relation => 'stock', key => '1', column_name => 'n', operation_key => 'order-1')"
		),
		'replayed',
		"$what: an operation key keeps its answer");
	like(problems_in($node, $database), qr/^profile jobs: it was added in another system/m, "$what: a profile is off")
	  unless $database eq 'shop' && $node == $old;
	return;
}

# ---- into a new cluster ----

my $new = new_server('new', "lease_fence.databases = 'shop, busy'");
$new->safe_psql('postgres', 'CREATE DATABASE shop');
$new->command_ok([ 'pg_restore', '-e', '-d', $new->connstr('shop'), "$dir/custom" ], 'pg_restore into a new cluster');
check_restored($new, 'shop', 'new cluster');
like(problems_in($new, 'shop'), $foreign, 'new cluster: check() says that the profile is off');
is(state_of($new, 'shop', "SELECT lease_fence.import_grant(resource => 'etcd:1', number => 99)"), '55000',
	'new cluster: and it is');

# Somebody is faster than the restore: an epoch has begun when the rows of the
# other history come.
$new->safe_psql('postgres', 'CREATE DATABASE busy');
$new->command_ok([ 'pg_restore', '-e', '--section=pre-data', '-d', $new->connstr('busy'), "$dir/custom" ],
	'pg_restore of the schema');
my $early = token_of($new, 'busy', 'early');
$new->command_ok([ 'pg_restore', '-e', '--section=data', '--section=post-data', '-d', $new->connstr('busy'), "$dir/custom" ],
	'the data come without an error where a lease is held already');
check_restored($new, 'busy', 'epoch begun before the data');
cmp_ok($new->safe_psql('busy', 'SELECT count(*) FROM lease_fence.epochs'), '>=', 2, 'both histories are there');

# ---- into the same cluster, under another name ----

$old->safe_psql('postgres', 'CREATE DATABASE twin');
$old->command_ok([ 'pg_restore', '-e', '-1', '-d', $old->connstr('twin'), "$dir/custom" ],
	'pg_restore beside the original, in one transaction');
check_restored($old, 'twin', 'beside the original');
like(problems_in($old, 'twin'), $foreign, 'beside the original: the profile is off in the twin');
unlike(problems_in($old, 'shop'), $foreign, 'and not in the original');
is(write_as($old, 'shop', $tokens{'stock:1'}), '', 'whose leases live on');

# ---- --clean, into the same database ----

my $session = $old->background_psql('shop', on_error_stop => 0);
$session->query("SELECT lease_fence.acquire(resource => 'stock:5', scope => 'session')");
my $after_dump = token_of($old, 'shop', 'stock:3');
is(write_as($old, 'shop', $after_dump, 3), '', '--clean: a grant that the dump does not know');
$old->command_ok([ 'pg_restore', '-e', '--clean', '-d', $old->connstr('shop'), "$dir/custom" ],
	'pg_restore --clean over live leases');
check_restored($old, 'shop', '--clean');
$session->{stderr} = '';
$session->query('UPDATE stock SET n = 0 WHERE id = 5');
like($session->{stderr}, qr/ERROR/, '--clean: a session of before does not write under its lease');
$session->quit;
is(write_as($old, 'shop', $after_dump, 3), 'LF004', '--clean: the lost grant is unknown');
cmp_ok(token_of($old, 'shop', 'stock:3'), '>', $after_dump, '--clean: and no number is issued twice');

# ---- data only, into a database that is in use ----

# The other history is the younger one: its tokens are above ours.
with_shop($new, 'postgres');
my $held = token_of($new, 'postgres', 'stock:4');
is(write_as($new, 'postgres', $held, 4), '', 'data only: the target has leases of its own');
$old->safe_psql('shop', "SELECT lease_fence.begin_epoch(reason => 'to be above')");
my %young = map { $_ => token_of($old, 'shop', $_) } 'stock:1', 'stock:2';
is(write_as($old, 'shop', $young{'stock:1'}, 1), '', 'data only: a stamp of the younger history');
cmp_ok($young{'stock:1'}, '>', $held, 'data only: it is above all of the target');
$old->command_ok([ 'pg_dump', '--data-only', '--disable-triggers', '-T', 'lease_fence.guard_modes',
		'-d', $old->connstr('shop'), '-f', "$dir/data.sql" ],
	'pg_dump --data-only --disable-triggers');
$new->safe_psql('postgres', 'CREATE TABLE "odd ""name" (id int PRIMARY KEY, fence_token bigint NOT NULL DEFAULT 0);
	ALTER TABLE stock DISABLE TRIGGER ALL; DELETE FROM stock; ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence');
$new->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $new->connstr('postgres'), '-f', "$dir/data.sql" ],
	'data only: restored without an error');
is(write_as($new, 'postgres', $young{'stock:2'}, 2), 'LF004', 'data only: a live lease of the other database is unknown');
is(state_of($new, 'postgres', "SELECT lease_fence.present($young{'stock:2'})"), 'LF004', 'data only: it cannot be presented');
is(state_of($new, 'postgres', "SELECT lease_fence.renew(token => $young{'stock:2'})"), 'LF004', 'data only: nor renewed');
my $highest = check_copy($new, 'postgres', 'data only', $young{'stock:2'}, %young);
is(write_as($new, 'postgres', $held, 4), 'LF004', 'data only: the leases of before it have ended as well');
like(problems_in($new, 'postgres'), qr/^public.stock: its guard does not fire in every session_replication_role$/m,
	'data only: check() says that the guard was downgraded');
like(problems_in($new, 'postgres'), qr/^lease_fence.grants: its trigger drop_replicated does not fire/m,
	'data only: and the triggers of our own tables');
$new->safe_psql('postgres', $_) foreach split /\n/, $new->safe_psql('postgres',
	"SELECT hint FROM lease_fence.check() WHERE hint LIKE 'ALTER TABLE % TRIGGER %'");
unlike(problems_in($new, 'postgres'), qr/does not fire/, 'data only: the hints of check() repair it');

# ---- an owner who is no superuser ----

$old->safe_psql('postgres', 'CREATE ROLE owner LOGIN; CREATE DATABASE owned OWNER owner');
$old->safe_psql('owned', 'CREATE EXTENSION lease_fence; GRANT USAGE ON SCHEMA lease_fence TO owner');
$old->safe_psql(
	'owned', q{SET ROLE owner;
	CREATE SCHEMA mine;
	CREATE TABLE mine.stock (id int PRIMARY KEY, n int);
	INSERT INTO mine.stock VALUES (1, 1);
	SELECT lease_fence.protect(relation => 'mine.stock', resource => 'stock:{id}');
	SET search_path = mine;
	BEGIN; SELECT lease_fence.acquire(resource => 'stock:1'); UPDATE stock SET n = 2; COMMIT});
my $stamp = $old->safe_psql('owned', 'SELECT fence_token FROM mine.stock');
my @as_owner = ('-U', 'owner', '-d', $old->connstr('owned'));
$old->command_fails_like([ 'pg_dump', @as_owner ], qr/permission denied for table epochs/,
	'the owner may not read our tables, so pg_dump fails');
$old->command_ok([ 'pg_dump', '-Fc', @as_owner, "--exclude-table-data=lease_fence.*", '-f', "$dir/owned" ],
	'the owner can dump without them');
$old->safe_psql('owned', 'GRANT pg_monitor TO owner');
$old->command_ok([ 'pg_dump', '-Fc', @as_owner, '-f', "$dir/owned_whole" ], 'and with them as a member of pg_monitor');
$old->safe_psql('postgres', 'CREATE DATABASE owned_copy OWNER owner');
$old->command_fails_like([ 'pg_restore', '-e', '-U', 'owner', '-d', $old->connstr('owned_copy'), "$dir/owned" ],
	qr/permission denied to create extension "lease_fence"/, 'only a superuser creates the extension');
$old->safe_psql('owned_copy', 'DROP SCHEMA IF EXISTS mine CASCADE; CREATE EXTENSION lease_fence; GRANT USAGE ON SCHEMA lease_fence TO owner');
my $list = '';
run_log([ 'pg_restore', '-l', "$dir/owned" ], '>', \$list);
append_to_file("$dir/list", join('', grep { !/EXTENSION|ACL - SCHEMA lease_fence/ } map { "$_\n" } split /\n/, $list));
$old->command_ok([ 'pg_restore', '-e', '-U', 'owner', '-L', "$dir/list", '-d', $old->connstr('owned_copy'), "$dir/owned" ],
	'then the owner restores the rest');
is($old->safe_psql('owned_copy', 'SELECT relation, enabled FROM lease_fence.guards'), 'mine.stock|always',
	"the owner's copy has its guard");
my $fresh = token_of($old, 'owned_copy', 'stock:1');
cmp_ok($fresh, '>', $stamp, "and grants above its stamps");
is(state_of($old, 'owned_copy', "BEGIN; SET LOCAL lease_fence.token = '$fresh'; UPDATE mine.stock SET n = 3; COMMIT"), '',
	'which write');
is(state_of($old, 'owned_copy', "BEGIN; SET LOCAL lease_fence.token = '$stamp'; UPDATE mine.stock SET n = 3; COMMIT"), 'LF004',
	'and the token of before does not');

$_->stop('fast') foreach $new, $old;
done_testing();
