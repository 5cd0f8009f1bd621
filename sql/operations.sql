-- Operation keys: applied at most once, and who asks again gets that answer.
\set VERBOSITY sqlstate
CREATE SCHEMA operations_test;
SET search_path = operations_test, lease_fence, public;
CREATE ROLE lf_op_one;
CREATE ROLE lf_op_two;
GRANT USAGE ON SCHEMA operations_test, lease_fence TO lf_op_one, lf_op_two;
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL DEFAULT 10, note text);
GRANT SELECT, INSERT, UPDATE, DELETE ON stock TO lf_op_one, lf_op_two;
SELECT protect(relation => 'stock', resource => 'op:{id}');
SELECT token AS t1 FROM acquire(resource => 'op:1', scope => 'detached', holder => 'h') \gset

-- Each function: once, then its answer. A different token changes nothing.
SELECT outcome, new_row_out ->> 'n' AS n FROM guarded_insert('stock', '{"id": 1}', token => :t1, operation_key => 'op insert');
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :t1, amount => 2, operation_key => 'op decrement');
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'n', token => :t1, operation_key => 'op increment');
SELECT outcome, new_row ->> 'note' AS note FROM guarded_update('stock', '1', '{"note": "x"}', token => :t1, operation_key => 'op update');
SELECT outcome, old_row ->> 'n' AS n FROM guarded_delete('stock', '1', token => :t1, operation_key => 'op delete');
SELECT token AS t2 FROM acquire(resource => 'op:1', scope => 'detached', holder => 'h') \gset
-- under the stale token, none, one that was never minted, and the new one
SELECT outcome, new_row_out ->> 'n' AS n FROM guarded_insert('stock', '{"id": 1}', token => :t1, operation_key => 'op insert');
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', amount => 2, operation_key => 'op decrement');
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'n', token => 1, operation_key => 'op increment');
SELECT outcome, new_row ->> 'note' AS note FROM guarded_update('stock', '1', '{"note": "x"}', token => :t2, operation_key => 'op update');
SELECT outcome, old_row ->> 'n' AS n FROM guarded_delete('stock', '1', token => :t1, operation_key => 'op delete');
SELECT count(*) FROM stock;
SELECT relation, outcome, answer ->> 'note' AS note, token = :t1 AS first_token, at <= now() AS at FROM operation('op update');
SELECT answer FROM operation('op decrement');
SELECT * FROM operation('op never');
SELECT outcome FROM guarded_insert('stock', '{"id": 1}', token => :t2, operation_key => 'op insert 2');

-- Another request under the same key.
SELECT guarded_decrement('stock', '1', 'n', token => :t2, amount => 3, operation_key => 'op decrement');
SELECT guarded_decrement('stock', '2', 'n', token => :t2, amount => 2, operation_key => 'op decrement');
SELECT guarded_increment('stock', '1', 'n', token => :t2, amount => 2, operation_key => 'op decrement');
SELECT guarded_decrement('stock', '1', 'n', token => :t2, amount => 2, floor => 1, operation_key => 'op decrement');
SELECT guarded_decrement('stock', '1', 'n', token => :t2, amount => 2, floor => NULL, operation_key => 'op decrement');
SELECT guarded_update('stock', '1', '{"note": "x"}', expected => '{"n": 1}', token => :t2, operation_key => 'op update');
SELECT guarded_update('stock', '1', '{"note": "y"}', token => :t2, operation_key => 'op update');
-- the same one in other words of JSON
SELECT outcome FROM guarded_update('stock', '1', '{ "note" :"x" }', token => :t2, operation_key => 'op update');
-- parts that run into each other are not the same
SELECT outcome FROM guarded_update('stock', '1', '{"note": "a"}', token => :t2, expected => '{"n": 10}', operation_key => 'op parts');
SELECT guarded_update('stock', '1', '{"note": "a"}', token => :t2, operation_key => 'op parts');

-- Only what was applied is recorded.
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :t2, amount => 100, operation_key => 'op not met');
SELECT count(*) FROM operation('op not met');
SELECT outcome FROM guarded_decrement('stock', '7', 'n', token => :t2, operation_key => 'op not met');
SELECT count(*) FROM operation('op not met');
SELECT guarded_decrement('stock', '1', 'n', token => :t1, operation_key => 'op not met');
SELECT count(*) FROM operation('op not met');
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op not met');
SELECT count(*) FROM operation('op not met');

-- A rolled-back attempt, of a transaction and of a savepoint, leaves nothing.
BEGIN;
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op rolled back');
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op rolled back');
ROLLBACK;
SELECT count(*) FROM operation('op rolled back');
BEGIN;
SAVEPOINT s;
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op rolled back');
ROLLBACK TO s;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op rolled back');
COMMIT;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op rolled back');
-- two calls with one key in one statement
SELECT a.outcome, a.remaining, b.outcome, b.remaining
FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op twice') a,
     guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op twice') b;
