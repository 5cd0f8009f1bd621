# The extension's SQL and the library are of one version: the scripts lead from the
# first one to the present one, an update to the same is none, and where they differ
# nothing is granted or written, with an error that says so.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

# ---- the scripts ----

my $root = "$FindBin::RealBin/../..";
my ($default) = slurp_file("$root/lease_fence.control") =~ /^default_version = '(.*)'/m;
my %step;
my @installs;
foreach my $file (map { s{.*/}{}r } glob "$root/lease_fence--*.sql")
{
	my ($from, $to) = $file =~ /^lease_fence--(.*?)(?:--(.*))?\.sql$/;

	defined $to ? push @{ $step{$from} }, $to : push @installs, $from;
}
my ($version, @path) = ('1.0');
while ($version && @path < 100)
{
	push @path, $version;
	($version) = @{ $step{$version} // [] };
}
is($path[-1], $default, 'the scripts lead from 1.0 to the default version: ' . join ' ', @path);
is_deeply([ grep { @{ $step{$_} } > 1 } keys %step ], [], 'by one way only');
ok((grep { $_ eq $default || $_ eq '1.0' } @installs), 'and it can be installed');

# ---- versions that differ ----

my $node = new_server('versions', "lease_fence.databases = 'postgres'");
$node->start;
with_extension($node, 'postgres');
is($node->safe_psql('postgres', "SELECT extversion FROM pg_extension WHERE extname = 'lease_fence'"), $default,
	'CREATE EXTENSION installs it');
my $token = token_of($node, 'postgres', 'stock:1');
is(sqlstate_of($node, 'postgres', 'ALTER EXTENSION lease_fence UPDATE'), '', 'an update to the same version is none');
is(write_as($node, 'postgres', $token), '', 'and leases live on');

sub set_version
{
	my ($version) = @_;

	$node->safe_psql('postgres', "UPDATE pg_extension SET extversion = '$version' WHERE extname = 'lease_fence'");
	$node->restart;
	return;
}

foreach my $other ('0.9', '99.0')
{
	set_version($other);
	my $stderr = '';
	my $state = write_as($node, 'postgres', $token);
	is($state, '55000', "$other: no write, also under a token that was good");
	is(sqlstate_of($node, 'postgres', 'UPDATE stock SET n = 0'), '55000', "$other: nor without one");
	is(sqlstate_of($node, 'postgres', 'TRUNCATE stock'), '55000', "$other: nor TRUNCATE");
	is(sqlstate_of($node, 'postgres', "BEGIN; SET LOCAL lease_fence.bypass = 'x'; UPDATE stock SET n = 0; COMMIT"), '55000',
		"$other: nor by bypass");
	$node->psql('postgres', "SELECT lease_fence.acquire(resource => 'stock:2', scope => 'detached')", stderr => \$stderr);
	like($stderr, qr/the library of lease_fence is of version \Q$default\E, the extension in this database of version \Q$other\E/,
		"$other: no lease, and the error says why");
	like($stderr, qr/HINT:  .*ALTER EXTENSION lease_fence UPDATE/, "$other: and what to do");
}
set_version($default);
is(write_as($node, 'postgres', $token), '', 'when they agree again the lease is what it was');
cmp_ok(token_of($node, 'postgres', 'stock:2'), '>', $token, 'and new ones are granted');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
stop_fast_is_quick($node, 'after all that');
done_testing();
