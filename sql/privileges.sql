-- Who may call and read what: nobody at first, then by USAGE, by membership, by
-- pg_monitor, and never by way of somebody else's function or cascade.
\set VERBOSITY sqlstate
CREATE SCHEMA privileges_test;
CREATE ROLE lf_pv_none;
CREATE ROLE lf_pv_app;
CREATE ROLE lf_pv_other;
CREATE ROLE lf_pv_monitor;
CREATE ROLE lf_pv_owner;
GRANT pg_monitor TO lf_pv_monitor;
GRANT USAGE ON SCHEMA lease_fence TO lf_pv_app, lf_pv_other, lf_pv_monitor, lf_pv_owner;
GRANT USAGE, CREATE ON SCHEMA privileges_test TO lf_pv_owner;
GRANT USAGE ON SCHEMA privileges_test TO PUBLIC;
SET search_path = privileges_test;

-- What an ordinary role may do with each function, table and view.
CREATE FUNCTION allowed(role name) RETURNS TABLE (kind text, name text, may text) LANGUAGE sql AS $$
    SELECT 'function', proname::text, 'execute' FROM pg_proc
    WHERE pronamespace = 'lease_fence'::regnamespace AND has_function_privilege(role, oid, 'EXECUTE')
    UNION ALL
    SELECT CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END, relname::text, string_agg(p, ' ' ORDER BY p)
    FROM pg_class, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,TRIGGER,REFERENCES}'::text[]) p
    WHERE relnamespace = 'lease_fence'::regnamespace AND relkind IN ('r', 'v') AND has_table_privilege(role, oid, p)
    GROUP BY 1, 2 ORDER BY 1, 2 $$;
SELECT * FROM allowed('lf_pv_app');
SELECT a.kind, a.name, a.may FROM allowed('lf_pv_monitor') a EXCEPT SELECT * FROM allowed('lf_pv_app') ORDER BY 1, 2;
SELECT has_schema_privilege('lf_pv_none', 'lease_fence', 'USAGE') AS usage, has_schema_privilege('lf_pv_app', 'lease_fence', 'CREATE') AS create;

-- Nobody at first.
SET ROLE lf_pv_none;
SELECT lease_fence.acquire(resource => 'pv:1', scope => 'detached');
SELECT * FROM lease_fence.leases;
SELECT lease_fence.present(1);
SELECT lease_fence.guarded_insert('pg_class', '{}');
RESET ROLE;

-- With USAGE: leases, and not what is the DBA's.
SET ROLE lf_pv_app;
SELECT token AS t FROM lease_fence.acquire(resource => 'pv:1', scope => 'detached') \gset
SELECT resource, role FROM lease_fence.leases;
SELECT count(*) FROM lease_fence.guards WHERE relation::text ~ 'privileges_test';
SELECT lease_fence.revoke(resource => 'pv:1');
SELECT lease_fence.begin_epoch(reason => 'x');
SELECT lease_fence.add_profile(name => 'x', prefix => 'x', policy => 'external');
SELECT lease_fence.drop_profile('x');
SELECT * FROM lease_fence.check();
SELECT * FROM lease_fence.worker_status;
SELECT * FROM lease_fence.stat;
SELECT * FROM lease_fence.grants;
SELECT * FROM lease_fence.rejected_writes;
SELECT * FROM lease_fence.operations;
SELECT * FROM lease_fence.profiles;
SELECT * FROM lease_fence.epochs;
INSERT INTO lease_fence.operations VALUES ('x', 'lf_pv_app', 0, '', '1', NULL, now());
DELETE FROM lease_fence.rejected_writes;
UPDATE lease_fence.grants SET token = 1;
INSERT INTO lease_fence.guard_modes VALUES ('pg_class'::regclass, 'off');
TRUNCATE lease_fence.grants;
CREATE TABLE lease_fence.mine (a int);
ALTER FUNCTION lease_fence.guard() RENAME TO other;
SET lease_fence.bypass = 'x';
SET lease_fence.max_resources_per_transaction = 5;
SET lease_fence.enforce = 'observe';
SET lease_fence.audit_row = 'full';
RESET ROLE;

-- Somebody else's lease: not seen, presented, renewed or released; a member may.
SET ROLE lf_pv_other;
SELECT count(*) FROM lease_fence.leases;
SELECT lease_fence.present(:t);
SELECT lease_fence.renew(:t);
SELECT lease_fence.release(:t);
SELECT lease_fence.remaining(:t);
RESET ROLE;
GRANT lf_pv_app TO lf_pv_other;
SET SESSION AUTHORIZATION lf_pv_other;
SELECT count(*) FROM lease_fence.leases;
SELECT lease_fence.present(:t);
SELECT lease_fence.renew(:t) > '1 s' AS renewed;
RESET SESSION AUTHORIZATION;
REVOKE lf_pv_app FROM lf_pv_other;
SET ROLE lf_pv_monitor;
SELECT count(*) FROM lease_fence.leases WHERE resource = 'pv:1';
SELECT count(*) FROM lease_fence.grants WHERE resource = 'pv:1';
SELECT lease_fence.release(:t);
DELETE FROM lease_fence.rejected_writes;
RESET ROLE;

