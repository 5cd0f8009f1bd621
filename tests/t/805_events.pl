# What a DBA and an application hear of: NOTIFY, stat, worker_status.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('node', "lease_fence.databases = 'postgres'");
with_shop($node, 'postgres');

# ---- NOTIFY ----

my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN lease_fence');

# psql prints a notification after the next command.
sub heard
{
	my ($event, $resource, $token) = @_;
	my $payload = qq({"event": "$event", "resource": "$resource", "token": $token});

	for my $try (1 .. 600)
	{
		my $out = $listener->query('SELECT pg_sleep(0.1)');

		return 1 if index($out, qq(Asynchronous notification "lease_fence" with payload "$payload")) >= 0;
	}
	diag("never heard $payload");
	return 0;
}

my $lost = token_of($node, 'postgres', 'stock:1', '20ms');
ok(heard('lost', 'stock:1', $lost), 'a lease that lapsed: lost');
my $taken = $node->safe_psql('postgres',
	"SELECT token FROM lease_fence.acquire(resource => 'stock:2', scope => 'detached', ttl => '10min', holder => 'me')");
$node->safe_psql('postgres', "SELECT lease_fence.acquire(resource => 'stock:2', scope => 'detached', ttl => '10min', holder => 'me')");
ok(heard('superseded', 'stock:2', $taken), 'one that its holder took anew: superseded');
my $revoked = token_of($node, 'postgres', 'stock:3');
$node->safe_psql('postgres', "SELECT lease_fence.revoke(resource => 'stock:3', reason => 'test')");
ok(heard('revoked', 'stock:3', $revoked), 'one that was taken away: revoked');
is(write_as($node, 'postgres', $revoked, 3), 'LF002', 'a stale write');
ok(heard('rejected', 'stock:3', $revoked), 'is heard of: rejected');

# A name that JSON and SQL would both like to be cut short by.
my $odd = q{a"b\c'{}};
my $odd_token = $node->safe_psql('postgres',
	"SELECT token FROM lease_fence.acquire(resource => \$\$$odd\$\$, scope => 'detached', ttl => '20ms')");
ok(heard('lost', q{a\"b\\\\c'{}}, $odd_token), 'names are escaped');
my $long = 'x' x 512;
my $long_token = token_of($node, 'postgres', $long, '20ms');
ok(heard('lost', $long, $long_token), 'and go whole');

# Released leases are nobody's news.
my $quiet = token_of($node, 'postgres', 'stock:4');
$node->safe_psql('postgres', "SELECT lease_fence.release(token => $quiet)");
my $marker = token_of($node, 'postgres', 'marker', '20ms');
my $all = '';
for my $try (1 .. 600)
{
	$all .= $listener->query('SELECT pg_sleep(0.1)');
	last if $all =~ /$marker/;
}
unlike($all, qr/$quiet/, 'a lease that was released is no news');
$listener->quit;

# ---- stat ----

my $columns = 'granted, released, lapsed, revoked, taken_over, rejected, terminated, notifications, notifications_dropped, purged';
my $stat = "SELECT $columns FROM lease_fence.stat";
ok(await($node, 'postgres', 'SELECT notifications = 7 FROM lease_fence.stat'), 'each notification is counted');
is($node->safe_psql('postgres', $stat), '8|1|4|1|1|1|0|7|0|0', 'stat counts how grants ended');
ok($node->safe_psql('postgres', 'SELECT mints BETWEEN 1 AND granted FROM lease_fence.stat'), 'and the commits that made them');
$node->safe_psql('postgres', 'SELECT lease_fence.acquire_all(resources => ARRAY[\'a\', \'b\', \'c\'], scope => \'detached\', ttl => \'10min\')');
is($node->safe_psql('postgres', 'SELECT granted FROM lease_fence.stat'), '11', 'three grants of one call');
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION lease_fence');
token_of($node, 'other', 'x');
is($node->safe_psql('other', $stat), '1|0|0|0|0|0|0|0|0|0', 'each database has its own counts');

# ---- worker_status ----

is($node->safe_psql('postgres', 'SELECT worker, failures, epoch_confirmed, audit_written, audit_logged FROM lease_fence.worker_status'),
	'running|0|t|1|0', 'worker_status says what the worker does');
is( $node->safe_psql('postgres',
		'SELECT s.epoch = e.id AND s.floor = e.floor FROM lease_fence.worker_status s, lease_fence.epochs e'),
	't', 'and in which epoch');
is( $node->safe_psql('postgres',
		"SELECT a.backend_type FROM lease_fence.worker_status s JOIN pg_stat_activity a USING (pid)"),
	'lease_fence worker', 'its pid is that of the worker');
$node->safe_psql('postgres', 'CREATE ROLE monitor; GRANT pg_monitor TO monitor; GRANT USAGE ON SCHEMA lease_fence TO monitor;
	CREATE ROLE app; GRANT USAGE ON SCHEMA lease_fence TO app');
foreach my $view ('stat', 'worker_status', 'grants', 'epochs', 'rejected_writes')
{
	is(state_of($node, 'postgres', "SET ROLE monitor; SELECT * FROM lease_fence.$view"), '', "pg_monitor reads $view");
	is(state_of($node, 'postgres', "SET ROLE app; SELECT * FROM lease_fence.$view"), '42501', '... an application does not');
}

$node->stop('fast');
done_testing();
