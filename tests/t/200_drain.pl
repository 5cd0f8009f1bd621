# A new grant while writers under the older one are still in their transactions.
#
# I2: once a grant above t is minted, nobody commits a write under t, not even
# one that had passed its check.  I3: a row's stamp never decreases.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Long: where a test wants somebody terminated, it says so.
my $node = start_node('drain', conf => "lease_fence.drain_timeout = '2min'\n");

sub drain_timeout
{
	my ($value) = @_;
	set($node, 'lease_fence.drain_timeout', $value);
	return;
}

# Takes a lease that lapses at once, and writes under it.
sub write_and_lapse
{
	my ($session, $id, $options) = @_;
	$options //= '';
	$session->must('BEGIN');
	my $token = $session->must(
		"SELECT token FROM lease_fence.acquire('stock:$id', ttl => '500ms'$options)");
	$session->must("UPDATE stock SET quantity = quantity - 1 WHERE id = $id");
	return $token;
}

sub lapsed
{
	my ($id) = @_;
	until_true($node, "SELECT count(*) = 0 FROM lease_fence.leases"
		  . " WHERE resource = 'stock:$id' AND state = 'live'", "the lease of stock:$id lapses");
	return;
}

my $acquire = "SELECT token FROM lease_fence.acquire('stock:%d', wait => '1min')";

# ---- A is busy: B waits, and sees what A committed ----
{
	my ($first, $second) = (session($node), session($node));
	my $old = write_and_lapse($first, 1);

	$first->send('SELECT pg_sleep(1), pg_advisory_lock(1)');
	lapsed(1);
	$second->must('BEGIN');
	$second->send(sprintf($acquire, 1));
	wait_for_drain($node, $second);
	is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.grants WHERE resource = 'stock:1'"),
		'1', 'no token is minted while a write under the older one is open');
	is($first->result, '00000', 'the writer is left in peace before drain_timeout');
	ok(!$second->is_done, 'the asker still waits');
	$first->must('COMMIT');

	is($second->result, '00000', 'the asker gets the lease after that commit');
	cmp_ok($second->{out}, '>', $old, 'with a greater token');
	is($second->must('SELECT quantity FROM stock WHERE id = 1'), '99', 'it reads what was committed before');
	$second->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 1');
	$second->must('COMMIT');
	is(stock($node, 1), '98', 'no update is lost');

	$first->query("BEGIN; SET LOCAL lease_fence.token = '$old'");
	is($first->query('UPDATE stock SET quantity = 0 WHERE id = 1'), 'LF001', 'the older token is dead');
	$first->query('ROLLBACK');
	$_->quit for $first, $second;
}

# ---- A is idle in its transaction: terminated after drain_timeout ----
{
	my ($first, $second) = (session($node), session($node));
	my $from = -s $node->logfile;

	drain_timeout('700ms');
	my $old = write_and_lapse($first, 2);
	lapsed(2);
	$second->must('BEGIN');
	my $new = $second->must(sprintf($acquire, 2));
	is($second->must('SELECT quantity FROM stock WHERE id = 2'), '100', 'the write of the terminated is gone');
	$second->must('COMMIT');
	is($first->query('COMMIT'), 'gone', 'the session idle in its transaction is terminated');
	is( $node->safe_psql('postgres',
			'SELECT action, reason, resource, pid, presented_token, current_token'
			  . " FROM lease_fence.rejected_writes WHERE action = 'terminated'"),
		"terminated|lapsed|stock:2|$first->{pid}|$old|$new", 'the audit names it, and both tokens');
	like(log_since($node, $from),
		qr/terminating process $first->{pid}, which has written to resource "stock:2" under token $old\b/,
		'so does the log');
	$second->quit;
	drain_timeout('2min');
}

# ---- A releases before COMMIT: harmless, and nobody is terminated ----
{
	my ($first, $second) = (session($node), session($node));

	drain_timeout('50ms');
	$first->must('BEGIN');
	my $old = $first->must("SELECT token FROM lease_fence.acquire('stock:3', ttl => '10min')");
	$first->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 3');
	is($first->must("SELECT lease_fence.release($old)"), 't', 'released before COMMIT');
	$second->must('BEGIN');
	$second->send(sprintf($acquire, 3));
	wait_for_drain($node, $second);
	is($first->query('UPDATE stock SET quantity = 0 WHERE id = 3'), 'LF002', 'who has released does not write any more');
	$first->must('ROLLBACK');
	is($second->result, '00000', 'a transaction that failed is out of the way');
	is($second->must('SELECT quantity FROM stock WHERE id = 3'), '100', 'its write is gone');
	$second->must('COMMIT');

	$first->must('BEGIN');
	$old = $first->must("SELECT token FROM lease_fence.acquire('stock:3', ttl => '10min')");
	$first->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 3');
	$first->must("SELECT lease_fence.release($old)");
	is($second->query("SELECT token FROM lease_fence.acquire('stock:3', wait => '1s', scope => 'detached')"),
		'55P03', 'a wait that ends before that commit ends in vain');
	like($second->{error}, qr/Process $first->{pid} has written under token $old/, 'and names who is in the way');
	$first->must('COMMIT');
	is(stock($node, 3), '99', 'twenty drain_timeouts later the commit is let through: the deadline it had counts');
	$second->must("SELECT token FROM lease_fence.acquire('stock:3', wait => '1min', scope => 'detached')");

	# After the deadline that it had, a released grant's writer is as any other's.
	$first->must('BEGIN');
	$old = $first->must("SELECT token FROM lease_fence.acquire('stock:4', ttl => '1s')");
	$first->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 4');
	$first->must("SELECT lease_fence.release($old)");
	$second->must("SELECT token FROM lease_fence.acquire('stock:4', wait => '1min', scope => 'detached')");
	is($first->query('COMMIT'), 'gone', 'after that deadline it is terminated');
	$second->quit;
	drain_timeout('2min');
}

