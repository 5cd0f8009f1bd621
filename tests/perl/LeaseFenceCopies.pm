# Helpers for tests of what becomes of leases and tokens when a database is
# purged, dumped, copied, promoted or replicated.
package LeaseFenceCopies;

use strict;
use warnings;

use Exporter 'import';
use Processes qw(token_of write_as sqlstate_of await_sql);
use Test::More;

our @EXPORT = qw(new_server with_shop token_of write_as state_of await await_epoch
  check_copy problems_in reload_until);

# The same helpers, by the names that the tests of copies use.
*state_of = \&sqlstate_of;
*await = \&await_sql;

# A server that runs, with lease_fence preloaded; as Processes::new_server.
sub new_server
{
	my ($name, @conf) = @_;
	my @init = @conf && ref $conf[0] ? shift @conf : ();
	my $node = Processes::new_server($name, @init, 'max_prepared_transactions = 10', @conf);

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
