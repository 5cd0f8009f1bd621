-- Other triggers of a guarded table, and columns that change under the guard.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
CREATE FUNCTION move_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.id := new.id + 1; RETURN new; END';
CREATE FUNCTION forge() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.fence_token := 1; RETURN new; END';
CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF tg_op = ''DELETE'' THEN RETURN old; END IF; RETURN new; END';

-- ---------------------------------------------------------------------------
-- A trigger that would fire after the guard: refused at protect(), and at the write
-- ---------------------------------------------------------------------------
CREATE TRIGGER zzzz BEFORE INSERT ON stock FOR EACH ROW EXECUTE FUNCTION move_it();
CALL fails($$SELECT lease_fence.protect('stock', 'trigger:{id}')$$);
ALTER TABLE stock DISABLE TRIGGER zzzz;
SELECT lease_fence.protect('stock', 'trigger:{id}');
CALL fails('INSERT INTO stock VALUES (1, 1)');
ALTER TABLE stock ENABLE TRIGGER zzzz;
CALL fails('INSERT INTO stock VALUES (1, 1)');
ALTER TABLE stock ENABLE ALWAYS TRIGGER zzzz;
CALL fails('INSERT INTO stock VALUES (1, 1)');
-- One that fires only for a replica is no less a danger.
ALTER TABLE stock ENABLE REPLICA TRIGGER zzzz;
SET session_replication_role = replica;
CALL fails('INSERT INTO stock VALUES (1, 1)');
RESET session_replication_role;
ALTER TABLE stock ENABLE TRIGGER zzzz;
-- Renamed so that it fires before: the guard sees what it made of the row.
ALTER TRIGGER zzzz ON stock RENAME TO aaa;
CALL fails('INSERT INTO stock VALUES (1, 1)');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('trigger:2') \gset
INSERT INTO stock VALUES (1, 1) RETURNING id, fence_token = :t AS stamped;
COMMIT;
ALTER TRIGGER aaa ON stock RENAME TO zzz_lease_fence_2;
CALL fails('INSERT INTO stock VALUES (1, 1)');
DROP TRIGGER zzz_lease_fence_2 ON stock;

-- Each event by itself: what fires on DELETE only is no danger to an UPDATE.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('trigger:2') \gset
CREATE TRIGGER zzzz BEFORE DELETE ON stock FOR EACH ROW EXECUTE FUNCTION pass();
UPDATE stock SET n = 2;
CALL fails('DELETE FROM stock');
DROP TRIGGER zzzz ON stock;
CREATE TRIGGER zzzz BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION forge();
CALL fails('UPDATE stock SET n = 3');
CALL fails('INSERT INTO stock VALUES (2, 1) ON CONFLICT (id) DO UPDATE SET n = 3');
DROP TRIGGER zzzz ON stock;
CREATE TRIGGER zzzz BEFORE UPDATE OF n ON stock FOR EACH ROW EXECUTE FUNCTION forge();
CALL fails('UPDATE stock SET n = 3');
DROP TRIGGER zzzz ON stock;
CREATE TRIGGER zzzz BEFORE UPDATE ON stock FOR EACH ROW WHEN (new.n > 100) EXECUTE FUNCTION forge();
CALL fails('UPDATE stock SET n = 3');
DROP TRIGGER zzzz ON stock;
-- Those that see the row only when it is written, or no row: no danger.
CREATE TRIGGER zzzz AFTER UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION forge();
CREATE TRIGGER zzzz_2 BEFORE UPDATE ON stock FOR EACH STATEMENT EXECUTE FUNCTION skip();
CREATE CONSTRAINT TRIGGER zzzz_3 AFTER UPDATE ON stock DEFERRABLE FOR EACH ROW EXECUTE FUNCTION forge();
UPDATE stock SET n = 3 RETURNING n, fence_token = :t AS stamped;
COMMIT;
SELECT n, fence_token = :t AS stamped FROM stock;
DROP TRIGGER zzzz ON stock;
DROP TRIGGER zzzz_2 ON stock;
DROP TRIGGER zzzz_3 ON stock;

-- Earlier ones may write the token column or the row as they like, or drop it.
CREATE TRIGGER aaa BEFORE INSERT OR UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION forge();
BEGIN;
SELECT token AS t FROM lease_fence.acquire('trigger:2') \gset
UPDATE stock SET n = 4 RETURNING n, fence_token = :t AS stamped;
COMMIT;
DROP TRIGGER aaa ON stock;
CREATE TRIGGER aaa BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION skip();
UPDATE stock SET n = 5;
SELECT n FROM stock;
DROP TRIGGER aaa ON stock;
-- An earlier one that moves the row to another resource: both are needed.
CREATE TRIGGER aaa BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION move_it();
BEGIN;
SELECT token AS t FROM lease_fence.acquire('trigger:2') \gset
CALL fails('UPDATE stock SET n = 5');
COMMIT;
DROP TRIGGER aaa ON stock;

