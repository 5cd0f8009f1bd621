-- import_grant: others hand out the order, this database the tokens.
\set VERBOSITY sqlstate
CREATE SCHEMA import_test;
SET search_path = import_test, lease_fence, public;
CREATE TABLE stock (id text PRIMARY KEY, n int NOT NULL DEFAULT 10);
SELECT protect(relation => 'stock', resource => '{id}');
SELECT add_profile(name => 'etcd', prefix => 'etcd:', policy => 'external', ttl => '1 min');

-- Only under a profile of that policy, and such a resource only this way.
SELECT import_grant(resource => 'other:1', number => 1);
SELECT acquire(resource => 'etcd:1', scope => 'session');
SELECT try_acquire(resource => 'etcd:1', scope => 'detached');
SELECT acquire_all(resources => '{other:1,etcd:1}', scope => 'session');
SELECT import_grant(resource => 'etcd:1', number => NULL);
SELECT import_grant(resource => 'etcd:1', number => -1);
SELECT import_grant(resource => NULL, number => 1);
SELECT import_grant(resource => '', number => 1);
SELECT import_grant(resource => 'etcd:1', number => 1, holder => '');
SELECT import_grant(resource => 'etcd:1', number => 1, ttl => '0');

-- A higher number is a new grant, with the profile's ttl and presented at once.
BEGIN;
SELECT token AS t0, expires_in BETWEEN '50 s' AND '1 min' AS ttl FROM import_grant(resource => 'etcd:1', number => 0) \gset
SELECT :'ttl' AS ttl;
INSERT INTO stock VALUES ('etcd:1');
COMMIT;
SELECT token AS t7, expires_in <= '10 s' AS ttl FROM import_grant(resource => 'etcd:1', number => 7, holder => 'a', ttl => '10 s') \gset
SELECT :'ttl' AS ttl, :t7 > :t0 AS grew;
SELECT outcome FROM guarded_decrement('stock', 'etcd:1', 'n', token => :t0);
SELECT outcome FROM guarded_decrement('stock', 'etcd:1', 'n', token => :t7);
-- presented for this transaction only
UPDATE stock SET n = 0;
-- the same number: the same token, whoever says it, and prolonged
SELECT token = :t7 AS same, expires_in > '50 s' AS prolonged FROM import_grant(resource => 'etcd:1', number => 7);
SELECT token = :t7 AS same FROM import_grant(resource => 'etcd:1', number => 7, holder => 'a', ttl => '1 h');
SELECT count(*) FROM grants WHERE resource = 'etcd:1';
-- a lower one
SELECT import_grant(resource => 'etcd:1', number => 6);
SELECT import_grant(resource => 'etcd:1', number => 0);
SELECT outcome FROM guarded_decrement('stock', 'etcd:1', 'n', token => :t7);
-- the largest
SELECT token AS tmax FROM import_grant(resource => 'etcd:2', number => 9223372036854775807) \gset
SELECT token = :tmax AS same FROM import_grant(resource => 'etcd:2', number => 9223372036854775807);
SELECT import_grant(resource => 'etcd:2', number => 9223372036854775806);

-- Once it is over, its number is, too: released, revoked, lapsed.
SELECT release(:t7);
SELECT import_grant(resource => 'etcd:1', number => 7);
SELECT import_grant(resource => 'etcd:1', number => 6);
SELECT token > :t7 AS grew FROM import_grant(resource => 'etcd:1', number => 8);
SELECT revoke(resource => 'etcd:1', reason => 'test');
SELECT import_grant(resource => 'etcd:1', number => 8);
SELECT token AS t9 FROM import_grant(resource => 'etcd:1', number => 9, ttl => '20 ms') \gset
SELECT pg_sleep(0.03);
SELECT import_grant(resource => 'etcd:1', number => 9);
SELECT outcome FROM guarded_decrement('stock', 'etcd:1', 'n', token => :t9);
DO $$
BEGIN
    FOR i IN 1 .. 1000 LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM grants WHERE resource = 'etcd:1' AND how_ended IS NULL AND external_number < 9);
        PERFORM pg_sleep(0.01);		-- the worker writes ends when it comes to it
    END LOOP;
