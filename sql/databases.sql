-- Several databases: each has its own leases, tokens and worker.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
SELECT current_database() AS here \gset
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_lf_other;
CREATE DATABASE regress_lf_other TEMPLATE template0;
CREATE TABLE stock (id int PRIMARY KEY);
SELECT lease_fence.protect('stock', 'database:{id}');
SELECT token AS mine FROM lease_fence.acquire('database:1', scope => 'detached', holder => 'same') \gset
\c regress_lf_other
-- Without the extension there is nothing; the setting is known all the same.
SELECT lease_fence.acquire('database:1');
SET lease_fence.token = '1';
CREATE EXTENSION lease_fence;
CREATE TABLE stock (id int PRIMARY KEY);
SELECT lease_fence.protect('stock', 'database:{id}');
-- The same name is another lease, even of the same holder.
SELECT token AS theirs FROM lease_fence.acquire('database:1', wait => '0', scope => 'detached', holder => 'same') \gset
SELECT :theirs <> :mine AS other_token;
SELECT count(*) FROM lease_fence.leases WHERE resource LIKE 'database:%';
SELECT worker, epoch_confirmed FROM lease_fence.worker_status;
-- The other one's token is unknown here, the own one writes.
BEGIN;
SET LOCAL lease_fence.token = :mine;
\set VERBOSITY sqlstate
INSERT INTO stock VALUES (1);
\set VERBOSITY default
ROLLBACK;
BEGIN;
SET LOCAL lease_fence.token = :theirs;
INSERT INTO stock VALUES (1);
COMMIT;
SELECT relation, reason FROM lease_fence.rejected_writes;
\c :here
SELECT format('SELECT lease_fence.present(%s)', :theirs) AS present_theirs,
       format('SELECT lease_fence.renew(%s)', :theirs) AS renew_theirs,
       format('SELECT lease_fence.release(%s)', :theirs) AS release_theirs \gset
CALL fails(:'present_theirs');
CALL fails(:'renew_theirs');
CALL fails(:'release_theirs');
BEGIN;
SET LOCAL lease_fence.token = :theirs;
CALL fails('INSERT INTO stock VALUES (1)');
SET LOCAL lease_fence.token = :mine;
INSERT INTO stock VALUES (1);
COMMIT;
SELECT lease_fence.remaining(:mine) > '0' AS held;
-- Its worker is asked to leave; the one that stays is another's.
DROP DATABASE regress_lf_other;
SELECT lease_fence.renew(:mine) > '0' AS renewed;
-- One of the same name is another one, and begins a history of its own.
CREATE DATABASE regress_lf_other TEMPLATE template0;
\c regress_lf_other
CREATE EXTENSION lease_fence;
SELECT token > :theirs AS numbers_go_on FROM lease_fence.acquire('database:1', wait => '0', scope => 'detached', holder => 'same');
SELECT count(*) FROM lease_fence.epochs;
\c :here
DROP DATABASE regress_lf_other;
DROP TABLE stock;
DROP PROCEDURE fails;
