-- What went wrong for users of other locks and triggers, where one session shows it
-- and no other test does (tests/t/810_bug_reports.pl has the list).
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
SET application_name = 'bug reports';
CREATE SCHEMA bug_reports;
SET search_path = bug_reports, public;
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO stock SELECT i, 10 FROM generate_series(1, 3) i;
SELECT lease_fence.protect('stock', 'bug:{id}');
CREATE VIEW own_locks AS SELECT locktype, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
CREATE VIEW audit AS SELECT action, reason, operation, rows FROM lease_fence.rejected_writes
    WHERE application_name = 'bug reports' ORDER BY id;

-- ---------------------------------------------------------------------------
-- A retry after an answer that was lost charges twice: a fence does not tell one
-- holder's two calls apart, and says that both were applied; an operation key does.
-- ---------------------------------------------------------------------------
SELECT token AS t FROM lease_fence.acquire('bug:1', scope => 'detached', holder => 'a') \gset
SELECT outcome, remaining FROM lease_fence.guarded_decrement('stock', '1', 'n', token => :t);
SELECT outcome, remaining FROM lease_fence.guarded_decrement('stock', '1', 'n', token => :t);
SELECT outcome, remaining FROM lease_fence.guarded_decrement('stock', '1', 'n', token => :t, operation_key => 'bug order');
SELECT outcome, remaining FROM lease_fence.guarded_decrement('stock', '1', 'n', token => :t, operation_key => 'bug order');
SELECT n FROM stock WHERE id = 1;

-- ---------------------------------------------------------------------------
-- A lock of the session stays behind in a pooled backend: there is none after
-- COMMIT or ROLLBACK, whatever the scope.
-- ---------------------------------------------------------------------------
BEGIN;
SELECT lease_fence.present(:t);
SELECT count(*) FROM lease_fence.acquire('bug:2');
SELECT count(*) FROM lease_fence.acquire('bug:3', scope => 'session');
UPDATE stock SET n = n + 1;
SELECT count(*) FROM own_locks;
COMMIT;
SELECT count(*) FROM own_locks;
BEGIN;
UPDATE stock SET n = n + 1 WHERE id = 3;
SELECT count(*) FROM own_locks;
ROLLBACK;
SELECT count(*) FROM own_locks;

-- ---------------------------------------------------------------------------
-- Cleaning up in a transaction that has failed fails itself: with PostgreSQL's own
-- error and no other, and nothing is left behind.
-- ---------------------------------------------------------------------------
\set VERBOSITY sqlstate
BEGIN;
SELECT token AS t2 FROM lease_fence.acquire('bug:2') \gset
UPDATE stock SET n = 20 WHERE id = 2;
UPDATE stock SET n = 0 WHERE id = 1;
SELECT lease_fence.release(:t2);
SELECT lease_fence.renew(:t);
SELECT lease_fence.remaining(:t);
SELECT lease_fence.present(:t);
SELECT lease_fence.acquire('bug:1');
SELECT lease_fence.revoke('bug:1');
SELECT lease_fence.guarded_decrement('stock', '1', 'n', token => :t);
SET LOCAL lease_fence.token = :t;
SELECT count(*) FROM lease_fence.leases;
COMMIT;
\set VERBOSITY default
SELECT count(*) FROM own_locks;
SELECT lease_fence.remaining(:t2) IS NULL AS over, lease_fence.remaining(:t) IS NOT NULL AS the_other_lives;
SELECT id, n FROM stock ORDER BY id;
BEGIN;
SELECT count(*) FROM lease_fence.acquire('bug:2', wait => '20s');
UPDATE stock SET n = 21 WHERE id = 2;
COMMIT;
SELECT * FROM audit;

-- ---------------------------------------------------------------------------
-- An upsert fires both triggers for one row: one check, one record, one stamp; and
-- DO NOTHING leaves the row as it was.
-- ---------------------------------------------------------------------------
SET application_name = 'bug reports: upsert';
CREATE VIEW audit_of_upsert AS SELECT action, reason, operation, rows FROM lease_fence.rejected_writes
    WHERE application_name = 'bug reports: upsert' ORDER BY id;
