# What went wrong for users of other locks, triggers and extensions: the kinds of
# it, and the test that shows each here.  Those that no other test shows are below.
#
# released before COMMIT, the next holder reads    isolation release-before-commit,
#   old data                                         t/200_drain
# oversold by buyers in parallel                   t/701_orders, isolation row_two_sessions
# two requests under one key, both before there    isolation op_two_sessions,
#   is a record                                      row_two_sessions (insert)
# a retry charges twice                            sql/bug_reports, sql/operations
# compared in the client, then written             isolation row_two_sessions (note), sql/guarded_values
# a session's lock stays in a pooled backend       sql/bug_reports, t/406_pgbouncer, t/407_load
# cleaning up fails in a failed transaction        sql/bug_reports
# two updates of one row, the second not checked   isolation row_two_sessions, old-snapshot,
#   against the newest row                           and here (MERGE)
# a commit slips in between check and write        isolation old-snapshot, t/204_mint_between_looks
# a long-lived worker holds back VACUUM            t/300_workers (idle), here (in the middle of a wait)
# triggers do not fire for a replica role          sql/guard, sql/check, t/803_logical
# a trigger crashes the apply worker               here, t/803_logical
# partitions made or attached later have no        sql/partitions, sql/check,
#   trigger                                          sql/bug_reports (made with LIKE)
# inheritance children have no trigger             sql/protect_bad_input, sql/check
# an upsert fires two triggers for one row         sql/bug_reports, sql/guard_statements
# MERGE takes another way                          sql/guard_statements, sql/partitions, here (concurrent,
#                                                    in WITH)
# foreign keys that cascade skip triggers          sql/guard_statements, sql/guarded_fence
# rows of types without equality, NULL while       sql/bug_reports, sql/guarded_values
#   it is generated
# a later trigger undoes what an earlier one did   sql/triggers, sql/check
# counters do not travel with logical replication  t/803_logical
# rows of the install script are dumped as well    t/308_dump_restore, t/801_dumps
# a worker that waits holds up a shutdown          t/300_workers ff. (stop_fast_is_quick)
# a worker that ended never comes back             t/303_crashes, t/203_worker_killed
# OIDs of an extension that was dropped            sql/install, t/301_extension_ddl
# a wrong name of a database, no worker slot       t/300_workers, t/307_no_room, t/402_interrupted,
#                                                    t/702_rollout
# hooks in the way of pg_upgrade                   here
#
# Also here: what the worker logs of check(), and a key that is forgotten.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use LeaseSessions qw(wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('reports', { allows_streaming => 'logical' },
	"lease_fence.databases = 'postgres'", "lease_fence.drain_timeout = '60s'", 'fsync = on');
my $dba;

with_shop($node, 'postgres');
$dba = LeaseSessions->new($node);

# How often the log says that.
sub logged
{
	my ($what) = @_;
	my @lines = slurp_file($node->logfile) =~ /^.*check\(\) \Q$what\E.*$/mg;

	return scalar @lines;
}

