-- Every statement that writes meets the guard: COPY, MERGE, ON CONFLICT, cascades
-- of foreign keys, CTEs, views, rules, functions, triggers, prepared statements.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
INSERT INTO stock VALUES (1, 10), (2, 10), (3, 10);
SELECT lease_fence.protect('stock', 'statement:{id}');
SELECT token AS one FROM lease_fence.acquire('statement:1', scope => 'detached') \gset
SELECT token AS two FROM lease_fence.acquire('statement:2', scope => 'detached') \gset

-- ---------------------------------------------------------------------------
-- COPY
-- ---------------------------------------------------------------------------
\set VERBOSITY sqlstate
COPY stock (id, n) FROM stdin;
4	4
\.
-- One row among many that is not covered: none is copied.
BEGIN;
SELECT lease_fence.present(:one);
DELETE FROM stock WHERE id = 1;
COPY stock (id, n) FROM stdin;
1	4
4	4
\.
ROLLBACK;
\set VERBOSITY default
BEGIN;
SELECT lease_fence.present(:one, :two);
DELETE FROM stock WHERE id IN (1, 2);
-- The client's own stamp counts for nothing.
COPY stock (id, n, fence_token) FROM stdin;
1	4	77
2	4	9223372036854775807
\.
SELECT id, n, fence_token IN (:one, :two) AS stamped FROM stock ORDER BY id;
COMMIT;
COPY stock (id) TO stdout;

