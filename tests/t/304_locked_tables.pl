# Somebody locks our own tables, or rows of them: the worker does not block on
# them, nobody else's database is held up, and all goes on afterwards.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = new_server('locked', "lease_fence.audit_timeout = '300ms'");
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE shop');
$node->safe_psql('postgres', 'CREATE DATABASE fresh');
with_extension($node, 'shop');
with_extension($node, 'fresh');

my $held = token_of($node, 'shop', 'stock:1');
my $blocker = $node->background_psql('shop');
my $asks = "SELECT lease_fence.acquire(resource => 'asked', ttl => '1min', scope => 'detached', wait => '300ms')";

# Is the worker's process alive to interrupts?  DROP DATABASE waits for all.
sub others_go_on
{
	my ($what) = @_;

	$node->safe_psql('postgres', 'CREATE DATABASE meanwhile');
	is(sqlstate_of($node, 'postgres', "SET statement_timeout = '20s'; DROP DATABASE meanwhile"),
		'', "$what: DROP DATABASE of another one works");
	is( $node->safe_psql(
			'postgres',
			"SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'lease_fence worker' AND NOT l.granted"
		),
		'0', "$what: no worker waits for a lock");
	return;
}

# ---- grants ----

$blocker->query_safe('BEGIN; LOCK TABLE lease_fence.grants IN ACCESS EXCLUSIVE MODE');
is(sqlstate_of($node, 'shop', $asks), '55P03', 'grants locked: a lease is not had in time');
others_go_on('grants locked');
my $pid = worker_pid($node, 'shop');
$blocker->query_safe('COMMIT');
my $token = token_of($node, 'shop', 'asked');
cmp_ok($token, '>', $held, 'the lock is gone: leases are granted');
is(worker_pid($node, 'shop'), $pid, 'by the same worker');

# An end that cannot be written is not lost, though the worker has nothing else.
$blocker->query_safe('BEGIN; LOCK TABLE lease_fence.grants IN SHARE MODE');
is($node->safe_psql('shop', "SELECT lease_fence.release(token => $token)"), 't', 'a release does not wait for the table');
is(sqlstate_of($node, 'shop', "SELECT lease_fence.present($token)"), 'LF002', 'and counts at once');
$blocker->query_safe('COMMIT');
ok(await_sql($node, 'shop', "SELECT how_ended = 'released' FROM lease_fence.grants WHERE token = $token"),
	'it is in the table when the lock is gone');

# ---- rejected_writes ----

$blocker->query_safe('BEGIN; LOCK TABLE lease_fence.rejected_writes IN ACCESS EXCLUSIVE MODE');
is(write_as($node, 'shop', $token), 'LF003', 'rejected_writes locked: a stale write is refused, after audit_timeout');
others_go_on('rejected_writes locked');
isnt(token_of($node, 'shop', 'other'), '', 'rejected_writes locked: leases are granted');
$blocker->query_safe('COMMIT');
is($node->safe_psql('shop', 'SELECT audit_logged > 0 FROM lease_fence.worker_status'),
	't', 'the record went to the log, and was counted');
my $written = 0;
foreach my $try (1 .. 50)
{
	write_as($node, 'shop', $token);
	$written = $node->safe_psql('shop', 'SELECT count(*) FROM lease_fence.rejected_writes');
	last if $written > 0;
}
cmp_ok($written, '>', 0, 'the next rejection is in the table again');

# ---- epochs ----

$blocker->query_safe('BEGIN; LOCK TABLE lease_fence.epochs IN ACCESS EXCLUSIVE MODE');
isnt(token_of($node, 'shop', 'while-epochs'), '', 'epochs locked: an epoch that is confirmed stays so');
is(sqlstate_of($node, 'shop',
		"SET statement_timeout = '700ms'; SELECT lease_fence.begin_epoch(reason => 'test')"),
	'57014', 'epochs locked: a new one does not begin');
others_go_on('epochs locked, a new one asked for');
$blocker->query_safe('COMMIT');
is(sqlstate_of($node, 'shop', "SELECT lease_fence.begin_epoch(reason => 'test')"),
	'', 'the lock is gone: it begins');
is(write_as($node, 'shop', $held), 'LF004', 'and every token of before is unknown');

# In a database whose epoch has not begun yet, with its first worker.
my $other = $node->background_psql('fresh');
foreach my $table ('epochs', 'grants', 'guard_modes')
{
	$other->query_safe("BEGIN; LOCK TABLE lease_fence.$table IN ACCESS EXCLUSIVE MODE");
	isnt(sqlstate_of($node, 'fresh', "SET statement_timeout = '2s'; $asks"),
		'', "$table locked before the first epoch: no lease");
	isnt(await_worker($node, 'fresh'), '', 'the worker is there');
	others_go_on("$table locked before the first epoch");
	$other->query_safe('COMMIT');
}
$other->quit;
$token = token_of($node, 'fresh', 'stock:1');
is(write_as($node, 'fresh', $token), '', 'the locks are gone: it begins, and leases are granted');

# ---- a single row ----

$token = token_of($node, 'shop', 'row');
my $neighbour = token_of($node, 'shop', 'neighbour');
$blocker->query_safe("BEGIN; SELECT FROM lease_fence.grants WHERE token = $token FOR UPDATE");
$node->safe_psql('shop', "SELECT lease_fence.release(token => $token)");
$node->safe_psql('shop', "SELECT lease_fence.release(token => $neighbour)");
ok(await_sql($node, 'shop', "SELECT how_ended = 'released' FROM lease_fence.grants WHERE token = $neighbour"),
	"a grant's row locked: the ends of others are written");
isnt(token_of($node, 'shop', 'another'), '', 'and leases granted');
$blocker->query_safe('COMMIT');
ok(await_sql($node, 'shop', "SELECT how_ended = 'released' FROM lease_fence.grants WHERE token = $token"),
	'its own end is written afterwards');