# Waits until that session waits for a lock.
sub waits
{
	my ($session) = @_;
	my $pid = $session->pid;

	return ok(await($node, 'postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"),
		'... waits for the row');
}

# ---- what the worker logs of check() ----

{
	my $new = 'has a new finding: error: public.stock: its guard is disabled';
	my $gone = 'no longer finds: error: public.stock: its guard is disabled';
	my $other = 'has a new finding: warning: public.plain: ';

	$node->safe_psql('postgres', 'ALTER TABLE stock DISABLE TRIGGER zzz_lease_fence');
	$node->reload;
	ok($node->wait_for_log(qr/check\(\) \Q$new\E/), 'a guard that was disabled is logged at the next reload');

	# The next look finds another thing, and has nothing to say of the first.
	$node->safe_psql('postgres',
		"CREATE UNLOGGED TABLE plain (id int PRIMARY KEY); SELECT lease_fence.protect('plain', 'plain:{id}')");
	$node->reload;
	ok($node->wait_for_log(qr/check\(\) \Q$other\E/), 'so is another finding');
	is(logged($new), 1, 'the one that stays is not logged again');
	is(logged('no longer'), 0, 'nothing is gone');

	$node->safe_psql('postgres', 'ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence');
	$node->reload;
	ok($node->wait_for_log(qr/check\(\) \Q$gone\E/), 'that it is gone is logged');
	$node->safe_psql('postgres', 'DROP TABLE plain');
	$node->reload;
	ok($node->wait_for_log(qr/check\(\) no longer finds: warning: public.plain: /), 'also of a table that is gone');
	is(logged($gone), 1, 'each of it once');
	is(logged('has a new finding'), 2, 'and nothing else is new');
}

# ---- an operation key that is older than its retention ----

{
	my $token = token_of($node, 'postgres', 'stock:1');
	my $call = "SELECT outcome, remaining FROM lease_fence.guarded_decrement('stock', '1', 'n', token => $token, operation_key => 'once')";

	is($dba->query($call), 'applied|99', 'an operation');
	is($dba->query($call), 'replayed|99', 'asked for again: its answer');
	$node->append_conf('postgresql.conf', "lease_fence.operations_retention = '1s'");
	ok(reload_until($node, 'postgres', "SELECT count(*) FROM lease_fence.operation('once')", '0'), 'older than its retention: forgotten');
	is($dba->query($call), 'applied|98', 'and applied again');
	$node->append_conf('postgresql.conf', "lease_fence.operations_retention = '90d'");
	$node->reload;
}

# ---- MERGE and a concurrent update of its row ----

{
	my $first = LeaseSessions->new($node);
	my $second = LeaseSessions->new($node);
	my $token = token_of($node, 'postgres', 'stock:2');
	my $update = 'UPDATE stock SET n = n - 1 WHERE id = 2';
	my $merge = 'MERGE INTO stock s USING (VALUES (2)) v (id) ON s.id = v.id';
	my %branches = (
		'update' => "$merge WHEN MATCHED THEN UPDATE SET n = s.n - 1",
		'delete' => "$merge WHEN MATCHED THEN DELETE");

	# Under the current token: of the newest row.
	$_->query("BEGIN; SELECT lease_fence.present($token)") foreach $first, $second;
	$first->query($update);
	$second->send($branches{update});
	waits($second);
	$first->query('COMMIT');
	$second->answer;
	is($second->state, '00000', 'MERGE after a concurrent update');
	$second->query('COMMIT');
	is($dba->query("SELECT n, fence_token = $token FROM stock WHERE id = 2"), '98|t', 'neither of them is lost');

	# Its token is superseded while it waits for the row, of which it has written
	# nothing yet: the mint does not wait for it, and it is refused.
	foreach my $branch (sort keys %branches)
	{
		my $next;

		$dba->query("BEGIN; SELECT n FROM stock WHERE id = 2 FOR UPDATE");
		$second->query("BEGIN; SET LOCAL lease_fence.token = '$token'");
		$second->send($branches{$branch});
		waits($second);
		$dba->query("SELECT lease_fence.release($token)");
		$next = token_of($node, 'postgres', 'stock:2');
		$dba->query('COMMIT');
		$second->answer;
		is($second->state, 'LF001', "MERGE that has waited for its row is refused under a token superseded meanwhile ($branch)");
		$second->query('ROLLBACK');
		$token = $next;
	}
	is($dba->query('SELECT n FROM stock WHERE id = 2'), '98', 'nothing came through');

	# The row is gone when it comes to it: the branch for new rows is guarded as well.
	$first->query("BEGIN; SELECT lease_fence.present($token); DELETE FROM stock WHERE id = 2");
	$second->query('BEGIN');
	$second->send("$branches{update} WHEN NOT MATCHED THEN INSERT VALUES (v.id, 7)");
	waits($second);
	$first->query('COMMIT');
	$second->answer;
	is($second->state, 'LF003', 'MERGE that turns to its INSERT is refused without a lease');
	$second->query("ROLLBACK; BEGIN; SET LOCAL lease_fence.token = '$token'");
	$second->query("$branches{update} WHEN NOT MATCHED THEN INSERT VALUES (v.id, 7, 5)");
	is($second->state, '00000', 'and inserts under one');
	$second->query('COMMIT');
	is($dba->query("SELECT n, fence_token = $token FROM stock WHERE id = 2"), '7|t', 'with its stamp');

  SKIP:
	{
		skip 'MERGE in WITH is there from version 17 on', 2 if $node->pg_version < 17;
		my $with = "WITH m AS ($branches{update} RETURNING s.n) SELECT n FROM m";

		$dba->query($with);
		is($dba->state, 'LF003', 'MERGE in WITH is refused without a lease');
		is($dba->query("BEGIN; SELECT lease_fence.present($token); $with; COMMIT"), "\n6", 'and writes under one');
	}
	$_->quit foreach $first, $second;
}

# ---- the worker in the middle of a wait ----

{
	my $writer = LeaseSessions->new($node);
	my $asker = LeaseSessions->new($node);
	my $token = token_of($node, 'postgres', 'stock:3');
	my ($watcher, $state) = (LeaseSessions->new($node), '');

	$writer->query("BEGIN; SELECT lease_fence.present($token); UPDATE stock SET n = 0 WHERE id = 3; SELECT lease_fence.release($token)");
	$asker->send("SELECT token FROM lease_fence.acquire('stock:3', scope => 'detached', wait => '60s')");
	ok(await($node, 'postgres', "SELECT state = 'draining' FROM lease_fence.leases WHERE resource = 'stock:3'"),
		'a grant waits for a writer');
	wait_until('the worker is at rest', sub {
		$state = $watcher->query("SELECT xact_start IS NULL, backend_xmin IS NULL, backend_xid IS NULL FROM pg_stat_activity
			WHERE backend_type = 'lease_fence worker' AND state = 'idle'");
		return $state ne '';
	});
	is($state, 't|t|t', 'the worker that waits has no transaction, and holds back no VACUUM');
	is($watcher->query(
			"SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			 WHERE a.backend_type = 'lease_fence worker' AND NOT l.granted"),
		'0', 'and stands in no queue of a lock');
	$writer->query('COMMIT');
	$asker->answer;
	is($asker->state, '00000', 'the grant comes with the end of the writer');
	$_->quit foreach $writer, $asker, $watcher;
}

# ---- the apply worker meets a guard that cannot do its work ----

# From one database to another of the same server: the slot has to be there before.
{
	my $conn = $node->connstr . ' dbname=postgres';
	my $pid;

	$node->safe_psql('postgres', 'CREATE DATABASE subscriber');
	with_shop($node, 'subscriber');
	$node->safe_psql('subscriber', "BEGIN; SET LOCAL lease_fence.bypass = 'for the copy'; DELETE FROM stock; COMMIT");
	$node->safe_psql('postgres', q{
		CREATE TABLE plain (id int PRIMARY KEY, n int);
		CREATE PUBLICATION plain FOR TABLE plain;
		SELECT pg_create_logical_replication_slot('plain', 'pgoutput');
	});
	$node->safe_psql('subscriber', qq{
		CREATE TABLE plain (id int PRIMARY KEY, n int);
		SELECT lease_fence.protect('plain', 'plain:{id}');
		CREATE SUBSCRIPTION plain CONNECTION '$conn' PUBLICATION plain WITH (create_slot = false, slot_name = 'plain');
	});
	ok(await($node, 'subscriber', "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"), 'subscribed');
	$node->safe_psql('postgres', 'INSERT INTO plain VALUES (1, 1), (2, 1); UPDATE plain SET n = 2 WHERE id = 1; DELETE FROM plain WHERE id = 2');
	ok(await($node, 'subscriber', q{SELECT string_agg(format('%s %s %s', id, n, fence_token), ',') = '1 2 0' FROM plain}),
		'rows of a publisher without guards are applied without a token');
	$pid = $node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');

	$node->safe_psql('subscriber', 'ALTER TABLE plain DROP COLUMN fence_token');
	$node->safe_psql('postgres', 'UPDATE plain SET n = 3');
	ok($node->wait_for_log(qr/ERROR:  guarded table "public\.plain" has lost its token column/), 'a guard that has lost its column: the apply worker ends with an ERROR that names it');
	is($node->safe_psql('subscriber', 'SELECT n FROM plain'), '2', 'nothing is applied');
	$node->safe_psql('subscriber', "SELECT lease_fence.unprotect('plain'); SELECT lease_fence.protect('plain', 'plain:{id}')");
	ok(await($node, 'subscriber', 'SELECT n = 3 FROM plain'), 'repaired: it is applied');
	is($node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $pid, 'and nothing crashed');
	is(state_of($node, 'subscriber', 'UPDATE plain SET n = 0'), 'LF003', 'the guard stands for everybody else');
	$node->safe_psql('subscriber', 'DROP SUBSCRIPTION plain');
}

# ---- pg_upgrade ----

# To the same version, which it allows: dump and restore in binary upgrade mode,
# with our hooks in the server.
{
	my $new = PostgreSQL::Test::Cluster->new('upgraded');
	my %tokens = map { $_ => token_of($node, 'postgres', $_) } 'stock:4', 'stock:5';
	my @command;

	is(write_as($node, 'postgres', $tokens{'stock:4'}, 4), '', 'a row has a stamp');
	$dba->quit;
	$node->stop('fast');
	$new->init;
	$new->append_conf('postgresql.conf', "shared_preload_libraries = 'lease_fence'");
	@command = (
		'pg_upgrade', '--no-sync',
		'-b', $node->config_data('--bindir'), '-B', $new->config_data('--bindir'),
		'-d', $node->data_dir, '-D', $new->data_dir,
		'-s', $new->host, '-p', $node->port, '-P', $new->port);
	chdir $PostgreSQL::Test::Utils::tmp_check or die $!;
	command_ok(\@command, 'pg_upgrade');
	$new->start;
	is(state_of($new, 'postgres', 'UPDATE stock SET n = 0'), 'LF003', 'upgraded: the guard stands');
	isnt(write_as($new, 'postgres', $tokens{'stock:4'}, 4), '', 'upgraded: no token of before is good, from the first moment');
	token_of($new, 'postgres', 'first');
	check_copy($new, 'postgres', 'upgraded', $tokens{'stock:5'}, %tokens);
	is($new->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.epochs'), '2', 'upgraded: in an epoch of its own');

	# As pg_upgrade starts it: nothing of ours is there, and guards stay shut.
	$new->stop('fast');
	command_ok([ 'pg_ctl', '-w', '-D', $new->data_dir, '-l', $new->logfile, '-o', '-b', 'start' ], 'started in binary upgrade mode');
	is(state_of($new, 'postgres', 'UPDATE stock SET n = 0'), '55000', 'binary upgrade: guarded tables cannot be written');
	is(state_of($new, 'postgres', "BEGIN; SET LOCAL lease_fence.bypass = 'x'; UPDATE stock SET n = 0; COMMIT"), '55000', '... nor by bypass');
	is(state_of($new, 'postgres', "SELECT lease_fence.acquire('stock:1', scope => 'detached')"), '55000', 'binary upgrade: no lease');
	command_ok([ 'pg_ctl', '-w', '-D', $new->data_dir, '-m', 'fast', 'stop' ], 'stopped');
	unlike(slurp_file($new->logfile), qr/PANIC|TRAP|terminated by signal/, 'upgraded: nothing crashed');
}

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');

done_testing();
