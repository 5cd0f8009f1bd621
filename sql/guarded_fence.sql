-- Guarded functions at the fence: under which token, and what a stale one gets.
\set VERBOSITY sqlstate
CREATE SCHEMA guarded_fence;
SET search_path = guarded_fence, lease_fence, public;
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL DEFAULT 10, note text);
SELECT protect(relation => 'stock', resource => 'gf:{id}');
SELECT token AS old FROM acquire(resource => 'gf:1', scope => 'detached', holder => 'a') \gset
INSERT INTO stock VALUES (1);
SELECT outcome, new_row_out ->> 'n' AS n FROM guarded_insert('stock', '{"id": 1}', token => :old);

-- A token argument counts for its call alone.
BEGIN;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :old);
UPDATE stock SET n = 0;
ROLLBACK;
BEGIN;
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :old);
SELECT outcome FROM guarded_decrement('stock', '1', 'n');
ROLLBACK;
SELECT (guarded_decrement('stock', '1', 'n', token => :old)).outcome, (guarded_decrement('stock', '1', 'n')).outcome;
-- also when the call failed
BEGIN;
SAVEPOINT s;
SELECT guarded_update('stock', '1', '{"n": null}', token => :old);
ROLLBACK TO s;
UPDATE stock SET n = 0;
ROLLBACK;
-- NULL: what the transaction has presented
BEGIN;
SELECT present(:old);
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n');
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => NULL);
ROLLBACK;
BEGIN;
SET LOCAL lease_fence.token = :'old';
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n');
ROLLBACK;
-- a token of something else, none, or no token at all
SELECT token AS other FROM acquire(resource => 'gf:other', scope => 'detached') \gset
SELECT guarded_decrement('stock', '1', 'n', token => :other);
SELECT guarded_decrement('stock', '1', 'n', token => 1);
SELECT guarded_decrement('stock', '1', 'n');
SELECT guarded_decrement('stock', '1', 'n', token => 0);
SELECT guarded_decrement('stock', '1', 'n', token => -1);
SELECT guarded_insert('stock', '{"id": 2}', token => :old);
SELECT guarded_insert('stock', '{"id": 2}');

-- Both a presented token and an argument: either may cover the row.
SELECT token AS second FROM acquire(resource => 'gf:2', scope => 'detached') \gset
SELECT outcome FROM guarded_insert('stock', '{"id": 2}', token => :second);
BEGIN;
SELECT present(:second);
SELECT a.outcome, b.outcome FROM guarded_decrement('stock', '1', 'n', token => :old) a, guarded_decrement('stock', '2', 'n', token => :old) b;
ROLLBACK;

-- A statement's two calls, under two tokens; one that is refused takes all with it.
SELECT a.outcome, b.outcome FROM guarded_decrement('stock', '1', 'n', token => :old) a, guarded_decrement('stock', '2', 'n', token => :second) b;
SELECT a.outcome, b.outcome FROM guarded_decrement('stock', '1', 'n', token => :old) a, guarded_decrement('stock', '2', 'n', token => :old) b;
SELECT id, n FROM stock ORDER BY id;

-- Nothing is written, and still: stale is never an outcome.
SELECT token AS new FROM acquire(resource => 'gf:1', scope => 'detached', holder => 'a') \gset
SELECT guarded_decrement('stock', '1', 'n', token => :old);
SELECT guarded_decrement('stock', '1', 'n', token => :old, amount => 1000);
SELECT guarded_decrement('stock', '1', 'n', token => :old, floor => 1e20);
SELECT guarded_update('stock', '1', '{"note": "x"}', token => :old, expected => '{"n": 1000}');
SELECT guarded_delete('stock', '1', token => :old, expected => '{"n": 1000}');
SELECT guarded_decrement('stock', '7', 'n', token => :old);
SELECT guarded_update('stock', '7', '{"note": "x"}', token => :old);
SELECT guarded_delete('stock', '7', token => :old);
SELECT guarded_insert('stock', '{"id": 1}', token => :old);
SELECT guarded_decrement('stock', '1', 'n', amount => 1000);
BEGIN;
SET LOCAL lease_fence.token = :'old';
SELECT guarded_decrement('stock', '1', 'n', amount => 1000);
ROLLBACK;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :new, amount => 1000);
SELECT outcome FROM guarded_decrement('stock', '7', 'n', token => :new);
SELECT outcome FROM guarded_decrement('stock', '7', 'n');
SELECT guarded_decrement('stock', '7', 'n', token => 1);
-- released, and revoked
SELECT release(:new);
SELECT guarded_decrement('stock', '1', 'n', token => :new);
SELECT guarded_decrement('stock', '1', 'n', token => :new, amount => 1000);
SELECT guarded_decrement('stock', '7', 'n', token => :new);
-- in the audit, each of them once
SELECT count(*) FROM rejected_writes WHERE presented_token = :old;
SELECT operation, reason, key, count(*) FROM rejected_writes WHERE presented_token IN (:old, :new) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- A trigger that swallows the write before the guard sees it.
CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER a_swallow BEFORE INSERT OR UPDATE OR DELETE ON stock FOR EACH ROW EXECUTE FUNCTION swallow();
SELECT token AS third FROM acquire(resource => 'gf:1', scope => 'detached') \gset
SELECT guarded_insert('stock', '{"id": 5}', token => :new);
SELECT guarded_update('stock', '1', '{"n": 1}', token => :new);
SELECT guarded_delete('stock', '1', token => :new);
SELECT outcome FROM guarded_update('stock', '1', '{"n": 1}', token => :third);
SELECT outcome FROM guarded_insert('stock', '{"id": 5}', token => :third);
DROP TRIGGER a_swallow ON stock;

