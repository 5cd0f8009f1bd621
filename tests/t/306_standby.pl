# A standby says so; when it is promoted a new epoch begins, the worker comes up
# by itself, and no token of before is good.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf',
	"shared_preload_libraries = 'lease_fence'\nlease_fence.databases = 'shop'");
$primary->start;
$primary->safe_psql('postgres', 'CREATE DATABASE shop');
with_extension($primary, 'shop');
my $token = token_of($primary, 'shop', 'stock:1');
is(write_as($primary, 'shop', $token), '', 'a lease on the primary writes');
$primary->safe_psql('shop', "SELECT lease_fence.release(token => " . token_of($primary, 'shop', 'gone') . ')');

$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);

# ---- on the standby ----

my %calls = (
	acquire => "SELECT lease_fence.acquire(resource => 'stock:1', scope => 'detached', ttl => '1min')",
	try_acquire => "SELECT lease_fence.try_acquire(resource => 'stock:1', scope => 'detached', ttl => '1min')",
	acquire_all => "SELECT lease_fence.acquire_all(resources => ARRAY['a', 'b'], scope => 'detached', ttl => '1min')",
	present => "SELECT lease_fence.present($token)",
	renew => "SELECT lease_fence.renew(token => $token)",
	remaining => "SELECT lease_fence.remaining(token => $token)",
	release => "SELECT lease_fence.release(token => $token)",
	revoke => "SELECT lease_fence.revoke(resource => 'stock:1')",
	begin_epoch => "SELECT lease_fence.begin_epoch(reason => 'test')");
foreach my $call (sort keys %calls)
{
	my $stderr;

	$standby->psql('shop', $calls{$call}, stderr => \$stderr);
	like($stderr, qr/ERROR:  leases can only be taken on the primary\n.*DETAIL:  This server is a standby in recovery/s,
		"$call on a standby says so");
	is(sqlstate_of($standby, 'shop', $calls{$call}), '55000', '... as 55000');
}
is($standby->safe_psql('shop', 'SELECT count(*) FROM lease_fence.leases'), '0', 'a standby has no leases');
is($standby->safe_psql('shop', 'SELECT worker FROM lease_fence.worker_status'), 'stopped', 'and no worker');
is($standby->safe_psql('shop', 'SELECT count(*) > 0 FROM lease_fence.grants'), 't', 'but the grants to read');
is(sqlstate_of($standby, 'shop', "SET lease_fence.token = '$token'; UPDATE stock SET n = 1 WHERE id = 1"),
	'25006', 'an UPDATE on a standby fails as ever');
is( $standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'lease_fence%'"),
	'0', 'neither launcher nor worker runs there');

# ---- promoted ----

my $session = $standby->background_psql('shop', on_error_stop => 0);
$session->query('SELECT 1');
my $last = token_of($primary, 'shop', 'stock:2');
$primary->wait_for_catchup($standby);
$standby->promote;
isnt(await_worker($standby, 'shop'), '', 'promotion: the worker comes up by itself');
ok(await_sql($standby, 'shop', 'SELECT epoch_confirmed FROM lease_fence.worker_status'),
	'and begins an epoch by itself');
is($standby->safe_psql('shop', 'SELECT count(*), count(DISTINCT timeline) FROM lease_fence.epochs'),
	'2|2', 'a new one, on a new timeline');
is(write_as($standby, 'shop', $token), 'LF004', 'a token of before the promotion is refused');
is(write_as($standby, 'shop', $last, 2), 'LF004', 'so is the last one');
$session->query("BEGIN; SET LOCAL lease_fence.token = '$token'");
$session->{stderr} = '';
$session->query('UPDATE stock SET n = 1 WHERE id = 1');
like($session->{stderr}, qr/ERROR/, 'also in a session from before it');
$session->query('ROLLBACK');
$session->quit;
my $new = token_of($standby, 'shop', 'stock:1');
cmp_ok($new, '>', $last, 'the new primary grants greater ones');
is(write_as($standby, 'shop', $new), '', 'which write');
is($standby->safe_psql('shop', "SELECT count(*) FROM lease_fence.grants WHERE ended_at IS NULL AND token < $new"),
	'0', 'the grants of before have ended');
stop_fast_is_quick($standby, 'after its promotion');

# A standby that is stopped, and one that was promoted and restarted, are no news.
$standby->start;
is(write_as($standby, 'shop', $new), '', 'a restart after it keeps its epoch and leases');
is($standby->safe_psql('shop', 'SELECT count(*) FROM lease_fence.epochs'), '2', 'no further epoch');
$standby->stop;
stop_fast_is_quick($primary, 'without its standby');
done_testing();
