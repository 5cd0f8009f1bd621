-- The audit: what a refused write leaves behind, although it was rolled back.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set wait_for_setting :source '/sql/include/wait_for_setting.sql'
\set ECHO all
-- However slow the machine is, nothing goes to the server log instead.
ALTER SYSTEM SET lease_fence.audit_timeout = '1min';
SELECT pg_reload_conf();
\set setting lease_fence.audit_timeout
\set value 1min
\set ECHO none
\i :wait_for_setting
\set ECHO all

CREATE TABLE stock (id int, shop text, n int, PRIMARY KEY (id, shop));
INSERT INTO stock VALUES (1, 'a "b"', 10);
SELECT lease_fence.protect('stock', 'audit:{id}');
CREATE TABLE bare (id int);
SELECT lease_fence.protect('bare', 'audit:bare:{id}');
SELECT token AS old FROM lease_fence.acquire('audit:1', scope => 'detached', holder => 'paused', ttl => '10 ms') \gset
SELECT pg_sleep(0.03);
SET application_name = 'audited';
CREATE VIEW audit AS
SELECT row_number() OVER (ORDER BY at, id) AS n, r.* FROM lease_fence.rejected_writes r
WHERE application_name = 'audited';

-- ---------------------------------------------------------------------------
-- One row for each rejection, there before the client hears of it
-- ---------------------------------------------------------------------------
BEGIN;
SET LOCAL lease_fence.token = :old;
\set VERBOSITY sqlstate
UPDATE stock SET n = 9 /* lapsed */ WHERE id = 1;
ROLLBACK;
SELECT token AS new FROM lease_fence.acquire('audit:1', scope => 'detached', holder => 'successor') \gset
BEGIN;
SET LOCAL lease_fence.token = :old;
DELETE FROM stock /* superseded */;
ROLLBACK;
UPDATE stock SET n = 8 /* missing */;
INSERT INTO bare VALUES (NULL) /* no resource */;
BEGIN;
SET LOCAL lease_fence.token = '9223372036854775807';
INSERT INTO stock VALUES (1, 'x') /* unknown */;
ROLLBACK;
TRUNCATE stock /* truncate */;
SELECT lease_fence.revoke('audit:1');
BEGIN;
SET LOCAL lease_fence.token = :new;
UPDATE stock SET n = 7 /* revoked */;
ROLLBACK;
SELECT token AS rel FROM lease_fence.acquire('audit:1', scope => 'detached', holder => 'third') \gset
SELECT lease_fence.release(:rel);
BEGIN;
SET LOCAL lease_fence.token = :rel;
UPDATE stock SET n = 6 /* released */;
ROLLBACK;
\set VERBOSITY default
SELECT n, action, reason, relation, operation, key, resource, rows FROM audit ORDER BY n;
SELECT n, presented_token = CASE presented_token WHEN :old THEN :old WHEN :new THEN :new WHEN :rel THEN :rel ELSE 9223372036854775807 END AS presented,
       convert_from(presented_holder, 'UTF8') AS presented_holder,
       current_token IN (:old, :new, :rel) AS current, convert_from(current_holder, 'UTF8') AS current_holder,
       over_for > '0' AS over_for
FROM audit ORDER BY n;
SELECT n, substring(statement FROM '/\* (.*) \*/') AS statement, new_row FROM audit ORDER BY n;
SELECT DISTINCT role = current_user AS role, pid = pg_backend_pid() AS pid, client <> '' AS client,
       at BETWEEN now() - interval '10 min' AND clock_timestamp() AS at
FROM audit;
SELECT count(DISTINCT id) = count(*) AS ids_are_distinct FROM audit;