\set VERBOSITY sqlstate
INSERT INTO stock VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET n = 0;
\set VERBOSITY default
SELECT * FROM audit_of_upsert;
SELECT token AS t FROM lease_fence.acquire('bug:1', scope => 'detached', holder => 'a') \gset
BEGIN;
SELECT lease_fence.present(:t);
INSERT INTO stock VALUES (1, 0) ON CONFLICT DO NOTHING;
SELECT n, fence_token < :t AS stamp_of_before FROM stock WHERE id = 1;
INSERT INTO stock VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET n = 30;
SELECT n, fence_token = :t AS stamped FROM stock WHERE id = 1;
COMMIT;
SELECT count(*) FROM audit_of_upsert;

-- ---------------------------------------------------------------------------
-- Types that cannot be compared, and columns that are NULL until the row is
-- written: no guard compares rows.
-- ---------------------------------------------------------------------------
CREATE DOMAIN percent AS numeric CHECK (VALUE BETWEEN 0 AND 100);
CREATE TABLE odd (id int PRIMARY KEY, doc json, place point, area polygon, docs json[], share percent, n int,
    doubled int GENERATED ALWAYS AS (n * 2) STORED);
INSERT INTO odd VALUES (1, '{"a": 1}', '(1,2)', '((0,0),(1,1),(1,0))', ARRAY['{"b": 2}'::json], 50, 1);
INSERT INTO odd VALUES (2);
SELECT lease_fence.protect('odd', 'odd');
SET application_name = 'bug reports: odd';
\set VERBOSITY sqlstate
UPDATE odd SET doc = '{"a": 2}', place = '(3,4)';
INSERT INTO odd VALUES (3, '[]');
DELETE FROM odd;
\set VERBOSITY default
SELECT operation, key FROM lease_fence.rejected_writes WHERE application_name = 'bug reports: odd' ORDER BY id;
BEGIN;
SELECT token AS t FROM lease_fence.acquire('odd') \gset
UPDATE odd SET doc = doc;
UPDATE odd SET doc = '{"a": 3}', area = NULL, n = 5 WHERE id = 2;
INSERT INTO odd VALUES (3, '[]', '(0,0)') ON CONFLICT (id) DO UPDATE SET doc = excluded.doc;
SELECT id, doc, place, area, docs, share, doubled, fence_token = :t AS stamped FROM odd ORDER BY id;
DELETE FROM odd WHERE id = 3;
COMMIT;
SELECT lease_fence.set_mode('odd', 'observe');
UPDATE odd SET doc = '{}', n = NULL;
SELECT id, doc, doubled, fence_token = :t AS stamped FROM odd ORDER BY id;

-- ---------------------------------------------------------------------------
-- A partition that is made LIKE its sibling or its root and attached then has the
-- guard, one of it.
-- ---------------------------------------------------------------------------
CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
SELECT lease_fence.protect('parts', 'parts');
CREATE TABLE parts_2 (LIKE parts INCLUDING ALL);
CREATE TABLE parts_3 (LIKE parts_1 INCLUDING ALL);
INSERT INTO parts_2 VALUES (10, 1);
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20);
ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (20) TO (30);
SELECT tgrelid::regclass, tgenabled FROM pg_trigger
WHERE tgfoid = 'lease_fence.guard'::regproc AND tgrelid::regclass::text LIKE 'parts%' ORDER BY tgrelid::regclass::text;
CALL fails('UPDATE parts SET n = 2');
CALL fails('UPDATE parts_2 SET n = 2');
CALL fails('INSERT INTO parts_3 VALUES (20, 1)');
SELECT count(*) FROM lease_fence.check() WHERE object LIKE '%parts%';

RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA bug_reports CASCADE;
DROP PROCEDURE fails;
