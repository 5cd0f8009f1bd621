# A synchronous standby that does not answer: a writer that waits for it is not
# terminated, and a token is not handed out before the standby has it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('primary', streaming => 1,
	conf => "lease_fence.drain_timeout = '100ms'\n");
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
set($node, 'synchronous_standby_names', '*');
until_true($node, "SELECT sync_state = 'sync' FROM pg_stat_replication");

sub lease
{
	my ($id) = @_;
	return "SELECT token FROM lease_fence.acquire('stock:$id', wait => '1min', scope => 'detached')";
}

my ($writer, $asker, $other) = map { session($node) } 1 .. 3;
my $steady = $other->must(lease(9));

# ---- a writer waits for its standby ----
$writer->must('BEGIN');
my $old = $writer->must("SELECT token FROM lease_fence.acquire('stock:1', ttl => '500ms')");
$writer->must('UPDATE stock SET quantity = quantity - 1 WHERE id = 1');
$standby->stop;
$writer->send('COMMIT');
until_true($node, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $writer->{pid}");
$asker->send(lease(1));
wait_for_drain($node, $asker);
# Its time is over when the worker has had a look since: ten times drain_timeout.
$other->must('SELECT pg_sleep(1)');
is($node->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = $writer->{pid}"),
	'SyncRep', 'a writer that waits for its standby is not terminated');
ok(!$asker->is_done, 'and nobody gets the lease before it has ended');
$standby->start;
is($writer->result, '00000', 'its commit ends as a commit');
is($asker->result, '00000', 'then the lease is to be had');
cmp_ok($asker->{out}, '>', $old, 'under a greater token');
is(stock($node, 1), '99', 'and the row is as it was committed');

# ---- a mint waits for its standby ----
until_true($node, "SELECT sync_state = 'sync' FROM pg_stat_replication");
$standby->stop;
$asker->send(lease(2));
until_true($node, "SELECT count(*) = 1 FROM lease_fence.grants WHERE resource = 'stock:2'",
	'the grant is committed here');
my $unseen = $node->safe_psql('postgres', "SELECT token FROM lease_fence.grants WHERE resource = 'stock:2'");
$other->must('SET synchronous_commit = local');
$other->must("BEGIN; SET LOCAL lease_fence.token = '$unseen'");
isnt($other->query('UPDATE stock SET quantity = 0 WHERE id = 2'), '00000',
	'nobody writes under a token that the standby does not have');
$other->must('ROLLBACK');
ok(!$asker->is_done, 'and nobody is told of it');

# Other work goes on.
$other->must("BEGIN; SET LOCAL lease_fence.token = '$steady'");
is($other->query('UPDATE stock SET quantity = quantity - 1 WHERE id = 9'), '00000', 'other leases write');
$other->must('COMMIT');
is($other->query("SELECT lease_fence.renew($steady) > interval '1s'"), '00000', 'and are renewed');

# Cancelled: what was committed is published as over.
$node->safe_psql('postgres', "SELECT pg_cancel_backend($asker->{pid})");
is($asker->result, '57014', 'the wait can be cancelled');
$standby->start;
is($asker->query(lease(2)), '00000', 'when the standby is back, the lease is to be had') or diag($asker->{error});
cmp_ok($asker->{out}, '>', $unseen, 'under another token');
until_true($node, "SELECT ended_at IS NOT NULL FROM lease_fence.grants WHERE token = $unseen",
	'the one that nobody was told of has ended');

# Not cancelled: answered when the standby has it.
until_true($node, "SELECT sync_state = 'sync' FROM pg_stat_replication");
$standby->stop;
$asker->send(lease(3));
until_true($node, "SELECT count(*) = 1 FROM lease_fence.grants WHERE resource = 'stock:3'");
ok(!$asker->is_done, 'the next mint waits');
$standby->start;
is($asker->result, '00000', 'and is answered when the standby has it');
until_true($standby, "SELECT count(*) = 1 FROM lease_fence.grants WHERE token = $asker->{out}",
	'which it does');

# The worker dies while a mint waits for the standby: the next one waits as well.
until_true($node, "SELECT sync_state = 'sync' FROM pg_stat_replication");
$standby->stop;
$asker->send(lease(4));
until_true($node, "SELECT count(*) = 1 FROM lease_fence.grants WHERE resource = 'stock:4'");
$unseen = $node->safe_psql('postgres', "SELECT token FROM lease_fence.grants WHERE resource = 'stock:4'");
my $worker = $node->safe_psql('postgres', 'SELECT pid FROM lease_fence.worker_status');
kill('TERM', $worker);
is($asker->result, 'LF021', 'the asker hears of the death of the worker');
until_true($node, "SELECT pid <> $worker FROM lease_fence.worker_status");
$asker->send(lease(4));
$other->must("BEGIN; SET LOCAL lease_fence.token = '$unseen'");
isnt($other->query('UPDATE stock SET quantity = 0 WHERE id = 4'), '00000', 'the token is not published by the next one');
$other->must('ROLLBACK');
ok(!$asker->is_done, 'nor another one handed out');
$standby->start;
is($asker->result, '00000', 'before the standby is back') or diag($asker->{error});
cmp_ok($asker->{out}, '>', $unseen, 'then under a greater one');
is(stock($node, 4), '100', 'nothing was written meanwhile');

$_->quit for $writer, $asker, $other;
$standby->stop;
$node->stop('immediate');
done_testing();