# ---- A rolls back to a savepoint, the lock is gone, and A writes again ----
{
	my ($first, $second) = (session($node), session($node));

	$first->must('BEGIN');
	my $old = $first->must("SELECT token FROM lease_fence.acquire('stock:5', ttl => '1s')");
	$first->must('SAVEPOINT s');
	$first->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 5');
	lapsed(5);
	$second->must('BEGIN');
	$second->send(sprintf($acquire, 5));
	wait_for_drain($node, $second);
	$first->must('ROLLBACK TO s');
	is($first->query('UPDATE stock SET quantity = 0 WHERE id = 5'), 'LF002',
		'after ROLLBACK TO SAVEPOINT the write is checked again, and refused');
	$first->must('ROLLBACK TO s');
	$first->must('SELECT 1');
	$first->must('COMMIT');
	is($second->result, '00000', 'the asker gets the lease');
	cmp_ok($second->{out}, '>', $old, 'with a greater token');
	$second->must('COMMIT');
	is(stock($node, 5), '100', 'nothing was written');

	# The same, with a write from before the savepoint: that one's lock stays.
	$old = write_and_lapse($first, 5);
	$first->must('SAVEPOINT s');
	lapsed(5);
	$second->must('BEGIN');
	$second->send(sprintf($acquire, 5));
	wait_for_drain($node, $second);
	is($first->query('UPDATE stock SET quantity = 0 WHERE id = 5'), 'LF002', 'refused while the mint waits');
	$first->must('ROLLBACK TO s');
	ok(!$second->is_done, 'the asker still waits for the write from before the savepoint');
	$first->must('COMMIT');
	is($second->result, '00000', 'and gets the lease after its commit');
	is($second->must('SELECT quantity FROM stock WHERE id = 5'), '99', 'which it sees');
	$second->must('COMMIT');
	$_->quit for $first, $second;
}

# ---- In its own way ----
{
	my $first = session($node);

	write_and_lapse($first, 6);
	lapsed(6);
	is($first->query(sprintf($acquire, 6)), 'LF007', 'who wrote under the older grant itself is told so at once');
	$first->must('ROLLBACK');
	$first->must('BEGIN');
	$first->must(sprintf($acquire, 6));
	$first->must('COMMIT');
	is(stock($node, 6), '100', 'and can begin anew');
	$first->quit;
}

# ---- Revoke while a writer is in ----
{
	my ($first, $dba) = (session($node), session($node));

	$first->must('BEGIN');
	my $old = $first->must("SELECT token FROM lease_fence.acquire('stock:6')");
	$first->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 6');
	$dba->send("SELECT lease_fence.revoke('stock:6', 'it hangs')");
	wait_for_drain($node, $dba);
	is($first->query('UPDATE stock SET quantity = 0 WHERE id = 6'), 'LF002', 'the revoked does not write any more');
	like($first->{error}, qr/revoked/, 'and hears why');
	$first->query('ROLLBACK');
	is($dba->result, '00000', 'revoke returns after the drain');
	is($dba->{out}, 't', 'and says that somebody had it');
	is( $node->safe_psql('postgres',
			"SELECT how_ended, end_reason FROM lease_fence.grants WHERE token = $old"),
		'revoked|it hangs', 'the end is committed before revoke answers');
	is($dba->must("SELECT lease_fence.revoke('stock:6')"), 'f', 'nobody has it any more');

	drain_timeout('300ms');
	$first->must('BEGIN');
	$first->must("SELECT token FROM lease_fence.acquire('stock:6')");
	$first->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 6');
	is($dba->must("SELECT lease_fence.revoke('stock:6')"), 't', 'a revocation does not wait for an idle writer');
	is($first->query('COMMIT'), 'gone', 'which is terminated');
	is(stock($node, 6), '100', 'its write is gone');
	drain_timeout('2min');
	$dba->quit;
}