-- ---------------------------------------------------------------------------
-- Columns renamed, dropped or changed under the guard: closed, and it says why
-- ---------------------------------------------------------------------------
CREATE TABLE item (dropped1 int, id int, dropped2 text, shelf text, n int);
ALTER TABLE item DROP COLUMN dropped1;
INSERT INTO item VALUES (1, 'x', 'a', 1);
SELECT lease_fence.protect('item', 'item:{id}:{shelf}');
ALTER TABLE item DROP COLUMN dropped2;
SELECT token AS t FROM lease_fence.acquire('item:1:a', scope => 'detached') \gset
BEGIN;
SELECT lease_fence.present(:t);
UPDATE item SET n = 2 RETURNING id, shelf, n, fence_token = :t AS stamped;
ALTER TABLE item ADD COLUMN added text DEFAULT 'new';
UPDATE item SET n = 3 RETURNING id, shelf, n, fence_token = :t AS stamped, added;
COMMIT;
ALTER TABLE item RENAME COLUMN shelf TO board;
BEGIN;
SELECT lease_fence.present(:t);
CALL fails('UPDATE item SET n = 4');
CALL fails('DELETE FROM item');
CALL fails($$INSERT INTO item (id, board) VALUES (1, 'a')$$);
CALL fails('TRUNCATE item');
COMMIT;
SELECT relation, resource FROM lease_fence.guards WHERE relation = 'item'::regclass;
-- It says which guard.
\set SHOW_CONTEXT always
UPDATE item SET n = 4;
\set SHOW_CONTEXT errors
SELECT lease_fence.protect('item', 'item:{id}:{board}');
BEGIN;
SELECT lease_fence.present(:t);
UPDATE item SET n = 4 RETURNING id, board, n, fence_token = :t AS stamped;
COMMIT;
ALTER TABLE item DROP COLUMN board;
CALL fails('UPDATE item SET n = 5');
-- A column of that name that is another one: what the template says of the row
-- of now; of a type that is not allowed: closed.
ALTER TABLE item ADD COLUMN board text DEFAULT 'b';
CALL fails('UPDATE item SET n = 5');
ALTER TABLE item ALTER COLUMN board DROP DEFAULT;
ALTER TABLE item ALTER COLUMN board TYPE jsonb USING 'null';
CALL fails('UPDATE item SET n = 5');
ALTER TABLE item DROP COLUMN board;
SELECT lease_fence.protect('item', 'item:{id}:a');
-- The type of a column that is in the template.
ALTER TABLE item ALTER COLUMN id TYPE bigint;
BEGIN;
SELECT lease_fence.present(:t);
UPDATE item SET n = 5 RETURNING id, n, fence_token = :t AS stamped;
COMMIT;
ALTER TABLE item ALTER COLUMN id TYPE numeric;
CALL fails('UPDATE item SET n = 6');
ALTER TABLE item ALTER COLUMN id TYPE int;
-- The token column.
ALTER TABLE item RENAME COLUMN fence_token TO stamp;
CALL fails('UPDATE item SET n = 6');
ALTER TABLE item ADD COLUMN fence_token text;
CALL fails('UPDATE item SET n = 6');
ALTER TABLE item DROP COLUMN fence_token;
ALTER TABLE item RENAME COLUMN stamp TO fence_token;
ALTER TABLE item ALTER COLUMN fence_token TYPE int USING 0;
CALL fails('UPDATE item SET n = 6');
ALTER TABLE item ALTER COLUMN fence_token TYPE bigint;
ALTER TABLE item ALTER COLUMN fence_token DROP NOT NULL;
ALTER TABLE item ALTER COLUMN fence_token DROP DEFAULT;
BEGIN;
SELECT lease_fence.present(:t);
UPDATE item SET n = 6, fence_token = NULL RETURNING id, n, fence_token = :t AS stamped;
INSERT INTO item (id, n) VALUES (1, 7) RETURNING id, n, fence_token = :t AS stamped;
COMMIT;
ALTER TABLE item DROP COLUMN fence_token;
CALL fails('UPDATE item SET n = 7');
-- A guard that lost its column can still be removed, and made anew.
SELECT lease_fence.unprotect('item', true);
UPDATE item SET n = 7;
SELECT lease_fence.protect('item', 'item:{id}:a');
BEGIN;
SELECT lease_fence.present(:t);
UPDATE item SET n = 8 RETURNING id, n, fence_token = :t AS stamped;
COMMIT;

-- Rows written before the token column was added, of fewer columns than the table.
CREATE TABLE short (id int);
INSERT INTO short VALUES (1);
ALTER TABLE short ADD COLUMN a int;
ALTER TABLE short ADD COLUMN b text DEFAULT 'b';
SELECT lease_fence.protect('short', 'short:{id}:{b}');
ALTER TABLE short ADD COLUMN c int;
BEGIN;
SELECT token AS t FROM lease_fence.acquire('short:1:b') \gset
UPDATE short SET id = 1 RETURNING id, a, b, c, fence_token = :t AS stamped;
COMMIT;
-- A template's column that was added later and is NULL in the rows of before.
SELECT lease_fence.protect('short', 'short:{c}');
CALL fails('UPDATE short SET id = 1');

DROP TABLE stock, item, short;
DROP FUNCTION move_it();
DROP FUNCTION forge();
DROP FUNCTION skip();
DROP FUNCTION pass();
DROP PROCEDURE fails;
