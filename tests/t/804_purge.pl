# Purging history: nothing is ever accepted because of it, no number is issued
# twice, writers in the way keep their grant's row, and names without end leave
# the shared memory bounded.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('node', "lease_fence.databases = 'postgres'", 'lease_fence.max_leases = 100',
	"autovacuum_naptime = 1s");
with_shop($node, 'postgres');

# How many rows there are of those grants.
sub rows_of
{
	my (@tokens) = @_;

	return 'SELECT count(*) FROM lease_fence.grants WHERE token IN (' . join(', ', @tokens) . ')';
}

sub retain
{
	my ($seconds, @what) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET lease_fence.${_}_retention = '$seconds'") foreach @what;
	$node->reload;
	return;
}

sub released
{
	my ($resource) = @_;
	my $token = token_of($node, 'postgres', $resource);

	$node->safe_psql('postgres', "SELECT lease_fence.release(token => $token)");
	return $token;
}

# ---- history that is old enough ----

my $superseded = released('stock:1');
my $stale = released('stock:1');
is(write_as($node, 'postgres', $stale), 'LF002', 'a released token is over');
my $writer = token_of($node, 'postgres', 'stock:2');
my $key = q{SELECT outcome FROM lease_fence.guarded_decrement(relation => 'stock', key => '2', column_name => 'n', token => } . $writer
  . q{, operation_key => 'once')};
