-- The guard: a row can only be written under the current token of its resource.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int, note text DEFAULT 'none');
INSERT INTO stock VALUES (1, 10), (2, 10), (3, 10);
SELECT lease_fence.protect('stock', 'guard:{id}');

-- ---------------------------------------------------------------------------
-- Nothing presented: nothing written. Reading and locking are free.
-- ---------------------------------------------------------------------------
CALL fails('INSERT INTO stock VALUES (4, 10)');
CALL fails('UPDATE stock SET n = 0 WHERE id = 1');
CALL fails('UPDATE stock SET n = n');
CALL fails('DELETE FROM stock WHERE id = 1');
CALL fails('DELETE FROM stock');
UPDATE stock SET n = 0 WHERE false;
SELECT * FROM stock ORDER BY id FOR UPDATE;

-- ---------------------------------------------------------------------------
-- Under the current token
-- ---------------------------------------------------------------------------
BEGIN;
SELECT token AS t FROM lease_fence.acquire('guard:1') \gset
UPDATE stock SET n = n - 1 WHERE id = 1 RETURNING id, n, fence_token = :t AS stamped;
-- What the client says of the token column counts for nothing.
UPDATE stock SET fence_token = 7 WHERE id = 1 RETURNING fence_token = :t AS stamped;
UPDATE stock SET fence_token = 9223372036854775807 WHERE id = 1 RETURNING fence_token = :t AS stamped;
UPDATE stock SET fence_token = NULL WHERE id = 1 RETURNING fence_token = :t AS stamped;
UPDATE stock SET fence_token = DEFAULT WHERE id = 1 RETURNING fence_token = :t AS stamped;
-- It covers its own resource, not the next row.
CALL fails('UPDATE stock SET n = n - 1 WHERE id = 2');
CALL fails('UPDATE stock SET n = n - 1');
DELETE FROM stock WHERE id = 1;
INSERT INTO stock VALUES (1, 5, 'new', 9223372036854775807) RETURNING id, n, fence_token = :t AS stamped;
DELETE FROM stock WHERE id = 1;
INSERT INTO stock VALUES (1, 5, 'new', 123) RETURNING id, n, fence_token = :t AS stamped;
CALL fails('INSERT INTO stock (id) VALUES (2) ON CONFLICT DO NOTHING');
ROLLBACK;
SELECT id, n, fence_token FROM stock ORDER BY id;

-- A row with NULLs and one that is wide: stamped all the same.
BEGIN;
SELECT token AS t FROM lease_fence.acquire_all('{guard:4,guard:5}') OFFSET 1 \gset
INSERT INTO stock VALUES (4, NULL, NULL), (5, 1, repeat('wide', 100000));
UPDATE stock SET n = 2 WHERE id IN (4, 5);
SELECT id, n, length(note), fence_token > 0 AS stamped FROM stock WHERE id >= 4 ORDER BY id;
COMMIT;

-- ---------------------------------------------------------------------------
-- Superseded: LF001, and the row that the successor has not touched is fenced too
-- ---------------------------------------------------------------------------
SELECT token AS old FROM lease_fence.acquire('guard:2', scope => 'detached', ttl => '10 ms', holder => 'paused') \gset
SELECT pg_sleep(0.03);
-- Lapsed and not superseded yet: over.
BEGIN;
SET LOCAL lease_fence.token = :old;
CALL fails('UPDATE stock SET n = 0 WHERE id = 2');
ROLLBACK;
SELECT token AS new FROM lease_fence.acquire('guard:2', scope => 'detached', holder => 'successor') \gset
BEGIN;
SET LOCAL lease_fence.token = :old;
CALL fails('UPDATE stock SET n = 0 WHERE id = 2');
CALL fails('DELETE FROM stock WHERE id = 2');
SET LOCAL lease_fence.token = '';
SELECT format('SELECT lease_fence.present(%s)', :old) AS statement \gset
CALL fails(:'statement');
-- Both at once: the current one is among them.
SELECT :'old' || ',' || :'new' AS both_tokens \gset
SET LOCAL lease_fence.token = :'both_tokens';
UPDATE stock SET n = 9 WHERE id = 2 RETURNING n, fence_token = :new AS stamped;
COMMIT;
-- The message names both tokens.
BEGIN;
SET LOCAL lease_fence.token = :old;
\set VERBOSITY sqlstate
UPDATE stock SET n = 0 WHERE id = 2;
\set VERBOSITY default
ROLLBACK;
SELECT :'LAST_ERROR_MESSAGE' = format('stale write refused: token %s is superseded by %s', :'old', :'new') AS names_both;