# ---- poison: what a DBA puts on our tables ----

$node->safe_psql(
	'shop', q{
	CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.resource LIKE 'poison%' THEN RAISE 'poisoned'; END IF;
			RETURN NEW;
		END $$;
});
my $early = token_of($node, 'shop', 'poison:early');
$node->safe_psql(
	'shop', q{
	CREATE TRIGGER poison BEFORE INSERT OR UPDATE ON lease_fence.grants
		FOR EACH ROW EXECUTE FUNCTION poison();
	CREATE TRIGGER poison BEFORE INSERT ON lease_fence.rejected_writes
		FOR EACH ROW EXECUTE FUNCTION poison();
	CREATE TABLE odd (name text PRIMARY KEY, n int NOT NULL);
	INSERT INTO odd VALUES ('poison', 1), ('sound', 1);
	SELECT lease_fence.protect(relation => 'odd', resource => '{name}');
});
is(sqlstate_of($node, 'shop',
		"SELECT lease_fence.acquire(resource => 'poison:x', ttl => '1min', scope => 'detached')"),
	'LF021', 'a grant that cannot be inserted fails, and says so');
is(sqlstate_of($node, 'shop',
		"SELECT lease_fence.acquire_all(resources => ARRAY['a1', 'poison:x'], ttl => '1min', scope => 'detached')"),
	'LF021', 'so do all that were asked for together');
isnt(token_of($node, 'shop', 'a1'), '', 'and leave nothing');
$pid = worker_pid($node, 'shop');
$node->safe_psql('shop', "SELECT lease_fence.release(token => $early)");
my $sound = token_of($node, 'shop', 'sound');
is($node->safe_psql('shop', "SELECT lease_fence.release(token => $sound)"), 't', 'a sound one is released');
ok(await_sql($node, 'shop', "SELECT how_ended = 'released' FROM lease_fence.grants WHERE token = $sound"),
	'and its end written beside one that cannot be');
is(sqlstate_of($node, 'shop', "UPDATE odd SET n = 2 WHERE name = 'poison'"),
	'LF003', 'a rejection whose audit row cannot be inserted is a rejection');
my $before = $node->safe_psql('shop', "SELECT count(*) FROM lease_fence.rejected_writes WHERE resource = 'sound'");
is(sqlstate_of($node, 'shop', "UPDATE odd SET n = 2 WHERE name = 'sound'"),
	'LF003', 'and the next one too');
is($node->safe_psql('shop', "SELECT count(*) FROM lease_fence.rejected_writes WHERE resource = 'sound'"),
	$before + 1, 'which is in the table');

# ---- columns and triggers that a DBA has added ----

$node->safe_psql(
	'shop', q{
	CREATE TABLE seen (what text, note text);
	CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.seen VALUES (TG_TABLE_NAME || ' ' || TG_LEVEL, CASE WHEN TG_LEVEL = 'ROW' THEN NEW.note END);
			RETURN NULL;
		END $$;
	ALTER TABLE lease_fence.grants ADD COLUMN gone int, ADD COLUMN note text NOT NULL DEFAULT upper('granted'), ADD COLUMN empty text;
	ALTER TABLE lease_fence.grants DROP COLUMN gone;
	ALTER TABLE lease_fence.rejected_writes ADD COLUMN note text NOT NULL DEFAULT upper('rejected'), ADD COLUMN seen_at timestamptz;
	CREATE TRIGGER see AFTER INSERT ON lease_fence.grants FOR EACH ROW EXECUTE FUNCTION see();
	CREATE TRIGGER see AFTER INSERT ON lease_fence.rejected_writes FOR EACH ROW EXECUTE FUNCTION see();
	CREATE TRIGGER see_all AFTER INSERT ON lease_fence.rejected_writes FOR EACH STATEMENT EXECUTE FUNCTION see();
});
my $noted = token_of($node, 'shop', 'noted');
is($node->safe_psql('shop', "SELECT note, empty IS NULL, how_ended IS NULL FROM lease_fence.grants WHERE token = $noted"),
	'GRANTED|t|t', 'a column that was added to grants has its default');
is(sqlstate_of($node, 'shop', "UPDATE odd SET n = 2 WHERE name = 'sound'"), 'LF003', 'a write is rejected');
is($node->safe_psql('shop', "SELECT note, seen_at IS NULL, rows FROM lease_fence.rejected_writes ORDER BY id DESC LIMIT 1"),
	'REJECTED|t|1', 'and one of the audit');
is($node->safe_psql('shop', "SELECT string_agg(what || ' ' || coalesce(note, '-'), ', ' ORDER BY what) FROM seen"),
	'grants ROW GRANTED, rejected_writes ROW REJECTED, rejected_writes STATEMENT -', 'triggers after the row fire');
unlike(slurp_file($node->logfile), qr/leak|not closed/, 'and leave nothing open');
is(worker_pid($node, 'shop'), $pid, 'the worker lives through all of that');
$node->safe_psql('shop', 'DROP FUNCTION poison CASCADE');
ok(await_sql($node, 'shop', "SELECT how_ended = 'released' FROM lease_fence.grants WHERE token = $early"),
	'without the poison its end is written at last');
is(sqlstate_of($node, 'shop', 'DROP TABLE lease_fence.grants'), '2BP01',
	'a table of the extension cannot be dropped');

# ---- while the server stops ----

$blocker->query_safe('BEGIN; LOCK TABLE lease_fence.grants, lease_fence.epochs, lease_fence.rejected_writes IN ACCESS EXCLUSIVE MODE');
stop_fast_is_quick($node, 'while our tables are locked');
eval { $blocker->quit };
done_testing();
