-- A write under a lease is accepted, one without is refused.
CREATE TABLE smoke (id int PRIMARY KEY, units int NOT NULL);
SELECT lease_fence.protect(relation => 'smoke', resource => 'smoke:{id}');
INSERT INTO smoke (id, units) VALUES (1, 10);
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT token > 0 AS granted FROM lease_fence.acquire(resource => 'smoke:1');
INSERT INTO smoke (id, units) VALUES (1, 10);
COMMIT;
SELECT id, units, fence_token > 0 AS stamped FROM smoke;
DROP TABLE smoke;