-- Released, revoked: LF002 says which.
BEGIN;
SET LOCAL lease_fence.token = :new;
SELECT lease_fence.release(:new);
CALL fails('UPDATE stock SET n = 0 WHERE id = 2');
ROLLBACK;
SELECT token AS t FROM lease_fence.acquire('guard:2', scope => 'detached') \gset
SELECT lease_fence.revoke('guard:2');
BEGIN;
SET LOCAL lease_fence.token = :t;
CALL fails('UPDATE stock SET n = 0 WHERE id = 2');
ROLLBACK;

-- Released before COMMIT, the classic bug: what was written stays good.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('guard:2') \gset
UPDATE stock SET n = 8 WHERE id = 2;
SELECT lease_fence.release(:t);
CALL fails('UPDATE stock SET n = 7 WHERE id = 2');
COMMIT;
SELECT n, fence_token = :t AS stamped FROM stock WHERE id = 2;

-- In its own way: this transaction wrote under the older grant.
BEGIN;
SELECT token AS t FROM lease_fence.acquire('guard:2') \gset
UPDATE stock SET n = 7 WHERE id = 2;
SELECT lease_fence.release(:t);
CALL fails($$SELECT lease_fence.acquire('guard:2')$$);
CALL fails($$SELECT lease_fence.try_acquire('guard:2')$$);
SAVEPOINT s;
\set VERBOSITY sqlstate
SELECT lease_fence.acquire_all('{guard:1,guard:2}');
\set VERBOSITY default
ROLLBACK TO s;
COMMIT;
SELECT n, fence_token = :t AS stamped FROM stock WHERE id = 2;

-- ---------------------------------------------------------------------------
-- Tokens that say nothing of this row
-- ---------------------------------------------------------------------------
BEGIN;
SET LOCAL lease_fence.token = '1';
CALL fails('UPDATE stock SET n = 0 WHERE id = 3');
SET LOCAL lease_fence.token = '9223372036854775807';
CALL fails('UPDATE stock SET n = 0 WHERE id = 3');
-- Another resource's, and an unknown one beside it.
SELECT token AS t FROM lease_fence.acquire('guard:other') \gset
SET LOCAL lease_fence.token = '';
CALL fails('UPDATE stock SET n = 0 WHERE id = 3');
CALL fails('INSERT INTO stock VALUES (6)');
SELECT token AS t FROM lease_fence.acquire('GUARD:3') \gset
CALL fails('UPDATE stock SET n = 0 WHERE id = 3');
COMMIT;

-- ---------------------------------------------------------------------------
-- The stamp never decreases: one above the token is a trace of what was lost.
-- ---------------------------------------------------------------------------
SELECT lease_fence.set_mode('stock', 'off');
ALTER TABLE stock DISABLE TRIGGER ALL;
UPDATE stock SET fence_token = 4611686018427387904 WHERE id = 3;
ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT lease_fence.set_mode('stock', 'enforce');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('guard:3') \gset
CALL fails('UPDATE stock SET n = 0 WHERE id = 3');
CALL fails('DELETE FROM stock WHERE id = 3');
ROLLBACK;
SELECT n, fence_token FROM stock WHERE id = 3;
ALTER TABLE stock DISABLE TRIGGER ALL;
UPDATE stock SET fence_token = 0 WHERE id = 3;
ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence;

-- ---------------------------------------------------------------------------
-- Moving a row to another resource needs both leases
-- ---------------------------------------------------------------------------
CREATE TABLE item (id int PRIMARY KEY, shelf text);
SELECT lease_fence.protect('item', 'shelf:{shelf}');
BEGIN;
SELECT token AS a FROM lease_fence.acquire('shelf:a') \gset
INSERT INTO item VALUES (1, 'a');
CALL fails($$UPDATE item SET shelf = 'b'$$);
CALL fails($$UPDATE item SET shelf = NULL$$);
UPDATE item SET id = 2;
COMMIT;
BEGIN;
SELECT token AS b FROM lease_fence.acquire('shelf:b') \gset
CALL fails($$UPDATE item SET shelf = 'b'$$);
SELECT token AS a FROM lease_fence.acquire('shelf:a') \gset
-- The stamp would go down: from a's token, which is the higher one.
UPDATE item SET id = 3;
CALL fails($$UPDATE item SET shelf = 'b'$$);
ROLLBACK;
BEGIN;
SELECT token AS a FROM lease_fence.acquire('shelf:a') \gset
SELECT token AS b FROM lease_fence.acquire('shelf:b') \gset
UPDATE item SET shelf = 'b' RETURNING id, shelf, fence_token = :b AS stamped;
COMMIT;

