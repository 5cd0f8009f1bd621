-- The ways to present a token, and which one counts.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
INSERT INTO stock VALUES (1, 0), (2, 0), (3, 0);
SELECT lease_fence.protect('stock', 'present:{id}');
SELECT token AS one FROM lease_fence.acquire('present:1', scope => 'detached') \gset
SELECT token AS two FROM lease_fence.acquire('present:2', scope => 'detached') \gset
SELECT :'one' || ',' || :'two' AS both_tokens \gset

-- ---------------------------------------------------------------------------
-- Each way
-- ---------------------------------------------------------------------------
-- acquire, for the transaction it is called in; also with scope detached.
BEGIN;
SELECT token AS three FROM lease_fence.acquire('present:3', scope => 'detached') \gset
UPDATE stock SET n = 1 WHERE id = 3;
COMMIT;
CALL fails('UPDATE stock SET n = 2 WHERE id = 3');
SELECT lease_fence.release(:three);
BEGIN;
SELECT token > 0 AS taken FROM lease_fence.try_acquire('present:3');
UPDATE stock SET n = 2 WHERE id = 3;
COMMIT;
BEGIN;
SELECT count(*) FROM lease_fence.acquire_all('{present:3,present:4}');
UPDATE stock SET n = 3 WHERE id = 3;
INSERT INTO stock VALUES (4, 0);
COMMIT;

-- present
BEGIN;
SELECT lease_fence.present(:one);
UPDATE stock SET n = 1 WHERE id = 1;
CALL fails('UPDATE stock SET n = 1 WHERE id = 2');
-- Presentations of one transaction add up.
SELECT lease_fence.present(:two);
SELECT lease_fence.present(:two, :one, :two);
UPDATE stock SET n = 2 WHERE id IN (1, 2);
COMMIT;
CALL fails('UPDATE stock SET n = 3 WHERE id = 1');

-- SET LOCAL, set_config, several tokens, blanks between them
BEGIN;
SET LOCAL lease_fence.token = :one;
UPDATE stock SET n = 3 WHERE id = 1;
CALL fails('UPDATE stock SET n = 3 WHERE id = 2');
SET LOCAL lease_fence.token = :'both_tokens';
UPDATE stock SET n = 4 WHERE id IN (1, 2);
-- It replaces what was set before.
SET LOCAL lease_fence.token = :two;
CALL fails('UPDATE stock SET n = 5 WHERE id = 1');
UPDATE stock SET n = 5 WHERE id = 2;
SET LOCAL lease_fence.token = '';
CALL fails('UPDATE stock SET n = 6 WHERE id = 2');
COMMIT;
BEGIN;
SELECT set_config('lease_fence.token', :'one', true) = :'one' AS set;
UPDATE stock SET n = 6 WHERE id = 1;
SELECT set_config('lease_fence.token', E' \t' || :'one' || E' ,\n ' || :'two' || ' ', true) <> '' AS set;
UPDATE stock SET n = 7 WHERE id IN (1, 2);
COMMIT;
SHOW lease_fence.token;
CALL fails('UPDATE stock SET n = 8 WHERE id = 1');
-- The setting and present add up.
BEGIN;
SET LOCAL lease_fence.token = :one;
SELECT lease_fence.present(:two);
UPDATE stock SET n = 8 WHERE id IN (1, 2);
COMMIT;
SELECT id, n, fence_token IN (:one, :two) AS stamped FROM stock ORDER BY id;
-- SET LOCAL outside a transaction block is none.
SET client_min_messages = error;
SET LOCAL lease_fence.token = :one;
RESET client_min_messages;
CALL fails('UPDATE stock SET n = 9 WHERE id = 1');
SELECT lease_fence.present(:one);
CALL fails('UPDATE stock SET n = 9 WHERE id = 1');

