# The worker dies between any two steps of a grant whose lock it has taken in
# Redis: the lock is not left behind, and the next who asks need not wait for it
# to run out.  Needs a build with lease_fence.test_point.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use RedisServer;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $node = new_server('dies', 'max_worker_processes = 20');
$node->start;
plan skip_all => 'not a build with test points' if !has_test_points($node);

my $redis = RedisServer->new;

# Two names, so that both of a request's locks are seen to.
my $ask = "SELECT count(token) FROM lease_fence.acquire_all(resources => '{r:1,r:2}', ttl => '10min',
	scope => 'detached', holder => 'me', wait => '30s')";
my $ask_other = "SELECT token > 0 FROM lease_fence.acquire(resource => 'r:1', ttl => '10min', scope => 'detached',
	holder => 'somebody else', wait => '20s')";

foreach my $point (qw(mint-begun mint-drained mint-inserted mint-committed mint-published mint-unanswered))
{
	# A database each: a worker that dies again and again is started ever more slowly.
	(my $database = $point) =~ tr/-/_/;
	my $said = '';

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	with_extension($node, $database);
	$node->safe_psql($database,
		"CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host '127.0.0.1', port '" . $redis->port . "');
		SELECT lease_fence.add_profile(name => 'r', prefix => 'r:', servers => '{locks}', lock_key => '$database:{resource}')");
	$node->safe_psql($database, "SELECT lease_fence.acquire(resource => 'embedded', scope => 'detached')");
	my $pid = await_worker($node, $database);

	my $offset = -s $node->logfile;

	set_test_point($node, "$point=wait");
	my $asks = IPC::Run::start(
		[ 'psql', '-XqAt', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($database), '-c', $ask ],
		'&>', \$said);
	$node->wait_for_log(qr/process $pid waits at point $point/, $offset);
	is(scalar @{ $redis->command('KEYS', "$database:*") }, 2, "$point: the worker has taken the locks");
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	await_sql($node, 'postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	set_test_point($node, '');
	$asks->finish;
	like($said, qr/LF021/, "$point: who asked is told that the worker died");

	is($node->safe_psql($database, $ask_other), 't', "$point: somebody else has the lease without waiting for ten minutes");
	is($redis->command('EXISTS', "$database:r:2"), 0, "$point: nor is the other lock left behind");
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
stop_fast_is_quick($node, 'after all that');
done_testing();
