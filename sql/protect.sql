-- protect(), set_mode(), unprotect(): making guards, changing and removing them.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
INSERT INTO stock VALUES (1, 1), (2, 2);
SELECT lease_fence.protect('stock', resource => 'protect:{id}');
SELECT * FROM lease_fence.guards;
-- The token column: added without a rewrite, NOT NULL, default 0.
SELECT attname, atttypid::regtype, attnotnull, atthasmissing FROM pg_attribute
WHERE attrelid = 'stock'::regclass AND attname = 'fence_token';
SELECT tgname, tgenabled, tgtype FROM pg_trigger WHERE tgrelid = 'stock'::regclass;
SELECT id, n, fence_token FROM stock ORDER BY id;

-- Again: all options as given; those not given are the defaults.
SELECT lease_fence.protect('stock', 'protect:{id}', mode => 'observe', lapsed => 'accept', inserts => 'free');
SELECT resource, mode, lapsed, inserts FROM lease_fence.guards;
SELECT lease_fence.protect('stock', 'protect:{id}');
SELECT resource, mode, lapsed, inserts FROM lease_fence.guards;
SELECT lease_fence.protect('stock', 'protect:{n}');
SELECT resource, mode, lapsed, inserts FROM lease_fence.guards;
CALL fails('UPDATE stock SET n = n WHERE id = 2');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'stock'::regclass;
CALL fails($$SELECT lease_fence.protect('stock', 'protect:{id}', token_column => 'other')$$);

-- Rolled back: the guard of before.
BEGIN;
SELECT lease_fence.protect('stock', 'rolled back', mode => 'off');
UPDATE stock SET n = 3 WHERE id = 2;
ROLLBACK;
SELECT resource, mode, lapsed, inserts FROM lease_fence.guards;
CALL fails('UPDATE stock SET n = n WHERE id = 2');
BEGIN;
SELECT lease_fence.unprotect('stock');
UPDATE stock SET n = 3 WHERE id = 2;
ROLLBACK;
CALL fails('UPDATE stock SET n = n WHERE id = 2');

-- Renamed tables and columns that the template does not name stay guarded.
ALTER TABLE stock RENAME TO goods;
ALTER TABLE goods RENAME COLUMN id TO number;
CREATE SCHEMA "Else Where";
ALTER TABLE goods SET SCHEMA "Else Where";
CALL fails('UPDATE "Else Where".goods SET n = n WHERE number = 2');
SELECT relation, resource FROM lease_fence.guards;
ALTER TABLE "Else Where".goods SET SCHEMA public;

-- A renamed trigger is the guard still; protect() gives it its name back.
ALTER TRIGGER zzz_lease_fence ON goods RENAME TO aaa;
CALL fails('UPDATE goods SET n = n WHERE number = 2');
SELECT lease_fence.protect('goods', 'protect:{number}');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'goods'::regclass;

-- unprotect: the column stays unless asked for; the mode is forgotten.
SELECT lease_fence.set_mode('goods', 'off');
SELECT lease_fence.unprotect('goods');
UPDATE goods SET n = 5, fence_token = 3 WHERE number = 2;
SELECT count(*) FROM lease_fence.guards;
SELECT count(*) FROM lease_fence.guard_modes WHERE relation = 'goods'::regclass;
CALL fails($$SELECT lease_fence.unprotect('goods')$$);
CALL fails($$SELECT lease_fence.set_mode('goods', 'off')$$);
-- Protected again, over the stamps that are there: enforced.
SELECT lease_fence.protect('goods', 'protect:{number}');
SELECT mode FROM lease_fence.guards;
BEGIN;
SELECT token AS t FROM lease_fence.acquire('protect:2') \gset
UPDATE goods SET n = 6 WHERE number = 2 RETURNING n, fence_token = :t AS stamped;
COMMIT;
SELECT lease_fence.unprotect('goods', drop_column => true);
SELECT * FROM goods ORDER BY number;
DROP TABLE goods;

