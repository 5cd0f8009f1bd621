-- guarded_decrement and guarded_increment: limits, types and their ranges.
\set VERBOSITY terse
CREATE SCHEMA guarded_counters;
SET search_path = guarded_counters, lease_fence, public;
CREATE DOMAIN cents AS numeric(6,2);
CREATE DOMAIN few AS int CHECK (VALUE < 10);
CREATE TABLE stock (id int PRIMARY KEY, s smallint, i integer, b bigint, n numeric, p numeric(6,2), c cents, d few,
    r real, x text, rounded numeric(4,-1), g integer GENERATED ALWAYS AS (1) STORED);
SELECT protect(relation => 'stock', resource => 'stock');
SELECT token FROM acquire(resource => 'stock', scope => 'session') \gset
INSERT INTO stock VALUES (1, 10, 10, 10, 10, 10, 10, 9, 1, 'x', 100);
INSERT INTO stock VALUES (2);

SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_decrement('stock', '1', c, amount => 4) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_decrement('stock', '1', c, amount => 7) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_decrement('stock', '1', c, amount => 6) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_decrement('stock', '1', c) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_decrement('stock', '1', c, floor => -1) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_decrement('stock', '1', c, floor => NULL) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_increment('stock', '1', c, amount => 12, ceiling => 10) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_increment('stock', '1', c, amount => 13, ceiling => 10) d;
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_increment('stock', '1', c) d;
-- limits between two integers, at and beyond the range, and infinite ones
SELECT l, d.outcome, d.remaining FROM unnest('{10.5,11,-40000,40000,-Infinity,Infinity}'::numeric[]) l, guarded_decrement('stock', '1', 's', floor => l) d;
SELECT l, d.outcome, d.remaining FROM unnest('{9.5,10,-40000,40000,-Infinity,Infinity}'::numeric[]) l, guarded_increment('stock', '1', 's', ceiling => l) d;
SELECT l, d.outcome, d.remaining FROM unnest('{11.5,-1e30,1e30,-Infinity,Infinity}'::numeric[]) l, guarded_decrement('stock', '1', 'n', floor => l) d;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'i', floor => 'NaN');
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'i', ceiling => 'NaN');
-- NULL is no number: nothing is met, and it stays NULL
SELECT c, d.outcome, d.remaining FROM unnest('{s,i,b,n,p,c}'::name[]) c, guarded_decrement('stock', '2', c) d;
SELECT outcome, remaining FROM guarded_decrement('stock', '3', 'i');

-- The ends of each range.
UPDATE stock SET s = -32768, i = -2147483648, b = -9223372036854775808 WHERE id = 1;
SELECT c, d.outcome FROM unnest('{s,i,b}'::name[]) c, guarded_decrement('stock', '1', c, floor => -1e20) d;
SELECT guarded_decrement('stock', '1', 's', floor => NULL);
SELECT guarded_decrement('stock', '1', 'i', floor => NULL);
SELECT guarded_decrement('stock', '1', 'b', floor => NULL);
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'b', amount => 9223372036854775807);
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'i', amount => 2147483647, ceiling => 2147483647);
UPDATE stock SET s = 32767, i = 2147483647, b = 9223372036854775807, p = 9999.99, d = 9 WHERE id = 1;
SELECT c, d.outcome FROM unnest('{s,i,b}'::name[]) c, guarded_increment('stock', '1', c, ceiling => 1e20) d;
SELECT guarded_increment('stock', '1', 's');
SELECT guarded_increment('stock', '1', 'i');
SELECT guarded_increment('stock', '1', 'b');
SELECT guarded_increment('stock', '1', 'p', amount => 0.01);
SELECT guarded_increment('stock', '1', 'd');
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'b', amount => 9223372036854775807);

-- Amounts that are none.
SELECT guarded_decrement('stock', '1', 'i', amount => 0);
SELECT guarded_decrement('stock', '1', 'i', amount => -1);
SELECT guarded_decrement('stock', '1', 'i', amount => 'NaN');
SELECT guarded_decrement('stock', '1', 'n', amount => 'NaN');
SELECT guarded_decrement('stock', '1', 'n', amount => 'Infinity');
SELECT guarded_decrement('stock', '1', 'i', amount => '-Infinity');
SELECT guarded_decrement('stock', '1', 'i', amount => 0.5);
SELECT guarded_decrement('stock', '1', 'i', amount => NULL);
SELECT guarded_decrement('stock', '1', 's', amount => 32768);
SELECT guarded_decrement('stock', '1', 'i', amount => 2147483648);
SELECT guarded_decrement('stock', '1', 'b', amount => 9223372036854775808);
SELECT guarded_increment('stock', '1', 'b', amount => 1e100);
SELECT guarded_decrement('stock', '1', 'p', amount => 0.001);
SELECT guarded_decrement('stock', '1', 'p', amount => 10000);
SELECT guarded_decrement('stock', '1', 'c', amount => 0.001);
SELECT guarded_increment('stock', '1', 'c', amount => 10000);
SELECT guarded_increment('stock', '1', 'rounded', amount => 5);
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'rounded', amount => 50);
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'i', amount => 1.000);
-- Columns that count nothing, or are not to be changed.
SELECT guarded_decrement('stock', '1', 'r');
SELECT guarded_decrement('stock', '1', 'x');
SELECT guarded_decrement('stock', '1', 'g');
SELECT guarded_decrement('stock', '1', 'id');
SELECT guarded_decrement('stock', '1', 'fence_token');
SELECT guarded_decrement('stock', '1', 'nosuch');
SELECT guarded_decrement('stock', '1', 'ctid');
SELECT guarded_decrement('stock', '1', NULL);
SELECT guarded_decrement('stock', '1', 'i; --');

-- A numeric column may hold what no JSON number is: the answer is remembered.
UPDATE stock SET n = 'NaN' WHERE id = 1;
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'n', operation_key => 'guarded_counters NaN');
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'n', operation_key => 'guarded_counters NaN');
SELECT answer FROM operation('guarded_counters NaN');
UPDATE stock SET n = '-Infinity' WHERE id = 1;
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'n', operation_key => 'guarded_counters inf');
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'n', operation_key => 'guarded_counters inf');
-- digits are kept
UPDATE stock SET n = 10.50 WHERE id = 1;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', amount => 0.50, operation_key => 'guarded_counters digits');
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'n', amount => 0.50, operation_key => 'guarded_counters digits');

-- The same numbers mean another thing the other way, and in another column.
UPDATE stock SET i = 10, s = 5 WHERE id = 1;
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'i', amount => 1, floor => 10);
SELECT outcome, remaining FROM guarded_increment('stock', '1', 'i', amount => 1, ceiling => 10);
SELECT outcome, remaining FROM guarded_increment('stock', '1', 's', amount => 1, ceiling => 10);
SELECT outcome, remaining FROM guarded_increment('stock', '1', 's', amount => 1);
SELECT outcome, remaining FROM guarded_increment('stock', '1', 's', amount => 100000, ceiling => 10);
SELECT outcome, remaining FROM guarded_decrement('stock', '1', 'i', amount => 100000, floor => 10);

-- Two calls in one statement, and one call per row of a query.
UPDATE stock SET i = 10 WHERE id = 1;
SELECT (guarded_decrement('stock', '1', 'i')).remaining AS first, (guarded_decrement('stock', '1', 'i')).remaining AS second;
SELECT sum(remaining) FROM generate_series(1, 3), guarded_decrement('stock', '1', 'i', amount => generate_series);
SELECT i FROM stock WHERE id = 1;
SELECT release(:token);

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA guarded_counters CASCADE;