-- ---------------------------------------------------------------------------
-- A plain SET counts in the transaction that set it, and in no other: behind a
-- pooler the next client has this session
-- ---------------------------------------------------------------------------
SET lease_fence.token = :one;
CALL fails('UPDATE stock SET n = 10 WHERE id = 1');
BEGIN;
CALL fails('UPDATE stock SET n = 10 WHERE id = 1');
SELECT lease_fence.present(:two);
CALL fails('UPDATE stock SET n = 10 WHERE id = 1');
ROLLBACK;
BEGIN;
SET lease_fence.token = :one;
UPDATE stock SET n = 10 WHERE id = 1;
COMMIT;
SELECT current_setting('lease_fence.token') = :'one' AS still_set;
CALL fails('UPDATE stock SET n = 11 WHERE id = 1');
-- The same value set again, in the transaction that writes.
BEGIN;
SET LOCAL lease_fence.token = :one;
UPDATE stock SET n = 11 WHERE id = 1;
COMMIT;
CALL fails('UPDATE stock SET n = 12 WHERE id = 1');
-- A savepoint that is rolled back brings the old value back, not its right.
BEGIN;
SAVEPOINT s;
SET LOCAL lease_fence.token = :two;
UPDATE stock SET n = 12 WHERE id = 2;
ROLLBACK TO s;
SELECT current_setting('lease_fence.token') = :'one' AS old_value;
CALL fails('UPDATE stock SET n = 12 WHERE id = 1');
SET lease_fence.token = :two;
SAVEPOINT s;
SET LOCAL lease_fence.token = '';
ROLLBACK TO s;
UPDATE stock SET n = 12 WHERE id = 2;
ROLLBACK;
CALL fails('UPDATE stock SET n = 12 WHERE id = 1');
RESET lease_fence.token;
CALL fails('UPDATE stock SET n = 12 WHERE id = 1');
-- Set with the statement itself: that is its transaction.
UPDATE stock SET n = 13 WHERE id = 1 AND set_config('lease_fence.token', :'one', false) <> '';
CALL fails('UPDATE stock SET n = 14 WHERE id = 1');
RESET lease_fence.token;
-- From the start of the session: never set in any transaction.
SELECT format('ALTER DATABASE %I SET lease_fence.token = %L', current_database(), :'one') AS statement \gset
:statement;
\c -
SELECT current_setting('lease_fence.token') = :'one' AS set_by_the_database;
CALL fails('UPDATE stock SET n = 14 WHERE id = 1');
SELECT format('ALTER DATABASE %I RESET lease_fence.token', current_database()) AS statement \gset
:statement;
\c -
-- A function's SET clause counts while the function runs.
SELECT format('CREATE FUNCTION with_setting() RETURNS void LANGUAGE sql SET lease_fence.token = %L AS ''UPDATE stock SET n = 15 WHERE id = 1''', :'one') AS statement \gset
:statement;
BEGIN;
SELECT with_setting();
CALL fails('UPDATE stock SET n = 16 WHERE id = 1');
COMMIT;
SELECT n FROM stock WHERE id = 1;
DROP FUNCTION with_setting();
-- A procedure that commits in the middle: the next transaction presents nothing.
CREATE PROCEDURE commits(t bigint) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lease_fence.present(t);
    PERFORM set_config('lease_fence.token', t::text, false);
    UPDATE stock SET n = 16 WHERE id = 1;
    COMMIT;
    CALL fails('UPDATE stock SET n = 17 WHERE id = 1');
    PERFORM lease_fence.present(t);
    UPDATE stock SET n = 18 WHERE id = 1;
    ROLLBACK;
    CALL fails('UPDATE stock SET n = 19 WHERE id = 1');
END $$;
CALL commits(:one);
SELECT n FROM stock WHERE id = 1;
RESET lease_fence.token;
DROP PROCEDURE commits(bigint);

