# pg_upgrade from each older version that is installed beside this one, with the
# library preloaded in both: guards, stamps, profiles, servers, history, audit and
# operations come along; no token of before is good, the next ones are above them.
#
# Skipped where there is no older version with the extension (scripts/versions
# puts one into its folders).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($stdout, $stderr) = run_command([ 'pg_config', '--version' ]);
my ($version) = $stdout =~ /PostgreSQL (\d+)/;
my @older = grep { my ($number) = /(\d+)$/; $number >= 15 && $number < $version && -x "$_/bin/postgres" && -e "$_/lib/lease_fence.so" }
  glob '/usr/lib/postgresql/*';
plan skip_all => 'no older version with the extension is installed here' if !@older;

# Later minor releases note something in the options of every column, which an
# earlier one of the next version does not know: then no table can be upgraded.
sub knows_column_options
{
	my ($new, $options) = @_;

	return 1 if $options eq '';
	$new->start;
	my $state = state_of($new, 'postgres',
		"BEGIN; CREATE TABLE columns (one int); ALTER TABLE columns ALTER one SET ($options); ROLLBACK");
	$new->stop('fast');
	return $state eq '';
}

foreach my $path (@older)
{
	my ($number) = $path =~ /(\d+)$/;
	my $what = "$number to $version";
	my $old = PostgreSQL::Test::Cluster->new("old_$number", install_path => $path);

	$old->init;
	$old->append_conf('postgresql.conf', $_)
	  foreach "shared_preload_libraries = 'lease_fence'", 'max_prepared_transactions = 10', 'fsync = off';
	$old->start;
	$old->safe_psql('postgres', 'CREATE DATABASE shop; CREATE ROLE clerk LOGIN; CREATE ROLE watcher');
	with_shop($old, 'shop');
	my %tokens = map { $_ => token_of($old, 'shop', $_) } 'stock:1', 'stock:2', 'stock:3';
	$old->safe_psql(
		'shop', qq{
		ALTER DATABASE shop SET lease_fence.token = '';
		GRANT USAGE ON SCHEMA lease_fence TO clerk;
		GRANT EXECUTE ON FUNCTION lease_fence.revoke(text, text) TO watcher;
		SELECT lease_fence.guarded_decrement(relation => 'stock', key => '1', column_name => 'n',
			token => $tokens{'stock:1'}, operation_key => 'order-1');
		CREATE TABLE "odd ""name" (region int, id int, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
		CREATE TABLE odd_1 PARTITION OF "odd ""name" FOR VALUES IN (1);
		SELECT lease_fence.protect(relation => '"odd ""name"', resource => 'odd:{id}', mode => 'observe', lapsed => 'accept');
		CREATE TABLE gone (id int PRIMARY KEY, filler int);
		ALTER TABLE gone DROP COLUMN filler;
		SELECT lease_fence.protect(relation => 'gone', resource => 'gone:{id}', inserts => 'free');
		CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host 'redis', port '6380');
		CREATE USER MAPPING FOR PUBLIC SERVER locks OPTIONS (password 'secret');
		SELECT lease_fence.add_profile(name => 'jobs', prefix => 'job:', servers => '{locks}', shape => 'redisson');
		SELECT lease_fence.add_profile(name => 'etcd', prefix => 'etcd:', policy => 'external');
		SELECT lease_fence.import_grant(resource => 'etcd:1', number => 41);
		SELECT lease_fence.revoke('stock:3', 'a reason')
	});
	is(write_as($old, 'shop', $tokens{'stock:2'}, 2), '', "$what: a row is written, with a stamp");
	is(write_as($old, 'shop', 1), 'LF004', "$what: a write is rejected, and audited");
	my $last = $old->safe_psql('shop', 'SELECT max(token) FROM lease_fence.grants');
	my $contents = q{SELECT
		(SELECT string_agg(token || how_ended, ' ' ORDER BY token) FROM lease_fence.grants WHERE ended_at IS NOT NULL AND token = } . $tokens{'stock:3'} . q{),
		(SELECT count(*) FROM lease_fence.grants WHERE token <= } . $last . q{),
		(SELECT string_agg(id::text, ' ' ORDER BY id) FROM lease_fence.rejected_writes WHERE reason = 'unknown' AND presented_token = 1),
		(SELECT string_agg(o::text, ' ' ORDER BY key) FROM lease_fence.operations o),
		(SELECT string_agg(name || array_to_string(servers, ',') || shape || policy, ' ' ORDER BY name) FROM lease_fence.profiles),
		(SELECT string_agg(array_to_string(srvoptions || umoptions, ' '), ' ') FROM pg_foreign_server s JOIN pg_user_mapping ON umserver = s.oid),
		(SELECT string_agg(g::text, ' ' ORDER BY relation::text) FROM lease_fence.guards g),
		(SELECT string_agg(id || '=' || fence_token, ' ' ORDER BY id) FROM stock),
		has_schema_privilege('clerk', 'lease_fence', 'USAGE'),
		has_function_privilege('watcher', 'lease_fence.revoke(text, text)', 'EXECUTE'),
		has_function_privilege('clerk', 'lease_fence.revoke(text, text)', 'EXECUTE')};
	my $kept = $old->safe_psql('shop', $contents);
	my $column_options = $old->safe_psql('shop', q{SELECT COALESCE(max(one), '') FROM pg_attribute, unnest(attoptions) AS one
		WHERE attrelid = 'stock'::regclass});
	$old->stop('fast');

	my $new = PostgreSQL::Test::Cluster->new("new_$number");
	$new->init($version >= 18 ? (extra => ['--no-data-checksums']) : ());
	$new->append_conf('postgresql.conf', $_)
	  foreach "shared_preload_libraries = 'lease_fence'", "lease_fence.databases = 'shop'", 'fsync = off';
	if (!knows_column_options($new, $column_options))
	{
	  SKIP: { skip "$what: this release of $version is older than that of $number, and does not know $column_options", 1; }
		next;
	}
	chdir $PostgreSQL::Test::Utils::tmp_check or die $!;
	command_ok(
		[   'pg_upgrade', '--no-sync',
			'-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
			'-d', $old->data_dir, '-D', $new->data_dir,
			'-s', $new->host, '-p', $old->port, '-P', $new->port ],
		"$what: pg_upgrade");
	$new->start;
	isnt(write_as($new, 'shop', $tokens{'stock:2'}, 2), '', "$what: no token of before is good, from the first moment");
	is(state_of($new, 'shop', 'UPDATE stock SET n = 0'), 'LF003', "$what: the guard stands");
	is($new->safe_psql('shop', $contents), $kept, "$what: all our tables' rows, guards, servers and rights are as before");
	await_epoch($new, 'shop', $what);
	is($new->safe_psql('shop', 'SELECT count(*) FROM lease_fence.epochs'), '2', "$what: in an epoch of its own");
	check_copy($new, 'shop', $what, $last, %tokens);
	is( $new->safe_psql('shop',
			"SELECT outcome FROM lease_fence.guarded_decrement(relation => 'stock', key => '1', column_name => 'n', operation_key => 'order-1')"),
		'replayed', "$what: an operation key keeps its answer");
	is(state_of($new, 'shop', "SELECT lease_fence.import_grant(resource => 'etcd:1', number => 42)"), '55000',
		"$what: profiles are off, as in any copy");
	is($new->safe_psql('shop', "SELECT string_agg(object, ' ' ORDER BY object) FROM lease_fence.check() WHERE object NOT IN ('fsync')"),
		'profile etcd profile jobs public."odd ""name"', "$what: and check() tells of them, and of the guard that observes, no more");
	unlike(slurp_file($new->logfile), qr/PANIC|TRAP|terminated by signal/, "$what: nothing crashed");
	$new->stop('fast');
}
done_testing();
