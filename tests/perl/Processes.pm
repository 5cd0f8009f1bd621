# Helpers for tests of the launcher, the workers and their databases.
package Processes;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(new_server token_of write_as sqlstate_of worker_pid await_worker
  await_no_worker await_sql with_extension stop_fast_is_quick has_test_points set_test_point);

# A server with lease_fence preloaded; further lines for postgresql.conf, after a
# hash of what init() is to get, if there is one.
sub new_server
{
	my ($name, @conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my %init = @conf && ref $conf[0] ? %{ shift @conf } : ();

	$node->init(%init);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'lease_fence'");
	$node->append_conf('postgresql.conf', $_) foreach @conf;
	return $node;
}

# Extension and a guarded table stock with two rows, in a database that exists.
sub with_extension
{
	my ($node, $database) = @_;

	$node->safe_psql(
		$database, q{
		CREATE EXTENSION lease_fence;
		CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
		INSERT INTO stock VALUES (1, 10), (2, 10);
		SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}');
	});
	return;
}

# Takes a detached lease and returns its token.
sub token_of
{
	my ($node, $database, $resource, $ttl) = @_;

	$ttl //= '10min';
	return $node->safe_psql($database,
		"SELECT token FROM lease_fence.acquire(resource => '$resource', ttl => '$ttl', scope => 'detached', wait => '60s')"
	);
}

# The SQLSTATE with which the statements fail, or '' when all is well.
sub sqlstate_of
{
	my ($node, $database, $sql) = @_;
	my $stderr = '';
	my $status = $node->psql($database, $sql,
		stderr => \$stderr,
		on_error_stop => 1,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);

	return '' if $status == 0;
	return $stderr =~ /(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/ ? $1 : $stderr;
}

# Writes to stock:<id> under a token; as sqlstate_of.
sub write_as
{
	my ($node, $database, $token, $id) = @_;

	$id //= 1;
	return sqlstate_of($node, $database,
		"BEGIN; SET LOCAL lease_fence.token = '$token'; UPDATE stock SET n = n - 1 WHERE id = $id; COMMIT;"
	);
}

# Without asking anything of the extension, so that no worker is started by it.
sub worker_pid
{
	my ($node, $database) = @_;

	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND datname = '$database'"
	);
}

sub await_sql
{
	my ($node, $database, $sql, $expected) = @_;

	return 1 if $node->poll_query_until($database, $sql, $expected // 't');
	diag("gave up waiting for: $sql");
	return 0;
}

sub await_worker
{
	my ($node, $database) = @_;

	await_sql($node, 'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND datname = '$database'"
	);
	return worker_pid($node, $database);
}

sub await_no_worker
{
	my ($node, $database) = @_;

	return await_sql($node, 'postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND datname = '$database'"
	);
}

# pg_ctl stop -m fast, and how long it took.
sub stop_fast_is_quick
{
	my ($node, $situation) = @_;
	my $started = time;

	$node->stop('fast');
	cmp_ok(time - $started, '<', 5, "the server stops quickly $situation");
	return;
}

sub has_test_points
{
	my ($node) = @_;

	return $node->psql('postgres', 'SHOW lease_fence.test_point') == 0;
}

# Known to sessions and workers when it returns; '' lets everybody go on.
sub set_test_point
{
	my ($node, $value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET lease_fence.test_point = '$value'");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
	await_sql($node, 'postgres', "SELECT current_setting('lease_fence.test_point') = '$value'");
	return;
}

1;