-- prepared transactions: nobody knows until they end
BEGIN;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op prepared');
PREPARE TRANSACTION 'lf operations';
SET lock_timeout = '50ms';
SELECT guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op prepared');
RESET lock_timeout;
SELECT count(*) FROM operation('op prepared');
COMMIT PREPARED 'lf operations';
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :t2, operation_key => 'op prepared');
-- a cursor that fails inside a savepoint keeps the key for what it wrote before
CREATE FUNCTION calls() RETURNS SETOF text LANGUAGE sql AS $$ VALUES ('1'), ('nonsense') $$;
BEGIN;
SELECT set_config('lease_fence.token', :'t2', true) IS NOT NULL AS set;
DECLARE c CURSOR FOR SELECT (guarded_increment('stock', k, 'n', operation_key => 'op cursor')).outcome FROM calls() k;
FETCH 1 FROM c;
SAVEPOINT s;
FETCH 1 FROM c;
ROLLBACK TO s;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND pid = pg_backend_pid();
ROLLBACK;

-- Roles: another one is told nothing, a member of the same one everything.
SET ROLE lf_op_one;
SELECT token AS t3 FROM acquire(resource => 'op:3', scope => 'detached') \gset
SELECT outcome FROM guarded_insert('stock', '{"id": 3}', token => :t3, operation_key => 'op role');
SELECT outcome FROM guarded_insert('stock', '{"id": 3}', token => :t3, operation_key => 'op role');
SELECT count(*) FROM operation('op role');
SELECT count(*) FROM operation('op update');
SELECT guarded_update('stock', '1', '{"note": "x"}', operation_key => 'op update');
RESET ROLE;
SET SESSION AUTHORIZATION lf_op_two;
SELECT guarded_insert('stock', '{"id": 3}', operation_key => 'op role');
SELECT count(*) FROM operation('op role');
SELECT * FROM operations;
DELETE FROM operations;
RESET SESSION AUTHORIZATION;
GRANT lf_op_one TO lf_op_two;
SET SESSION AUTHORIZATION lf_op_two;
SELECT outcome FROM guarded_insert('stock', '{"id": 3}', operation_key => 'op role');
SELECT count(*) FROM operation('op role');
RESET SESSION AUTHORIZATION;
SELECT outcome FROM guarded_insert('stock', '{"id": 3}', operation_key => 'op role');
SELECT key, role FROM operations WHERE key LIKE 'op r%' ORDER BY key;

-- Keys: 1 to 255 bytes, any of them.
SELECT guarded_increment('stock', '1', 'n', token => :t2, operation_key => '');
SELECT guarded_increment('stock', '1', 'n', token => :t2, operation_key => repeat('k', 256));
SELECT guarded_increment('stock', '1', 'n', token => :t2, operation_key => repeat('k', 10240));
SELECT guarded_increment('stock', '1', 'n', token => :t2, operation_key => repeat('ü', 128));
SELECT * FROM operation('');
SELECT * FROM operation(repeat('k', 10240));
SELECT * FROM operation(NULL);
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => repeat('k', 255));
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => repeat('k', 255));
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => E' \'";\n--');
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => E' \'";\n--');
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => ' ');
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => '  ');

-- Indexes that a DBA has added are kept up: one of an expression, and a partial one.
CREATE INDEX dba_expression ON operations (upper(key)) WHERE key ~ 'Indexed';
CREATE INDEX dba_grants ON grants (upper(resource)) WHERE scope = 'detached';
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => 'op Indexed');
SELECT outcome FROM guarded_increment('stock', '1', 'n', token => :t2, operation_key => 'op other');
SELECT token > 0 AS granted FROM acquire(resource => 'op:Indexed', scope => 'detached');
SET enable_seqscan = off;
SELECT key FROM operations WHERE upper(key) = 'OP INDEXED' AND key ~ 'Indexed';
SELECT resource FROM grants WHERE upper(resource) = 'OP:INDEXED' AND scope = 'detached';
RESET enable_seqscan;
DROP INDEX dba_expression, dba_grants;
-- The table may be gone, or have another name.
ALTER TABLE stock RENAME TO stock_renamed;
SELECT relation FROM operation('op twice');
SELECT guarded_decrement('stock_renamed', '1', 'n', token => :t2, operation_key => 'op twice');
DROP TABLE stock_renamed;
SELECT relation::text ~ '^\d+$' AS number FROM operation('op twice');

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA operations_test CASCADE;
REVOKE ALL ON SCHEMA lease_fence FROM lf_op_one, lf_op_two;
DROP ROLE lf_op_one, lf_op_two;
