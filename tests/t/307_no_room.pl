# Nothing is free: places for leases, slots for workers.  What there is goes on,
# what is refused says which setting would help.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

# ---- not preloaded ----

my $node = PostgreSQL::Test::Cluster->new('room');
$node->init;
$node->start;
my $stderr;
$node->psql('postgres', 'CREATE EXTENSION lease_fence', stderr => \$stderr);
like($stderr, qr/ERROR:  lease_fence must be loaded at server start/, 'not preloaded: CREATE EXTENSION says so');
like($stderr, qr/HINT: .*shared_preload_libraries = 'lease_fence'/, 'with the line for postgresql.conf');
$node->psql('postgres', "LOAD 'lease_fence'", stderr => \$stderr);
like($stderr, qr/ERROR:  lease_fence must be loaded at server start/, 'so does LOAD');
$node->append_conf('postgresql.conf', "session_preload_libraries = 'lease_fence'");
$node->reload;
$node->psql('postgres', 'SELECT 1', stderr => \$stderr);
like($stderr, qr/lease_fence must be loaded at server start/, 'so does session_preload_libraries');
$node->append_conf('postgresql.conf', "session_preload_libraries = ''");

# ---- lease_fence.max_leases ----

$node->append_conf('postgresql.conf', $_)
  foreach ("shared_preload_libraries = 'lease_fence'", 'lease_fence.max_leases = 16');
$node->restart;
with_extension($node, 'postgres');
my $first = token_of($node, 'postgres', 'stock:1');
my $pid = worker_pid($node, 'postgres');

# Thousands of names, one after the other: those that are over make room.
$node->safe_psql(
	'postgres', q{
	DO $$
	BEGIN
		FOR i IN 1 .. 2000 LOOP
			PERFORM lease_fence.release(token => (lease_fence.acquire(
				resource => 'dead:' || i, ttl => '1min', scope => 'detached', wait => '10s')).token);
		END LOOP;
	END $$;
});
is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.grants WHERE resource LIKE 'dead:%'"),
	'2000', 'thousands of names that are over make room for others');
ok(await_sql($node, 'postgres', 'SELECT count(*) = 0 FROM lease_fence.grants WHERE ended_at IS NULL AND resource <> \'stock:1\''),
	'all their ends are in the table');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.leases'), '<', 200,
	'those that are still in memory are few');
is(write_as($node, 'postgres', $first), '', 'the one that is live has its place');
my $dead = $node->safe_psql('postgres', "SELECT token FROM lease_fence.grants WHERE resource = 'dead:1'");
is(sqlstate_of($node, 'postgres', "SELECT lease_fence.present($dead)"), 'LF002',
	'one that is not in memory any more is still over');
cmp_ok(token_of($node, 'postgres', 'dead:1', '1s'), '>', $dead, 'and can be taken again');

# Until nothing is free.
my $refused = '';
my @live;
foreach my $i (1 .. 200)
{
	my ($out, $err);

	$node->psql(
		'postgres',
		"SELECT token FROM lease_fence.acquire(resource => 'live:$i', ttl => '10min', scope => 'detached')",
		stdout => \$out,
		stderr => \$err,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	if ($err ne '')
	{
		$refused = $err;
		last;
	}
	push @live, $out;
}
like($refused, qr/ERROR:  LF021: no room for another lease/, 'when all are live, the next one is refused');
like($refused, qr/HINT:  Increase lease_fence.max_leases/, 'with the setting that would help');
cmp_ok(scalar(@live), '>=', 15, 'not before max_leases are live');
is(write_as($node, 'postgres', $first), '', 'a lease that is live writes');
is(sqlstate_of($node, 'postgres', "SELECT lease_fence.renew(token => $live[0])"), '', 'another is renewed');
is(sqlstate_of($node, 'postgres',
		"SELECT lease_fence.acquire_all(resources => ARRAY['x1', 'x2'], ttl => '1min', scope => 'detached')"),
	'LF021', 'acquire_all is refused as well');
is(sqlstate_of($node, 'postgres', "SELECT lease_fence.present($dead)"), 'LF001',
	'a token of before is refused, not admitted for lack of room');
$node->safe_psql('postgres', "SELECT lease_fence.release(token => $live[0])");
isnt(token_of($node, 'postgres', 'freed'), '', 'a release makes room');
is(worker_pid($node, 'postgres'), $pid, 'it is still the same worker');

# All of them are detached and come back after a restart, also a smaller one.
$node->restart;
is(sqlstate_of($node, 'postgres', "SELECT lease_fence.renew(token => $live[1])"), '', 'restart: detached leases come back');
is(write_as($node, 'postgres', $first), '', 'and write');

# ---- max_worker_processes ----

my $unused = new_server('slots', 'max_worker_processes = 3', "lease_fence.audit_timeout = '300ms'");
$unused->start;
foreach my $database ('a', 'b', 'c')
{
	$unused->safe_psql('postgres', "CREATE DATABASE $database");
	with_extension($unused, $database);
}
# The launchers of lease_fence and of logical replication, and one more.
my $token = token_of($unused, 'a', 'stock:1');
my $said = '';
my $asks = IPC::Run::start(
	[
		'psql', '-XqAt', '-v', 'VERBOSITY=verbose', '-d', $unused->connstr('b'), '-c',
		"SELECT lease_fence.acquire(resource => 'stock:1', ttl => '1min', scope => 'detached')"
	],
	'&>', \$said);
ok(await_sql($unused, 'b', "SELECT worker = 'wanted' AND failures >= 3 FROM lease_fence.worker_status"),
	'no slot is free: worker_status says that a worker is wanted');
is(sqlstate_of($unused, 'b', 'UPDATE stock SET n = 0'), 'LF003', 'guards stand without it');
is(write_as($unused, 'a', $token), '', 'other databases go on');
# The worker of a goes only some time after this.
$unused->safe_psql('a', "SELECT lease_fence.release(token => $token)");
$asks->finish;
like($said, qr/ERROR:  LF021: the lease_fence worker of this database is not running/, 'a lease is refused');
like($said, qr/HINT: .*max_worker_processes/, 'with the setting that would help');
my $log = slurp_file($unused->logfile);
my @warnings = $log =~ /WARNING:  no background worker slot is free/g;
is(scalar(@warnings), 1, 'one WARNING in the log');
ok(await_worker($unused, 'b'), 'a slot becomes free: the worker comes');
isnt(token_of($unused, 'b', 'stock:1'), '', 'and grants');
ok($unused->wait_for_log(qr/a background worker slot is free for lease_fence again/), 'the log says so');
stop_fast_is_quick($unused, 'when no slot is free');
stop_fast_is_quick($node, 'when no lease is free');
done_testing();
