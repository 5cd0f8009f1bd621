-- Resource templates: which name a row gets, and which templates are refused.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
-- name_of(table): the resource that the guard names for a row of it. The error
-- of the refused write says it.
CREATE FUNCTION name_of(relation regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE detail text;
BEGIN
    EXECUTE format('DELETE FROM %s', relation);
    RETURN 'deleted';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = MESSAGE_TEXT;
    RETURN substring(detail FROM 'no lease of resource "(.*)" is presented');
END $$;

-- ---------------------------------------------------------------------------
-- Every type that is allowed, whatever the session's settings
-- ---------------------------------------------------------------------------
CREATE TYPE mood AS ENUM ('so so', 'великий');
CREATE TABLE kinds (
    i2 smallint, i4 integer, i8 bigint, o oid, b boolean, u uuid, e mood,
    t text, v varchar(20), n name, d date, ts timestamp, tz timestamptz, tz0 timestamptz(0));
INSERT INTO kinds VALUES (
    -32768, -2147483648, -9223372036854775808, 4294967295, true, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'великий',
    E'a b\n🔒{}', 'x  ', 'Name', '2026-03-01', '2026-03-01 12:00:00.5', '2026-03-01 12:00:00.123456+02', '2026-07-01 00:00:00+00');
SELECT lease_fence.protect('kinds', '{i2}/{i4}/{i8}/{o}/{b}/{u}/{e}/{t}/{v}/{n}');
SELECT name_of('kinds');
SELECT lease_fence.protect('kinds', 'k:{d}|{ts}|{tz}|{tz0}');
SELECT name_of('kinds');
SET DateStyle = 'SQL, DMY';
SET TimeZone = 'America/New_York';
SET IntervalStyle = 'iso_8601';
SET extra_float_digits = -5;
SELECT name_of('kinds');
SET DateStyle = 'German';
SET TimeZone = 'Asia/Kolkata';
SET bytea_output = 'escape';
SELECT name_of('kinds');
-- The write goes through under the very same name.
BEGIN;
SELECT token > 0 AS taken
FROM lease_fence.acquire('k:2026-03-01|2026-03-01T12:00:00.5|2026-03-01T10:00:00.123456Z|2026-07-01T00:00:00Z');
SET LOCAL DateStyle = 'ISO';
SET LOCAL TimeZone = 'UTC';
UPDATE kinds SET i2 = 1;
SET LOCAL TimeZone = 'Pacific/Apia';
UPDATE kinds SET i2 = 2;
COMMIT;
RESET DateStyle; RESET TimeZone; RESET IntervalStyle; RESET extra_float_digits; RESET bytea_output;

-- Ends of the ranges.
ALTER TABLE kinds DISABLE TRIGGER ALL;
DELETE FROM kinds;
INSERT INTO kinds (d, ts, tz, tz0) VALUES ('infinity', '-infinity', 'infinity', '-infinity');
ALTER TABLE kinds ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT name_of('kinds');
ALTER TABLE kinds DISABLE TRIGGER ALL;
UPDATE kinds SET d = '4713-01-01 BC', ts = '0044-03-15 12:00:00 BC', tz = '294276-12-31 23:59:59.999999+00', tz0 = '4713-12-01 00:00:00+00 BC';
ALTER TABLE kinds ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT name_of('kinds');
ALTER TABLE kinds DISABLE TRIGGER ALL;
UPDATE kinds SET b = false, u = '00000000-0000-0000-0000-000000000000', e = 'so so', t = '', v = '', n = '',
    i2 = 0, i4 = 0, i8 = 0, o = 0;
ALTER TABLE kinds ENABLE ALWAYS TRIGGER zzz_lease_fence;
SELECT lease_fence.protect('kinds', '{i2}/{i4}/{i8}/{o}/{b}/{u}/{e}/{t}/{v}/{n}');
SELECT name_of('kinds');
-- An enum's label that is renamed renames the resource.
ALTER TYPE mood RENAME VALUE 'so so' TO 'fine';
SELECT name_of('kinds');

-- A value that lives out of line.
CREATE TABLE toasted (t text);
ALTER TABLE toasted ALTER t SET STORAGE EXTERNAL;
INSERT INTO toasted VALUES (repeat('x', 400));
SELECT lease_fence.protect('toasted', 'toasted:{t}');
SELECT length(name_of('toasted'));

-- ---------------------------------------------------------------------------
-- Braces, names of columns, literal text
-- ---------------------------------------------------------------------------
CREATE TABLE odd (id int, "Id" int, "a b" int, "x}" int, "é" int, "{" int, "select" int, "quo""te" int, "dot.dot" int);
INSERT INTO odd VALUES (1, 2, 3, 4, 5, 6, 7, 8, 9);
SELECT lease_fence.protect('odd', '{id} {Id} {a b} {x}}} {é} {select} {quo"te} {dot.dot}');
SELECT name_of('odd');
SELECT lease_fence.protect('odd', '{{{id}}}');
SELECT name_of('odd');
SELECT lease_fence.protect('odd', '{{id}}');
SELECT name_of('odd');
SELECT lease_fence.protect('odd', '}}{{ %s $1 \ ''"; 🔒 {id}');
SELECT name_of('odd');
SELECT lease_fence.protect('odd', '{id}:{id}');
SELECT name_of('odd');
SELECT lease_fence.protect('odd', E'line\n{id}');
SELECT name_of('odd');
SELECT lease_fence.protect('odd', repeat('x', 511) || '{id}');
SELECT length(name_of('odd'));
SELECT lease_fence.protect('odd', 'the whole table');
SELECT name_of('odd');
SELECT relation, resource, token_column, mode, lapsed, inserts, enabled FROM lease_fence.guards WHERE relation = 'odd'::regclass;

-- ---------------------------------------------------------------------------
-- Refused: unbalanced, unknown, no separator, too long
-- ---------------------------------------------------------------------------
CALL fails($$SELECT lease_fence.protect('odd', NULL)$$);
CALL fails($$SELECT lease_fence.protect('odd', '')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{')$$);
CALL fails($$SELECT lease_fence.protect('odd', '}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{}')$$);
CALL fails($$SELECT lease_fence.protect('odd', 'x:{id')$$);
CALL fails($$SELECT lease_fence.protect('odd', 'x:id}')$$);
CALL fails($$SELECT lease_fence.protect('odd', 'x:{id}}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{{id}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{ID}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{ id }')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{nothing}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{odd.id}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{"Id"}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{id}{Id}')$$);
CALL fails($$SELECT lease_fence.protect('odd', repeat('x', 513))$$);
CALL fails($$SELECT lease_fence.protect('odd', '{ctid}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{tableoid}')$$);
CALL fails($$SELECT lease_fence.protect('odd', '{fence_token}')$$);
CALL fails($$SELECT lease_fence.protect('odd', repeat('{', 1001))$$);
-- What was there before is there still.
SELECT name_of('odd');

-- Types whose text is not one, or not the row's own.
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TABLE refused (
    id int, f4 real, f8 double precision, num numeric, c char(3), "c1" "char", j jsonb, ar int[],
    iv interval, ti time, tt timetz, by bytea, dom positive, mo money, ip inet,
    gen int GENERATED ALWAYS AS (id * 2) STORED, ident int GENERATED ALWAYS AS IDENTITY);
CALL fails($$SELECT lease_fence.protect('refused', '{f4}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{f8}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{num}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{c}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{c1}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{j}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{ar}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{iv}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{ti}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{tt}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{by}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{dom}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{mo}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{ip}')$$);
CALL fails($$SELECT lease_fence.protect('refused', '{gen}')$$);
SELECT count(*) FROM pg_attribute WHERE attrelid = 'refused'::regclass AND attname = 'fence_token';
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'refused'::regclass;
-- An identity column is a value like any other; generated ones may stand beside.
SELECT lease_fence.protect('refused', 'refused:{ident}');
BEGIN;
SELECT token AS t FROM lease_fence.acquire('refused:1') \gset
INSERT INTO refused (id) VALUES (21) RETURNING ident, gen, fence_token = :t AS stamped;
UPDATE refused SET id = 22 RETURNING ident, gen, fence_token = :t AS stamped;
COMMIT;

DROP TABLE kinds, toasted, odd, refused;
DROP TYPE mood;
DROP DOMAIN positive;
DROP FUNCTION name_of(regclass);
DROP PROCEDURE fails;
