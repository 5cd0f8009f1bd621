# Every rejection that a client hears of is in the audit, exactly once, whatever
# becomes of its transaction; and nobody hangs on the audit.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use LeaseSessions qw(lease_node wait_until now has_points);

my $node = lease_node('audit', "lease_fence.audit_timeout = '1min'");
my $dba = LeaseSessions->new($node, name => 'dba');

$dba->query('CREATE TABLE stock (id int PRIMARY KEY, n int, note text)');
$dba->query('INSERT INTO stock SELECT g, 0 FROM generate_series(1, 20) g');
$dba->query('CREATE TABLE plain (n int)');
$dba->query(q{SELECT lease_fence.protect('stock', 'stock:{id}')});

sub rows
{
	my ($where) = @_;
	return $dba->query("SELECT count(*) FROM lease_fence.rejected_writes WHERE $where");
}

sub worker_pid { return $dba->query('SELECT pid FROM lease_fence.worker_status'); }

sub set
{
	my ($name, $value) = @_;
	$node->append_conf('postgresql.conf', "$name = '$value'");
	$node->reload;
	for my $session (@_[ 2 .. $#_ ], $dba)
	{
		wait_until('it is set', sub { $session->query("SHOW $name") eq $value });
	}
}

# ---- nobody hears of a rejection before it is written down ----
{
	my $first = LeaseSessions->new($node, name => 'first');
	$first->query('UPDATE stock SET n = 1 WHERE id = 1');
	my $stopped = worker_pid();
	kill 'STOP', $stopped;
	$first->send('UPDATE stock SET n = 1 WHERE id = 1');
	wait_until('it waits for the audit, or has its answer', sub {
		!$first->busy || $dba->query(q{SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = } . $first->pid) eq 't' });
	ok($first->busy, 'no answer while the worker writes nothing');
	is(rows(q{application_name = 'first'}), '1', 'only the one before is in the audit');
	kill 'CONT', $stopped;
	$first->answer;
	is($first->state, 'LF003', 'it comes when it is written');
	is(rows(q{application_name = 'first'}), '2', 'and is in the audit then');
	$first->quit;
}

# ---- 10 000 from 8 connections, the worker killed in between ----
{
	my @writer = map { LeaseSessions->new($node, name => "writer $_") } 1 .. 8;
	for my $i (1 .. 8)
	{
		$writer[ $i - 1 ]->send(
			qq{DO \$\$ DECLARE heard int := 0; BEGIN
				FOR i IN 1..1250 LOOP
					BEGIN
						UPDATE stock SET n = n + 1 WHERE id = $i;
					EXCEPTION WHEN SQLSTATE 'LF003' THEN heard := heard + 1;
					END;
				END LOOP;
				RAISE NOTICE 'heard of %', heard;
			END \$\$});
	}
	my $begun = now();
	my $killed = 0;
	while (grep { $_->busy } @writer)
	{
		if ($killed < 2 && rows("application_name LIKE 'writer%'") > 1500 * ($killed + 1))
		{
			$dba->query('SELECT pg_terminate_backend(pid) FROM lease_fence.worker_status');
			$killed++;
		}
		die 'they hang' if now() > $begun + 120;
	}
	my $heard = join ' ', map { $_->answer =~ /heard of (\d+)/ } @writer;
	is($heard, join(' ', (1250) x 8), '8 connections hear of 1250 rejections each');
	cmp_ok($killed, '>=', 2, "the worker was terminated $killed times meanwhile");
	is($dba->query(q{SELECT count(*), count(DISTINCT id), count(DISTINCT pid) FROM lease_fence.rejected_writes
					 WHERE application_name LIKE 'writer%'}),
		'10000|10000|8', '10 000 rejected writes from 8 connections: 10 000 rows, none twice');
	is($dba->query(q{SELECT string_agg(n::text, ' ') FROM (SELECT count(*) n FROM lease_fence.rejected_writes
					 WHERE application_name LIKE 'writer%' GROUP BY key) x}),
		join(' ', (1250) x 8), '1250 of each row');
	is($dba->query('SELECT audit_logged FROM lease_fence.worker_status'), '0', 'and none in the log');
	$_->quit for @writer;
}

# ---- whatever becomes of the transaction ----
my $s = LeaseSessions->new($node, name => 'one');

$s->query('BEGIN');
$s->query('UPDATE stock SET n = 1 WHERE id = 1');
is($s->state, 'LF003', 'a rejected write');
is(rows(q{application_name = 'one'}), '1', 'is in the audit when its client hears of it');
$s->query('ROLLBACK');
is(rows(q{application_name = 'one'}), '1', 'and still after its rollback');

$s->query(q{SET application_name = 'two'});
$s->query('BEGIN; SAVEPOINT s');
$s->query('UPDATE stock SET n = 1 WHERE id = 1');
$s->query('ROLLBACK TO s; INSERT INTO plain VALUES (1); COMMIT');
is(rows(q{application_name = 'two'}), '1', 'rejected in a savepoint: once');
is($dba->query('SELECT count(*) FROM plain'), '1', 'and the transaction goes on');

$s->query(q{SET application_name = 'three'});
$s->query(
	q{BEGIN;
	DO $$ BEGIN UPDATE stock SET n = 1 WHERE id = 1; EXCEPTION WHEN OTHERS THEN NULL; END $$;
	ROLLBACK});
is(rows(q{application_name = 'three'}), '1', 'swallowed by a block, outer transaction rolled back: once');

$s->query(q{SET application_name = 'four'});
$s->query(q{/* four */ UPDATE stock SET n = 7, note = 'wanted' WHERE id = 1});
is($dba->query(
		q{SELECT action, reason, operation, key, resource, role = current_user, pid = } . $s->pid . q{,
		  statement LIKE '/* four */ UPDATE%', new_row IS NULL, rows, presented_token IS NULL
		  FROM lease_fence.rejected_writes WHERE application_name = 'four'}),
	'rejected|missing|UPDATE|{"id": 1}|stock:1|t|t|t|t|1|t', 'what the record says');

# a stale one: both tokens
my $old = $dba->lease(q{'stock:2', scope => 'detached', holder => 'h'});
my $new = $dba->lease(q{'stock:2', scope => 'detached', holder => 'h'});
$s->query(q{SET application_name = 'five'});
$s->query("BEGIN; SET LOCAL lease_fence.token = '$old'; UPDATE stock SET n = 7 WHERE id = 2");
is($s->state, 'LF001', 'a stale write');
$s->query('ROLLBACK');
is($dba->query(
		q{SELECT reason, presented_token, current_token, convert_from(current_holder, 'UTF8')
		  FROM lease_fence.rejected_writes WHERE application_name = 'five'}),
	"superseded|$old|$new|h", 'both tokens, and the holder');

# every row of what the stale writer wanted
set('lease_fence.audit_row', 'full', $s);
$s->query(q{SET application_name = 'six'});
$s->query(q{UPDATE stock SET n = 7, note = 'wanted' WHERE id = 1});
$s->query(q{DELETE FROM stock WHERE id = 1});
like($dba->query(
		q{SELECT new_row FROM lease_fence.rejected_writes WHERE application_name = 'six' AND operation = 'UPDATE'}),
	qr/wanted/, 'audit_row = full: what the writer wanted to write');
is(rows(q{application_name = 'six'}), '2', 'a DELETE, which has no new row, too');
set('lease_fence.audit_row', 'key', $s);

# ---- cancelled while it waits for the audit ----
my $worker = worker_pid();
kill 'STOP', $worker;
$s->query(q{SET application_name = 'cancelled'});
$s->send('UPDATE stock SET n = 1 WHERE id = 1');
wait_until('it waits for the audit', sub {
	$dba->query(q{SELECT wait_event_type FROM pg_stat_activity WHERE pid = } . $s->pid) eq 'Extension' });
$dba->query('SELECT pg_cancel_backend(' . $s->pid . ')');
$s->answer;
is($s->state, '57014', 'cancelled while it waits for the audit: it can be');
kill 'CONT', $worker;
$s->query(q{SET application_name = 'after it'});
$s->query('UPDATE stock SET n = 1 WHERE id = 1');
is($s->state, 'LF003', 'the next rejection');
is(rows(q{application_name = 'cancelled'}) . rows(q{application_name = 'after it'}), '11',
	'both are in the audit once');

# terminated, and its place is somebody else's
kill 'STOP', $worker;
my $gone = LeaseSessions->new($node, name => 'gone');
$gone->send('UPDATE stock SET n = 1 WHERE id = 1');
wait_until('it waits for the audit', sub {
	$dba->query(q{SELECT wait_event_type FROM pg_stat_activity WHERE pid = } . $gone->pid) eq 'Extension' });
$dba->query('SELECT pg_terminate_backend(' . $gone->pid . ')');
$gone->answer;
is($gone->state, 'gone', 'terminated while it waits for the audit');
$gone->quit;
my $heir = LeaseSessions->new($node, name => 'heir');
kill 'CONT', $worker;
$heir->query('UPDATE stock SET n = 1 WHERE id = 1');
is($heir->state, 'LF003', 'a session in its place');
is(rows(q{application_name = 'gone'}) . rows(q{application_name = 'heir'}), '11', 'both are in the audit once');
$heir->quit;

# ---- the worker dies in the middle of writing ----
SKIP:
{
	skip 'a build without test points', 1 unless has_points($node);
	for my $point (qw(audit-inserted audit-committed))
	{
		my $from = -s $node->logfile;
		$node->append_conf('postgresql.conf', "lease_fence.test_point = '$point=wait'");
		$node->reload;
		$s->query("SET application_name = '$point'");
		my $asked = 0;
		my $stopped = 0;
		while (!$stopped)
		{
			$asked++;
			$s->send('UPDATE stock SET n = 1 WHERE id = 1');
			wait_until('it is answered, or the worker is at the point', sub {
				$stopped = slurp_file($node->logfile, $from) =~ /waits at point $point/;
				$stopped || !$s->busy });
		}
		$worker = worker_pid();
		$dba->query("SELECT pg_terminate_backend($worker)");
		wait_until('it is gone', sub {
			$dba->query("SELECT count(*) FROM pg_stat_activity WHERE pid = $worker") eq '0' });
		$node->append_conf('postgresql.conf', "lease_fence.test_point = ''");
		$node->reload;
		$s->answer;
		is($s->state, 'LF003', "the worker dies at $point: the client hears of the rejection");
		is(rows("application_name = '$point'"), $asked, "the worker dies at $point: nothing twice");
	}
}

# ---- the rejected transaction has locked the audit itself ----
set('lease_fence.audit_timeout', '300ms', $s);
my $logged = $dba->query('SELECT audit_logged FROM lease_fence.worker_status');
my $from = -s $node->logfile;
$s->query(q{SET application_name = 'locker'});
$s->query('BEGIN; LOCK TABLE lease_fence.rejected_writes IN ACCESS EXCLUSIVE MODE');
my $begun = now();
$s->query(q{UPDATE stock SET n = 1 WHERE id = 3});
is($s->state, 'LF003', 'the audit is locked by the rejected transaction: it hears of the rejection');
cmp_ok(now() - $begun, '<', 20, 'after audit_timeout, not never');
like(slurp_file($node->logfile, $from),
	qr/write not in the audit table.*"key": "\{\\"id\\": 3\}".*"application_name": "locker"/,
	'the record is in the server log');
is($dba->query('SELECT audit_logged FROM lease_fence.worker_status'), $logged + 1, 'and counted');
my $text = $dba->query(q{SELECT token FROM lease_fence.acquire('goes on', scope => 'session')});
like($text, qr/^\d+$/, 'leases are granted meanwhile');
$s->query('ROLLBACK');
$s->query(q{SET application_name = 'unlocked'});
set('lease_fence.audit_timeout', '1min', $s);
$s->query(q{UPDATE stock SET n = 1 WHERE id = 3});
is(rows(q{application_name = 'unlocked'}), '1', 'after it the table is written again');
is(rows(q{application_name = 'locker'}), '0', 'the logged one is not in it as well');

# ---- a worker that does not answer: one wait, then straight to the log ----
set('lease_fence.audit_timeout', '1s', $s);
$worker = worker_pid();
kill 'STOP', $worker;
$from = -s $node->logfile;
$begun = now();
$s->query(q{SET application_name = 'stopped'});
$s->query('UPDATE stock SET n = 1 WHERE id = 1') for 1 .. 20;
cmp_ok(now() - $begun, '<', 10, 'a worker that does not answer is waited for once, not twenty times');
my $records = () = slurp_file($node->logfile, $from) =~ /write not in the audit table in time.*"stopped"/g;
is($records, 20, 'all twenty are in the log');
kill 'CONT', $worker;
set('lease_fence.audit_timeout', '1min', $s);
wait_until('the audit is written again', sub {
	$s->query('UPDATE stock SET n = 1 WHERE id = 1');
	rows(q{application_name = 'stopped'}) > 0 });
pass('until the worker is back');

# ---- the server is killed the moment after the client heard ----
$s->query(q{SET application_name = 'last'});
$s->query('UPDATE stock SET n = 1 WHERE id = 4');
$node->kill9;
$_->quit for $s, $dba;
wait_until('it starts again', sub {
	return 1 if $node->start(fail_ok => 1);
	$node->stop('fast', fail_ok => 1);	# processes of the killed one are there still
	return 0;
});
is($node->safe_psql('postgres', q{SELECT count(*) FROM lease_fence.rejected_writes WHERE application_name = 'last'}),
	'1', 'the server is killed after the client heard: the row is there');
$node->stop;
done_testing();
