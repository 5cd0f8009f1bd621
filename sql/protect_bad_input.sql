-- What cannot be protected, and bad arguments: each error names it, and nothing
-- is changed.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
CREATE TABLE good (id int PRIMARY KEY, n int);
CALL fails($$SELECT lease_fence.protect(NULL, 'x')$$);
CALL fails($$SELECT lease_fence.protect(0, 'x')$$);
CALL fails($$SELECT lease_fence.protect(4000000000, 'x')$$);
CALL fails($$SELECT lease_fence.protect('no_such_table', 'x')$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', token_column => NULL)$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', token_column => '')$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', token_column => 'n')$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', token_column => 'ctid')$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', mode => NULL)$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', mode => 'Enforce')$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', lapsed => 'maybe')$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', inserts => '')$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', lapsed => NULL)$$);
CALL fails($$SELECT lease_fence.protect('good', 'x', inserts => NULL)$$);
CALL fails($$SELECT lease_fence.set_mode('good', 'off')$$);
CALL fails($$SELECT lease_fence.set_mode(NULL, 'off')$$);
CALL fails($$SELECT lease_fence.set_mode('good', NULL)$$);
CALL fails($$SELECT lease_fence.set_mode('good', 'on')$$);
CALL fails($$SELECT lease_fence.set_mode(4000000000, 'off')$$);
CALL fails($$SELECT lease_fence.unprotect('good')$$);
CALL fails($$SELECT lease_fence.unprotect(NULL)$$);
CALL fails($$SELECT lease_fence.unprotect('good', NULL)$$);
BEGIN READ ONLY;
CALL fails($$SELECT lease_fence.protect('good', 'x')$$);
CALL fails($$SELECT lease_fence.set_mode('good', 'off')$$);
CALL fails($$SELECT lease_fence.unprotect('good')$$);
COMMIT;

