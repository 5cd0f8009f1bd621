-- Savepoints: what they undo of presentations, locks and writes.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
INSERT INTO stock VALUES (1, 0), (2, 0), (3, 0);
SELECT lease_fence.protect('stock', 'savepoint:{id}');

-- How many tokens this session has locked, in our own kind of advisory lock.
CREATE VIEW shared AS
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND mode = 'ShareLock';

-- ---------------------------------------------------------------------------
-- A presentation is undone with the savepoint it was made in; a grant is not
-- ---------------------------------------------------------------------------
BEGIN;
SAVEPOINT a;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
UPDATE stock SET n = 1 WHERE id = 1;
TABLE shared;
ROLLBACK TO a;
TABLE shared;
CALL fails('UPDATE stock SET n = 1 WHERE id = 1');
SELECT token = :t AS re_entered FROM lease_fence.acquire('savepoint:1');
UPDATE stock SET n = 2 WHERE id = 1;
COMMIT;
SELECT n, fence_token = :t AS stamped FROM stock WHERE id = 1;

-- Released: it becomes the outer one's.
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
RELEASE b;
UPDATE stock SET n = 3 WHERE id = 1;
RELEASE a;
UPDATE stock SET n = 4 WHERE id = 1;
COMMIT;
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
RELEASE b;
UPDATE stock SET n = 5 WHERE id = 1;
ROLLBACK TO a;
CALL fails('UPDATE stock SET n = 6 WHERE id = 1');
-- What was presented before the savepoint is presented still.
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
SAVEPOINT c;
SELECT lease_fence.present(:t);
ROLLBACK TO c;
UPDATE stock SET n = 6 WHERE id = 1;
COMMIT;
SELECT n FROM stock WHERE id = 1;

-- The same with SET LOCAL and set_config.
SELECT token AS d FROM lease_fence.acquire('savepoint:2', scope => 'detached') \gset
BEGIN;
SAVEPOINT a;
SET LOCAL lease_fence.token = :d;
UPDATE stock SET n = 1 WHERE id = 2;
ROLLBACK TO a;
CALL fails('UPDATE stock SET n = 2 WHERE id = 2');
SAVEPOINT b;
SET LOCAL lease_fence.token = :d;
RELEASE b;
UPDATE stock SET n = 3 WHERE id = 2;
COMMIT;
SELECT n, fence_token = :d AS stamped FROM stock WHERE id = 2;

-- A block with EXCEPTION is a savepoint.
DO $$
BEGIN
    BEGIN
        PERFORM lease_fence.acquire('savepoint:3');
        UPDATE stock SET n = 1 WHERE id = 3;
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        NULL;
    END;
    CALL fails('UPDATE stock SET n = 2 WHERE id = 3');
END $$;
SELECT n, fence_token FROM stock WHERE id = 3;

-- ---------------------------------------------------------------------------
-- The lock of the token is taken anew at each row: what a savepoint lets go of,
-- the next write has again
-- ---------------------------------------------------------------------------
BEGIN;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
TABLE shared;
SAVEPOINT a;
UPDATE stock SET n = 7 WHERE id = 1;
TABLE shared;
ROLLBACK TO a;
TABLE shared;
UPDATE stock SET n = 8 WHERE id = 1;
TABLE shared;
SAVEPOINT b;
UPDATE stock SET n = 9 WHERE id = 1;
ROLLBACK TO b;
TABLE shared;
COMMIT;
TABLE shared;
SELECT n FROM stock WHERE id = 1;

-- A refused write lets go of what it took for that look, and of no more.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
UPDATE stock SET n = 10 WHERE id = 1;
CALL fails('UPDATE stock SET n = 10');
TABLE shared;
COMMIT;

-- A cursor that writes row by row and fails inside a savepoint: the rows that it
-- wrote before stay, and so does their lock. (Booked on the cursor's own
-- resource owner the lock would go with it: a stale write would be committed.)
CREATE FUNCTION write_row(row_id int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    UPDATE stock SET n = 11 WHERE id = row_id;
    RETURN 1 / (3 - row_id);
END $$;
BEGIN;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
SELECT token AS u FROM lease_fence.acquire('savepoint:3') \gset
DECLARE c CURSOR FOR SELECT write_row(id) FROM (VALUES (1), (3)) v(id);
FETCH 1 FROM c;
TABLE shared;
SAVEPOINT a;
FETCH 1 FROM c;
ROLLBACK TO a;
SELECT n FROM stock ORDER BY id;
TABLE shared;
-- Nobody else gets the lease while that write can still be committed.
SELECT lease_fence.release(:t);
CALL fails($$SELECT lease_fence.acquire('savepoint:1')$$);
COMMIT;
SELECT id, n FROM stock ORDER BY id;
-- And a cursor that is closed, or that a savepoint's rollback takes along.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
DECLARE c CURSOR FOR SELECT write_row(id) FROM (VALUES (1), (2)) v(id);
FETCH 1 FROM c;
CLOSE c;
TABLE shared;
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT write_row(id) FROM (VALUES (1), (2)) v(id);
FETCH 1 FROM c;
ROLLBACK TO a;
TABLE shared;
COMMIT;

-- A write that a savepoint rolled back stands in nobody's way.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
SAVEPOINT a;
UPDATE stock SET n = 12 WHERE id = 1;
ROLLBACK TO a;
SELECT lease_fence.release(:t);
SELECT token > :t AS new_grant FROM lease_fence.acquire('savepoint:1');
UPDATE stock SET n = 13 WHERE id = 1;
COMMIT;
SELECT n, fence_token > :t AS stamped FROM stock WHERE id = 1;

-- Deep, and many.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('savepoint:1') \gset
DO $$
BEGIN
    FOR i IN 1..200 LOOP
        BEGIN
            UPDATE stock SET n = i WHERE id = 1;
            IF i % 2 = 0 THEN RAISE division_by_zero; END IF;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END $$;
TABLE shared;
COMMIT;
TABLE shared;
SELECT n, fence_token = :t AS stamped FROM stock WHERE id = 1;

-- ---------------------------------------------------------------------------
-- PREPARE TRANSACTION takes the fence's lock along
-- ---------------------------------------------------------------------------
SELECT token AS s FROM lease_fence.acquire('savepoint:3', scope => 'session') \gset
BEGIN;
UPDATE stock SET n = 14 WHERE id = 3;
PREPARE TRANSACTION 'savepoints';
-- The presentation went with it, this session's lease did not.
SELECT lease_fence.release(:s);
CALL fails($$SELECT lease_fence.acquire('savepoint:3', wait => '100 ms')$$);
COMMIT PREPARED 'savepoints';
SELECT n, fence_token = :s AS stamped FROM stock WHERE id = 3;
DO $$ BEGIN PERFORM lease_fence.acquire('savepoint:3'); END $$;

DROP VIEW shared;
DROP FUNCTION write_row(int);
DROP TABLE stock;
DROP PROCEDURE fails;