END $$;
SELECT external_number, how_ended FROM grants WHERE resource = 'etcd:1' AND external_number < 9 ORDER BY token;
SELECT token IS NOT NULL AS granted FROM import_grant(resource => 'etcd:1', number => 10);

-- It lives like a detached lease.
SELECT token AS t1 FROM import_grant(resource => 'etcd:3', number => 1) \gset
SELECT coordinator, scope, state, pid IS NULL AS no_pid FROM leases WHERE token = :t1;
SELECT coordinator, scope, external_number FROM grants WHERE token = :t1;
SELECT renew(:t1, ttl => '1 h') > '59 min' AS renewed;
SELECT remaining(:t1) > '59 min' AS remaining;
BEGIN;
SELECT present(:t1);
INSERT INTO stock VALUES ('etcd:3');
ROLLBACK;
-- undone: what was presented, not the grant
BEGIN;
SAVEPOINT s;
SELECT token AS t2 FROM import_grant(resource => 'etcd:3', number => 2) \gset
ROLLBACK TO s;
INSERT INTO stock VALUES ('etcd:3');
ROLLBACK;
SELECT outcome FROM guarded_insert('stock', '{"id": "etcd:3"}', token => :t2);
SELECT import_grant(resource => 'etcd:3', number => 1);

-- In its own way, and in snapshots that are too old.
BEGIN;
SELECT present(:t2);
UPDATE stock SET n = 1 WHERE id = 'etcd:3';
SELECT import_grant(resource => 'etcd:3', number => 3);
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT import_grant(resource => 'etcd:3', number => 4);
ROLLBACK;

-- A new epoch: what was imported counts as never presented here, and its number
-- is good for a new token, but a lower one is not.
SELECT begin_epoch(reason => 'test') >= :t2 AS no_lower;
SELECT outcome FROM guarded_update('stock', 'etcd:3', '{"n": 1}', token => :t2);
SELECT external_number AS number FROM grants WHERE resource = 'etcd:3' ORDER BY token DESC LIMIT 1 \gset
SELECT import_grant(resource => 'etcd:3', number => :number - 1);
SELECT token > :t2 AS new_token FROM import_grant(resource => 'etcd:3', number => :number);
SELECT external_number, count(*) FROM grants WHERE resource = 'etcd:3' GROUP BY 1 ORDER BY 1;

-- A lease of our own from before the profile is taken over.
SELECT token AS own FROM acquire(resource => 'late:1', scope => 'detached') \gset
SELECT outcome FROM guarded_insert('stock', '{"id": "late:1"}', token => :own);
SELECT add_profile(name => 'late', prefix => 'late:', policy => 'external');
SELECT token > :own AS newer FROM import_grant(resource => 'late:1', number => 0);
SELECT outcome FROM guarded_update('stock', 'late:1', '{"n": 1}', token => :own);
SELECT acquire(resource => 'late:1', scope => 'detached');
SELECT drop_profile('late');
SELECT import_grant(resource => 'late:1', number => 1);

-- Another role's number is not one's own; a higher one is a new grant.
CREATE ROLE regress_lf_importer;
GRANT USAGE ON SCHEMA lease_fence TO regress_lf_importer;
SELECT token AS mine FROM import_grant(resource => 'etcd:9', number => 1) \gset
SET ROLE regress_lf_importer;
SELECT import_grant(resource => 'etcd:9', number => 1);
SELECT token > :mine AS newer FROM import_grant(resource => 'etcd:9', number => 2);
RESET ROLE;
REVOKE USAGE ON SCHEMA lease_fence FROM regress_lf_importer;
DROP ROLE regress_lf_importer;
SELECT drop_profile('etcd');

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA import_test CASCADE;
