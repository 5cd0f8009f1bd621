-- Guarded functions run as their caller: partitions, row level security, column
-- privileges, other triggers, roles that change, hostile search paths.
\set VERBOSITY terse
CREATE SCHEMA guarded_rows;
SET search_path = guarded_rows, lease_fence, public;
CREATE ROLE lf_gr_app;
CREATE ROLE lf_gr_other;
CREATE ROLE lf_gr_part;
GRANT USAGE ON SCHEMA lease_fence, guarded_rows TO lf_gr_app, lf_gr_other, lf_gr_part;
GRANT CREATE ON SCHEMA guarded_rows TO lf_gr_app;
CREATE FUNCTION as_app_token(resource text) RETURNS bigint LANGUAGE sql
AS $$ SELECT token FROM acquire(resource => $1, scope => 'detached', holder => 'guarded_rows') $$;

-- Partitions: dropped columns, another order, a key that spans them.
CREATE TABLE sales (gone int, region text, id int, n int DEFAULT 5, note text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
ALTER TABLE sales DROP COLUMN gone;
CREATE TABLE sales_north PARTITION OF sales FOR VALUES IN ('north');
CREATE TABLE sales_south (note text, also_gone int, n int DEFAULT 7, id int NOT NULL, region text NOT NULL);
ALTER TABLE sales_south DROP COLUMN also_gone;
SELECT protect(relation => 'sales', resource => 'sale:{id}');
ALTER TABLE sales_south ADD COLUMN fence_token bigint NOT NULL DEFAULT 0;
ALTER TABLE sales ATTACH PARTITION sales_south FOR VALUES IN ('south');
SELECT as_app_token('sale:1') AS t \gset
SELECT outcome, new_row_out - 'fence_token' AS new_row FROM guarded_insert('sales', '{"region": "south", "id": 1}', token => :t);
SELECT outcome, remaining FROM guarded_decrement('sales', '{"id": 1, "region": "south"}', 'n', token => :t);
SELECT outcome, remaining FROM guarded_decrement('sales', '{"id": 1, "region": "south"}', 'n', token => :t, amount => 100);
SELECT outcome, new_row - 'fence_token' AS new_row FROM guarded_update('sales', '{"id": 1, "region": "south"}', '{"note": "x"}', token => :t, expected => '{"note": null}');
SELECT outcome, remaining FROM guarded_increment('sales_south', '{"id": 1, "region": "south"}', 'n', token => :t);
SELECT guarded_insert('sales', '{"region": "west", "id": 1}', token => :t);
SELECT guarded_insert('sales_north', '{"region": "south", "id": 1}', token => :t);
SELECT guarded_update('sales', '{"id": 1}', '{"note": "x"}', token => :t);
SELECT as_app_token('sale:1') AS t2 \gset
\set VERBOSITY sqlstate
SELECT guarded_decrement('sales', '{"id": 1, "region": "south"}', 'n', token => :t, amount => 100);
SELECT guarded_decrement('sales_south', '{"id": 1, "region": "south"}', 'n', token => :t);
\set VERBOSITY terse
SELECT outcome, old_row ->> 'n' AS n FROM guarded_delete('sales', '{"id": 1, "region": "south"}', token => :t2);

-- Row level security, of the role at hand: what it cannot see is not there.
CREATE TABLE owned (id int PRIMARY KEY, owner name DEFAULT current_user, n int DEFAULT 10);
SELECT protect(relation => 'owned', resource => 'owned');
ALTER TABLE owned ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON owned USING (owner = current_user) WITH CHECK (owner = current_user AND n > 5);
GRANT SELECT, INSERT, UPDATE, DELETE ON owned TO lf_gr_app, lf_gr_other;
SET ROLE lf_gr_app;
SELECT as_app_token('owned') AS t \gset
SELECT outcome, new_row_out ->> 'owner' AS owner FROM guarded_insert('owned', '{"id": 1}', token => :t);
SELECT guarded_insert('owned', '{"id": 2, "owner": "lf_gr_other"}', token => :t);
SELECT outcome, remaining FROM guarded_decrement('owned', '1', 'n', token => :t);
SELECT guarded_decrement('owned', '1', 'n', amount => 5, token => :t);
SET ROLE lf_gr_other;
SELECT as_app_token('owned_2') AS other \gset
SELECT outcome FROM guarded_decrement('owned', '1', 'n', token => :other);
SELECT outcome FROM guarded_delete('owned', '1', token => :other);
SELECT outcome FROM guarded_update('owned', '1', '{"n": 1}', token => :other);
RESET ROLE;
SELECT outcome, remaining FROM guarded_decrement('owned', '1', 'n', token => :t);
-- forced, also for the owner
ALTER TABLE owned OWNER TO lf_gr_app;
ALTER TABLE owned FORCE ROW LEVEL SECURITY;
DROP POLICY own ON owned;
CREATE POLICY others ON owned USING (owner <> current_user);
SET ROLE lf_gr_app;
SELECT outcome FROM guarded_decrement('owned', '1', 'n', token => :t);
RESET ROLE;
-- a policy for SELECT alone: seen, but not to be written
DROP POLICY others ON owned;
CREATE POLICY see ON owned FOR SELECT USING (true);
SET ROLE lf_gr_app;
SELECT outcome FROM guarded_decrement('owned', '1', 'n', token => :t);
RESET ROLE;

-- Column privileges: what may be selected is answered.
CREATE TABLE columns (id int PRIMARY KEY, secret text DEFAULT 's', n int DEFAULT 10, note text);
SELECT protect(relation => 'columns', resource => 'columns:{id}');
GRANT SELECT (id, n), UPDATE (n, note), INSERT (id) ON columns TO lf_gr_part;
SET ROLE lf_gr_part;
SELECT as_app_token('columns:1') AS t \gset
SELECT outcome, new_row_out FROM guarded_insert('columns', '{"id": 1}', token => :t);
SELECT outcome, new_row FROM guarded_update('columns', '1', '{"note": "x"}', token => :t);
SELECT outcome, remaining FROM guarded_decrement('columns', '1', 'n', token => :t);
SELECT outcome, remaining FROM guarded_decrement('columns', '1', 'n', token => :t, amount => 100);
SELECT outcome, new_row FROM guarded_update('columns', '1', '{"note": "x"}', token => :t, expected => '{"n": 3}');
SELECT guarded_update('columns', '1', '{"note": "x"}', token => :t, expected => '{"secret": "s"}');
SELECT guarded_update('columns', '1', '{"secret": "x"}', token => :t);
SELECT guarded_insert('columns', '{"id": 1, "n": 1}', token => :t);
SELECT guarded_delete('columns', '1', token => :t);
-- stale is stale for them as well
SELECT as_app_token('columns:1') AS t2 \gset
\set VERBOSITY sqlstate
BEGIN;
SELECT set_config('lease_fence.token', :'t', true) IS NOT NULL AS set;
SELECT guarded_decrement('columns', '1', 'n', amount => 100);
ROLLBACK;
SELECT guarded_decrement('columns', '1', 'n', amount => 100);
SELECT guarded_decrement('columns', '1', 'n', token => :t, amount => 100);
SELECT outcome FROM guarded_decrement('columns', '1', 'n', token => :t2, amount => 100);
\set VERBOSITY terse
RESET ROLE;
-- one plan, many roles: each its own rights
SET ROLE lf_gr_other;
SELECT guarded_decrement('columns', '1', 'n', token => :t2);
RESET ROLE;
SELECT outcome, new_row ->> 'secret' AS secret FROM guarded_update('columns', '1', '{"note": "x"}', token => :t2);
-- a write without any right to read
GRANT INSERT ON columns TO lf_gr_other;
SET ROLE lf_gr_other;
SELECT as_app_token('columns:2') AS t \gset
SELECT outcome, new_row_out FROM guarded_insert('columns', '{"id": 2}', token => :t);
RESET ROLE;
-- a role's token for a role only
SET ROLE lf_gr_part;
\set VERBOSITY sqlstate
SELECT guarded_decrement('columns', '2', 'n', token => :t);
\set VERBOSITY terse
RESET ROLE;

-- Other triggers have their say, before the guard.
CREATE TABLE touched (id int PRIMARY KEY, n int DEFAULT 10, touched int DEFAULT 0);
SELECT protect(relation => 'touched', resource => 'touched');
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.touched := NEW.touched + 1;
    NEW.fence_token := 9;
    RETURN NEW;
END $$;
CREATE TRIGGER a_touch BEFORE INSERT OR UPDATE ON touched FOR EACH ROW EXECUTE FUNCTION touch();
SELECT as_app_token('touched') AS t \gset
SELECT outcome, new_row_out ->> 'touched' AS touched, (new_row_out ->> 'fence_token')::bigint = :t AS stamped FROM guarded_insert('touched', '{"id": 1}', token => :t);
SELECT outcome, new_row ->> 'touched' AS touched, (new_row ->> 'fence_token')::bigint = :t AS stamped FROM guarded_update('touched', '1', '{"n": 3}', token => :t);
-- a later one: the guard refuses where it enforces, and lets be where it observes
CREATE TRIGGER "~late" BEFORE UPDATE ON touched FOR EACH ROW EXECUTE FUNCTION touch();
SELECT guarded_update('touched', '1', '{"n": 4}', token => :t);
SELECT set_mode('touched', 'observe');
SELECT outcome FROM guarded_update('touched', '1', '{"n": 4}', token => :t);
SELECT set_mode('touched', 'off');
SELECT outcome FROM guarded_update('touched', '1', '{"n": 5}', token => :t);
SELECT set_mode('touched', 'enforce');
DROP TRIGGER "~late" ON touched;
-- rules and statement triggers
CREATE RULE no_delete AS ON DELETE TO touched DO INSTEAD NOTHING;
SELECT outcome FROM guarded_delete('touched', '1', token => :t);

-- Operators, functions, types and tables of somebody else, first in the path.
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.evil(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil operator'; END $$;
CREATE FUNCTION hostile.evil_minus(int, int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil minus'; END $$;
CREATE FUNCTION hostile.to_jsonb(anyelement) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil to_jsonb'; END $$;
CREATE OPERATOR hostile.= (LEFTARG = int, RIGHTARG = int, FUNCTION = hostile.evil);
CREATE OPERATOR hostile.>= (LEFTARG = int, RIGHTARG = int, FUNCTION = hostile.evil);
CREATE OPERATOR hostile.- (LEFTARG = int, RIGHTARG = int, FUNCTION = hostile.evil_minus);
CREATE TABLE hostile.touched (id int PRIMARY KEY, n int);
CREATE TYPE hostile.int4 AS ENUM ('evil');
CREATE TEMP TABLE touched (id int PRIMARY KEY, n int);
CREATE TEMP TABLE operations (key text);
CREATE TEMP TABLE guard_modes (relation oid, mode text);
SET search_path = hostile, pg_temp, guarded_rows, pg_catalog;
SELECT outcome, remaining FROM lease_fence.guarded_decrement('guarded_rows.touched', '1', 'n', token => :t, operation_key => 'guarded_rows');
SELECT outcome FROM lease_fence.guarded_update('guarded_rows.touched', '1', '{"n": 4}', token => :t, expected => '{"n": 4}');
SELECT count(*) FROM lease_fence.operation('guarded_rows');
SELECT lease_fence.guarded_decrement('touched', '1', 'n', token => :t);
SELECT lease_fence.set_mode('guarded_rows.touched', 'enforce');
SELECT count(*) >= 0 AS checked FROM lease_fence.check();
SELECT pg_catalog.count(*) FROM lease_fence.guards WHERE relation OPERATOR(pg_catalog.=) 'guarded_rows.touched'::regclass;
RESET search_path;

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA guarded_rows, hostile CASCADE;
REVOKE ALL ON SCHEMA lease_fence FROM lf_gr_app, lf_gr_other, lf_gr_part;
DROP ROLE lf_gr_app, lf_gr_other, lf_gr_part;
