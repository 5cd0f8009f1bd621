-- Guards of partitioned tables: all partitions, whenever and however attached.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE stock_eu PARTITION OF stock FOR VALUES IN ('eu');
-- Another column order, with columns that were dropped before and between.
CREATE TABLE stock_us (gone1 text, n int, region text NOT NULL, gone2 int, id int NOT NULL);
ALTER TABLE stock_us DROP COLUMN gone1;
ALTER TABLE stock_us DROP COLUMN gone2;
ALTER TABLE stock ATTACH PARTITION stock_us FOR VALUES IN ('us');
INSERT INTO stock VALUES (1, 'eu', 10), (1, 'us', 10);
SELECT lease_fence.protect('stock', 'part:{region}:{id}');
-- Attached after it was protected: by CREATE, by ATTACH of another order, below a partition.
CREATE TABLE stock_asia PARTITION OF stock FOR VALUES IN ('cn', 'jp') PARTITION BY LIST (region);
CREATE TABLE stock_cn PARTITION OF stock_asia FOR VALUES IN ('cn');
CREATE TABLE stock_jp (gone text, fence_token bigint NOT NULL DEFAULT 0, n int, id int NOT NULL, region text NOT NULL);
ALTER TABLE stock_jp DROP COLUMN gone;
INSERT INTO stock_jp VALUES (0, 10, 1, 'jp');
ALTER TABLE stock_asia ATTACH PARTITION stock_jp FOR VALUES IN ('jp');
CREATE TABLE stock_other PARTITION OF stock DEFAULT;

SELECT tgrelid::regclass, tgname, tgenabled FROM pg_trigger
WHERE tgfoid = 'lease_fence.guard'::regproc ORDER BY tgrelid::regclass::text COLLATE "C";
-- One guard, on the table that was protected.
SELECT relation, resource, token_column, mode FROM lease_fence.guards;

-- ---------------------------------------------------------------------------
-- Refused everywhere, through the root and directly
-- ---------------------------------------------------------------------------
CALL fails($$UPDATE stock SET n = 0 WHERE region = 'eu'$$);
CALL fails($$UPDATE stock SET n = 0 WHERE region = 'us'$$);
CALL fails($$UPDATE stock SET n = 0 WHERE region = 'jp'$$);
CALL fails($$UPDATE stock_eu SET n = 0$$);
CALL fails($$UPDATE stock_us SET n = 0$$);
CALL fails($$UPDATE stock_jp SET n = 0$$);
CALL fails($$UPDATE stock_asia SET n = 0$$);
CALL fails($$DELETE FROM stock_us$$);
CALL fails($$INSERT INTO stock VALUES (2, 'cn', 1)$$);
CALL fails($$INSERT INTO stock_cn VALUES (2, 'cn', 1)$$);
CALL fails($$INSERT INTO stock_us (id, region, n) VALUES (2, 'us', 1)$$);
CALL fails($$INSERT INTO stock VALUES (2, 'mars', 1)$$);
CALL fails($$INSERT INTO stock VALUES (1, 'eu', 1) ON CONFLICT (id, region) DO UPDATE SET n = 0$$);
CALL fails($$MERGE INTO stock s USING (VALUES (1, 'us')) v(id, region) ON s.id = v.id AND s.region = v.region
    WHEN MATCHED THEN UPDATE SET n = 0$$);

-- ---------------------------------------------------------------------------
-- Under leases
-- ---------------------------------------------------------------------------
BEGIN;
SELECT count(*) FROM lease_fence.acquire_all('{part:eu:1,part:us:1,part:jp:1,part:mars:2,part:cn:2}');
UPDATE stock SET n = 1, fence_token = 5;
UPDATE stock_us SET n = 2, fence_token = 6;
UPDATE stock_jp SET n = 3;
INSERT INTO stock VALUES (2, 'mars', 1, 77);
INSERT INTO stock_cn VALUES (2, 'cn', 1, 77);
INSERT INTO stock VALUES (1, 'us', 9) ON CONFLICT (id, region) DO UPDATE SET n = 9;
SELECT tableoid::regclass, id, region, n, fence_token > 77 AS stamped,
       fence_token = (SELECT token FROM lease_fence.leases WHERE resource = format('part:%s:%s', region, id)) AS right_one
FROM stock ORDER BY region COLLATE "C";
COMMIT;
\set VERBOSITY sqlstate
COPY stock (id, region, n) FROM stdin;
3	us	1
\.
COPY stock_us (id, region, n) FROM stdin;
3	us	1
\.
\set VERBOSITY default

-- A row that moves to another partition needs both leases.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('part:eu:1') \gset
CALL fails($$UPDATE stock SET region = 'us', id = 7 WHERE region = 'eu'$$);
CALL fails($$UPDATE stock SET region = 'cn' WHERE region = 'eu'$$);
ROLLBACK;
BEGIN;
SELECT token AS t FROM lease_fence.acquire('part:cn:1') \gset
CALL fails($$UPDATE stock SET region = 'cn' WHERE region = 'eu'$$);
ROLLBACK;
BEGIN;
SELECT token AS old FROM lease_fence.acquire('part:eu:1') \gset
SELECT token AS new FROM lease_fence.acquire('part:cn:1') \gset
UPDATE stock SET region = 'cn' WHERE region = 'eu'
    RETURNING tableoid::regclass, id, region, fence_token = :new AS stamped;
