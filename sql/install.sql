-- CREATE EXTENSION and DROP EXTENSION, and the same session on both sides of them.
\set ECHO none
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
SET client_min_messages = warning;

-- Somebody else has a schema of our name: refused, and theirs is left alone.
DROP EXTENSION lease_fence;
CREATE SCHEMA lease_fence;
CREATE TABLE lease_fence.theirs (id int);
CREATE EXTENSION lease_fence;
SELECT count(*) FROM lease_fence.theirs;
SELECT count(*) FROM pg_extension WHERE extname = 'lease_fence';
DROP SCHEMA lease_fence CASCADE;

-- The install script leaves no epoch behind: that is the worker's to begin.
BEGIN;
CREATE EXTENSION lease_fence;
SELECT count(*) FROM lease_fence.epochs;
COMMIT;
COMMENT ON EXTENSION lease_fence IS 'comments are for everybody';
SELECT extname, extrelocatable FROM pg_extension WHERE extname = 'lease_fence';

-- Everything is commented on, and nothing is open to PUBLIC without USAGE.
SELECT proname FROM pg_proc
WHERE pronamespace = 'lease_fence'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
ORDER BY 1;
SELECT relname FROM pg_class
WHERE relnamespace = 'lease_fence'::regnamespace AND relkind IN ('r', 'v')
  AND obj_description(oid, 'pg_class') IS NULL
ORDER BY 1;
SELECT nspacl IS NULL AS nobody_has_usage FROM pg_namespace WHERE nspname = 'lease_fence';
SELECT proname FROM pg_proc
WHERE pronamespace = 'lease_fence'::regnamespace AND prosecdef ORDER BY 1;

-- Tables that must survive a dump have a primary key and are marked for it.
SELECT c.relname, i.indisprimary
FROM pg_extension e, unnest(e.extconfig) AS o(oid)
JOIN pg_class c USING (oid) LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE e.extname = 'lease_fence' ORDER BY 1;

-- With the first lease there is an epoch.
CREATE TABLE installed (id int PRIMARY KEY, n int);
SELECT lease_fence.protect('installed', 'installed:{id}');
SELECT token AS first FROM lease_fence.acquire('installed:1', scope => 'detached') \gset
SELECT count(*) FROM lease_fence.epochs;
BEGIN;
SELECT lease_fence.present(:first);
INSERT INTO installed VALUES (1, 1);
COMMIT;
SELECT id, n, fence_token = :first AS stamped FROM installed;

-- A guarded table depends on the extension.
DROP EXTENSION lease_fence;
CALL fails('UPDATE installed SET n = 2');

-- DROP that is rolled back: the guard, the lease and the worker are as before.
BEGIN;
DROP EXTENSION lease_fence CASCADE;
UPDATE installed SET n = 3;
ROLLBACK;
CALL fails('UPDATE installed SET n = 4');
BEGIN;
SELECT lease_fence.present(:first);
UPDATE installed SET n = 5;
COMMIT;
SELECT id, n, fence_token = :first AS stamped FROM installed;

-- The column and its stamps stay when the extension goes; the guard does not.
DROP EXTENSION lease_fence CASCADE;
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'installed'::regclass;
UPDATE installed SET n = 6;
SELECT lease_fence.acquire('installed:1', scope => 'detached');

-- Created again: a lease asked for before that is committed is refused, not
-- granted half; afterwards all works, and the old token is of another epoch.
BEGIN;
CREATE EXTENSION lease_fence;
SAVEPOINT s;
\set VERBOSITY sqlstate
SELECT lease_fence.acquire('installed:1');
\set VERBOSITY default
ROLLBACK TO s;
SELECT lease_fence.protect('installed', 'installed:{id}');
COMMIT;
SELECT token AS second FROM lease_fence.acquire('installed:1', scope => 'detached') \gset
SELECT :second > :first AS numbers_go_on;
SELECT count(*) FROM lease_fence.epochs;
SELECT format('SELECT lease_fence.present(%s)', :first) AS statement \gset
CALL fails(:'statement');
BEGIN;
SELECT lease_fence.present(:second);
UPDATE installed SET n = 7;
COMMIT;
SELECT id, n, fence_token = :second AS stamped FROM installed;

-- And once more, in one session that has everything cached.
DROP EXTENSION lease_fence CASCADE;
CREATE EXTENSION lease_fence;
SELECT lease_fence.protect('installed', 'installed:{id}', mode => 'observe');
SELECT lease_fence.protect('installed', 'installed:{id}');
SELECT token AS third FROM lease_fence.acquire('installed:1', scope => 'detached') \gset
SELECT :third > :second AS numbers_go_on;
CALL fails('UPDATE installed SET n = 8');
BEGIN;
SELECT lease_fence.present(:third);
UPDATE installed SET n = 9;
COMMIT;
SELECT id, n, fence_token = :third AS stamped FROM installed;

-- CREATE EXTENSION that is rolled back leaves nothing that a lease could use.
DROP EXTENSION lease_fence CASCADE;
BEGIN;
CREATE EXTENSION lease_fence;
ROLLBACK;
SELECT count(*) FROM pg_namespace WHERE nspname = 'lease_fence';
DROP TABLE installed;
CREATE EXTENSION lease_fence;
SELECT token > :third AS numbers_go_on FROM lease_fence.acquire('installed:1', scope => 'detached');
DROP PROCEDURE fails;