is($node->safe_psql('postgres', $key), 'applied', 'an operation is recorded');
is($node->safe_psql('postgres', $key), 'replayed', 'and answered again');
is($node->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.rejected_writes'), '1', 'the rejection is in the audit');
$node->safe_psql('postgres', "SELECT lease_fence.add_profile(name => 'etcd', prefix => 'etcd:', policy => 'external')");
my @numbers = map { $node->safe_psql('postgres', "SELECT token FROM lease_fence.import_grant(resource => 'etcd:1', number => $_, ttl => '10ms')") } 41, 42;
ok(await($node, 'postgres', "SELECT ended_at IS NOT NULL FROM lease_fence.grants WHERE token = $numbers[1]"), 'an imported grant lapses');
my $highest = released('highest');

retain('1h', 'grants', 'audit', 'operations');
ok(await($node, 'postgres', 'SELECT count(*) = 0 FROM lease_fence.grants WHERE ended_at IS NULL AND token = ' . $highest), 'all ends are written');
is($node->safe_psql('postgres', rows_of($superseded, $stale, @numbers)), '4', 'what is younger than its retention stays');

retain('1s', 'grants', 'audit', 'operations');
ok(reload_until($node, 'postgres', rows_of($superseded, $stale), '0'), 'old grants are purged, the latest of a resource as well');
ok(reload_until($node, 'postgres', rows_of($numbers[0]), '0'), 'and an older imported one');
is($node->safe_psql('postgres', rows_of($numbers[1])), '1', "not the latest imported one: its number is the bar");
is(state_of($node, 'postgres', "SELECT lease_fence.import_grant(resource => 'etcd:1', number => 41)"), 'LF001', 'which still stands');
is($node->safe_psql('postgres', rows_of($highest)), '1', 'nor the highest token');
is($node->safe_psql('postgres', rows_of($writer)), '1', 'nor a live one');
ok(reload_until($node, 'postgres', 'SELECT count(*) FROM lease_fence.operations', '0'), 'operation keys are forgotten');
ok(reload_until($node, 'postgres', "SELECT count(*) FROM lease_fence.rejected_writes WHERE presented_token = $stale", '0'), 'the audit is purged');
cmp_ok($node->safe_psql('postgres', 'SELECT purged FROM lease_fence.stat'), '>=', 5, 'stat counts what was purged');

# "over" as long as the memory has it, then unknown.
like(write_as($node, 'postgres', $_), qr/^LF00[24]$/, 'the token of a purged grant is refused') foreach $superseded, $stale;
is(state_of($node, 'postgres', "SELECT lease_fence.renew(token => $stale)"), 'LF004', 'it cannot be renewed');
is(state_of($node, 'postgres', "SELECT lease_fence.present($stale)"), 'LF004', 'nor presented');
is(write_as($node, 'postgres', $writer, 2), '', 'the live one goes on');
my $next = token_of($node, 'postgres', 'stock:1');
cmp_ok($next, '>', $highest, 'the next token is new');
is(write_as($node, 'postgres', $next), '', 'and writes');
is(write_as($node, 'postgres', $stale), 'LF004', 'the purged one still does not');

# Nothing but the highest is left: it is still the one that the next is counted from.
$node->safe_psql('postgres', "SELECT lease_fence.release(token => $_)") foreach $writer, $next;
my $only = released('only');
ok(reload_until($node, 'postgres', 'SELECT count(*) FROM lease_fence.grants WHERE external_number IS NULL', '1'), 'everything is purged');
is($node->safe_psql('postgres', 'SELECT max(token) FROM lease_fence.grants'), $only, 'but for the highest token');
is($node->safe_psql('postgres', rows_of($numbers[1])), '1', "and the latest imported one");
cmp_ok(token_of($node, 'postgres', 'stock:1'), '>', $only, 'the next number is new');
$node->safe_psql('postgres', 'SELECT lease_fence.revoke(resource => \'stock:1\')');

# ---- a writer in the way ----

my $in_the_way = token_of($node, 'postgres', 'stock:3');
my $prepared = token_of($node, 'postgres', 'stock:4');
my $session = $node->background_psql('postgres');
$session->query_safe("BEGIN; SET LOCAL lease_fence.token = '$in_the_way'; UPDATE stock SET n = -3 WHERE id = 3");
$node->safe_psql('postgres', "BEGIN; SET LOCAL lease_fence.token = '$prepared'; UPDATE stock SET n = -4 WHERE id = 4; PREPARE TRANSACTION 'way'");
$node->safe_psql('postgres', "SELECT lease_fence.release(token => $_)") foreach $in_the_way, $prepared;
my $behind = released('behind');
released('the highest again');
ok(reload_until($node, 'postgres', rows_of($behind), '0'), 'a purge passes grants under which somebody still writes');
is($node->safe_psql('postgres', rows_of($in_the_way, $prepared)), '2', 'their rows stay');
my $state = state_of($node, 'postgres', "SELECT lease_fence.acquire(resource => 'stock:4', wait => '300ms', scope => 'detached')");
is($state, '55P03', 'a new grant still waits for the prepared transaction');
$session->query_safe('COMMIT');
$session->quit;
$node->safe_psql('postgres', "COMMIT PREPARED 'way'");
is($node->safe_psql('postgres', 'SELECT n, fence_token FROM stock WHERE id IN (3, 4) ORDER BY id'),
	"-3|$in_the_way\n-4|$prepared", 'what they wrote is committed under their tokens');
ok(reload_until($node, 'postgres', rows_of($in_the_way, $prepared), '0'), 'and then their grants are purged');
like(write_as($node, 'postgres', $in_the_way, 3), qr/^LF00[24]$/, 'and their tokens refused');
my $after = token_of($node, 'postgres', 'stock:3');
is(write_as($node, 'postgres', $after, 3), '', 'a new grant writes over the stamp of a purged one');

# A writer under more grants than one batch looks at must not hide the rest.
my $many = $node->background_psql('postgres');
$node->safe_psql('postgres', 'CREATE TABLE wide (id int PRIMARY KEY, n int NOT NULL);
	INSERT INTO wide SELECT i, 0 FROM generate_series(1, 120) i');
$node->safe_psql('postgres', "SELECT lease_fence.protect(relation => 'wide', resource => 'wide:{id}')");
$many->query_safe('BEGIN');
foreach my $from (1, 61)
{
	my $to = $from + 59;

	# by halves: more than max_leases are not live at once
	$many->query_safe("CREATE TEMP TABLE t$from (token bigint)");
	$many->query_safe("INSERT INTO t$from SELECT token FROM lease_fence.acquire_all(resources => (SELECT array_agg('wide:' || i) FROM generate_series($from, $to) i), scope => 'detached', ttl => '5min')");
	$many->query_safe("UPDATE wide SET n = 1 WHERE id BETWEEN $from AND $to");
	$many->query_safe("SELECT lease_fence.release(token) FROM t$from");
}
my $hidden = released('hidden');
released('the highest for now');
ok(reload_until($node, 'postgres', rows_of($hidden), '0'), 'a purge also passes a whole batch of them');
is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.grants WHERE resource LIKE 'wide:%'"), '120', 'which stays');
$many->query_safe('COMMIT');
$many->quit;

# ---- names without end ----

my $names = 20000;
$node->safe_psql(
	'postgres', qq{
	DO \$\$
	DECLARE
		t bigint;
	BEGIN
		FOR i IN 1 .. $names LOOP
			t := (lease_fence.acquire(resource => 'name:' || i, scope => 'detached', ttl => '10ms')).token;
			IF i % 2 = 0 THEN
				PERFORM lease_fence.release(token => t);
			END IF;
		END LOOP;
	END \$\$});
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.leases'), '<', 200, "$names names leave a bounded table of leases");
my $last = released('the last one');
ok(reload_until($node, 'postgres', "SELECT count(*) < 10 FROM lease_fence.grants WHERE resource LIKE 'name:%'"), 'and no history');
is($node->safe_psql('postgres', rows_of($last)), '1', 'but the highest token');
my $fresh = token_of($node, 'postgres', 'name:1');
cmp_ok($fresh, '>', $last, 'a name of before gets a new number');
is(state_of($node, 'postgres', "SELECT lease_fence.import_grant(resource => 'etcd:1', number => 41)"), 'LF001',
	'the bar of an imported name stands, though its entry has made room');
is(write_as($node, 'postgres', $after, 3), '', 'a lease that was live all the time still writes');
is($node->safe_psql('postgres', 'SELECT worker FROM lease_fence.worker_status'), 'running', 'the worker runs');
ok(!$node->log_contains('ERROR:  .*(lease_fence|purg)'), 'no error of its own in the log');
$node->stop('fast');
done_testing();
