# A prepared transaction that has written under a grant that is over: it is
# named, never ended, over a crash as well; the session that prepared it is not
# terminated in its place.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('prepared', conf => "lease_fence.drain_timeout = '100ms'\n");

sub lease
{
	my ($id, $wait) = @_;
	return "SELECT token FROM lease_fence.acquire('stock:$id', wait => '$wait', scope => 'detached', holder => 'next')";
}

# Writes a row under a grant that is over soon, and prepares.
sub prepare
{
	my ($session, $id, $name) = @_;
	my $token = $session->must(
		"SELECT token FROM lease_fence.acquire('stock:$id', ttl => '300ms', scope => 'detached')");
	$session->must("BEGIN; SET LOCAL lease_fence.token = '$token'");
	$session->must("UPDATE stock SET quantity = quantity - 1 WHERE id = $id");
	$session->must("PREPARE TRANSACTION '$name'");
	until_true($node, "SELECT lease_fence.remaining($token) IS NULL", 'the lease lapses');
	return $token;
}

my $first = session($node);
my $second = session($node);

# A transaction lease would be over while the prepared transaction goes on.
$first->must('BEGIN');
$first->must("SELECT token FROM lease_fence.acquire('stock:1')");
isnt($first->query("PREPARE TRANSACTION 'no'"), '00000', 'who holds a lease of scope transaction cannot PREPARE');
$first->query('ROLLBACK');

my $old = prepare($first, 1, 'order 17');
$first->must('BEGIN');	# the session goes on with something else
$first->must('SELECT 1');
is($second->query(lease(1, '1500ms')), '55P03', 'the wait for a prepared transaction ends in vain');
like($second->{error}, qr/Prepared transaction "order 17" has written under token $old/, 'and names it');
is($first->query('COMMIT'), '00000', 'the session that prepared it is alive, fifteen drain_timeouts later');
is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.rejected_writes WHERE action = 'terminated'"),
	'0', 'nobody was terminated');
is($second->query("BEGIN; SELECT lease_fence.present($old)"),
	'LF002', 'the older token is dead, though the new one is not there yet');
$second->query('ROLLBACK');

# The session that prepared ends; its place is taken by another one.
my $gone = session($node);
prepare($gone, 2, 'order 18');
$gone->quit;
until_true($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $gone->{pid}");
my $other = session($node);
$other->must('BEGIN; SELECT 1');
is($second->query(lease(2, '500ms')), '55P03', 'it is in the way without its session, too');
like($second->{error}, qr/"order 18"/, 'and named');
is($other->query('COMMIT'), '00000', 'who has taken its place in memory is not ended');

# COMMIT PREPARED wakes who waits.
$second->send(lease(1, '1min'));
wait_for_drain($node, $second);
$first->must("COMMIT PREPARED 'order 17'");
is($second->result, '00000', 'after COMMIT PREPARED the lease is to be had');
cmp_ok($second->{out}, '>', $old, 'under a greater token');
is(stock($node, 1), '99', 'and what was prepared is committed');

# Over a crash.
$_->quit for $first, $second, $other;
$node->stop('immediate');
$node->start;
$second = session($node);
is($second->query(lease(2, '500ms')), '55P03', 'it is in the way after a crash, too');
like($second->{error}, qr/Prepared transaction "order 18"/, 'and named');
$second->send(lease(2, '1min'));
wait_for_drain($node, $second);
$node->safe_psql('postgres', "ROLLBACK PREPARED 'order 18'");
is($second->result, '00000', 'after ROLLBACK PREPARED the lease is to be had') or diag($second->{error});
is(stock($node, 2), '100', 'and what was prepared is gone');
$second->quit;

$node->stop;
done_testing();