COMMIT;
-- Into a partition of another column order, and back, under one resource.
CREATE TABLE moved (id int, part int, n int) PARTITION BY LIST (part);
CREATE TABLE moved_1 PARTITION OF moved FOR VALUES IN (1);
CREATE TABLE moved_2 (n int, gone int, id int, part int);
ALTER TABLE moved_2 DROP COLUMN gone;
ALTER TABLE moved ATTACH PARTITION moved_2 FOR VALUES IN (2);
SELECT lease_fence.protect('moved', 'moved:{id}');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('moved:1') \gset
INSERT INTO moved VALUES (1, 1, 5);
UPDATE moved SET part = 2 RETURNING tableoid::regclass, id, part, n, fence_token = :t AS stamped;
UPDATE moved SET part = 1, n = 6 RETURNING tableoid::regclass, id, part, n, fence_token = :t AS stamped;
COMMIT;
CALL fails('UPDATE moved SET part = 2');
-- With free inserts a move is still a write of the row that is there.
SELECT lease_fence.protect('moved', 'moved:{id}', inserts => 'free');
CALL fails('UPDATE moved SET part = 2');
INSERT INTO moved VALUES (2, 2, 5) RETURNING tableoid::regclass, fence_token;

-- A new column on the root, a dropped one, a renamed one: the partitions follow.
ALTER TABLE stock ADD COLUMN extra text;
ALTER TABLE stock DROP COLUMN n;
ALTER TABLE stock RENAME COLUMN extra TO more;
CALL fails($$UPDATE stock SET more = 'x' WHERE region = 'us'$$);
BEGIN;
SELECT token AS t FROM lease_fence.acquire('part:us:1') \gset
UPDATE stock_us SET more = 'y' RETURNING id, region, more, fence_token = :t AS stamped;
COMMIT;

-- ---------------------------------------------------------------------------
-- The mode is that of the table that was protected
-- ---------------------------------------------------------------------------
SELECT lease_fence.set_mode('stock', 'off');
UPDATE stock_us SET more = 'off', fence_token = 5 RETURNING more, fence_token = :t AS kept;
CREATE TABLE stock_uk PARTITION OF stock FOR VALUES IN ('uk');
INSERT INTO stock_uk VALUES (1, 'uk', 5) RETURNING fence_token;
SELECT lease_fence.set_mode('stock', 'enforce');
CALL fails($$UPDATE stock_us SET more = 'x'$$);
CALL fails($$UPDATE stock_uk SET more = 'x'$$);

-- Detached: a table of its own, without a guard. Attached again: guarded.
ALTER TABLE stock DETACH PARTITION stock_us;
UPDATE stock_us SET more = 'detached';
SELECT relation FROM lease_fence.guards ORDER BY relation::text;
ALTER TABLE stock ATTACH PARTITION stock_us FOR VALUES IN ('us');
CALL fails($$UPDATE stock_us SET more = 'x'$$);
-- A partition that loses its guard in any other way: PostgreSQL refuses.
DROP TRIGGER zzz_lease_fence ON stock_us;

-- Unprotected: nowhere a guard; the column goes from everywhere.
SELECT lease_fence.unprotect('stock', true);
UPDATE stock SET more = 'free';
UPDATE stock_jp SET more = 'free';
SELECT count(*) FROM pg_attribute WHERE attname = 'fence_token' AND attrelid::regclass::text LIKE 'stock%' AND NOT attisdropped;
DROP TABLE stock, moved;
SELECT count(*) FROM lease_fence.guards;

-- ---------------------------------------------------------------------------
-- Triggers of a partition
-- ---------------------------------------------------------------------------
CREATE TABLE p (id int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.id := new.id + 1; RETURN new; END';
CREATE TRIGGER zzzz BEFORE INSERT ON p1 FOR EACH ROW EXECUTE FUNCTION change();
CALL fails($$SELECT lease_fence.protect('p', 'p:{id}')$$);
ALTER TRIGGER zzzz ON p1 RENAME TO aaaa;
SELECT lease_fence.protect('p', 'p:{id}');
-- Ours sees what theirs made of the row.
CALL fails('INSERT INTO p VALUES (1)');
ALTER TRIGGER aaaa ON p1 RENAME TO zzzz;
CALL fails('INSERT INTO p VALUES (1)');
CALL fails('INSERT INTO p1 VALUES (1)');
DROP TABLE p;
DROP FUNCTION change();

-- A partition that was guarded by itself before it was attached: so it stays,
-- until its root is protected.
CREATE TABLE p (id int, fence_token bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE p1 (id int);
SELECT lease_fence.protect('p1', 'own:{id}', mode => 'off');
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10);
INSERT INTO p VALUES (1);
SELECT lease_fence.protect('p1', 'own:{id}');
SELECT lease_fence.set_mode('p1', 'enforce');
CALL fails('INSERT INTO p VALUES (1)');
SELECT lease_fence.protect('p', 'p:{id}');
CALL fails('INSERT INTO p VALUES (1)');
SELECT relation, resource, mode FROM lease_fence.guards;
-- One that is guarded by itself cannot join a guarded root.
CREATE TABLE p2 (id int);
SELECT lease_fence.protect('p2', 'own:{id}');
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20);
DROP TABLE p, p2;
DROP PROCEDURE fails;
