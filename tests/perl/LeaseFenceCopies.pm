# Helpers for tests of what becomes of leases and tokens when a database is
# purged, dumped, copied, promoted or replicated.
package LeaseFenceCopies;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(new_server with_shop token_of write_as state_of await await_epoch
  check_copy problems_in reload_until);

# A server with lease_fence preloaded; further lines for postgresql.conf.
sub new_server
{
	my ($name, @conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my %init = ();

	%init = %{ shift @conf } if @conf && ref $conf[0];
	$node->init(%init);
	$node->append_conf('postgresql.conf',
		join("\n", "shared_preload_libraries = 'lease_fence'",
			"max_prepared_transactions = 10", @conf, ''));
	$node->start;
	return $node;
}

# The extension and a guarded table, in a database that exists.
sub with_shop
{
	my ($node, $database) = @_;

	$node->safe_psql(
		$database, q{
		CREATE EXTENSION lease_fence;
		CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
		INSERT INTO stock SELECT i, 100 FROM generate_series(1, 5) i;
		SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}');
	});
	return;
}

# A detached lease's token.
sub token_of
{
	my ($node, $database, $resource, $ttl) = @_;

	$ttl //= '10min';
	return $node->safe_psql($database,
		"SELECT token FROM lease_fence.acquire(resource => '$resource', ttl => '$ttl', scope => 'detached', wait => '60s')"
	);
}

# The SQLSTATE with which the statements fail, or '' when all is well.
sub state_of
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

# Writes to stock:<id> under a token; as state_of.
sub write_as
{
	my ($node, $database, $token, $id) = @_;

	$id //= 1;
	return state_of($node, $database,
		"BEGIN; SET LOCAL lease_fence.token = '$token'; UPDATE stock SET n = n - 1 WHERE id = $id; COMMIT;"
	);
}

sub await
{
	my ($node, $database, $sql, $expected) = @_;

	return 1 if $node->poll_query_until($database, $sql, $expected // 't');
	diag("gave up waiting for: $sql");
	return 0;
}

# Nobody asks for anything here: the worker must come and begin it by itself.
sub await_epoch
{
	my ($node, $database, $what) = @_;

	return ok( await($node, $database, 'SELECT epoch_confirmed FROM lease_fence.worker_status'),
		"$what: the worker comes up by itself");
}

# What must hold in every copy. tokens: resource => token of before, live or not.
# highest: the highest token that was ever handed out, known here or not.
sub check_copy
{
	my ($node, $database, $what, $highest, %tokens) = @_;

	foreach my $resource (sort keys %tokens)
	{
		my ($id) = $resource =~ /(\d+)$/;

		is(write_as($node, $database, $tokens{$resource}, $id), 'LF004',
			"$what: the token of $resource is refused");
		is(state_of($node, $database, "SELECT lease_fence.renew(token => $tokens{$resource})"), 'LF004',
			"$what: nor can it be renewed");
	}
	foreach my $resource (sort keys %tokens)
	{
		my ($id) = $resource =~ /(\d+)$/;
		my $fresh = token_of($node, $database, $resource);

		cmp_ok($fresh, '>', $highest, "$what: the next token is above every one before");
		is(write_as($node, $database, $fresh, $id), '', "$what: and writes to the row of before");
		is(write_as($node, $database, $tokens{$resource}, $id), 'LF004',
			"$what: the one of before stays refused");
		$highest = $fresh;
	}
	return $highest;
}

# What check() says, without the worker's own state.
sub problems_in
{
	my ($node, $database) = @_;

	return $node->safe_psql($database,
		"SELECT object || ': ' || problem FROM lease_fence.check() WHERE object <> 'fsync' ORDER BY 1");
}

# Reloading makes the worker purge at once.
sub reload_until
{
	my ($node, $database, $sql, $expected) = @_;

	for my $try (1 .. 600)
	{
		my $answer = $node->safe_psql($database, $sql);

		return 1 if $answer eq ($expected // 't');
		$node->reload;
		$node->safe_psql($database, 'SELECT pg_sleep(0.2)');
	}
	diag("gave up waiting for: $sql");
	return 0;
}

1;