# ---- Equal holder bytes, detached: the restarted one takes its lease back ----
{
	my ($frozen, $restarted) = (session($node), session($node));
	my $mine = "SELECT token FROM lease_fence.acquire('stock:7', scope => 'detached', holder => 'batch-1', wait => '1min')";
	my $old = $frozen->must($mine);

	$frozen->must('BEGIN');
	$frozen->must("SELECT lease_fence.present($old)");
	$frozen->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 7');
	$restarted->send($mine);
	wait_for_drain($node, $restarted);
	is($frozen->query('UPDATE stock SET quantity = 0 WHERE id = 7'), 'LF001',
		'its former self is superseded from then on, though the new token does not exist yet');
	$frozen->must('ROLLBACK');
	is($restarted->result, '00000', 'it has its lease back without waiting for the deadline');
	my $new = $restarted->{out};
	cmp_ok($new, '>', $old, 'as a new grant');
	is($frozen->query("BEGIN; SELECT lease_fence.present($old)"), 'LF001', 'the older token is not presented any more');
	$frozen->query('ROLLBACK');
	is($node->safe_psql('postgres', "SELECT how_ended FROM lease_fence.grants WHERE token = $old"),
		'taken over', 'the history says why');
	is( $restarted->query("SELECT * FROM lease_fence.try_acquire('stock:7', scope => 'detached', holder => 'batch-2')"),
		'00000', 'another holder asks');
	like($restarted->{out}, qr/^\|\|/, 'and does not get it');
	$restarted->must("SELECT lease_fence.release($new)");
	$_->quit for $frozen, $restarted;
}

# ---- Sixteen writers that keep coming cannot hold a registration off ----
{
	my @writers = map { session($node) } 1 .. 16;
	my $asker = session($node);
	my $old = $asker->must(
		"SELECT token FROM lease_fence.acquire('stock:8', scope => 'detached', holder => 'stream', ttl => '5min')");

	# Each transaction shares the fence for a while; they overlap all the time.
	$_->send(<<"SQL") for @writers;
DO \$\$
BEGIN
	LOOP
		PERFORM lease_fence.present($old);
		PERFORM pg_sleep(0.02 + random() * 0.02);
		COMMIT;
	END LOOP;
END \$\$
SQL
	until_true($node, "SELECT count(*) >= 8 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'",
		'a stream of writers shares the fence');
	is( $asker->query("SELECT token FROM lease_fence.acquire('stock:8', scope => 'detached', holder => 'stream', wait => '20s')"),
		'00000', 'a new grant comes through the stream') or diag($asker->{error});
	is($_->result, 'LF001', 'a writer of the stream is refused') for @writers;
	$_->quit for @writers, $asker;
}

# ---- I3: no way to lower a stamp ----
{
	my $session = session($node);

	$session->must('BEGIN');
	my $token = $session->must("SELECT token FROM lease_fence.acquire('stock:9')");
	$session->must('UPDATE stock SET quantity = 99, fence_token = 1 WHERE id = 9');
	is($session->must('SELECT fence_token FROM stock WHERE id = 9'), $token, "the client's own value counts for nothing");
	$session->must('COMMIT');

	$session->must("SELECT lease_fence.set_mode('stock', 'off')");
	$session->must('UPDATE stock SET quantity = 98, fence_token = 1 WHERE id = 9');
	is($session->must('SELECT fence_token FROM stock WHERE id = 9'), $token, 'nor with the guard off');
	$session->must("SELECT lease_fence.set_mode('stock', 'observe')");
	$session->must('UPDATE stock SET quantity = 97, fence_token = 1 WHERE id = 9');
	is($session->must('SELECT fence_token FROM stock WHERE id = 9'), $token, 'nor while it observes');
	$session->must("SELECT lease_fence.set_mode('stock', 'enforce')");

	# A stamp above the current token, as from another history, is not overwritten.
	$session->must('ALTER TABLE stock DISABLE TRIGGER ALL');
	$session->must('UPDATE stock SET fence_token = 9007199254740000 WHERE id = 9');
	$session->must('ALTER TABLE stock ENABLE ALWAYS TRIGGER '
		  . $session->must("SELECT quote_ident(tgname) FROM pg_trigger WHERE tgrelid = 'stock'::regclass"));
	$session->must('BEGIN');
	$session->must("SELECT token FROM lease_fence.acquire('stock:9')");
	is($session->query('UPDATE stock SET quantity = 96 WHERE id = 9'), 'LF001', 'a lower token does not write over it');
	$session->query('ROLLBACK');
	$session->quit;
}

# ---- I1, I7 over all of the above ----
is( $node->safe_psql('postgres', <<'SQL'), '0', 'I7: no two grants of a resource overlap');
SELECT count(*) FROM (
	SELECT granted_at < lag(coalesce(ended_at, 'infinity')) OVER w AS both_current
	FROM lease_fence.grants WINDOW w AS (PARTITION BY resource ORDER BY token)) AS g
WHERE both_current
SQL
is( $node->safe_psql('postgres', <<'SQL'), '0', 'I1: tokens rise in the order of the grants');
SELECT count(*) FROM (
	SELECT token < lag(token) OVER (ORDER BY granted_at) AS falls FROM lease_fence.grants) AS g
WHERE falls
SQL

$node->stop;
done_testing();