-- Where nothing is enforced nothing is refused.
SELECT set_mode('stock', 'observe');
SELECT outcome FROM guarded_decrement('stock', '7', 'n', token => :old);
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :old, amount => 1000);
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :old);
SELECT fence_token = :old AS stamp_kept FROM stock WHERE id = 1;
SELECT set_mode('stock', 'off');
SELECT outcome FROM guarded_decrement('stock', '7', 'n', token => :old);
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => 1);
SELECT set_mode('stock', 'enforce');
BEGIN;
SET LOCAL lease_fence.bypass = 'guarded_fence';
SELECT outcome FROM guarded_decrement('stock', '7', 'n', token => :old);
SELECT outcome FROM guarded_decrement('stock', '1', 'n', token => :old, amount => 1000);
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :old);
ROLLBACK;

-- Savepoints: the write goes, the token stays good.
BEGIN;
SAVEPOINT s;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :third);
ROLLBACK TO s;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :third);
RELEASE s;
COMMIT;
SELECT n FROM stock WHERE id = 1;
-- Isolation levels.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', token => :third);
COMMIT;
BEGIN READ ONLY;
SELECT guarded_decrement('stock', '1', 'n', token => :third);
ROLLBACK;

-- From functions, and from triggers: a token argument holds for what its call sets off.
CREATE FUNCTION take(stock_id int, stock_token bigint) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    answer record;
BEGIN
    answer := guarded_decrement('stock', stock_id::text, 'n', token => stock_token);
    RETURN answer.remaining;
EXCEPTION WHEN SQLSTATE 'LF001' THEN
    RETURN -1;
END $$;
SELECT take(1, :third), take(1, :old);
CREATE TABLE line (id int PRIMARY KEY, stock_id int);
SELECT protect(relation => 'line', resource => 'gf:{stock_id}');
CREATE FUNCTION also_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE stock SET n = n - 1 WHERE id = NEW.stock_id;
    PERFORM guarded_update('stock', NEW.stock_id::text, '{"note": "nested"}', token => current_setting('guarded_fence.third')::bigint);
    RETURN NULL;
END $$;
SELECT set_config('guarded_fence.third', :'third', false) IS NOT NULL AS set;
CREATE TRIGGER also AFTER INSERT ON line FOR EACH ROW EXECUTE FUNCTION also_take();
SELECT outcome FROM guarded_insert('line', '{"id": 1, "stock_id": 1}', token => :third);
SELECT n, note FROM stock WHERE id = 1;
SELECT guarded_insert('line', '{"id": 2, "stock_id": 1}', token => :old);
UPDATE stock SET n = 0 WHERE id = 1;

-- A cascade of a foreign key within a call, under the call's token.
CREATE TABLE part (id int PRIMARY KEY, stock_id int REFERENCES stock ON DELETE CASCADE);
SELECT protect(relation => 'part', resource => 'gf:{stock_id}');
SELECT outcome FROM guarded_insert('part', '{"id": 1, "stock_id": 1}', token => :third);
SELECT outcome FROM guarded_insert('part', '{"id": 2, "stock_id": 2}', token => :second);
SELECT outcome FROM guarded_delete('stock', '1', token => :third);
SELECT id FROM part;
-- a cascade is never put off, deferrable or not
ALTER TABLE part DROP CONSTRAINT part_stock_id_fkey;
ALTER TABLE part ADD FOREIGN KEY (stock_id) REFERENCES stock ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
SELECT outcome FROM guarded_delete('stock', '2', token => :second);
SELECT count(*) FROM part;

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA guarded_fence CASCADE;
