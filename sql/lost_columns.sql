-- A column that the guard needs is renamed, dropped or of another type: nothing
-- is written, and the error names guard and column.
\set SHOW_CONTEXT always
CREATE TABLE lost (id int PRIMARY KEY, region text NOT NULL, units int NOT NULL);
SELECT lease_fence.protect(relation => 'lost', resource => 'lost:{region}/{id}', inserts => 'free');
INSERT INTO lost (id, region, units) VALUES (1, 'north', 10);

ALTER TABLE lost RENAME COLUMN region TO area;
UPDATE lost SET units = 9 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
INSERT INTO lost (id, area, units) VALUES (2, 'south', 10);
\echo :LAST_ERROR_SQLSTATE
DELETE FROM lost;
\echo :LAST_ERROR_SQLSTATE
TRUNCATE lost;
\echo :LAST_ERROR_SQLSTATE
-- protect() puts it right ...
SELECT lease_fence.protect(relation => 'lost', resource => 'lost:{area}/{id}');
UPDATE lost SET units = 9 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
-- ... and so does the old name.
ALTER TABLE lost RENAME COLUMN area TO region;
UPDATE lost SET units = 9 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE lost RENAME COLUMN region TO area;
UPDATE lost SET units = 9 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE

-- of a type that names nothing
ALTER TABLE lost ALTER COLUMN area TYPE json USING to_json(area);
UPDATE lost SET units = 9 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE lost DROP COLUMN area;
UPDATE lost SET units = 9 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
SELECT lease_fence.protect(relation => 'lost', resource => 'lost:{id}');

-- the token's column
ALTER TABLE lost RENAME COLUMN fence_token TO stamp;
UPDATE lost SET units = 9 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE lost RENAME COLUMN stamp TO fence_token;
BEGIN;
SELECT token > 0 AS granted FROM lease_fence.acquire(resource => 'lost:1');
UPDATE lost SET units = 8 WHERE id = 1;
COMMIT;
ALTER TABLE lost DROP COLUMN fence_token;
UPDATE lost SET units = 7 WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
SELECT id, units FROM lost;
DROP TABLE lost;
