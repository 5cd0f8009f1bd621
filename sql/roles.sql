-- Who may call, see and present what.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE ROLE regress_lf_none;
CREATE ROLE regress_lf_app;
CREATE ROLE regress_lf_other;
CREATE ROLE regress_lf_group;
CREATE ROLE regress_lf_member;
CREATE ROLE regress_lf_owner;
CREATE ROLE regress_lf_monitor;
GRANT regress_lf_group TO regress_lf_member;
GRANT pg_monitor TO regress_lf_monitor;
GRANT CREATE ON SCHEMA public TO regress_lf_owner;
GRANT USAGE ON SCHEMA lease_fence TO regress_lf_app, regress_lf_other, regress_lf_group, regress_lf_owner, regress_lf_monitor;

-- ---------------------------------------------------------------------------
-- Nobody has USAGE at first: without it nothing of ours can be named
-- ---------------------------------------------------------------------------
SET ROLE regress_lf_none;
CALL fails($$SELECT lease_fence.acquire('role:1', scope => 'session')$$);
CALL fails($$SELECT lease_fence.present(1)$$);
CALL fails($$SELECT * FROM lease_fence.leases$$);
CALL fails($$SELECT * FROM lease_fence.grants$$);
RESET ROLE;

-- With it: the functions for clients. Those for the DBA are not among them.
SET ROLE regress_lf_app;
SELECT token AS app FROM lease_fence.acquire('role:1', scope => 'detached', holder => 'secret') \gset
CALL fails($$SELECT lease_fence.revoke('role:1')$$);
CALL fails($$SELECT lease_fence.begin_epoch('x')$$);
CALL fails($$SELECT * FROM lease_fence.grants$$);
CALL fails($$SELECT * FROM lease_fence.epochs$$);
CALL fails($$SELECT * FROM lease_fence.rejected_writes$$);
CALL fails($$SELECT * FROM lease_fence.worker_status$$);
CALL fails($$SELECT * FROM lease_fence.worker_state()$$);
CALL fails($$INSERT INTO lease_fence.guard_modes VALUES (1, 'off')$$);
CALL fails($$DELETE FROM lease_fence.guard_modes$$);
CALL fails($$INSERT INTO lease_fence.grants SELECT * FROM lease_fence.grants$$);
CALL fails($$CREATE TABLE lease_fence.mine ()$$);
CALL fails($$SET lease_fence.max_resources_per_transaction = 5$$);
CALL fails($$SET lease_fence.drain_timeout = 5$$);
CALL fails($$SET lease_fence.audit_timeout = 5$$);
SELECT count(*) FROM lease_fence.guards;
RESET ROLE;
SELECT proname FROM pg_proc
WHERE pronamespace = 'lease_fence'::regnamespace AND NOT has_function_privilege('regress_lf_app', oid, 'EXECUTE')
ORDER BY proname COLLATE "C";
-- What no role can set in a session.
CALL fails($$SET lease_fence.drain_timeout = 5$$);
CALL fails($$SET lease_fence.max_leases = 5$$);

-- ---------------------------------------------------------------------------
-- The grant remembers its role
-- ---------------------------------------------------------------------------
SELECT role FROM lease_fence.grants WHERE token = :app;
SELECT format('SELECT lease_fence.present(%s)', :app) AS present_app,
       format('SELECT lease_fence.renew(%s)', :app) AS renew_app,
       format('SELECT lease_fence.remaining(%s)', :app) AS remaining_app,
       format('SELECT lease_fence.release(%s)', :app) AS release_app,
       format('SELECT lease_fence.release(%s)', :app + 1000) AS release_unknown \gset
SET ROLE regress_lf_other;
CALL fails(:'present_app');
CALL fails(:'renew_app');
CALL fails(:'remaining_app');
CALL fails(:'release_app');
CALL fails(:'release_unknown');
-- The same holder bytes under another role are another holder.
SELECT token FROM lease_fence.try_acquire('role:1', scope => 'detached', holder => 'secret');
RESET ROLE;
SET ROLE regress_lf_app;
SELECT lease_fence.remaining(:app) > '0' AS untouched;
RESET ROLE;