-- ---------------------------------------------------------------------------
-- Savepoints, EXCEPTION blocks: each rejection once, however it ends
-- ---------------------------------------------------------------------------
SET application_name = 'audited twice';
CREATE OR REPLACE VIEW audit AS
SELECT row_number() OVER (ORDER BY at, id) AS n, r.* FROM lease_fence.rejected_writes r
WHERE application_name = 'audited twice';
BEGIN;
SAVEPOINT s;
\set VERBOSITY sqlstate
UPDATE stock SET n = 5;
ROLLBACK TO s;
UPDATE stock SET n = 5;
ROLLBACK TO s;
\set VERBOSITY default
-- It is there while this transaction is still open.
SELECT count(*) FROM audit;
DO $$ BEGIN UPDATE stock SET n = 5; EXCEPTION WHEN OTHERS THEN NULL; END $$;
COMMIT;
SELECT n, reason, operation, rows FROM audit ORDER BY n;
DO $$
BEGIN
    FOR i IN 1..200 LOOP
        BEGIN
            UPDATE stock SET n = i;
        EXCEPTION WHEN SQLSTATE 'LF003' THEN
            NULL;
        END;
    END LOOP;
END $$;
SELECT count(*), count(DISTINCT id) AS ids FROM audit;

-- What is refused before it is a write is not in it: bad arguments, LF007, a
-- privilege, present() of a stale token.
SET application_name = 'not audited';
CALL fails($$SELECT lease_fence.acquire('')$$);
SELECT format('SELECT lease_fence.present(%s)', :old) AS statement \gset
CALL fails(:'statement');
SELECT count(*) FROM lease_fence.rejected_writes WHERE application_name = 'not audited';

-- ---------------------------------------------------------------------------
-- The key is there, the row only where that was asked for
-- ---------------------------------------------------------------------------
ALTER SYSTEM SET lease_fence.audit_row = 'full';
SELECT pg_reload_conf();
\set setting lease_fence.audit_row
\set value full
\set ECHO none
\i :wait_for_setting
\set ECHO all
SET application_name = 'audited in full';
SHOW lease_fence.audit_row;
\set VERBOSITY sqlstate
UPDATE stock SET n = 4;
DELETE FROM stock;
INSERT INTO stock VALUES (2, E'line\nbreak 🔒');
INSERT INTO bare VALUES (3);
\set VERBOSITY default
SELECT operation, key, new_row FROM lease_fence.rejected_writes
WHERE application_name = 'audited in full' ORDER BY at, id;
ALTER SYSTEM RESET lease_fence.audit_row;
SELECT pg_reload_conf();
\set setting lease_fence.audit_row
\set value key
\set ECHO none
\i :wait_for_setting
\set ECHO all

-- A long statement, a long name, a key of every kind: cut, never in the way.
SET application_name = 'audited at length';
CREATE TABLE "a table of a very long name which has sixty-three bytes, really" (
    a numeric, b text, c timestamptz, d jsonb, e bytea, PRIMARY KEY (a, b, c, d, e));
SELECT lease_fence.protect('"a table of a very long name which has sixty-three bytes, really"', 'audit:{b}');
SELECT format('INSERT INTO "a table of a very long name which has sixty-three bytes, really" VALUES (1.50, %L, ''epoch'', ''{"x": 1}'', ''\x00ff'') /* %s */',
              repeat('é', 200), repeat('é', 100000)) AS statement \gset
\set VERBOSITY sqlstate
\set ECHO none
:statement;
\set ECHO all
\set VERBOSITY default
SELECT relation, length(statement) BETWEEN 100 AND 100000 AS statement, left(key, 30) AS key, octet_length(resource)
FROM lease_fence.rejected_writes WHERE application_name = 'audited at length';

SELECT worker, audit_written > 200 AS written FROM lease_fence.worker_status;
DROP TABLE "a table of a very long name which has sixty-three bytes, really";
DROP VIEW audit;
DROP TABLE stock, bare;
-- The audit names a table that is gone.
SELECT DISTINCT relation FROM lease_fence.rejected_writes WHERE application_name = 'audited' ORDER BY 1;
ALTER SYSTEM RESET lease_fence.audit_timeout;
SELECT pg_reload_conf();
DROP PROCEDURE fails;
