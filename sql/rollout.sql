-- Modes and bypass: what is let through, what is kept of it, and what undoes it.
\set VERBOSITY sqlstate
CREATE SCHEMA rollout_test;
SET search_path = rollout_test, lease_fence, public;
CREATE ROLE lf_ro_app;
CREATE ROLE lf_ro_fixer;
GRANT USAGE ON SCHEMA lease_fence, rollout_test TO lf_ro_app, lf_ro_fixer;
GRANT SET ON PARAMETER lease_fence.bypass TO lf_ro_fixer;
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL DEFAULT 10);
CREATE TABLE line (id int PRIMARY KEY, stock_id int);
CREATE TABLE log (id int);
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON stock, line, log TO lf_ro_app, lf_ro_fixer;
SELECT protect(relation => 'stock', resource => 'ro:{id}', mode => 'off'), protect(relation => 'line', resource => 'ro:{stock_id}');
CREATE VIEW bypassed AS SELECT reason, split_part(relation, '.', 2) AS relation, operation, rows, role
    FROM rejected_writes WHERE action = 'bypassed' ORDER BY id;

-- Modes: each by its owner, one word of three, on a guarded table.
INSERT INTO stock SELECT i FROM generate_series(1, 5) i;
SELECT mode FROM guards WHERE relation = 'stock'::regclass;
SELECT set_mode('stock', 'observe');
UPDATE stock SET fence_token = 77 WHERE id = 1;
SELECT set_mode('stock', 'enforce');
UPDATE stock SET n = 0;
SELECT set_mode('stock', 'Enforce');
SELECT set_mode('stock', NULL);
SELECT set_mode(NULL, 'off');
SELECT set_mode('log', 'off');
SELECT set_mode('stock_pkey', 'off');
SET ROLE lf_ro_app;
SELECT set_mode('stock', 'off');
UPDATE lease_fence.guard_modes SET mode = 'off';
RESET ROLE;
SELECT max(fence_token) FROM stock;
-- undone with its transaction, and with its savepoint
BEGIN;
SELECT set_mode('stock', 'off');
UPDATE stock SET n = 11;
ROLLBACK;
UPDATE stock SET n = 0;
BEGIN;
SAVEPOINT s;
SELECT set_mode('stock', 'off');
ROLLBACK TO s;
UPDATE stock SET n = 0;
ROLLBACK;
SELECT mode FROM guards WHERE relation = 'stock'::regclass;
SELECT mode, count(*) FROM guard_modes WHERE relation = 'stock'::regclass GROUP BY 1;

-- Bypass: who may.
SET SESSION AUTHORIZATION lf_ro_app;
SET lease_fence.bypass = 'not for me';
SELECT set_config('lease_fence.bypass', 'not for me', true);
RESET SESSION AUTHORIZATION;

-- One row per statement, table and operation, with what it did and why.
SET SESSION AUTHORIZATION lf_ro_fixer;
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-1 recount';
UPDATE stock SET n = n + 1;
UPDATE stock SET n = n + 1 WHERE id < 3;
UPDATE stock SET n = n WHERE id = 99;
DELETE FROM stock WHERE id = 5;
INSERT INTO stock VALUES (6), (7);
INSERT INTO line VALUES (1, 1);
SET LOCAL lease_fence.bypass = 'INC-2';
UPDATE stock SET n = n + 1 WHERE id = 1;
COMMIT;
RESET SESSION AUTHORIZATION;
SELECT * FROM bypassed;
SELECT count(*) FROM rejected_writes WHERE action = 'bypassed' AND (pid <> pg_backend_pid() OR statement IS NULL OR reason IS NULL);
SELECT statement FROM rejected_writes WHERE action = 'bypassed' AND reason = 'INC-2';
-- only that transaction: also when it was set for the session
UPDATE stock SET n = 0;
BEGIN;
SET lease_fence.bypass = 'INC-3';
UPDATE stock SET n = n + 1 WHERE id = 1;
COMMIT;
SHOW lease_fence.bypass;
UPDATE stock SET n = 0;
RESET lease_fence.bypass;
SET lease_fence.bypass = 'INC-4';
UPDATE stock SET n = 0;
RESET lease_fence.bypass;
-- off again within it
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-5';
SET LOCAL lease_fence.bypass = '';
UPDATE stock SET n = 0;
ROLLBACK;

