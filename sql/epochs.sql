-- Epochs: begun by CREATE EXTENSION and by the DBA; every token from before is refused.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
SELECT lease_fence.protect('stock', 'epoch:{id}');
SELECT token AS d FROM lease_fence.acquire('epoch:1', scope => 'detached') \gset
SELECT token AS s FROM lease_fence.acquire('epoch:2', scope => 'session') \gset
BEGIN;
SELECT lease_fence.present(:d, :s);
INSERT INTO stock VALUES (1, 0), (2, 0);
COMMIT;
SELECT max(id) AS id, max(floor) AS floor FROM lease_fence.epochs \gset

-- ---------------------------------------------------------------------------
-- begin_epoch
-- ---------------------------------------------------------------------------
SELECT lease_fence.begin_epoch('a snapshot was put back') AS new_floor \gset
SELECT :new_floor >= :d AS d_is_below, :new_floor >= :s AS s_is_below, :new_floor > :floor AS higher;
SELECT id = :id + 1 AS next, floor = :new_floor AS floor, reason, length(nonce) AS nonce,
       begun_at <= clock_timestamp() AS begun
FROM lease_fence.epochs ORDER BY id DESC LIMIT 1;
SELECT epoch = :id + 1 AS epoch, floor = :new_floor AS floor, epoch_confirmed FROM lease_fence.worker_status;
-- The grants of before are ended, and say why.
SELECT token IN (:d, :s) AS mine, how_ended, ended_at IS NOT NULL AS ended
FROM lease_fence.grants WHERE resource IN ('epoch:1', 'epoch:2') ORDER BY token;
SELECT count(*) FROM lease_fence.leases WHERE resource LIKE 'epoch:%';

-- Every token from before is refused, in each way to use it.
SELECT format('SELECT lease_fence.present(%s)', :d) AS present_d,
       format('SELECT lease_fence.renew(%s)', :d) AS renew_d,
       format('SELECT lease_fence.remaining(%s)', :d) AS remaining_d,
       format('SELECT lease_fence.release(%s)', :d) AS release_d \gset
CALL fails(:'present_d');
CALL fails(:'renew_d');
CALL fails(:'remaining_d');
CALL fails(:'release_d');
BEGIN;
SET LOCAL lease_fence.token = :d;
CALL fails('UPDATE stock SET n = 1 WHERE id = 1');
COMMIT;
-- The lease of this session too: it is a new grant that it needs.
CALL fails('UPDATE stock SET n = 1 WHERE id = 2');
SELECT token AS s2 FROM lease_fence.acquire('epoch:2', scope => 'session') \gset
SELECT :s2 > :new_floor AS above_the_floor;
UPDATE stock SET n = 1 WHERE id = 2 RETURNING n, fence_token = :s2 AS stamped;
SELECT lease_fence.release(:s2);

-- In the middle of a transaction that has written: that write is done, more is not.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('epoch:1') \gset
UPDATE stock SET n = 2 WHERE id = 1;
SELECT lease_fence.begin_epoch('in the middle') >= :t AS begun;
CALL fails('UPDATE stock SET n = 3 WHERE id = 1');
COMMIT;
SELECT n, fence_token = :t AS stamped FROM stock WHERE id = 1;
BEGIN;
SELECT token > :t AS new_grant FROM lease_fence.acquire('epoch:1');
UPDATE stock SET n = 4 WHERE id = 1;
COMMIT;

-- Its floor takes in the largest stamp of any guarded table: the trace of tokens
-- that this history has never minted.
ALTER TABLE stock DISABLE TRIGGER ALL;
UPDATE stock SET fence_token = fence_token + 1000000000 WHERE id = 2 RETURNING fence_token AS stamp \gset
ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence;
BEGIN;
SELECT token < :stamp AS below FROM lease_fence.acquire('epoch:2');
CALL fails('UPDATE stock SET n = 5 WHERE id = 2');
COMMIT;
SELECT lease_fence.begin_epoch('a subscriber became the primary') >= :stamp AS takes_it_in;
BEGIN;
SELECT token > :stamp AS above FROM lease_fence.acquire('epoch:2');
UPDATE stock SET n = 5 WHERE id = 2;
COMMIT;

-- protect() floors by the stamps that it finds, as well: the worker begins an
-- epoch for them when nobody waits for it.
SELECT lease_fence.unprotect('stock');
UPDATE stock SET fence_token = fence_token + 1000000000 WHERE id = 1 RETURNING fence_token AS stamp \gset
SELECT lease_fence.protect('stock', 'epoch:{id}');
SELECT set_config('regress.stamp', :'stamp', false) <> '' AS set;
DO $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN (SELECT max(floor) FROM lease_fence.epochs) >= current_setting('regress.stamp')::bigint;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT max(floor) >= :stamp AS takes_it_in FROM lease_fence.epochs;
BEGIN;
SELECT token > :stamp AS above FROM lease_fence.acquire('epoch:1');
UPDATE stock SET n = 6 WHERE id = 1;
COMMIT;

-- Epochs only ever grow, and each is of this database.
SELECT bool_and(floor > previous) AS floors_grow
FROM (SELECT floor, lag(floor) OVER (ORDER BY id) AS previous FROM lease_fence.epochs) AS e WHERE previous IS NOT NULL;
SELECT count(DISTINCT nonce) = count(*) AS nonces,
       bool_and(system_identifier = (SELECT system_identifier FROM pg_control_system())) AS system,
       bool_and(timeline = (SELECT timeline_id FROM pg_control_checkpoint())) AS timeline,
       bool_and(database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())) AS database,
       bool_and(extension_oid = (SELECT oid FROM pg_extension WHERE extname = 'lease_fence')) AS extension
FROM lease_fence.epochs;
-- No token is minted twice, and tokens stay within what JSON clients carry.
SELECT count(DISTINCT token) = count(*) AS once, max(token) < 2 ^ 53 AS within FROM lease_fence.grants;

DROP TABLE stock;
DROP PROCEDURE fails;