CREATE TABLE stock (id int PRIMARY KEY, n int);
INSERT INTO stock VALUES (1, 0), (2, 0);
GRANT SELECT, INSERT, UPDATE, DELETE ON stock TO PUBLIC;
SELECT lease_fence.protect('stock', 'role:{id}');
SET ROLE regress_lf_other;
BEGIN;
SET LOCAL lease_fence.token = :app;
CALL fails('UPDATE stock SET n = 1 WHERE id = 1');
COMMIT;
-- The role at the write counts, whoever set the token.
BEGIN;
SET LOCAL lease_fence.token = :app;
SET LOCAL ROLE regress_lf_app;
CALL fails('UPDATE stock SET n = 1 WHERE id = 1');
COMMIT;
RESET ROLE;
SET ROLE regress_lf_app;
BEGIN;
SELECT lease_fence.present(:app);
UPDATE stock SET n = 1 WHERE id = 1;
COMMIT;
RESET ROLE;
SELECT n, fence_token = :app AS stamped FROM stock WHERE id = 1;
-- A superuser is a member of every role.
BEGIN;
SELECT lease_fence.present(:app);
UPDATE stock SET n = 2 WHERE id = 1;
COMMIT;

-- Minted for a group: its members may present it; and not the other way round.
SET ROLE regress_lf_group;
SELECT token AS grp FROM lease_fence.acquire('role:2', scope => 'detached') \gset
RESET ROLE;
SET ROLE regress_lf_member;
BEGIN;
SELECT lease_fence.present(:grp);
UPDATE stock SET n = 3 WHERE id = 2;
COMMIT;
SELECT lease_fence.release(:grp);
SELECT token AS mem FROM lease_fence.acquire('role:2', scope => 'detached') \gset
RESET ROLE;
SELECT format('SELECT lease_fence.present(%s)', :mem) AS statement \gset
SET ROLE regress_lf_group;
CALL fails(:'statement');
RESET ROLE;
SELECT n, fence_token = :grp AS stamped FROM stock WHERE id = 2;

-- A session's lease after SET ROLE: not the new role's.
SET ROLE regress_lf_app;
SELECT lease_fence.release(:app);
SELECT token AS app FROM lease_fence.acquire('role:1', scope => 'session') \gset
UPDATE stock SET n = 4 WHERE id = 1;
SET ROLE regress_lf_other;
CALL fails('UPDATE stock SET n = 5 WHERE id = 1');
SET ROLE regress_lf_app;
UPDATE stock SET n = 5 WHERE id = 1;

