# The owner of a table decides what runs when his table is read or written. None
# of that runs with the rights of the worker, which is a superuser, or of a DBA who
# calls check() or begin_epoch(); and what he makes of the guard's function keeps
# neither from their work.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use LeaseSessions qw(lease_node wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = lease_node('owners');
$node->safe_psql('postgres', q{
	CREATE ROLE mallory LOGIN;
	CREATE ROLE signaller LOGIN;
	GRANT pg_signal_backend TO signaller;
	GRANT USAGE ON SCHEMA lease_fence TO mallory;
	CREATE SCHEMA den AUTHORIZATION mallory;
	CREATE TABLE honest (id int PRIMARY KEY, n int);
	INSERT INTO honest VALUES (1, 1);
	SELECT lease_fence.protect(relation => 'honest', resource => 'honest:{id}');
});

# Each says who runs it; the planner calls some of them, too.
$node->safe_psql('postgres', q{
	SET SESSION AUTHORIZATION mallory;
	SET search_path = den, pg_catalog;
	CREATE FUNCTION spy(what text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
		$$ BEGIN RAISE LOG 'spy: % runs as <%>', what, current_user; RETURN 1; END $$;
	CREATE FUNCTION spy_trigger() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM den.spy(TG_NAME); RETURN NEW; END $$;
	CREATE DOMAIN watched AS int CHECK (den.spy('domain') = 1);

	CREATE TABLE one (
		id int PRIMARY KEY DEFAULT den.spy('default'),
		d watched,
		g int GENERATED ALWAYS AS (den.spy('generated')) STORED,
		fence_token bigint NOT NULL DEFAULT 0 CHECK (den.spy('check') = 1));
	INSERT INTO one VALUES (1, 1), (2, 2);
	CREATE INDEX ON one ((id + den.spy('index expression')));
	CREATE INDEX ON one (id) WHERE den.spy('index predicate') = 1;
	CREATE INDEX ON one (fence_token) WHERE den.spy('index of stamps') = 1;
	CREATE STATISTICS one_statistics ON (id + den.spy('statistics')), d FROM one;
	CREATE TRIGGER before_row BEFORE INSERT OR UPDATE OR DELETE ON one FOR EACH ROW EXECUTE FUNCTION spy_trigger();
	CREATE TRIGGER before_statement BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON one FOR EACH STATEMENT EXECUTE FUNCTION spy_trigger();
	CREATE CONSTRAINT TRIGGER deferred AFTER INSERT OR UPDATE OR DELETE ON one DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION spy_trigger();
	CREATE RULE look AS ON UPDATE TO one WHERE den.spy('rule') = 1 DO ALSO NOTHING;
	SELECT lease_fence.protect(relation => 'one', resource => 'one:{id}');
	ALTER TABLE one ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
	CREATE POLICY look ON one USING (den.spy('policy') = 1);

	CREATE TABLE parts (id int, fence_token bigint NOT NULL DEFAULT 0) PARTITION BY RANGE ((id + den.spy('partition key')));
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
	CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
	INSERT INTO parts VALUES (1), (11);
	SELECT lease_fence.protect(relation => 'parts', resource => 'parts:{id}');
	CREATE TABLE heirs (id int PRIMARY KEY);
	SELECT lease_fence.protect(relation => 'heirs', resource => 'heirs:{id}');
	CREATE TABLE heir (extra int DEFAULT den.spy('heir')) INHERITS (heirs);

	CREATE VIEW seen AS SELECT id, den.spy('view')::bigint AS fence_token FROM one;
	CREATE TRIGGER guard INSTEAD OF INSERT OR UPDATE OR DELETE ON seen FOR EACH ROW
		EXECUTE FUNCTION lease_fence.guard('one:{id}', 'fence_token', 'reject', 'guard');

	-- the guard's function with arguments that protect() would never give
	CREATE TABLE odd (id int PRIMARY KEY, fence_token bigint NOT NULL DEFAULT 0, t text);
	CREATE TRIGGER g1 BEFORE INSERT ON odd FOR EACH ROW EXECUTE FUNCTION lease_fence.guard();
	CREATE TRIGGER g2 AFTER UPDATE ON odd FOR EACH STATEMENT EXECUTE FUNCTION lease_fence.guard('', '', '', '', '', '', '');
	CREATE TRIGGER "g3 ""'\" BEFORE UPDATE ON odd FOR EACH ROW EXECUTE FUNCTION lease_fence.guard('\{', 'none', '\000', E'\t\n');
	CREATE TABLE odd2 (id int PRIMARY KEY, fence_token text);
	CREATE TRIGGER g BEFORE INSERT ON odd2 FOR EACH ROW EXECUTE FUNCTION lease_fence.guard('x:{id}', 'fence_token', 'reject', 'guard');
	CREATE TRIGGER r BEFORE UPDATE ON odd2 FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated();
});
my $token = $node->safe_psql('postgres', q{SET SESSION AUTHORIZATION mallory;
	SELECT token FROM lease_fence.acquire(resource => 'one:1', ttl => '10min', scope => 'detached')});

# Does a spy that runs as the owner say so?
$node->safe_psql('postgres', qq{SET SESSION AUTHORIZATION mallory;
	SELECT lease_fence.guarded_update('den.one', '1', '{"d": 3}', token => $token)});
ok($node->log_contains(qr/spy: .* runs as <mallory>/), 'what the owner has hidden in his tables runs');

# ---- from here on nobody of his runs anything ----

my $offset = -s $node->logfile;
is($node->safe_psql('postgres', q{SELECT count(*) FROM lease_fence.check() WHERE object ~ 'den.odd'}) > 0, 1, 'check() tells of his odd tables');
$node->safe_psql('postgres', q{ALTER TABLE honest DISABLE TRIGGER ALL});
is($node->safe_psql('postgres', q{SELECT problem FROM lease_fence.check() WHERE object = 'public.honest'}),
	'its guard is disabled: anybody can write it', 'and of those of others');
$node->safe_psql('postgres', q{ALTER TABLE honest ENABLE ALWAYS TRIGGER zzz_lease_fence});
$node->safe_psql('postgres', q{SELECT e.* FROM pg_class c, LATERAL lease_fence.examine_guard(c.oid) e WHERE relnamespace = 'den'::regnamespace AND relkind IN ('r', 'p', 'v')});
cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM lease_fence.guards WHERE relation::text ~ 'den'}), '>=', 3, 'the view of guards shows them');