-- Undone: what was rolled back is in no audit. A savepoint undoes the setting, too.
SELECT count(*) AS before FROM bypassed \gset
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-6';
UPDATE stock SET n = n + 1;
ROLLBACK;
BEGIN;
SAVEPOINT s;
SET LOCAL lease_fence.bypass = 'INC-7';
UPDATE stock SET n = n + 1;
ROLLBACK TO s;
UPDATE stock SET n = 0;
ROLLBACK;
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-8';
UPDATE stock SET n = n + 1 WHERE id = 1;
SAVEPOINT s;
UPDATE stock SET n = n + 1 WHERE id = 2;
ROLLBACK TO s;
SAVEPOINT s2;
UPDATE stock SET n = n + 1 WHERE id = 3;
DELETE FROM line;
RELEASE s2;
COMMIT;
SELECT reason, relation, operation, rows FROM bypassed OFFSET :before;
-- prepared, and committed later; the setting does not outlive it
SELECT count(*) AS before FROM bypassed \gset
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-9';
UPDATE stock SET n = n + 1 WHERE id < 4;
PREPARE TRANSACTION 'lf rollout';
UPDATE stock SET n = 0;
SELECT count(*) - :before AS yet FROM bypassed;
COMMIT PREPARED 'lf rollout';
SELECT reason, operation, rows FROM bypassed OFFSET :before;

-- A statement whose triggers and functions run SQL is one statement.
CREATE FUNCTION note_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (NEW.id); RETURN NEW; END $$;
CREATE TRIGGER a_note BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION note_it();
SELECT count(*) AS before FROM bypassed \gset
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-10';
INSERT INTO stock SELECT i FROM generate_series(101, 1100) i;
UPDATE stock SET n = n + 1 WHERE id > 100;
DO $$ BEGIN FOR i IN 101 .. 110 LOOP DELETE FROM stock WHERE id = i; END LOOP; END $$;
DO $$ BEGIN
    FOR i IN 111 .. 120 LOOP
        BEGIN DELETE FROM stock WHERE id = i; EXCEPTION WHEN unique_violation THEN NULL; END;
        BEGIN DELETE FROM stock WHERE id = i + 10; PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END;
    END LOOP;
END $$;
COMMIT;
SELECT reason, operation, rows FROM bypassed OFFSET :before;
-- guarded functions, COPY, TRUNCATE, MERGE
SELECT count(*) AS before FROM bypassed \gset
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-11';
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n');
COPY stock (id) FROM stdin;
2001
2002
\.
MERGE INTO stock USING (VALUES (2001), (3001)) AS v (id) ON stock.id = v.id
    WHEN MATCHED THEN UPDATE SET n = 5 WHEN NOT MATCHED THEN INSERT VALUES (v.id);
TRUNCATE line;
COMMIT;
SELECT * FROM (SELECT reason, relation, operation, rows FROM bypassed OFFSET :before) b ORDER BY 2, 3, 4;
-- the client's stamp counts for nothing, and an old one stays
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-12';
UPDATE stock SET fence_token = 123;
INSERT INTO stock (id, fence_token) VALUES (4001, 123);
COMMIT;
SELECT max(fence_token) FROM stock;
-- in mode off there is nothing to bypass
SELECT set_mode('stock', 'off');
SELECT count(*) AS before FROM bypassed \gset
BEGIN;
SET LOCAL lease_fence.bypass = 'INC-13';
UPDATE stock SET n = 1 WHERE id = 1;
COMMIT;
SELECT count(*) - :before AS more FROM bypassed;
-- long reasons, and odd ones
SELECT set_mode('stock', 'enforce');
BEGIN;
SELECT set_config('lease_fence.bypass', repeat('ü', 3000) || E'\'";\n', true) IS NOT NULL AS set;
UPDATE stock SET n = 2 WHERE id = 1;
COMMIT;
SELECT length(reason) FROM bypassed ORDER BY 1 DESC LIMIT 1;

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA rollout_test CASCADE;
REVOKE ALL ON SCHEMA lease_fence FROM lf_ro_app, lf_ro_fixer;
REVOKE SET ON PARAMETER lease_fence.bypass FROM lf_ro_fixer;
DROP ROLE lf_ro_app, lf_ro_fixer;
