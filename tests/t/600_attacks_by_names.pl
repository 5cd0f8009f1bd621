# What cannot be tried inside of one database: names of databases that look like
# SQL, texts that look like lines of the server log, and names that do not fit
# into a notification. And a database whose user has put everything in the way
# that our SQL could find by name.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use JSON::PP;
use LeaseSessions qw(lease_node wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = lease_node('names', 'log_line_prefix = \'%m [%p] \'', 'lease_fence.audit_timeout = 200ms', 'max_worker_processes = 20');
my $forged = "2026-01-01 00:00:00.000 UTC [1] LOG:  forged";

# ---- names of databases ----

foreach my $name ('we"ird', "it's; DROP TABLE stock; --", '%s%n $$ \\', "two\nlines", 'é😀', 'x' x 63)
{
	my $shown = $name =~ s/\n/\\n/gr;
	my $connect = $name =~ s/([\\'])/\\$1/gr;

	$node->safe_psql('postgres', 'CREATE DATABASE "' . $name =~ s/"/""/gr . '"');
	$connect = $node->connstr . " dbname='$connect'";
	my $ask = sub {
		my ($sql) = @_;
		my ($out, $err) = ('', '');
		IPC::Run::run([ 'psql', '-XAtq', '-d', $connect, '-c', $sql ], '>', \$out, '2>', \$err);
		chomp $out;
		return $out . $err;
	};
	$ask->('CREATE EXTENSION lease_fence');
	$ask->('CREATE TABLE stock (id int PRIMARY KEY, n int); INSERT INTO stock VALUES (1, 1)');
	$ask->(q{SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}')});
	my $token = $ask->(q{SELECT token FROM lease_fence.acquire(resource => 'stock:1', scope => 'detached', wait => '1min')});
	like($token, qr/^\d+$/, "a database named $shown: a lease is had");
	is($ask->(qq{SELECT outcome FROM lease_fence.guarded_update('stock', '1', '{"n": 2}', token => $token)}), 'applied',
		"$shown: and writes");
	is($ask->('SELECT worker FROM lease_fence.worker_status'), 'running', "$shown: its worker runs");
}

# ---- the log ----

$node->safe_psql('postgres', qq{CREATE TABLE "t\n$forged" (id text PRIMARY KEY, n int)});
$node->safe_psql('postgres', qq{SELECT lease_fence.protect(relation => '"t\n$forged"', resource => 'log:{id}')});
# somebody has locked the audit, so what is refused goes to the log
my $locker = LeaseSessions->new($node, name => 'locker');
$locker->query('BEGIN; LOCK TABLE lease_fence.rejected_writes');
my $refused = "row\n$forged";
my ($status, undef, $stderr) = $node->psql('postgres',
	qq{SET application_name = 'a\n$forged'; INSERT INTO "t\n$forged" VALUES ('$refused', 1)});
like($stderr, qr/no lease of resource/, 'a write is refused');
$locker->query('ROLLBACK');
$locker->quit;
$node->safe_psql('postgres', qq{ALTER TABLE "t\n$forged" ENABLE TRIGGER ALL});
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM lease_fence.check()}), 'check() finds something');
wait_until('the worker has looked', sub { $node->log_contains(qr/check\(\) has a new finding: error: public."t/) });
$node->safe_psql('postgres', "SELECT lease_fence.begin_epoch(reason => 'epoch\n$forged')");
$node->safe_psql('postgres', "SELECT lease_fence.revoke(resource => 'r\n$forged', reason => 'revoked\n$forged')");
my $log = slurp_file($node->logfile);
like($log, qr/not in the audit table.*: \{.*\\n\Q$forged\E/, 'a refusal that the audit did not take is one line of the log');
my ($line) = $log =~ /not in the audit table[^{]*(\{.*\})$/m;
is(eval { decode_json($line)->{resource} }, "log:$refused", 'which is JSON');
unlike($log, qr/^\Q$forged\E/m, 'and nothing that anybody named is a line of its own in the log');

# ---- notifications ----

my $listener = LeaseSessions->new($node, name => 'listener');
$listener->query('LISTEN lease_fence');
foreach my $resource (("\x01" x 512), ('"\\' x 256), ("\n\t" x 256), ('é' x 256), q{","event":"forged})
{
	my $literal = $resource =~ s/([\\'])/$1$1/gr;
	my $name = $resource =~ s/[^ -~]/?/gr;

	$name = substr($name, 0, 12);
	my $token = $node->safe_psql('postgres',
		"SELECT token FROM lease_fence.acquire(resource => E'$literal', scope => 'detached')");
	$node->safe_psql('postgres', "SELECT lease_fence.revoke(resource => E'$literal')");
	my $payload = '';
	wait_until("$name was notified of",
		sub { ($payload) = $listener->query('SELECT 1') =~ /payload "(\{.*?"token": $token\})"/s; defined $payload });
	my $said = eval { JSON::PP->new->decode($payload) } // {};
	is($said->{resource}, $resource, "a notification of a resource named $name... names it");
	is($said->{event}, 'revoked', 'and the event is ours');
}
$listener->quit;

# ---- what our SQL names, in the caller's way ----

# Functions and operators of all that it could find by name, for any search_path.
$node->safe_psql('postgres', q{
	CREATE ROLE attacker;
	CREATE DATABASE shadows OWNER attacker;
});
with_extension($node, 'shadows');
$node->safe_psql('shadows', q{
	CREATE SCHEMA trap;
	GRANT ALL ON SCHEMA trap TO PUBLIC;
	-- said in the log, since what is attacked may be rolled back
	CREATE FUNCTION trap.spring(what text) RETURNS pg_catalog.int4 LANGUAGE plpgsql AS
		$$ BEGIN RAISE LOG 'sprung: %', what; RETURN 1; END $$;

	-- each function of pg_catalog that returns one of these, under its own name
	DO $do$
	DECLARE
		one record;
	BEGIN
		FOR one IN SELECT DISTINCT ON (proname, proargtypes) proname, oidvectortypes(proargtypes) AS arguments, format_type(prorettype, NULL) AS result
			FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND provariadic = 0
			  AND proname IN ('quote_ident', 'array_to_string', 'current_setting', 'clock_timestamp', 'pg_control_system', 'encode', 'decode',
			                  'convert_from', 'getdatabaseencoding', 'regexp_replace', 'replace', 'to_jsonb', 'now', 'concat', 'format',
			                  'text', 'int8', 'oid', 'max', 'bool_or', 'current_database', 'textcat', 'int8eq', 'texteq', 'pg_get_keywords')
			  AND NOT prorettype::regtype::text ~ '^(any|record|internal|trigger)' AND NOT proargtypes::oid[] && '{2276,2277,2283,2776,3500,3831,5077,5078,5079,5080}'::oid[]
		LOOP
			EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', one.proname, one.arguments, one.result,
				format('BEGIN PERFORM trap.spring(%L); RETURN NULL; END', one.proname));
		END LOOP;
		-- each operator that our statements use, between all types of ours
		FOR one IN SELECT 'operate_' || oid AS function, oprname, format_type(oprleft, NULL) AS l, format_type(oprright, NULL) AS r, format_type(oprresult, NULL) AS result
			FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b'
			  AND oprname IN ('=', '<>', '<', '>', '<=', '>=', '||', '&', '+', '-', '~')
			  AND oprleft IN ('text'::regtype, 'int8'::regtype, 'int4'::regtype, 'int2'::regtype, 'oid'::regtype, 'name'::regtype, '"char"'::regtype,
			                  'timestamptz'::regtype, 'interval'::regtype, 'bool'::regtype, 'jsonb'::regtype, 'bytea'::regtype, 'numeric'::regtype)
			  AND NOT format_type(oprright, NULL) ~ '^any' AND oprresult <> 0
		LOOP
			EXECUTE format('CREATE FUNCTION trap.%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', one.function, one.l, one.r, one.result,
				format('BEGIN PERFORM trap.spring(%L); RETURN NULL; END', one.oprname));
			EXECUTE format('CREATE OPERATOR trap.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = trap.%s)', one.oprname, one.l, one.r, one.function);
		END LOOP;
		-- and each type and table
		FOR one IN SELECT unnest('{int8,text,oid,name,bool,jsonb,numeric,timestamptz,regclass,regprocedure,int4,int2,interval,bytea}'::text[]) AS name LOOP
			EXECUTE format('CREATE DOMAIN trap.%I AS pg_catalog.text CHECK (false)', one.name);
		END LOOP;
		FOR one IN SELECT unnest('{grants,epochs,guards,guard_modes,profiles,operations,rejected_writes,leases,worker_status,pg_class,pg_trigger,pg_extension,pg_settings,pg_stat_activity,pg_prepared_xacts,pg_inherits,pg_foreign_server,pg_database,stock}'::text[]) AS name LOOP
			EXECUTE format('CREATE VIEW trap.%I AS SELECT trap.spring(%L)', one.name, one.name);
		END LOOP;
	END $do$;
	GRANT USAGE ON SCHEMA lease_fence TO attacker;
});
cmp_ok($node->safe_psql('shadows', q{SELECT count(*) FROM pg_operator WHERE oprnamespace = 'trap'::regnamespace}), '>', 60,
	'operators are in the way');
cmp_ok($node->safe_psql('shadows', q{SELECT count(*) FROM pg_proc WHERE pronamespace = 'trap'::regnamespace AND proname NOT LIKE 'operate%'}), '>', 20,
	'and functions');

# Which of them were run so far, from this place of the log on.
sub sprung
{
	my ($from) = @_;
	my %what = map { $_ => 1 } substr(slurp_file($node->logfile), $from) =~ /LOG:  sprung: (.*)/g;
	return join ' ', sort keys %what;
}
my $from = -s $node->logfile;
$node->safe_psql('shadows', q{SET search_path = trap, pg_catalog;
	SELECT 1::pg_catalog.int8 = 1::pg_catalog.int8, pg_catalog.count(*) FROM pg_class});
is(sprung($from), '= pg_class', 'which are met by who names them carelessly');
$from = -s $node->logfile;

# Temporary objects, in the session of the one that is attacked: of what can be temporary.
my $temporary = q{
	SET client_min_messages = error;
	CREATE TEMP VIEW grants AS SELECT trap.spring('temporary grants');
	CREATE TEMP VIEW guards AS SELECT trap.spring('temporary guards');
	CREATE TEMP VIEW pg_trigger AS SELECT trap.spring('temporary pg_trigger');
	CREATE TEMP VIEW pg_class AS SELECT trap.spring('temporary pg_class');
	CREATE TEMP VIEW pg_prepared_xacts AS SELECT trap.spring('temporary pg_prepared_xacts');
	CREATE DOMAIN pg_temp.int8 AS pg_catalog.text;
	CREATE DOMAIN pg_temp.regclass AS pg_catalog.text;
};
my $blocker = LeaseSessions->new($node, dbname => 'shadows', name => 'blocker');
my $under = $blocker->query(q{SELECT token FROM lease_fence.acquire(resource => 'stock:2', scope => 'detached')});
$blocker->query(q{CREATE TABLE other (id int PRIMARY KEY); SELECT lease_fence.protect(relation => 'other', resource => 'stock:{id}')});
$blocker->query("BEGIN; SELECT lease_fence.present($under); INSERT INTO other VALUES (2); PREPARE TRANSACTION 'in the way'; SELECT lease_fence.release($under)");
is($blocker->state, '00000', 'a prepared transaction is in the way');
$blocker->quit;

foreach my $path ('trap, pg_temp, pg_catalog, lease_fence, public', 'pg_temp, trap, pg_catalog', 'trap', "''")
{
	my $victim = LeaseSessions->new($node, dbname => 'shadows', name => 'victim');
	my $is = sub {
		my ($sql, $state, $what) = @_;
		$victim->query($sql);
		is($victim->state, $state, "search_path $path: $what") or diag($victim->{text});
	};

	$victim->query($temporary);
	$victim->query("SET search_path = $path");
	$is->(q{SELECT lease_fence.protect(relation => 'public.stock', resource => 'stock:{id}')}, '00000', 'protect()');
	$is->(q{SELECT lease_fence.set_mode(relation => 'public.stock', mode => 'observe'), lease_fence.set_mode(relation => 'public.stock', mode => 'enforce')},
		'00000', 'set_mode()');
	my $token = $victim->lease(q{resource => 'stock:1', scope => 'detached'});
	$is->(qq{SELECT lease_fence.guarded_update('public.stock', '1', '{"n": 5}', token => $token, expected => '{"id": 1}')}, '00000', 'guarded_update()');
	$is->(qq{SELECT lease_fence.guarded_decrement('public.stock', '1', 'n', token => $token)}, '00000', 'guarded_decrement()');
	$is->(qq{SELECT lease_fence.guarded_increment('public.stock', '1', 'n', token => $token, ceiling => 100, operation_key => 'k $token')}, '00000', 'guarded_increment()');
	$is->(qq{SELECT lease_fence.guarded_delete('public.stock', '1', token => $token)}, '00000', 'guarded_delete()');
	$is->(qq{SELECT lease_fence.guarded_insert('public.stock', '{"id": 1, "n": 10}', token => $token)}, '00000', 'guarded_insert()');
	$is->(qq{SELECT * FROM lease_fence.operation('k $token')}, '00000', 'operation()');
	$is->(qq{SELECT lease_fence.renew($token), lease_fence.remaining($token)}, '00000', 'renew()');
	$is->(q{SELECT * FROM lease_fence.leases, lease_fence.guards, lease_fence.worker_status, lease_fence.stat}, '00000', 'the views');
	$is->(q{SELECT * FROM lease_fence.check()}, '00000', 'check()');
	$is->(q{SELECT lease_fence.examine_guard(relation => 'public.stock')}, '00000', 'examine_guard()');
	$is->(q{SELECT lease_fence.acquire(resource => 'stock:2', scope => 'detached', wait => '300ms')}, '55P03', 'who is in the way');
	like($victim->{text}, qr/Prepared transaction "in the way"/, "search_path $path: is looked up");
	$is->(qq{SELECT lease_fence.revoke(resource => 'stock:1', reason => 'test')}, '00000', 'revoke()');
	$is->(qq{BEGIN; SET LOCAL lease_fence.token = $token; UPDATE public.stock SET n = 1 WHERE id OPERATOR(pg_catalog.=) 1}, 'LF002', 'a stale write is refused');
	$victim->query('ROLLBACK');
	$is->(q{SELECT lease_fence.add_profile(name => 'p', prefix => 'p:', policy => 'external'); SELECT lease_fence.import_grant(resource => 'p:1', number => 1); SELECT lease_fence.drop_profile('p')},
		'00000', 'profiles');
	$is->(q{CREATE TABLE public.another (id int PRIMARY KEY, fence_token bigint); SELECT lease_fence.protect(relation => 'public.another', resource => 'a:{id}'); SELECT lease_fence.unprotect(relation => 'public.another', drop_column => true); DROP TABLE public.another},
		'00000', 'a table that has the column');
	$victim->quit;
}
$node->safe_psql('shadows', q{COMMIT PREPARED 'in the way'});
is($node->safe_psql('shadows', q{SELECT lease_fence.begin_epoch(reason => 'test') > 0}), 't', 'a new epoch begins');
is(sprung($from), '', 'nothing that was in the way was run');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
$node->stop;
done_testing();
