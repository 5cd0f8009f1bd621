-- Where a lease can be taken, and which snapshot a write is made from.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
SELECT lease_fence.protect('stock', 'isolation:{id}');

-- ---------------------------------------------------------------------------
-- Not in a transaction whose snapshot is older than the grant
-- ---------------------------------------------------------------------------
SELECT count(*) AS before FROM lease_fence.grants \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
CALL fails($$SELECT lease_fence.acquire('isolation:1')$$);
CALL fails($$SELECT lease_fence.acquire('isolation:1', scope => 'session')$$);
CALL fails($$SELECT lease_fence.acquire('isolation:1', scope => 'detached')$$);
CALL fails($$SELECT lease_fence.try_acquire('isolation:1')$$);
CALL fails($$SELECT lease_fence.acquire_all('{isolation:1}')$$);
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
CALL fails($$SELECT lease_fence.acquire('isolation:1')$$);
CALL fails($$SELECT lease_fence.try_acquire('isolation:1', scope => 'detached')$$);
ROLLBACK;
SET default_transaction_isolation = 'repeatable read';
SELECT lease_fence.acquire('isolation:1', scope => 'session');
\echo :LAST_ERROR_SQLSTATE
RESET default_transaction_isolation;
SELECT count(*) = :before AS nothing_granted FROM lease_fence.grants;

-- A read-only transaction may hold a lease: nothing of ours is written by it.
BEGIN READ ONLY;
SELECT token > 0 AS taken FROM lease_fence.acquire('isolation:ro');
COMMIT;

-- Acquire first, then begin.
SELECT token AS t FROM lease_fence.acquire('isolation:1', scope => 'session') \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT lease_fence.present(:t);
INSERT INTO stock VALUES (1, 1);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE stock SET n = 2;
COMMIT;
SELECT id, n, fence_token = :t AS stamped FROM stock;
SELECT lease_fence.release(:t);

-- ---------------------------------------------------------------------------
-- A statement that takes its own lease reads from before it: 40001
-- ---------------------------------------------------------------------------
BEGIN;
\set VERBOSITY sqlstate
UPDATE stock SET n = 3 WHERE (SELECT token FROM lease_fence.acquire('isolation:1')) > 0;
\set VERBOSITY default
ROLLBACK;
CALL fails($$WITH lease AS MATERIALIZED (SELECT token FROM lease_fence.acquire('isolation:1'))
             UPDATE stock SET n = 3 FROM lease$$);
CALL fails($$INSERT INTO stock SELECT 2, 1 FROM lease_fence.acquire('isolation:2')$$);
SELECT id, n FROM stock;

-- As two statements of one function it is well: each has a snapshot of its own.
CREATE FUNCTION take_and_write() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lease_fence.acquire('isolation:1');
    UPDATE stock SET n = 4 WHERE id = 1;
END $$;
SELECT take_and_write();
SELECT id, n FROM stock;

-- A cursor that was opened before the lease was taken keeps its old snapshot;
-- what is written through it is a statement of now.
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM stock FOR UPDATE;
SELECT token AS t FROM lease_fence.acquire('isolation:1') \gset
FETCH NEXT FROM c \gset fetched_
UPDATE stock SET n = 5 WHERE CURRENT OF c;
COMMIT;
SELECT n, fence_token = :t AS stamped FROM stock;

DROP FUNCTION take_and_write();
DROP TABLE stock;
DROP PROCEDURE fails;
