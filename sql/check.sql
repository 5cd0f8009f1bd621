-- check(): each finding comes and goes.
\set VERBOSITY terse
CREATE SCHEMA check_test;
SET search_path = check_test, lease_fence, public;
SET client_min_messages = warning;
CREATE FUNCTION found() RETURNS TABLE (severity text, object text, problem text) LANGUAGE sql AS $$
    SELECT severity, object, regexp_replace(problem, 'process \d+', 'process N') FROM lease_fence.check()
    WHERE object ~ 'check_test' OR problem ~ 'check_test' ORDER BY 2, 3 $$;

CREATE TABLE stock (id int PRIMARY KEY, n int);
CREATE TABLE "Odd table" (id int PRIMARY KEY, n int);
CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
SELECT protect(relation => t, resource => 'check:{id}') FROM unnest('{stock,"\"Odd table\"",parts}'::regclass[]) t;
SELECT * FROM found();

-- Disabled, and what ENABLE TRIGGER makes of ENABLE ALWAYS; the hint helps.
ALTER TABLE "Odd table" DISABLE TRIGGER ALL;
SELECT * FROM found();
ALTER TABLE "Odd table" ENABLE TRIGGER ALL;
SELECT * FROM found();
ALTER TABLE "Odd table" ENABLE REPLICA TRIGGER zzz_lease_fence;
SELECT * FROM found();
SELECT hint FROM lease_fence.check() WHERE object ~ 'check_test' \gexec
SELECT * FROM found();
-- of one partition
ALTER TABLE parts_1 DISABLE TRIGGER zzz_lease_fence;
SELECT * FROM found();
ALTER TABLE parts_1 ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT * FROM found();

-- A partition that is detached has a column and no guard; attached again it has one.
ALTER TABLE parts DETACH PARTITION parts_2;
SELECT * FROM found();
INSERT INTO parts_2 VALUES (11, 1);
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20);
SELECT * FROM found();

-- Inheritance.
CREATE TABLE child () INHERITS (stock);
SELECT * FROM found();
ALTER TABLE child NO INHERIT stock;
SELECT * FROM found();
DROP TABLE child;

-- A trigger that fires later and could change the row; others do not matter.
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER "~late" BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE TRIGGER "~after" AFTER UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE TRIGGER "~statement" BEFORE UPDATE ON stock FOR EACH STATEMENT EXECUTE FUNCTION nothing();
CREATE TRIGGER early BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION nothing();
SELECT * FROM found();
ALTER TABLE stock DISABLE TRIGGER "~late";
SELECT * FROM found();
ALTER TABLE stock ENABLE TRIGGER "~late";
ALTER TRIGGER "~late" ON stock RENAME TO a_late;
SELECT * FROM found();

-- Unlogged, and without a primary key.
ALTER TABLE stock SET UNLOGGED;
ALTER TABLE stock DROP CONSTRAINT stock_pkey;
SELECT * FROM found();
ALTER TABLE stock SET LOGGED;
ALTER TABLE stock ADD PRIMARY KEY (id);
SELECT * FROM found();

-- A publication without the column.
SET client_min_messages = error;
CREATE PUBLICATION check_some FOR TABLE stock (id, n);
SELECT * FROM found();
ALTER PUBLICATION check_some SET TABLE stock (id, fence_token);
SELECT * FROM found();
DROP PUBLICATION check_some;
CREATE PUBLICATION check_whole FOR TABLE stock;
SELECT * FROM found();
DROP PUBLICATION check_whole;
SET client_min_messages = warning;

-- Columns that were renamed or dropped, or are of another type.
ALTER TABLE stock RENAME fence_token TO other;
SELECT * FROM found();
ALTER TABLE stock RENAME other TO fence_token;
ALTER TABLE stock RENAME id TO other;
SELECT * FROM found();
ALTER TABLE stock RENAME other TO id;
SELECT * FROM found();

-- Modes.
SELECT set_mode('stock', 'observe'), set_mode('parts', 'off');
SELECT * FROM found();
SELECT set_mode('stock', 'enforce'), set_mode('parts', 'enforce');
SELECT * FROM found();