my $floor = $node->safe_psql('postgres', q{SELECT lease_fence.begin_epoch(reason => 'test')});
cmp_ok($floor, '>', $token, 'the worker begins an epoch, for which it reads his stamps');
$node->reload;
$node->safe_psql('postgres', q{SELECT lease_fence.revoke(resource => 'one:1')});
$node->restart;
ok($node->poll_query_until('postgres', q{SELECT worker = 'running' FROM lease_fence.worker_status}), 'it starts again');
cmp_ok(token_of($node, 'postgres', 'honest:1'), '>', $floor, 'and grants');
my $log = substr slurp_file($node->logfile), $offset;
like($log, qr/spy: .* runs as <mallory>/, 'what the planner runs of an index runs as the owner of its table');
my %as = map { $_ => 1 } $log =~ /spy: .* runs as <(\w+)>/g;
delete $as{mallory};
is(join(' ', sort keys %as), '', 'nothing of his has run with rights that are not his');

# The stamp of his that is a lie moves no epoch by more than a year.
$node->safe_psql('postgres', q{SET SESSION AUTHORIZATION mallory;
	ALTER TABLE den.parts DISABLE TRIGGER ALL; UPDATE den.parts SET fence_token = 9007199254740991; ALTER TABLE den.parts ENABLE ALWAYS TRIGGER zzz_lease_fence});
is($node->safe_psql('postgres', q{SELECT problem FROM lease_fence.check() WHERE object = 'den.parts' AND problem ~ 'stamp'}),
	'it has a stamp above the last token minted here: a history was lost', 'a forged stamp is told of');
cmp_ok($node->safe_psql('postgres', q{SELECT lease_fence.begin_epoch(reason => 'test')}), '<', 9007199254740991 / 10, 'and does not exhaust the tokens');

# ---- signals ----

foreach my $backend ('lease_fence worker', 'lease_fence launcher')
{
	my $pid = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE '$backend%' LIMIT 1");

	like($pid, qr/^\d+$/, "there is a $backend");
	foreach my $function (qw(pg_terminate_backend pg_cancel_backend))
	{
		is(sqlstate_of($node, 'postgres', "SET SESSION AUTHORIZATION signaller; SELECT $function($pid)"), '42501',
			"pg_signal_backend is not enough for $function of the $backend");
	}
}

# ---- a transaction of his that a drain would end is his, and nobody else's ----

is(sqlstate_of($node, 'postgres', q{SET SESSION AUTHORIZATION mallory; SELECT lease_fence.revoke(resource => 'honest:1')}), '42501', 'he revokes nothing');
is(sqlstate_of($node, 'postgres', q{SET SESSION AUTHORIZATION mallory; SELECT lease_fence.begin_epoch(reason => 'x')}), '42501', 'nor begins an epoch');
is(sqlstate_of($node, 'postgres', q{SET SESSION AUTHORIZATION mallory; SELECT lease_fence.examine_guard('den.one')}), '42501', 'nor examines');
is(sqlstate_of($node, 'postgres', q{SET SESSION AUTHORIZATION mallory; SELECT lease_fence.protect(relation => 'den.parts', resource => 'p:{id}')}), '22023',
	'a stamp that is no token cannot be brought in by protect()');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
$node->stop;
done_testing();
