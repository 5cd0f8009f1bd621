-- Rows are named by any unique key: of every type, of several columns, with odd
-- names, by a bare value or by JSON.
\set VERBOSITY terse
CREATE SCHEMA guarded_keys;
SET search_path = guarded_keys, lease_fence, public;
CREATE TYPE mood AS ENUM ('sad', 'it''s "fine"');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN sku AS text CHECK (VALUE ~ '^[A-Z]');
CREATE DOMAIN cents AS numeric(10,2);

-- For each type: a table whose key has it, two rows, and each function by the
-- bare value and by JSON. Says what came out for the first row, and that the
-- second one is as it was.
CREATE FUNCTION each_call(type text, value text, other text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    by_json text := jsonb_build_object('id', value)::text;
    result text := '';
    one text;
BEGIN
    EXECUTE format('CREATE TABLE keyed (id %s PRIMARY KEY, n int NOT NULL)', type);
    PERFORM protect(relation => 'keyed', resource => 'keyed');
    PERFORM acquire(resource => 'keyed');
    EXECUTE format('INSERT INTO keyed VALUES (%L, 10), (%L, 20)', value, other);
    SELECT outcome || (new_row ->> 'n') INTO one FROM guarded_update('keyed', value, '{"n": 7}');
    result := result || one;
    SELECT outcome || (new_row ->> 'n') INTO one FROM guarded_update('keyed', by_json, '{"n": 8}', expected => '{"n": 7}');
    result := result || ' ' || one;
    SELECT outcome || remaining INTO one FROM guarded_decrement('keyed', value, 'n', amount => 3);
    result := result || ' ' || one;
    SELECT outcome || remaining INTO one FROM guarded_increment('keyed', by_json, 'n');
    result := result || ' ' || one;
    SELECT outcome INTO one FROM guarded_delete('keyed', value);
    result := result || ' ' || one;
    SELECT outcome INTO one FROM guarded_delete('keyed', by_json);
    result := result || ' ' || one;
    SELECT outcome INTO one FROM guarded_insert('keyed', jsonb_build_object('id', value, 'n', 1));
    result := result || ' ' || one;
    SELECT string_agg(n::text, ',' ORDER BY n) INTO one FROM keyed;
    DROP TABLE keyed;
    RETURN result || ' ' || one;
END $$;

SELECT type, each_call(type, value, other) FROM (VALUES
    (1, 'smallint', '-7', '7'),
    (2, 'integer', '1001', '1002'),
    (3, 'bigint', '9223372036854775807', '-9223372036854775808'),
    (4, 'oid', '4294967295', '1'),
    (5, 'numeric', '1.50', '1.51'),
    (6, 'numeric(10,2)', '1.5', '1.51'),
    (7, 'real', '0.5', '0.25'),
    (8, 'double precision', '0.1', '0.2'),
    (9, 'boolean', 'true', 'false'),
    (10, 'text', 'SKU-1', 'SKU-2'),
    (11, 'text', 'it''s; DROP TABLE keyed --', '"'),
    (12, 'text', '', ' '),
    (13, 'varchar(5)', 'abc', 'abcd'),
    (14, 'char(5)', 'abc', 'abcd'),
    (15, '"char"', 'x', 'y'),
    (16, 'name', 'abc', 'abd'),
    (17, 'bytea', '\x00ff', '\x00'),
    (18, 'uuid', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'),
    (19, 'date', '2026-02-28', '2026-03-01'),
    (20, 'timestamp', '2026-02-28 12:00:00.000001', '2026-02-28 12:00:00'),
    (21, 'timestamptz', '2026-02-28 12:00:00+02', '2026-02-28 12:00:00+01'),
    (22, 'time', '12:00:01', '12:00'),
    (23, 'interval', '1 day', '2 days'),
    (24, 'inet', '192.168.0.1/24', '192.168.0.1'),
    (25, 'cidr', '10.0.0.0/8', '10.0.0.0/16'),
    (26, 'macaddr', '08:00:2b:01:02:03', '08:00:2b:01:02:04'),
    (27, 'mood', 'it''s "fine"', 'sad'),
    (28, 'sku', 'A-1', 'B-1'),
    (29, 'cents', '1.5', '1.6'),
    (30, 'int4range', '[1,5)', '[1,6)'),
    (32, 'pair', '(1,"a b")', '(1,)'),
    (34, 'bit(3)', '101', '111')
  ) AS v (number, type, value, other)
ORDER BY number;

-- Keys that begin with a brace are JSON; so are arrays and objects within one.
CREATE TABLE boxed (tags int[] PRIMARY KEY, one pair UNIQUE, doc jsonb UNIQUE, curly text UNIQUE, n int DEFAULT 0);
SELECT protect(relation => 'boxed', resource => 'boxed');
BEGIN;
SELECT token > 0 AS taken FROM acquire(resource => 'boxed');
INSERT INTO boxed VALUES ('{1,2}', '(1,x)', '{"a": [1]}', '{1}');
SELECT outcome FROM guarded_increment('boxed', '{"tags": [1, 2]}', 'n');
SELECT outcome FROM guarded_increment('boxed', '{"tags": "{1,2}"}', 'n');
SELECT outcome FROM guarded_increment('boxed', '{"one": {"a": 1, "b": "x"}}', 'n');
SELECT outcome FROM guarded_increment('boxed', '{"one": "(1,x)"}', 'n');
SELECT outcome FROM guarded_increment('boxed', '{"doc": {"a": [1]}}', 'n');
SELECT outcome FROM guarded_increment('boxed', '{"curly": "{1}"}', 'n');
SELECT outcome, remaining FROM guarded_increment('boxed', '{"tags": [2, 1]}', 'n');
SELECT n FROM boxed;
COMMIT;

-- A key is not rounded to its column's digits, nor cut to its length.
CREATE TABLE rounded (price numeric(10,2) PRIMARY KEY, at timestamptz(0) UNIQUE, c varchar(3) UNIQUE, d cents UNIQUE, n int DEFAULT 0);
SELECT protect(relation => 'rounded', resource => 'rounded');
BEGIN;
SELECT token > 0 AS taken FROM acquire(resource => 'rounded');
INSERT INTO rounded VALUES (1.23, '2026-01-01 00:00:01+00', 'abc', 4.56);
SELECT outcome FROM guarded_increment('rounded', '1.234', 'n');
SELECT outcome FROM guarded_increment('rounded', '1.230', 'n');
SELECT outcome FROM guarded_increment('rounded', '{"at": "2026-01-01 00:00:01.2+00"}', 'n');
SELECT outcome FROM guarded_increment('rounded', '{"at": "2026-01-01 00:00:01.0+00"}', 'n');
SELECT outcome FROM guarded_increment('rounded', '{"c": "abcd"}', 'n');
SELECT outcome FROM guarded_increment('rounded', '{"d": 4.561}', 'n');
SELECT outcome FROM guarded_increment('rounded', '{"d": 4.56}', 'n');
SELECT n FROM rounded;
COMMIT;

-- Several columns, in any order; a column named as we name the row; odd names.
CREATE TABLE "Od""d ta.ble" (t int, "SELECT" text, "ü ""x""" uuid NOT NULL DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
    t_ int DEFAULT 5, "$1" int DEFAULT 3, dropped int, PRIMARY KEY (t, "SELECT"));
ALTER TABLE "Od""d ta.ble" DROP COLUMN dropped;
CREATE UNIQUE INDEX ON "Od""d ta.ble" ("ü ""x""") INCLUDE (t_);
SELECT protect(relation => '"Od""d ta.ble"', resource => 'odd:{t}', token_column => 'Fence "Token"');
BEGIN;
SELECT token > 0 AS taken FROM acquire(resource => 'odd:1');
SELECT outcome, new_row_out - 'Fence "Token"' AS new_row FROM guarded_insert('"Od""d ta.ble"', '{"t": 1, "SELECT": "it''s"}');
SELECT outcome, remaining FROM guarded_decrement('"Od""d ta.ble"', '{"SELECT": "it''s", "t": 1}', 't_');
SELECT outcome, remaining FROM guarded_increment('"Od""d ta.ble"', '{"t": 1, "SELECT": "it''s"}', '$1', ceiling => 4);
SELECT outcome, new_row - 'Fence "Token"' AS new_row
    FROM guarded_update('"Od""d ta.ble"', '{"ü \"x\"": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}', '{"t_": 9, "$1": null}', expected => '{"t": 1, "$1": 4}');
SELECT outcome, old_row - 'Fence "Token"' AS old_row FROM guarded_delete('"Od""d ta.ble"', '{"t": 1, "SELECT": "it''s"}', expected => '{"$1": null}');
COMMIT;

-- What is no unique key, or only part of one.
CREATE TABLE partly (id int PRIMARY KEY, a int, b int, c int, d int UNIQUE DEFERRABLE, e int, f text, g int);
CREATE UNIQUE INDEX ON partly (a, b);
CREATE UNIQUE INDEX ON partly (c) WHERE c > 0;
CREATE UNIQUE INDEX ON partly ((e + 1));
CREATE INDEX ON partly (g);
SELECT protect(relation => 'partly', resource => 'partly');
SELECT guarded_increment('partly', '{"a": 1}', 'g');
SELECT guarded_increment('partly', '{"id": 1, "a": 1}', 'g');
SELECT guarded_increment('partly', '{"c": 1}', 'g');
SELECT guarded_increment('partly', '{"d": 1}', 'g');
SELECT guarded_increment('partly', '{"e": 1}', 'g');
SELECT guarded_increment('partly', '{"g": 1}', 'e');
SELECT guarded_increment('partly', '{}', 'g');
SELECT guarded_increment('partly', '{"nosuch": 1}', 'g');
SELECT guarded_increment('partly', '{"ctid": "(0,1)"}', 'g');
SELECT guarded_increment('partly', '{"id": null}', 'g');
SELECT guarded_increment('partly', '{"id": "one"}', 'g');
SELECT guarded_increment('partly', '{"id": [1]}', 'g');
SELECT guarded_increment('partly', '{"id": 99999999999}', 'g');
SELECT guarded_increment('partly', '{"id": 1', 'g');
SELECT guarded_increment('partly', '', 'g');
SELECT guarded_increment('partly', '1; DELETE FROM partly', 'g');
SELECT guarded_increment('partly', NULL, 'g');
SELECT guarded_increment(NULL, '1', 'g');
BEGIN;
SELECT token > 0 AS taken FROM acquire(resource => 'partly');
INSERT INTO partly (id, a, b, g) VALUES (1, 1, 2, 0);
SELECT outcome FROM guarded_increment('partly', '{"a": 1, "b": 2}', 'g');
SELECT outcome FROM guarded_increment('partly', '{"a": 1, "b": 3}', 'g');
COMMIT;
-- a plan that is known is forgotten with the index that made its key unique
SELECT indexrelid::regclass AS index FROM pg_index WHERE indrelid = 'partly'::regclass AND indnkeyatts = 2 \gset
DROP INDEX :index;
SELECT guarded_increment('partly', '{"a": 1, "b": 2}', 'g');

-- A bare value needs a primary key of one column.
CREATE TABLE no_key (id int UNIQUE NOT NULL, n int);
SELECT protect(relation => 'no_key', resource => 'no_key');
SELECT guarded_increment('no_key', '1', 'n');
CREATE TABLE two_columns (a int, b int, n int, PRIMARY KEY (a, b));
SELECT protect(relation => 'two_columns', resource => 'two_columns');
SELECT guarded_increment('two_columns', '1', 'n');

-- More than one row is never written, whatever the index says.
CREATE TABLE parent (id int PRIMARY KEY, n int DEFAULT 0);
SELECT protect(relation => 'parent', resource => 'parent');
CREATE TABLE child () INHERITS (parent);
BEGIN;
SELECT token > 0 AS taken FROM acquire(resource => 'parent');
INSERT INTO parent VALUES (1);
INSERT INTO child VALUES (1);
SELECT guarded_increment('parent', '1', 'n');
ROLLBACK;

-- A schema that takes another one's name: the table is still the one that is meant.
CREATE SCHEMA swap_old;
CREATE SCHEMA swap_new;
CREATE TABLE swap_old.stock (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE swap_new.stock (id int PRIMARY KEY, n int NOT NULL);
SELECT protect(relation => 'swap_old.stock', resource => 'swap'), protect(relation => 'swap_new.stock', resource => 'swap');
SELECT 'swap_old.stock'::regclass::oid AS old \gset
SELECT token FROM acquire(resource => 'swap', scope => 'session') \gset
INSERT INTO swap_old.stock VALUES (1, 10);
INSERT INTO swap_new.stock VALUES (1, 20);
SELECT outcome, remaining FROM guarded_decrement(:old, '1', 'n');
ALTER SCHEMA swap_old RENAME TO swap_gone;
ALTER SCHEMA swap_new RENAME TO swap_old;
SELECT outcome, remaining FROM guarded_decrement(:old, '1', 'n');
SELECT n FROM swap_gone.stock;
SELECT n FROM swap_old.stock;
SELECT release(:token);

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA swap_old, swap_gone, guarded_keys CASCADE;