-- A stamp above the last token: a history was lost. A new epoch is above it.
ALTER TABLE stock DISABLE TRIGGER zzz_lease_fence;
INSERT INTO stock VALUES (1, 1, (SELECT max(token) + 1000000 FROM (SELECT token FROM acquire(resource => 'check', scope => 'detached')) t));
ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT * FROM found();
SELECT begin_epoch(reason => 'check') >= (SELECT fence_token FROM stock) AS above;
SELECT token > (SELECT fence_token FROM stock) AS above FROM acquire(resource => 'check', scope => 'detached');
SELECT * FROM found();
-- in a partition
ALTER TABLE parts_2 DISABLE TRIGGER zzz_lease_fence;
UPDATE parts_2 SET fence_token = 9000000000000000000;
ALTER TABLE parts_2 ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT * FROM found();
ALTER TABLE parts_2 DISABLE TRIGGER zzz_lease_fence;
UPDATE parts_2 SET fence_token = 0;
ALTER TABLE parts_2 ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT * FROM found();

-- Not for everybody; and of everybody who may, whatever they may read.
CREATE ROLE lf_ck_app;
GRANT USAGE ON SCHEMA lease_fence TO lf_ck_app;
SET ROLE lf_ck_app;
SELECT * FROM lease_fence.check();
SELECT * FROM lease_fence.check_catalogs();
SELECT lease_fence.examine_guard('check_test.stock');
RESET ROLE;
REVOKE ALL ON SCHEMA lease_fence FROM lf_ck_app;
DROP ROLE lf_ck_app;

-- Anybody can make a trigger on guard(): nothing that his view or table runs when it
-- is read runs with the rights of who checks, or leaves a setting in his session.
CREATE TABLE seen (what text, who name);
CREATE ROLE lf_ck_stranger;
CREATE ROLE lf_ck_dba;
GRANT USAGE ON SCHEMA lease_fence TO lf_ck_stranger, lf_ck_dba;
GRANT USAGE, CREATE ON SCHEMA check_test TO lf_ck_stranger;
GRANT USAGE ON SCHEMA check_test TO lf_ck_dba;
GRANT EXECUTE ON FUNCTION lease_fence.examine_guard(regclass) TO lf_ck_dba;
GRANT INSERT ON seen TO PUBLIC;
SET ROLE lf_ck_stranger;
CREATE FUNCTION spy(what text) RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO check_test.seen VALUES (what, current_user); RETURN 0; END $$;
CREATE FUNCTION sly(what int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
    BEGIN PERFORM set_config('lf_ck.who', current_user, false); RETURN true; END $$;
CREATE VIEW trap_view AS SELECT 1 AS id, check_test.spy('view') AS fence_token;
CREATE TRIGGER zzz_lease_fence INSTEAD OF INSERT ON trap_view FOR EACH ROW
    EXECUTE FUNCTION lease_fence.guard('check:{id}', 'fence_token', 'reject', 'guard');
CREATE TABLE trap_table (id int PRIMARY KEY, fence_token bigint NOT NULL DEFAULT 0);
INSERT INTO trap_table VALUES (1);
CREATE INDEX ON trap_table (id) WHERE check_test.sly(1);
CREATE TRIGGER zzz_lease_fence BEFORE INSERT OR UPDATE OR DELETE ON trap_table FOR EACH ROW
    EXECUTE FUNCTION lease_fence.guard('check:{id}', 'fence_token', 'reject', 'guard');
ALTER TABLE trap_table ENABLE ALWAYS TRIGGER zzz_lease_fence;
ALTER TABLE trap_table ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY spy ON trap_table USING (check_test.spy('policy') = 0);
GRANT SELECT ON trap_table, trap_view TO lf_ck_dba;
RESET ROLE;
-- a session that has not seen these tables yet
\c -
\set VERBOSITY terse
SET search_path = check_test, lease_fence, public;
SET client_min_messages = warning;
SELECT * FROM found();
SET ROLE lf_ck_dba;
SELECT t, e.* FROM unnest('{trap_view,trap_table}'::regclass[]) t, lease_fence.examine_guard(t) e;
RESET ROLE;
SELECT * FROM seen;
SELECT coalesce(nullif(current_setting('lf_ck.who', true), ''), 'nobody') AS left_behind_by;
-- a table that its owner cannot read does not stop the rest
REVOKE SELECT ON trap_table FROM lf_ck_stranger;
-- Nor does such a table keep a new epoch from beginning.
SELECT lease_fence.begin_epoch(reason => 'a table that its owner cannot read') > 0 AS begun;
SELECT * FROM found();
DROP VIEW trap_view;
DROP TABLE trap_table;
DROP FUNCTION spy(text), sly(int);
DROP OWNED BY lf_ck_stranger, lf_ck_dba;
DROP ROLE lf_ck_stranger, lf_ck_dba;

SELECT unprotect('stock', drop_column => true), unprotect('"Odd table"'), unprotect('parts', drop_column => true);
SELECT * FROM found();
DROP SCHEMA check_test CASCADE;