-- ---------------------------------------------------------------------------
-- MERGE
-- ---------------------------------------------------------------------------
CREATE TABLE change (id int, n int);
INSERT INTO change VALUES (1, 1), (4, 4);
CALL fails('MERGE INTO stock s USING change c ON s.id = c.id
    WHEN MATCHED THEN UPDATE SET n = c.n WHEN NOT MATCHED THEN INSERT VALUES (c.id, c.n)');
CALL fails('MERGE INTO stock s USING change c ON s.id = c.id WHEN MATCHED THEN DELETE');
CALL fails('MERGE INTO stock s USING change c ON s.id = c.id WHEN NOT MATCHED THEN INSERT VALUES (c.id, c.n)');
MERGE INTO stock s USING change c ON s.id = c.id WHEN MATCHED THEN DO NOTHING;
BEGIN;
SELECT lease_fence.present(:one);
-- Covers the row that matches, not the one that is new.
CALL fails('MERGE INTO stock s USING change c ON s.id = c.id
    WHEN MATCHED THEN UPDATE SET n = c.n WHEN NOT MATCHED THEN INSERT VALUES (c.id, c.n)');
MERGE INTO stock s USING change c ON s.id = c.id
    WHEN MATCHED AND s.n > 100 THEN DELETE WHEN MATCHED THEN UPDATE SET n = c.n, fence_token = 5;
SELECT id, n, fence_token = :one AS stamped FROM stock WHERE id = 1;
MERGE INTO stock s USING (SELECT 1 AS id) c ON s.id = c.id WHEN MATCHED THEN DELETE;
MERGE INTO stock s USING (SELECT 1 AS id) c ON s.id = c.id WHEN NOT MATCHED THEN INSERT VALUES (1, 3, 5);
COMMIT;
SELECT id, n, fence_token = :one AS stamped FROM stock WHERE id = 1;

-- ---------------------------------------------------------------------------
-- ON CONFLICT
-- ---------------------------------------------------------------------------
CALL fails('INSERT INTO stock VALUES (1, 0) ON CONFLICT DO NOTHING');
CALL fails('INSERT INTO stock VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET n = excluded.n');
BEGIN;
SELECT lease_fence.present(:one);
INSERT INTO stock VALUES (1, 0) ON CONFLICT DO NOTHING;
INSERT INTO stock VALUES (1, 0, 8) ON CONFLICT (id) DO UPDATE SET n = 55, fence_token = 9
    RETURNING id, n, fence_token = :one AS stamped;
-- DO UPDATE may not change another resource's row, nor move this one there.
CALL fails('INSERT INTO stock VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET id = 4');
CALL fails('INSERT INTO stock VALUES (2, 0) ON CONFLICT (id) DO UPDATE SET n = 0');
CALL fails('INSERT INTO stock VALUES (1, 0), (2, 0) ON CONFLICT (id) DO UPDATE SET n = 0');
COMMIT;
SELECT id, n FROM stock ORDER BY id;
-- With free inserts the upsert's second half is guarded all the same.
CREATE TABLE counter (id int PRIMARY KEY, n int);
SELECT lease_fence.protect('counter', 'statement:{id}', inserts => 'free');
INSERT INTO counter VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = counter.n + 1;
CALL fails('INSERT INTO counter VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = counter.n + 1');
BEGIN;
SELECT lease_fence.present(:one);
INSERT INTO counter VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = counter.n + 1;
COMMIT;
SELECT id, n, fence_token = :one AS stamped FROM counter;

-- ---------------------------------------------------------------------------
-- Foreign keys that cascade
-- ---------------------------------------------------------------------------
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int DEFAULT 3 REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE child_null (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE SET NULL ON UPDATE SET NULL);
CREATE TABLE child_default (id int PRIMARY KEY, parent int DEFAULT 3 REFERENCES parent ON DELETE SET DEFAULT);
INSERT INTO parent VALUES (1), (2), (3);
INSERT INTO child VALUES (1, 1);
INSERT INTO child_null VALUES (1, 1);
INSERT INTO child_default VALUES (1, 1);
SELECT lease_fence.protect('child', 'statement:{id}');
CALL fails('DELETE FROM parent WHERE id = 1');
CALL fails('UPDATE parent SET id = 11 WHERE id = 1');
SELECT lease_fence.unprotect('child');
SELECT lease_fence.protect('child_null', 'statement:{id}');
CALL fails('DELETE FROM parent WHERE id = 1');
CALL fails('UPDATE parent SET id = 11 WHERE id = 1');
SELECT lease_fence.unprotect('child_null');
SELECT lease_fence.protect('child_default', 'statement:{id}');
CALL fails('DELETE FROM parent WHERE id = 1');
SELECT lease_fence.protect('child', 'statement:{id}');
SELECT lease_fence.protect('child_null', 'statement:{id}');
BEGIN;
SELECT lease_fence.present(:one);
DELETE FROM parent WHERE id = 1;
COMMIT;
SELECT count(*) FROM child;
SELECT id, parent, fence_token = :one AS stamped FROM child_null;
SELECT id, parent, fence_token = :one AS stamped FROM child_default;
-- SET NULL of the very column that names the resource: never writable.
CREATE TABLE child_named (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE SET NULL);
INSERT INTO child_named VALUES (1, 2);
SELECT lease_fence.protect('child_named', 'statement:{parent}');
BEGIN;
SELECT lease_fence.present(:two);
CALL fails('DELETE FROM parent WHERE id = 2');
ROLLBACK;
SELECT id, parent FROM child_named;

-- ---------------------------------------------------------------------------
-- CTEs that write, several tables at once
-- ---------------------------------------------------------------------------
CALL fails('WITH gone AS (DELETE FROM stock WHERE id = 1 RETURNING *) SELECT count(*) FROM gone');
BEGIN;
SELECT lease_fence.present(:one);
CALL fails('WITH moved AS (DELETE FROM stock WHERE id = 1 RETURNING *) INSERT INTO stock SELECT 4, n FROM moved');
WITH changed AS (UPDATE stock SET n = 70 WHERE id = 1 RETURNING *)
UPDATE counter SET n = changed.n FROM changed WHERE counter.id = changed.id
RETURNING counter.n, counter.fence_token = :one AS stamped;
COMMIT;

-- ---------------------------------------------------------------------------
-- By way of views, rules, functions, triggers, prepared statements, cursors
-- ---------------------------------------------------------------------------
CREATE VIEW stock_view AS SELECT id, n FROM stock;
CREATE FUNCTION write_stock() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'UPDATE stock SET n = 0 WHERE id = 1';
CREATE TABLE request (id int);
CREATE RULE to_stock AS ON INSERT TO request DO INSTEAD UPDATE stock SET n = 0 WHERE id = new.id;
CREATE FUNCTION on_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE stock SET n = 0 WHERE id = new.id; RETURN new; END';
CREATE TRIGGER on_change BEFORE INSERT ON change FOR EACH ROW EXECUTE FUNCTION on_change();
PREPARE prepared AS UPDATE stock SET n = 0 WHERE id = $1;
CALL fails('UPDATE stock_view SET n = 0 WHERE id = 1');
CALL fails('SELECT write_stock()');
CALL fails('INSERT INTO request VALUES (1)');
CALL fails('INSERT INTO change VALUES (1)');
CALL fails('EXECUTE prepared(1)');
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM stock WHERE id = 1 FOR UPDATE;
MOVE c;
CALL fails('UPDATE stock SET n = 0 WHERE CURRENT OF c');
ROLLBACK;
BEGIN;
SELECT lease_fence.present(:one);
UPDATE stock_view SET n = 61 WHERE id = 1;
SELECT write_stock();
INSERT INTO request VALUES (1);
INSERT INTO change VALUES (1);
EXECUTE prepared(1);
DECLARE c CURSOR FOR SELECT * FROM stock WHERE id = 1 FOR UPDATE;
MOVE c;
UPDATE stock SET n = 62 WHERE CURRENT OF c;
COMMIT;
-- The plan that was good in one transaction presents nothing in the next.
CALL fails('EXECUTE prepared(1)');
DEALLOCATE prepared;
SELECT id, n, fence_token = :one AS stamped FROM stock WHERE id = 1;

-- A constraint that fires at COMMIT writes under what was presented.
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE stock SET n = n + 1 WHERE id = 1; RETURN NULL; END';
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON parent DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
\set VERBOSITY sqlstate
INSERT INTO parent VALUES (20);
\set VERBOSITY default
BEGIN;
SELECT lease_fence.present(:one);
INSERT INTO parent VALUES (20);
COMMIT;
SELECT n FROM stock WHERE id = 1;

-- What PostgreSQL itself rewrites is no write of a row.
VACUUM FULL stock;
CLUSTER stock USING stock_pkey;
ALTER TABLE stock ADD COLUMN more bigint DEFAULT random();
SET client_min_messages = warning;
DROP VIEW stock_view;
DROP RULE to_stock ON request;
ALTER TABLE stock ALTER COLUMN n TYPE bigint;
CALL fails('UPDATE stock SET n = 0 WHERE id = 1');
BEGIN;
SELECT lease_fence.present(:one);
UPDATE stock SET n = 63 WHERE id = 1 RETURNING n, fence_token = :one AS stamped;
COMMIT;
CREATE TABLE copy_of_stock (LIKE stock INCLUDING ALL);
INSERT INTO copy_of_stock SELECT * FROM stock;

DROP TABLE stock, change, counter, child, child_null, child_default, child_named, parent, request, copy_of_stock CASCADE;
DROP FUNCTION write_stock();
DROP FUNCTION on_change();
DROP FUNCTION late();
DROP PROCEDURE fails;