-- A NULL in the template's column: never writable.
CALL fails('INSERT INTO item VALUES (9, NULL)');
ALTER TABLE item DISABLE TRIGGER ALL;
INSERT INTO item VALUES (9, NULL);
ALTER TABLE item ENABLE ALWAYS TRIGGER zzz_lease_fence;
CALL fails('UPDATE item SET id = 10 WHERE id = 9');
CALL fails($$UPDATE item SET shelf = 'b' WHERE id = 9$$);
CALL fails('DELETE FROM item WHERE id = 9');
-- Nor is a name that would be too long, or empty.
CALL fails($$INSERT INTO item VALUES (11, repeat('x', 507))$$);
CREATE TABLE bare (name text);
SELECT lease_fence.protect('bare', '{name}');
CALL fails($$INSERT INTO bare VALUES ('')$$);
CALL fails($$INSERT INTO bare VALUES (repeat('x', 513))$$);
BEGIN;
SELECT token > 0 AS longest FROM lease_fence.acquire(repeat('x', 512));
INSERT INTO bare VALUES (repeat('x', 512));
COMMIT;

-- ---------------------------------------------------------------------------
-- lapsed => 'accept': a deadline that passed admits until superseded
-- ---------------------------------------------------------------------------
SELECT lease_fence.protect('item', 'shelf:{shelf}', lapsed => 'accept');
SELECT token AS old FROM lease_fence.acquire('shelf:c', scope => 'detached', ttl => '10 ms', holder => 'one') \gset
SELECT pg_sleep(0.03);
BEGIN;
SET LOCAL lease_fence.token = :old;
INSERT INTO item VALUES (20, 'c') RETURNING fence_token = :old AS stamped;
COMMIT;
SELECT token AS new FROM lease_fence.acquire('shelf:c', scope => 'detached', holder => 'two') \gset
BEGIN;
SET LOCAL lease_fence.token = :old;
CALL fails('UPDATE item SET id = 21 WHERE id = 20');
-- Released is over also there.
SELECT lease_fence.release(:new);
SET LOCAL lease_fence.token = :new;
CALL fails('UPDATE item SET id = 21 WHERE id = 20');
COMMIT;

-- ---------------------------------------------------------------------------
-- inserts => 'free': for tables whose keys do not exist before the INSERT
-- ---------------------------------------------------------------------------
CREATE TABLE orders (id serial PRIMARY KEY, state text);
SELECT lease_fence.protect('orders', 'order:{id}', inserts => 'free');
INSERT INTO orders (state) VALUES ('new') RETURNING id, state, fence_token;
INSERT INTO orders (state, fence_token) VALUES ('new', 99) RETURNING fence_token;
CALL fails($$UPDATE orders SET state = 'paid' WHERE id = 1$$);
CALL fails('DELETE FROM orders WHERE id = 1');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('order:3') \gset
INSERT INTO orders VALUES (3, 'new', 99) RETURNING fence_token = :t AS stamped;
INSERT INTO orders VALUES (4, 'new', 99) RETURNING fence_token;
COMMIT;
-- A stale token is stale also there.
BEGIN;
SET LOCAL lease_fence.token = :t;
CALL fails($$INSERT INTO orders VALUES (3, 'again')$$);
ROLLBACK;

-- The guard is always on: also for what a replica role writes.
SET session_replication_role = replica;
CALL fails('UPDATE stock SET n = 0 WHERE id = 1');
CALL fails('INSERT INTO stock VALUES (8)');
SET session_replication_role = local;
CALL fails('DELETE FROM stock WHERE id = 1');
RESET session_replication_role;


-- A guard that the owner switched off is the owner's business: the view says so.
ALTER TABLE stock DISABLE TRIGGER zzz_lease_fence;
SELECT relation, enabled FROM lease_fence.guards WHERE relation = 'stock'::regclass;
UPDATE stock SET n = 1 WHERE id = 1;
ALTER TABLE stock ENABLE ALWAYS TRIGGER zzz_lease_fence;

DROP TABLE stock, item, bare, orders;
SELECT count(*) FROM lease_fence.guards;
DROP PROCEDURE fails;
