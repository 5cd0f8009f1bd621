-- Modes: enforce, observe, off; what each does to rows and stamps.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE stock (id int PRIMARY KEY, n int);
INSERT INTO stock VALUES (1, 0), (2, 0);
SELECT lease_fence.protect('stock', 'mode:{id}', mode => 'observe');
SELECT mode FROM lease_fence.guards;
SELECT mode FROM lease_fence.guard_modes WHERE relation = 'stock'::regclass;

-- ---------------------------------------------------------------------------
-- observe: nothing is refused, the stamp is never the client's
-- ---------------------------------------------------------------------------
INSERT INTO stock VALUES (3, 0, 99) RETURNING fence_token;
UPDATE stock SET n = 1, fence_token = 99 WHERE id = 1 RETURNING n, fence_token;
DELETE FROM stock WHERE id = 3;
BEGIN;
SELECT token AS t FROM lease_fence.acquire('mode:1') \gset
UPDATE stock SET n = 2;
SELECT id, n, fence_token = :t AS stamped FROM stock ORDER BY id;
-- It takes no lock of a token: nobody's grant waits for it.
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
-- Written past the lease, by a stale holder, or with a NULL: kept, never lowered.
BEGIN;
SET LOCAL lease_fence.token = :t;
UPDATE stock SET n = 3, fence_token = 0;
SELECT id, n, fence_token = :t AS kept FROM stock ORDER BY id;
COMMIT;
UPDATE stock SET n = 4, fence_token = NULL;
SELECT id, n, fence_token = :t AS kept FROM stock ORDER BY id;
CREATE TABLE item (id int, shelf text);
SELECT lease_fence.protect('item', 'shelf:{shelf}', mode => 'observe');
INSERT INTO item VALUES (1, NULL), (2, 'a');
UPDATE item SET shelf = 'b';
UPDATE item SET shelf = NULL;
DELETE FROM item;

-- What would have been refused is in the audit, with a count: written once a
-- second. (A backend that would have to wait for the counter forgets a write.)
CREATE VIEW observed AS
SELECT relation, reason, sum(rows) AS rows, bool_and(role = current_user) AS my_role
FROM lease_fence.rejected_writes
WHERE action = 'observed' AND relation IN ('public.stock', 'public.item')
GROUP BY relation, reason;
DO $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN (SELECT count(*) = 4 AND sum(rows) >= 19 FROM observed);
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT relation, reason, my_role,
       rows BETWEEN expected - 1 AND expected AS counted
FROM observed JOIN (VALUES ('public.item', 'missing', 6), ('public.item', 'no resource', 6),
                           ('public.stock', 'missing', 7), ('public.stock', 'released', 1)) AS e(relation, reason, expected)
    USING (relation, reason)
ORDER BY 1, 2;
DROP VIEW observed;

-- ---------------------------------------------------------------------------
-- enforce again: at once, in this session and in its prepared plans
-- ---------------------------------------------------------------------------
PREPARE write AS UPDATE stock SET n = n + 1 WHERE id = 1;
EXECUTE write;
SELECT lease_fence.set_mode('stock', 'enforce');
CALL fails('EXECUTE write');
SELECT lease_fence.set_mode('stock', 'off');
EXECUTE write;
SELECT lease_fence.set_mode('stock', 'enforce');
CALL fails('EXECUTE write');
-- In a transaction: rolled back, it never was.
BEGIN;
SELECT lease_fence.set_mode('stock', 'off');
EXECUTE write;
ROLLBACK;
CALL fails('EXECUTE write');
BEGIN;
SAVEPOINT s;
SELECT lease_fence.set_mode('stock', 'observe');
ROLLBACK TO s;
CALL fails('EXECUTE write');
COMMIT;
SELECT mode FROM lease_fence.guards WHERE relation = 'stock'::regclass;
DEALLOCATE write;

-- ---------------------------------------------------------------------------
-- off: the stamp stays what it was, 0 on a new row, whatever is presented
-- ---------------------------------------------------------------------------
SELECT lease_fence.set_mode('stock', 'off');
UPDATE stock SET n = 7, fence_token = 5 WHERE id = 1 RETURNING n, fence_token = :t AS kept;
INSERT INTO stock VALUES (4, 0, 5) RETURNING fence_token;
BEGIN;
SELECT token AS u FROM lease_fence.acquire('mode:4') \gset
UPDATE stock SET n = 8 WHERE id = 4 RETURNING fence_token;
COMMIT;
INSERT INTO stock VALUES (4, 0, 5) ON CONFLICT (id) DO UPDATE SET n = 9, fence_token = 6 RETURNING n, fence_token;
DELETE FROM stock WHERE id = 4;
-- A later trigger is a danger in this mode too: it could write the stamp.
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.fence_token := 4; RETURN new; END';
CREATE TRIGGER zzzz BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION change();
CALL fails('UPDATE stock SET n = 10');
DROP TRIGGER zzzz ON stock;
-- protect() again sets the mode it is given.
SELECT lease_fence.protect('stock', 'mode:{id}');
CALL fails('UPDATE stock SET n = 10 WHERE id = 1');

-- The table of modes is nobody's to write by hand but a superuser's, and what
-- it does not know is enforced.
UPDATE lease_fence.guard_modes SET mode = 'nonsense' WHERE relation = 'stock'::regclass;
\c -
CALL fails('UPDATE stock SET n = 10 WHERE id = 1');
DELETE FROM lease_fence.guard_modes WHERE relation = 'stock'::regclass;
\c -
CALL fails('UPDATE stock SET n = 10 WHERE id = 1');
SELECT mode FROM lease_fence.guards WHERE relation = 'stock'::regclass;
DROP TABLE stock, item;
DROP FUNCTION change();
DROP PROCEDURE fails;
