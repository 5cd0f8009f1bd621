# Switching a guard's mode on a table under load: nobody waits for anybody. And
# what observe records, enforce as the emergency switch, and what check() says of
# a server that cannot keep its promises.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('rollout');
$node->init;
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'lease_fence'
compute_query_id = on
CONF
$node->start;
$node->safe_psql('postgres', q(
	CREATE EXTENSION lease_fence;
	CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
	INSERT INTO stock SELECT i FROM generate_series(1, 100) i;
	SELECT lease_fence.protect('stock', 'stock:{id}', mode => 'observe')));

# Writers that hold their rows for a moment, and one that holds its for long.
my $script = PostgreSQL::Test::Utils::tempdir . '/write.sql';
append_to_file($script, <<'SQL');
\set id random(1, 50)
BEGIN;
UPDATE stock SET n = n + 1 WHERE id = :id;
SELECT pg_sleep(0.02);
COMMIT;
SQL
my ($in, $out, $err) = ('', '', '');
my $idle = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres') ], '<', \$in, '>', \$out, '2>', \$err);
$in .= "BEGIN; UPDATE stock SET n = n + 1 WHERE id = 100; SELECT 'holds';\n";
$idle->pump until $out =~ /holds/;
my ($load_out, $load_err) = ('', '');
sub start_load
{
	return IPC::Run::start([ 'pgbench', '-n', '-c', '4', '-T', '300', '-f', $script, $node->connstr('postgres') ],
		'>', \$load_out, '2>', \$load_err);
}
my $load = start_load();
$node->poll_query_until('postgres', q(SELECT sum(n) > 20 FROM stock)) or die 'no load';

# A switch that had to wait for a writer would run into this time-out: the idle one
# never ends.
for my $mode ('off', 'observe', 'enforce', 'observe', 'off', 'observe')
{
	my ($ret, $stdout, $stderr) = $node->psql('postgres',
		"SET lock_timeout = '10s'; SELECT lease_fence.set_mode('stock', '$mode')");
	is($ret, 0, "a switch to $mode waits for no writer") or diag($stderr);
	if ($mode eq 'enforce')
	{
		# the load ends by itself: its writers hold no lease
		$load->finish;
		like($load_err, qr/write refused: no lease/, 'writers are refused from then on');
		next;
	}
	$load = start_load() unless $load->pumpable;
	my $sum = $node->safe_psql('postgres', 'SELECT sum(n) FROM stock');
	ok($node->poll_query_until('postgres', "SELECT sum(n) > $sum + 20 FROM stock"), "and they go on in mode $mode");
}
$load->signal('TERM');
$load->finish;
is($node->safe_psql('postgres', 'SELECT count(*) FROM stock WHERE fence_token <> 0'), '0', 'no row got a stamp');

# One row a second per role, application and query; nothing but "observed".
ok($node->poll_query_until('postgres', q(
	SELECT count(*) > 0 FROM lease_fence.rejected_writes WHERE action = 'observed')), 'observed writes are in the audit');
is($node->safe_psql('postgres', q(
	SELECT count(*) FROM (SELECT 1 FROM lease_fence.rejected_writes WHERE action = 'observed'
	GROUP BY application_name, reason, date_trunc('second', at) HAVING count(*) > 3) often)), '0',
	'a few rows a second and no more');

# observe takes no lock: no drain waits for it, nobody is terminated.
my $token = $node->safe_psql('postgres', q(SELECT token FROM lease_fence.acquire('stock:99', scope => 'detached', holder => 'a')));
$in .= "SELECT set_config('lease_fence.token', '$token', true); UPDATE stock SET n = n + 1 WHERE id = 99; SELECT 'wrote';\n";
$idle->pump until $out =~ /wrote/;
is($node->safe_psql('postgres', q(SELECT count(*) FROM lease_fence.acquire('stock:99', scope => 'detached', holder => 'a', wait => '1s'))),
	'1', 'a new grant does not wait for a writer in mode observe');
$in .= "UPDATE stock SET n = n + 1 WHERE id = 99; COMMIT; SELECT 'committed';\n";
$idle->pump until $out =~ /committed/;
is($err, '', 'which was not terminated and is not refused');
ok($node->poll_query_until('postgres', q(
	SELECT count(*) > 0 FROM lease_fence.rejected_writes WHERE action = 'observed' AND reason = 'superseded')),
	'its stale write was observed');