-- SECURITY DEFINER, and the owner whose rights a cascade runs with: the outer
-- user counts.
RESET ROLE;
CREATE FUNCTION definer_writes() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'UPDATE stock SET n = 6 WHERE id = 1';
CREATE FUNCTION definer_takes(name text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
    AS $$SELECT token FROM lease_fence.acquire(name, scope => 'detached')$$;
SET ROLE regress_lf_app;
SELECT definer_writes();
SELECT definer_takes('role:definer') AS d \gset
SET ROLE regress_lf_other;
CALL fails('SELECT definer_writes()');
RESET ROLE;
SELECT role FROM lease_fence.grants WHERE token = :d;
SELECT n FROM stock WHERE id = 1;
CREATE TABLE parent (id int PRIMARY KEY);
INSERT INTO parent VALUES (1);
ALTER TABLE stock ADD COLUMN parent int REFERENCES parent ON DELETE SET NULL;
ALTER TABLE stock DISABLE TRIGGER ALL;
UPDATE stock SET parent = 1 WHERE id = 1;
ALTER TABLE stock ENABLE TRIGGER ALL;
ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence;
GRANT SELECT, DELETE ON parent TO PUBLIC;
SET ROLE regress_lf_other;
CALL fails('DELETE FROM parent');
SET ROLE regress_lf_app;
DELETE FROM parent;
SELECT lease_fence.release(:app);
RESET ROLE;

-- The rights on the table are PostgreSQL's business; they come first.
REVOKE ALL ON stock FROM PUBLIC;
SET ROLE regress_lf_app;
CALL fails('UPDATE stock SET n = 7');
CALL fails('TRUNCATE stock');
RESET ROLE;
-- Row security decides which rows there are; the guard which may be written.
GRANT SELECT, UPDATE, INSERT ON stock TO regress_lf_app;
ALTER TABLE stock ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON stock TO regress_lf_app USING (id = 1);
SET ROLE regress_lf_app;
BEGIN;
SELECT count(*) FROM lease_fence.acquire_all('{role:1,role:7}');
UPDATE stock SET n = 8;
CALL fails('INSERT INTO stock VALUES (7, 0)');
COMMIT;
CALL fails('UPDATE stock SET n = 9');
RESET ROLE;
SELECT id, n FROM stock ORDER BY id;

-- ---------------------------------------------------------------------------
-- Who sees which leases, and whose holder a message names
-- ---------------------------------------------------------------------------
SET ROLE regress_lf_other;
SELECT token AS oth FROM lease_fence.acquire('role:other', scope => 'detached', holder => 'other secret') \gset
SELECT resource, role FROM lease_fence.leases ORDER BY resource;
CALL fails($$SELECT lease_fence.acquire('role:2', wait => '0')$$);
RESET ROLE;
SET ROLE regress_lf_member;
SELECT resource, role FROM lease_fence.leases WHERE state = 'live' ORDER BY resource;
RESET ROLE;
SET ROLE regress_lf_monitor;
SELECT resource, role, convert_from(holder, 'UTF8') AS holder FROM lease_fence.leases
WHERE resource = 'role:other';
SELECT count(*) > 0 AS grants FROM lease_fence.grants;
SELECT count(*) > 0 AS epochs FROM lease_fence.epochs;
SELECT count(*) >= 0 AS rejected FROM lease_fence.rejected_writes;
SELECT worker, epoch_confirmed FROM lease_fence.worker_status;
CALL fails($$SELECT lease_fence.revoke('role:other')$$);
CALL fails($$DELETE FROM lease_fence.rejected_writes$$);
RESET ROLE;
-- A stale writer reads who superseded it only if it may read the audit.
SET ROLE regress_lf_app;
SELECT token AS stale FROM lease_fence.acquire('role:1', scope => 'detached', holder => 'same') \gset
SELECT token AS fresh FROM lease_fence.acquire('role:1', scope => 'detached', holder => 'same') \gset
BEGIN;
SET LOCAL lease_fence.token = :stale;
CALL fails('UPDATE stock SET n = 10');
COMMIT;
RESET ROLE;

-- A DBA's function may be granted.
GRANT EXECUTE ON FUNCTION lease_fence.revoke(text, text) TO regress_lf_app;
SET ROLE regress_lf_app;
SELECT lease_fence.revoke('role:other', 'granted to me');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION lease_fence.revoke(text, text) FROM regress_lf_app;
REVOKE EXECUTE ON FUNCTION lease_fence.acquire(text, interval, interval, text, text) FROM PUBLIC;
SET ROLE regress_lf_app;
CALL fails($$SELECT lease_fence.acquire('role:1', scope => 'session')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION lease_fence.acquire(text, interval, interval, text, text) TO PUBLIC;

-- ---------------------------------------------------------------------------
-- Guards are the table owner's
-- ---------------------------------------------------------------------------
SET ROLE regress_lf_app;
CALL fails($$SELECT lease_fence.protect('stock', 'x')$$);
CALL fails($$SELECT lease_fence.set_mode('stock', 'off')$$);
CALL fails($$SELECT lease_fence.unprotect('stock')$$);
CALL fails($$SELECT lease_fence.protect('pg_class', 'x')$$);
CALL fails($$ALTER TABLE stock DISABLE TRIGGER ALL$$);
RESET ROLE;
SET ROLE regress_lf_owner;
CREATE TABLE owned (id int PRIMARY KEY);
SELECT lease_fence.protect('owned', 'owned:{id}');
SELECT lease_fence.set_mode('owned', 'observe');
SELECT lease_fence.set_mode('owned', 'enforce');
CALL fails('INSERT INTO owned VALUES (1)');
SELECT relation, mode FROM lease_fence.guards WHERE relation = 'owned'::regclass;
SELECT lease_fence.unprotect('owned', true);
RESET ROLE;

-- A role that is gone: its tokens are a superuser's alone.
SET ROLE regress_lf_member;
SELECT token AS orphan FROM lease_fence.acquire('role:orphan', scope => 'detached') \gset
RESET ROLE;
DROP OWNED BY regress_lf_member;
DROP ROLE regress_lf_member;
SELECT resource, role, state FROM lease_fence.leases WHERE resource = 'role:orphan';
SELECT role FROM lease_fence.grants WHERE token = :orphan;
SELECT format('SELECT lease_fence.present(%s)', :orphan) AS statement \gset
SET ROLE regress_lf_group;
CALL fails(:'statement');
RESET ROLE;
SELECT lease_fence.release(:orphan);

DROP TABLE stock, owned, parent;
DROP FUNCTION definer_writes();
DROP FUNCTION definer_takes(text);
DROP PROCEDURE fails;
DROP OWNED BY regress_lf_app, regress_lf_other, regress_lf_group, regress_lf_owner, regress_lf_monitor;
DROP ROLE regress_lf_none, regress_lf_app, regress_lf_other, regress_lf_group, regress_lf_owner, regress_lf_monitor;