-- ---------------------------------------------------------------------------
-- Odd names of schema, table, columns and token column
-- ---------------------------------------------------------------------------
CREATE TABLE "Else Where"."Odd ""Table"" ;--" ("The 'Id'" int PRIMARY KEY, "dropped later" int, n int, also int);
ALTER TABLE "Else Where"."Odd ""Table"" ;--" DROP COLUMN "dropped later";
SELECT lease_fence.protect('"Else Where"."Odd ""Table"" ;--"', 'odd:{The ''Id''}', token_column => 'The "Token" ;--');
SELECT * FROM lease_fence.guards;
ALTER TABLE "Else Where"."Odd ""Table"" ;--" DROP COLUMN also;
ALTER TABLE "Else Where"."Odd ""Table"" ;--" ADD COLUMN fence_token int DEFAULT 77;
BEGIN;
SELECT token AS t FROM lease_fence.acquire('odd:1') \gset
INSERT INTO "Else Where"."Odd ""Table"" ;--" VALUES (1, NULL, 5)
    RETURNING "The 'Id'", n, "The ""Token"" ;--" = :t AS stamped, fence_token;
UPDATE "Else Where"."Odd ""Table"" ;--" SET n = 2 RETURNING n, "The ""Token"" ;--" = :t AS stamped;
COMMIT;
CALL fails('DELETE FROM "Else Where"."Odd ""Table"" ;--"');
CALL fails($$SELECT lease_fence.protect('"Else Where"."Odd ""Table"" ;--"', 'odd:{The ''Id''}')$$);
SELECT lease_fence.unprotect('"Else Where"."Odd ""Table"" ;--"', true);
SELECT * FROM "Else Where"."Odd ""Table"" ;--";
DROP TABLE "Else Where"."Odd ""Table"" ;--";
DROP SCHEMA "Else Where";

-- ---------------------------------------------------------------------------
-- A token column that is there already
-- ---------------------------------------------------------------------------
CREATE TABLE there (id int PRIMARY KEY, fence_token bigint);
INSERT INTO there VALUES (1, NULL), (2, 5);
CALL fails($$SELECT lease_fence.protect('there', 'there:{id}')$$);
UPDATE there SET fence_token = 0 WHERE fence_token IS NULL;
SELECT lease_fence.protect('there', 'there:{id}');
BEGIN;
SELECT count(*) FROM lease_fence.acquire_all('{there:2,there:3}');
INSERT INTO there VALUES (3) RETURNING fence_token > 0 AS stamped;
UPDATE there SET id = 2 WHERE id = 2 RETURNING fence_token > 5 AS stamped;
COMMIT;
CALL fails('INSERT INTO there VALUES (4)');
DROP TABLE there;
CREATE TABLE there (id int PRIMARY KEY, fence_token bigint NOT NULL DEFAULT 1);
SELECT lease_fence.protect('there', 'there:{id}', inserts => 'free');
INSERT INTO there VALUES (1) RETURNING fence_token;
-- An unlogged table is allowed.
ALTER TABLE there SET UNLOGGED;
CALL fails('DELETE FROM there');
DROP TABLE there;
CREATE UNLOGGED TABLE there (id int PRIMARY KEY);
SELECT lease_fence.protect('there', 'there:{id}');
CALL fails('INSERT INTO there VALUES (1)');
DROP TABLE there;
-- A table that is dropped takes its guard along; its OID's mode is nobody's.
SELECT count(*) FROM lease_fence.guards;

-- In one transaction with the table itself, and in a function.
BEGIN;
CREATE TABLE there (id int PRIMARY KEY);
SELECT lease_fence.protect('there', 'there:{id}');
SELECT token AS t FROM lease_fence.acquire('there:1') \gset
INSERT INTO there VALUES (1) RETURNING fence_token = :t AS stamped;
CALL fails('INSERT INTO there VALUES (2)');
COMMIT;
DO $$ BEGIN PERFORM lease_fence.unprotect('there', true); PERFORM lease_fence.protect('there', 'again:{id}'); END $$;
CALL fails('INSERT INTO there VALUES (2)');
-- With a write of this very transaction's pending in the table.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('again:3') \gset
INSERT INTO there VALUES (3);
SELECT lease_fence.protect('there', 'there:{id}');
CALL fails('UPDATE there SET id = 3 WHERE id = 3');
ROLLBACK;
SELECT id FROM there;
DROP TABLE there;
DROP PROCEDURE fails;