# The emergency switch, and back.
$node->safe_psql('postgres', q(SELECT lease_fence.set_mode('stock', 'enforce')));
my ($ret) = $node->psql('postgres', 'UPDATE stock SET n = 0 WHERE id = 1');
isnt($ret, 0, 'enforced again');
$node->safe_psql('postgres', q(ALTER SYSTEM SET lease_fence.enforce = 'observe'));
$node->reload;
ok($node->poll_query_until('postgres', q(SELECT current_setting('lease_fence.enforce') = 'observe')), 'reloaded');
$node->safe_psql('postgres', 'UPDATE stock SET n = 0 WHERE id = 1');
is($node->safe_psql('postgres', q(SELECT count(*) FROM lease_fence.check() WHERE object = 'lease_fence.enforce')), '1',
	'check() says that nothing is enforced');
$node->psql('postgres', 'CREATE ROLE app; GRANT USAGE ON SCHEMA lease_fence TO app');
($ret) = $node->psql('postgres', q(SET ROLE app; SET lease_fence.enforce = 'observe'));
isnt($ret, 0, 'no session can switch it');
$node->safe_psql('postgres', q(ALTER SYSTEM RESET lease_fence.enforce));
$node->reload;
ok($node->poll_query_until('postgres', q(SELECT current_setting('lease_fence.enforce') = 'on')), 'reloaded');
($ret) = $node->psql('postgres', 'UPDATE stock SET n = 0 WHERE id = 1');
isnt($ret, 0, 'enforced again');

# fsync, which this cluster has off.
is($node->safe_psql('postgres', q(SELECT severity FROM lease_fence.check() WHERE object = 'fsync')), 'error', 'check() sees fsync off');
ok($node->poll_query_until('postgres', q(SELECT worker = 'running' FROM lease_fence.worker_status)), 'the worker runs');
ok($node->wait_for_log(qr/check\(\) has a new finding: error: fsync/), 'the worker logs it as well');
$node->append_conf('postgresql.conf', 'fsync = on');
$node->restart;
is($node->safe_psql('postgres', q(SELECT count(*) FROM lease_fence.check() WHERE object = 'fsync')), '0', 'and no more when it is on');

# No place for a worker; and none for the launcher, which would count its failures.
$in .= "\\q\n";
$idle->finish;
for (2, 0)
{
	$node->append_conf('postgresql.conf', "max_worker_processes = $_");
	$node->restart;
	my $problem = '';
	$node->psql('postgres', q(SELECT lease_fence.acquire('stock:1', scope => 'detached', wait => '1s')), stderr => \$problem);
	like($problem, qr/worker of this database is not running/, "no lease without a worker: $_ places");
	ok($node->poll_query_until('postgres', q(SELECT count(*) = 1 FROM lease_fence.check() WHERE object = 'worker' AND severity = 'error')),
		'check() says that the worker is down');
}
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
$node->safe_psql('postgres', q(SELECT lease_fence.acquire('stock:1', scope => 'detached', holder => 'x')));
is($node->safe_psql('postgres', q(SELECT count(*) FROM lease_fence.check())), '0', 'all is well again');

# Imported grants, their order and the modes outlive a crash.
$node->safe_psql('postgres', q(SELECT lease_fence.add_profile('ext', 'ext:', policy => 'external')));
my $live = $node->safe_psql('postgres', q(SELECT token FROM lease_fence.import_grant('ext:live', 5, ttl => '1 h')));
my $over = $node->safe_psql('postgres', q(SELECT token FROM lease_fence.import_grant('ext:over', 5)));
is($node->safe_psql('postgres', "SELECT lease_fence.release($over)"), 't', 'released');
ok($node->poll_query_until('postgres', "SELECT ended_at IS NOT NULL FROM lease_fence.grants WHERE token = $over"), 'which is in the table');
$node->safe_psql('postgres', q(SELECT lease_fence.set_mode('stock', 'observe')));
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', q(SELECT token FROM lease_fence.import_grant('ext:live', 5))), $live, 'the same number is the same token after a crash');
my %refused = ('ext:live' => [ 4, 'LF001' ], 'ext:over' => [ 5, 'LF002' ]);
for my $resource (sort keys %refused)
{
	my ($number, $state) = @{ $refused{$resource} };
	my $stderr = '';
	$node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT lease_fence.import_grant('$resource', $number)", stderr => \$stderr);
	like($stderr, qr/$state/, "$resource, number $number: $state");
}
is($node->safe_psql('postgres', q(SELECT mode FROM lease_fence.guards)), 'observe', 'the mode is the same');
$node->safe_psql('postgres', 'UPDATE stock SET n = 0 WHERE id = 1');
$node->stop;
done_testing();
