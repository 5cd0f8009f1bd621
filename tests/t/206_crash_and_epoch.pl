# After an immediate stop: detached leases live on, the others are over, tokens
# keep rising (I1).  A new epoch refuses every token so far.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing is flushed but by who waits for it.
my $node = start_node('crash', conf => "lease_fence.drain_timeout = '5min'\nwal_writer_delay = '10s'\n");
my $highest = 0;

sub rises
{
	my ($token, $what) = @_;
	cmp_ok($token, '>', $highest, $what);
	$highest = $token;
	return;
}

sub write_under
{
	my ($session, $id, $token) = @_;
	$session->must('BEGIN');
	$session->must("SELECT set_config('lease_fence.token', '$token', true)");
	my $state = $session->query("UPDATE stock SET quantity = quantity - 1 WHERE id = $id");
	$session->must($state eq '00000' ? 'COMMIT' : 'ROLLBACK');
	return $state;
}

my ($a, $b, $c) = map { session($node) } 1 .. 3;
my $detached = $a->must("SELECT token FROM lease_fence.acquire('stock:1', scope => 'detached', ttl => '20s', holder => 'batch')");
my $session = $b->must("SELECT token FROM lease_fence.acquire('stock:2', scope => 'session')");
$c->must('BEGIN');
my $transaction = $c->must("SELECT token FROM lease_fence.acquire('stock:3')");
$c->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 3');
is(write_under($a, 1, $detached), '00000', 'before the crash, the detached lease writes');
is(write_under($b, 2, $session), '00000', 'and the session lease');
my $released = $a->must("SELECT token FROM lease_fence.acquire('stock:7', scope => 'detached', ttl => '1h')");
$a->must("SELECT lease_fence.release($released)");
$highest = $released;
until_true($node, "SELECT ended_at IS NOT NULL FROM lease_fence.grants WHERE token = $released", 'its end is written');
until_true($node, "SELECT lease_fence.remaining($detached) < '18s'", 'some of the ttl is used up');

$node->stop('immediate');
$_->quit for $a, $b, $c;
$node->start;
($a, $b, $c) = map { session($node) } 1 .. 3;

is($a->must("SELECT lease_fence.remaining($detached) > '18s'"), 't', 'a detached lease runs its full ttl again');
is(write_under($a, 1, $detached), '00000', 'and writes');
is($b->must("SELECT token IS NULL FROM lease_fence.try_acquire('stock:1', scope => 'detached', holder => 'other')"),
	't', 'nobody else gets it');
is(write_under($a, 7, $released), 'LF002', 'a detached one that was released stays so');
is(write_under($b, 2, $session), 'LF002', 'a session lease is over');
is(write_under($b, 3, $transaction), 'LF002', 'and a transaction lease');
is(stock($node, 3), '100', 'whose write is gone');
rises($b->must("SELECT token FROM lease_fence.acquire('stock:2', scope => 'session')"), 'they are to be had, under rising tokens');
rises($c->must("SELECT token FROM lease_fence.acquire('stock:3', scope => 'session')"), 'so is this one');
is(write_under($a, 2, $session), 'LF001', 'the one from before is superseded');
rises($a->must("SELECT token FROM lease_fence.acquire('stock:1', scope => 'detached', ttl => '20s', holder => 'batch')"),
	'a restarted holder takes its own lease back');
is(write_under($b, 1, $detached), 'LF001', 'from its former self');
is($node->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.epochs'), '1', 'a crash begins no new epoch');

# Several in a row, each with a grant just before it.
for (1 .. 3)
{
	rises($a->must("SELECT token FROM lease_fence.acquire('stock:4', scope => 'detached', holder => 'batch')"),
		'over any number of crashes');
	$node->stop('immediate');
	$_->quit for $a, $b, $c;
	$node->start;
	($a, $b, $c) = map { session($node) } 1 .. 3;
}
is(write_under($a, 4, $highest), '00000', 'the last one lives on');
is($node->safe_psql('postgres', <<'SQL'), '0', 'I1: tokens rise in the order of their transactions');
SELECT count(*) FROM (
	SELECT token < lag(token) OVER (ORDER BY granted_at) AS falls FROM lease_fence.grants) AS g
WHERE falls
SQL

# ---- begin_epoch ----
my $before = $a->must("SELECT token FROM lease_fence.acquire('stock:5', scope => 'detached')");
$c->must('BEGIN');
my $under_way = $c->must("SELECT token FROM lease_fence.acquire('stock:6', scope => 'session')");
$c->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 6');
$c->must("SELECT lease_fence.release($under_way)");
$b->must('BEGIN');
$b->send("SELECT token FROM lease_fence.acquire('stock:6', wait => '1min')");
wait_for_drain($node, $b);

my $floor = $a->must("SELECT lease_fence.begin_epoch('a snapshot was put back')");
cmp_ok($floor, '>=', $under_way, 'the floor is no lower than any token');
$highest = $floor;
is(write_under($a, 5, $before), 'LF004', 'a live token from before the epoch is refused');
is($a->query("SELECT lease_fence.renew($before)"), 'LF004', 'and not renewed');
is($a->query("SELECT lease_fence.present($before)"), 'LF004', 'nor presented');
ok(!$b->is_done, 'a request from before it still waits for that transaction');
isnt($c->query('UPDATE stock SET quantity = 0 WHERE id = 6'), '00000', 'who is in the middle of a transaction writes no more');
$c->must('ROLLBACK');
is($b->result, '00000', 'and is granted when that has ended') or diag($b->{error});
rises($b->{out}, 'above the floor');
$b->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 6');
$b->must('COMMIT');
is(stock($node, 6), '99', 'only that write is there');
rises($a->must("SELECT token FROM lease_fence.acquire('stock:5', scope => 'detached')"), 'every lease is to be had again');
isnt($a->query("SELECT lease_fence.begin_epoch('')"), '00000', 'a reason is wanted');

$_->quit for $a, $b, $c;
$node->stop('immediate');
$node->start;
($a) = session($node);
is(write_under($a, 5, $before), 'LF004', 'the new epoch outlives a crash');
is(write_under($a, 5, $highest), '00000', 'and so does a detached lease of it');
$a->quit;
$node->stop;
done_testing();