-- ---------------------------------------------------------------------------
-- A session's lease counts in later transactions, until one of them presents
-- ---------------------------------------------------------------------------
SELECT token AS three FROM lease_fence.acquire('present:3', scope => 'session') \gset
UPDATE stock SET n = 20 WHERE id = 3;
BEGIN;
UPDATE stock SET n = 21 WHERE id = 3;
-- Another lease taken adds up; a token that is named does away with it.
SELECT token > 0 AS taken FROM lease_fence.acquire('present:4');
UPDATE stock SET n = 22 WHERE id IN (3, 4);
SELECT lease_fence.present(:one);
CALL fails('UPDATE stock SET n = 23 WHERE id = 3');
UPDATE stock SET n = 23 WHERE id IN (1, 4);
SELECT lease_fence.present(:three);
UPDATE stock SET n = 24 WHERE id = 3;
COMMIT;
BEGIN;
SET LOCAL lease_fence.token = :one;
CALL fails('UPDATE stock SET n = 25 WHERE id = 3');
SET LOCAL lease_fence.token = '';
UPDATE stock SET n = 25 WHERE id = 3;
COMMIT;
-- A savepoint that is rolled back undoes that as well.
BEGIN;
SAVEPOINT s;
SELECT lease_fence.present(:one);
CALL fails('UPDATE stock SET n = 26 WHERE id = 3');
ROLLBACK TO s;
UPDATE stock SET n = 26 WHERE id = 3;
COMMIT;
-- The leaked setting of an earlier transaction does not do away with it.
SET lease_fence.token = :one;
UPDATE stock SET n = 27 WHERE id = 3;
RESET lease_fence.token;
-- Revoked under the session: over; another's: superseded. It says so.
SELECT lease_fence.revoke('present:3');
CALL fails('UPDATE stock SET n = 28 WHERE id = 3');
SELECT token AS taken FROM lease_fence.acquire('present:3', scope => 'detached', holder => 'successor') \gset
CALL fails('UPDATE stock SET n = 28 WHERE id = 3');
SELECT lease_fence.release(:three) AS never_another, lease_fence.remaining(:taken) > '0' AS untouched;
SELECT lease_fence.release(:taken);
-- Given back: it counts no more.
SELECT token AS three FROM lease_fence.acquire('present:3', scope => 'session') \gset
SELECT lease_fence.release(:three);
CALL fails('UPDATE stock SET n = 28 WHERE id = 3');
SELECT token AS three FROM lease_fence.acquire('present:3', scope => 'session') \gset
DISCARD ALL;
CALL fails('UPDATE stock SET n = 28 WHERE id = 3');

-- ---------------------------------------------------------------------------
-- present validates now, all of them or none
-- ---------------------------------------------------------------------------
SELECT lease_fence.release(:two);
BEGIN;
SAVEPOINT s;
SELECT lease_fence.present(:one);
\set VERBOSITY sqlstate
SELECT lease_fence.present(:one, :two);
ROLLBACK TO s;
\set VERBOSITY default
CALL fails('UPDATE stock SET n = 29 WHERE id = 1');
COMMIT;
-- It keeps the fence shut from then on, without any write.
BEGIN;
SELECT lease_fence.present(:one);
SELECT lease_fence.release(:one);
CALL fails($$SELECT lease_fence.acquire('present:1')$$);
COMMIT;

SELECT id, n FROM stock ORDER BY id;

-- ---------------------------------------------------------------------------
-- Under how many leases one transaction writes is limited
-- ---------------------------------------------------------------------------
SET lease_fence.max_resources_per_transaction = 3;
BEGIN;
SELECT count(*) FROM lease_fence.acquire_all('{present:1,present:2,present:3}');
SELECT token AS four FROM lease_fence.acquire('present:4') \gset
UPDATE stock SET n = 30 WHERE id < 4;
UPDATE stock SET n = 31 WHERE id < 4;
CALL fails('UPDATE stock SET n = 30 WHERE id = 4');
-- Those that are in may go on; a savepoint gives its own back.
UPDATE stock SET n = 32 WHERE id < 4;
COMMIT;
BEGIN;
SELECT count(*) FROM lease_fence.acquire_all('{present:1,present:2,present:3}');
SELECT token AS four FROM lease_fence.acquire('present:4') \gset
SAVEPOINT s;
UPDATE stock SET n = 33 WHERE id < 4;
ROLLBACK TO s;
UPDATE stock SET n = 34 WHERE id > 1;
COMMIT;
CALL fails($$SELECT lease_fence.acquire_all('{a,b,c,d}')$$);
RESET lease_fence.max_resources_per_transaction;
SELECT id, n FROM stock ORDER BY id;
DROP TABLE stock;
DROP PROCEDURE fails;
