# The worker is killed, or ends with an error, between any two steps of a mint
# and while somebody waits for it: nothing is granted twice, nothing stays shut.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = new_server('points', 'max_worker_processes = 20', "lease_fence.audit_timeout = '100ms'");
$node->start;
plan skip_all => 'not a build with test points' if !has_test_points($node);

my $ask = "SELECT token FROM lease_fence.acquire(resource => 'stock:1', ttl => '10min', scope => 'detached', holder => 'me', wait => '30s')";
foreach my $point (qw(mint-begun mint-drained mint-inserted mint-committed mint-published mint-unanswered mint-answered))
{
	# A database each: a worker that dies again and again is started ever more slowly.
	(my $database = $point) =~ tr/-/_/;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	with_extension($node, $database);
	my $last = $node->safe_psql($database, $ask);

	foreach my $how (qw(exit terminate))
	{
		my $said = '';
		my $pid = await_worker($node, $database);
		my $offset = -s $node->logfile;

		set_test_point($node, $how eq 'terminate' ? "$point=wait" : "$point=exit");
		my $asks = IPC::Run::start(
			[ 'psql', '-XqAt', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($database), '-c', $ask ],
			'&>', \$said);
		if ($how eq 'terminate')
		{
			$node->wait_for_log(qr/process $pid waits at point $point/, $offset);
			like(write_as($node, $database, $last), qr/^LF00[12]$/, "$point: the old token is dead already");
			$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
		}
		await_sql($node, 'postgres',
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
		set_test_point($node, '');
		$asks->finish;

		my ($granted) = $said =~ /^(\d+)$/m;
		ok(defined $granted || $said =~ /LF021/, "$point, $how: who asked has a token, or LF021")
		  or diag($said);
		isnt(write_as($node, $database, $last), '', "$point, $how: the old token does not write")
		  if !defined $granted || $granted != $last;
		is(write_as($node, $database, $granted), '', "$point, $how: the granted one does") if defined $granted;
		my $next = $node->safe_psql($database, $ask);
		cmp_ok($next, '>', $granted // $last, "$point, $how: the next one is greater");
		is(write_as($node, $database, $next), '', "$point, $how: and writes");
		$last = $next;
	}
	is($node->safe_psql($database, "SELECT count(*) FROM lease_fence.leases WHERE state = 'draining'"),
		'0', "$point: nothing is left shut");
	ok( await_sql(
			$node, $database,
			"SELECT count(*) = 0 FROM (SELECT FROM lease_fence.grants WHERE ended_at IS NULL GROUP BY resource HAVING count(*) > 1) r"
		),
		"$point: no resource has two grants that have not ended");
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
stop_fast_is_quick($node, 'after all that');
done_testing();