-- Guards are the owner's business.
SET ROLE lf_pv_owner;
CREATE TABLE parent (id int PRIMARY KEY, n int DEFAULT 10);
CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
GRANT SELECT, INSERT, UPDATE, DELETE ON parent, child TO lf_pv_app, lf_pv_other;
SELECT lease_fence.protect(relation => 'parent', resource => 'pv:{id}'), lease_fence.protect(relation => 'child', resource => 'pv:{parent_id}');
RESET ROLE;
SET ROLE lf_pv_app;
SELECT lease_fence.protect(relation => 'parent', resource => 'pv:{id}');
SELECT lease_fence.unprotect('parent');
SELECT lease_fence.set_mode('parent', 'off');
ALTER TABLE parent DISABLE TRIGGER ALL;

-- A cascade runs as the table's owner: the lease is still the caller's.
BEGIN;
SELECT lease_fence.present(:t);
INSERT INTO parent VALUES (1);
INSERT INTO child VALUES (1, 1);
DELETE FROM parent WHERE id = 1;
SELECT count(*) FROM child;
ROLLBACK;
SELECT outcome FROM lease_fence.guarded_insert('parent', '{"id": 1}', token => :t);
SELECT outcome FROM lease_fence.guarded_insert('child', '{"id": 1, "parent_id": 1}', token => :t);
SELECT outcome FROM lease_fence.guarded_delete('parent', '1', token => :t);
RESET ROLE;
SELECT count(*) FROM child;

-- SECURITY DEFINER lends the right to write, not the right to a token.
SET ROLE lf_pv_owner;
CREATE FUNCTION write_parent(token bigint, key text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT outcome FROM lease_fence.guarded_insert('privileges_test.parent', '{"id": 1}', token => $1, operation_key => $2) $$;
REVOKE INSERT ON parent FROM lf_pv_app, lf_pv_other;
RESET ROLE;
SET ROLE lf_pv_other;
SELECT write_parent(:t, 'pv 1');
RESET ROLE;
SET ROLE lf_pv_app;
SELECT lease_fence.guarded_insert('parent', '{"id": 1}', token => :t);
SELECT write_parent(:t, 'pv 1');
SELECT write_parent(:t, 'pv 1');
RESET ROLE;
SELECT role FROM lease_fence.operations WHERE key = 'pv 1';
SET ROLE lf_pv_other;
SELECT write_parent(:t, 'pv 1');
RESET ROLE;
-- a lease that is taken inside of one is the outer user's as well
CREATE FUNCTION take(resource text) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT token FROM lease_fence.acquire(resource => $1, scope => 'detached') $$;
SET ROLE lf_pv_none;
SELECT take('pv:none') > 0 AS taken;
RESET ROLE;
SELECT role FROM lease_fence.grants WHERE resource = 'pv:none';

-- An error tells the other holder's name only to who may read the audit.
SELECT token AS newer FROM lease_fence.acquire(resource => 'pv:1', scope => 'detached', holder => 'x', wait => '0') \gset
SELECT lease_fence.release(:t);
SELECT token AS newer FROM lease_fence.acquire(resource => 'pv:1', scope => 'detached', holder => 'very secret holder') \gset
CREATE FUNCTION detail(token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    detail text;
BEGIN
    PERFORM lease_fence.guarded_update('privileges_test.parent', '1', '{"n": 1}', token => token);
    RETURN NULL;
EXCEPTION WHEN SQLSTATE 'LF001' THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN detail ~ 'secret';
END $$;
SET ROLE lf_pv_app;
SELECT detail(:t) AS tells;
RESET ROLE;
SELECT detail(:t) AS tells;
-- the table's rights come first: an error of the fence tells nothing of a row that one may not read
SET ROLE lf_pv_none;
SELECT n FROM parent;
RESET ROLE;
GRANT USAGE ON SCHEMA lease_fence TO lf_pv_none;
SET ROLE lf_pv_none;
SELECT lease_fence.guarded_update('parent', '1', '{"n": 1}', token => :t);
SELECT lease_fence.guarded_decrement('parent', '1', 'n', token => :t, floor => 'Infinity');
SELECT lease_fence.guarded_decrement('parent', '2', 'n', token => :t, floor => 'Infinity');
RESET ROLE;

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA privileges_test CASCADE;
REVOKE ALL ON SCHEMA lease_fence FROM lf_pv_none, lf_pv_app, lf_pv_other, lf_pv_monitor, lf_pv_owner;
DROP ROLE lf_pv_none, lf_pv_app, lf_pv_other, lf_pv_monitor, lf_pv_owner;