-- ---------------------------------------------------------------------------
-- Kinds of relations
-- ---------------------------------------------------------------------------
CREATE VIEW a_view AS SELECT * FROM good;
CREATE MATERIALIZED VIEW a_matview AS SELECT * FROM good;
CREATE SEQUENCE a_sequence;
CREATE TYPE a_type AS (id int, n int);
CREATE TABLE a_typed_table OF a_type;
CREATE TEMP TABLE a_temp_table (id int);
CREATE FOREIGN DATA WRAPPER regress_dummy;
CREATE SERVER regress_server FOREIGN DATA WRAPPER regress_dummy;
CREATE FOREIGN TABLE a_foreign_table (id int) SERVER regress_server;
CREATE TABLE a_parent (id int);
CREATE TABLE a_child () INHERITS (a_parent);
CREATE TABLE a_partitioned (id int) PARTITION BY RANGE (id);
CREATE TABLE a_partition PARTITION OF a_partitioned FOR VALUES FROM (0) TO (10);
CALL fails($$SELECT lease_fence.protect('a_view', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_matview', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_sequence', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_type', 'x')$$);
CALL fails($$SELECT lease_fence.protect('good_pkey', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_typed_table', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_temp_table', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_foreign_table', 'x')$$);
CALL fails($$SELECT lease_fence.protect('pg_class', 'x')$$);
CALL fails($$SELECT lease_fence.protect('pg_database', 'x')$$);
CALL fails($$SELECT lease_fence.protect('lease_fence.grants', 'x')$$);
CALL fails($$SELECT lease_fence.protect('lease_fence.leases', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_parent', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_child', 'x')$$);
CALL fails($$SELECT lease_fence.protect('a_partition', 'x')$$);
CREATE FOREIGN TABLE a_foreign_partition PARTITION OF a_partitioned FOR VALUES FROM (10) TO (20) SERVER regress_server;
CALL fails($$SELECT lease_fence.protect('a_partitioned', 'x:{id}')$$);
DROP FOREIGN TABLE a_foreign_partition;
SELECT lease_fence.protect('a_partitioned', 'x:{id}');
CALL fails($$SELECT lease_fence.protect('a_partition', 'x')$$);
CALL fails($$SELECT lease_fence.set_mode('a_partition', 'off')$$);
CALL fails($$SELECT lease_fence.unprotect('a_partition')$$);
-- A foreign partition that comes later gets the guard as any partition does.
CREATE FOREIGN TABLE a_foreign_partition PARTITION OF a_partitioned FOR VALUES FROM (10) TO (20) SERVER regress_server;
SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'a_foreign_partition'::regclass;
-- A table that got a child after it was protected.
SELECT lease_fence.protect('good', 'x:{id}');
CREATE TABLE late_child () INHERITS (good);
CALL fails($$SELECT lease_fence.protect('good', 'x:{id}')$$);
SELECT lease_fence.unprotect('good', true);
DROP TABLE late_child;

-- ---------------------------------------------------------------------------
-- The token column
-- ---------------------------------------------------------------------------
CREATE TABLE a_column (id int, gen bigint GENERATED ALWAYS AS (id) STORED,
    ident bigint GENERATED BY DEFAULT AS IDENTITY, key bigint PRIMARY KEY, txt text);
CALL fails($$SELECT lease_fence.protect('a_column', 'x', token_column => 'id')$$);
CALL fails($$SELECT lease_fence.protect('a_column', 'x', token_column => 'gen')$$);
CALL fails($$SELECT lease_fence.protect('a_column', 'x', token_column => 'ident')$$);
CALL fails($$SELECT lease_fence.protect('a_column', 'x', token_column => 'key')$$);
CALL fails($$SELECT lease_fence.protect('a_column', 'x', token_column => 'txt')$$);
CREATE TABLE a_partition_key (id int, key bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (key);
CALL fails($$SELECT lease_fence.protect('a_partition_key', 'x', token_column => 'key')$$);
CREATE TABLE a_sub (id int, sub bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
CREATE TABLE a_sub_1 PARTITION OF a_sub FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (sub);
CALL fails($$SELECT lease_fence.protect('a_sub', 'x', token_column => 'sub')$$);

-- ---------------------------------------------------------------------------
-- The name of the guard's trigger is taken
-- ---------------------------------------------------------------------------
CREATE FUNCTION do_nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER zzz_lease_fence AFTER INSERT ON good FOR EACH ROW EXECUTE FUNCTION do_nothing();
CALL fails($$SELECT lease_fence.protect('good', 'x')$$);
DROP TRIGGER zzz_lease_fence ON good;

-- lease_fence.guard() used by hand.
CREATE TRIGGER by_hand BEFORE INSERT ON good FOR EACH STATEMENT EXECUTE FUNCTION lease_fence.guard('x', 'n', 'reject', 'guard');
CALL fails('INSERT INTO good VALUES (1)');
DROP TRIGGER by_hand ON good;
CREATE TRIGGER by_hand AFTER INSERT ON good FOR EACH ROW EXECUTE FUNCTION lease_fence.guard('x', 'n', 'reject', 'guard');
CALL fails('INSERT INTO good VALUES (1)');
DROP TRIGGER by_hand ON good;
CREATE TRIGGER by_hand BEFORE INSERT ON good FOR EACH ROW EXECUTE FUNCTION lease_fence.guard();
CALL fails('INSERT INTO good VALUES (1)');
DROP TRIGGER by_hand ON good;
CREATE TRIGGER by_hand BEFORE INSERT ON good FOR EACH ROW EXECUTE FUNCTION lease_fence.guard('x', 'n', 'reject', 'guard');
CALL fails('INSERT INTO good VALUES (1)');
DROP TRIGGER by_hand ON good;
CREATE TRIGGER by_hand BEFORE INSERT ON good FOR EACH ROW EXECUTE FUNCTION lease_fence.guard('{', 'n', 'reject', 'guard');
CALL fails('INSERT INTO good VALUES (1)');
DROP TRIGGER by_hand ON good;
CALL fails('SELECT lease_fence.guard()');
CALL fails('SELECT lease_fence.drop_replicated()');

-- Nothing was changed by any of it.
SELECT c.relname FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid
WHERE attname = 'fence_token' AND NOT attisdropped ORDER BY 1;
SELECT relation, resource FROM lease_fence.guards ORDER BY 1;
INSERT INTO good VALUES (1, 1);

SET client_min_messages = warning;
DROP TABLE good, a_typed_table, a_temp_table, a_parent, a_partitioned, a_column, a_partition_key, a_sub CASCADE;
DROP SEQUENCE a_sequence;
DROP TYPE a_type;
DROP FOREIGN DATA WRAPPER regress_dummy CASCADE;
DROP FUNCTION do_nothing();
DROP PROCEDURE fails;
