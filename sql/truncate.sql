-- TRUNCATE of guarded tables and of their partitions.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE whole (id int PRIMARY KEY);
CREATE TABLE part (id int) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE TABLE part_3 PARTITION OF part_2 FOR VALUES FROM (10) TO (20);
INSERT INTO stock VALUES (1);
INSERT INTO other VALUES (1);
INSERT INTO whole VALUES (1);
INSERT INTO part VALUES (1), (11);
SELECT lease_fence.protect('stock', 'truncate:{id}');
SELECT lease_fence.protect('whole', 'truncate the whole');
SELECT lease_fence.protect('part', 'truncate:{id}');

-- ---------------------------------------------------------------------------
-- A guard by row: never, whatever is presented
-- ---------------------------------------------------------------------------
CALL fails('TRUNCATE stock');
CALL fails('TRUNCATE other, stock');
CALL fails('TRUNCATE stock RESTART IDENTITY CASCADE');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('truncate:1') \gset
CALL fails('TRUNCATE stock');
CALL fails('TRUNCATE part_1');
COMMIT;
CALL fails('TRUNCATE part');
CALL fails('TRUNCATE ONLY part');
CALL fails('TRUNCATE part_1');
CALL fails('TRUNCATE part_2');
CALL fails('TRUNCATE part_3');
SET session_replication_role = replica;
CALL fails('TRUNCATE stock');
CALL fails('TRUNCATE part_3');
RESET session_replication_role;
-- By way of a foreign key, from a function, and of DO.
CREATE TABLE referenced (id int PRIMARY KEY);
ALTER TABLE stock ADD FOREIGN KEY (id) REFERENCES referenced NOT VALID;
CALL fails('TRUNCATE referenced CASCADE');
CALL fails('DO $do$ BEGIN TRUNCATE part_1; END $do$');
SELECT (SELECT count(*) FROM stock) AS stock, (SELECT count(*) FROM other) AS other, (SELECT count(*) FROM part) AS part;
TRUNCATE other;

-- ---------------------------------------------------------------------------
-- A constant template: under the lease of the table as a whole
-- ---------------------------------------------------------------------------
CALL fails('TRUNCATE whole');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('truncate the whole') \gset
TRUNCATE whole;
INSERT INTO whole VALUES (2);
SELECT id, fence_token = :t AS stamped FROM whole;
SELECT lease_fence.release(:t);
CALL fails('TRUNCATE whole');
COMMIT;
SELECT token AS old FROM lease_fence.acquire('truncate the whole', scope => 'detached', holder => 'x') \gset
SELECT token AS new FROM lease_fence.acquire('truncate the whole', scope => 'detached', holder => 'x') \gset
BEGIN;
SET LOCAL lease_fence.token = :old;
CALL fails('TRUNCATE whole');
SET LOCAL lease_fence.token = :new;
TRUNCATE whole;
ROLLBACK;
SELECT count(*) FROM whole;
-- What was truncated keeps the fence shut as any write does.
BEGIN;
SET LOCAL lease_fence.token = :new;
TRUNCATE whole;
SELECT lease_fence.release(:new);
CALL fails($$SELECT lease_fence.acquire('truncate the whole')$$);
COMMIT;
SELECT count(*) FROM whole;
-- In a savepoint that is rolled back: undone, and let go.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('truncate the whole') \gset
SAVEPOINT s;
TRUNCATE whole;
ROLLBACK TO s;
SELECT lease_fence.release(:t);
SELECT token > :t AS new_grant FROM lease_fence.acquire('truncate the whole');
COMMIT;
-- A partitioned table with a constant template, and its partitions.
SELECT lease_fence.protect('part', 'truncate the part');
CALL fails('TRUNCATE part_1');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('truncate the part') \gset
TRUNCATE part_3;
SELECT count(*) FROM part;
TRUNCATE part;
SELECT count(*) FROM part;
ROLLBACK;

-- ---------------------------------------------------------------------------
-- Modes, a guard that is off, a table that is not guarded any more
-- ---------------------------------------------------------------------------
SELECT lease_fence.set_mode('stock', 'observe');
TRUNCATE stock;
SELECT lease_fence.set_mode('stock', 'off');
TRUNCATE stock;
SELECT lease_fence.set_mode('stock', 'enforce');
CALL fails('TRUNCATE stock');
SELECT lease_fence.unprotect('stock');
TRUNCATE stock;
SELECT lease_fence.unprotect('part');
TRUNCATE part_1;

-- Who may not truncate hears that, not what the guard would say.
CREATE ROLE regress_lf_truncate;
SET ROLE regress_lf_truncate;
TRUNCATE whole;
RESET ROLE;
DROP ROLE regress_lf_truncate;

-- A table of this very transaction is a guarded one too.
BEGIN;
CREATE TABLE fresh (id int);
SELECT lease_fence.protect('fresh', 'truncate:{id}');
CALL fails('TRUNCATE fresh');
ROLLBACK;

DROP TABLE stock, other, whole, part, referenced;
DROP PROCEDURE fails;
