-- Leases: taking, re-entering, prolonging and giving back, in the three scopes.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all

-- ---------------------------------------------------------------------------
-- Scope transaction: over when the transaction is
-- ---------------------------------------------------------------------------
BEGIN;
SELECT token > 0 AS token, expires_in > '29 s' AS default_ttl FROM lease_fence.acquire('lease:a');
SELECT resource, coordinator, scope, state, role = current_user AS my_role,
       pid = pg_backend_pid() AS my_pid, expires_in <= '30 s' AS expires, renewals, waiters
FROM lease_fence.leases WHERE resource = 'lease:a';
SELECT token AS a FROM lease_fence.leases WHERE resource = 'lease:a' \gset
COMMIT;
SELECT state, expires_in IS NULL AS ended FROM lease_fence.leases WHERE resource = 'lease:a';
SELECT lease_fence.remaining(:a) IS NULL AS not_held, lease_fence.release(:a) AS released;

-- Rolled back: over all the same, and the next token is a higher one.
BEGIN;
SELECT token AS b FROM lease_fence.acquire('lease:a') \gset
ROLLBACK;
SELECT :b > :a AS higher, lease_fence.remaining(:b) IS NULL AS not_held;

-- In a savepoint that is rolled back: it lasts to the transaction's end, and
-- taking it again is a re-entry.
BEGIN;
SAVEPOINT s;
SELECT token AS c FROM lease_fence.acquire('lease:a') \gset
ROLLBACK TO s;
SELECT lease_fence.remaining(:c) > '0' AS still_held;
SELECT token = :c AS same_token FROM lease_fence.acquire('lease:a');
COMMIT;
SELECT lease_fence.remaining(:c) IS NULL AS not_held;

-- Only in a transaction block as a statement of its own; each of the three.
SELECT lease_fence.acquire('lease:a');
SELECT lease_fence.try_acquire('lease:a');
SELECT lease_fence.acquire_all('{lease:a}');
SELECT * FROM lease_fence.acquire('lease:a', ttl => '1 s');
\echo :LAST_ERROR_SQLSTATE
-- The same prepared, and as one of several statements of one message.
PREPARE taking AS SELECT token > 0 FROM lease_fence.acquire('lease:a');
EXECUTE taking;
DEALLOCATE taking;

-- In a function or DO block it is the statement's transaction.
DO $$ BEGIN PERFORM lease_fence.acquire('lease:a'); END $$;
CREATE FUNCTION take(name text) RETURNS bigint LANGUAGE plpgsql
    AS $$ BEGIN RETURN token FROM lease_fence.acquire(name); END $$;
CREATE FUNCTION take_sql(name text) RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT token FROM lease_fence.acquire(name) $$;
SELECT take('lease:a') AS d \gset
SELECT lease_fence.remaining(:d) IS NULL AS over_with_its_statement;
SELECT take('lease:a') > 0 AS taken;
BEGIN;
SELECT take_sql('lease:a') = take('lease:a') AS re_entered;
COMMIT;

-- A session that takes and gives back, and takes again: no write, no drain.
BEGIN;
SELECT token AS e FROM lease_fence.acquire('lease:a') \gset
SELECT lease_fence.release(:e);
SELECT token > :e AS new_grant FROM lease_fence.acquire('lease:a');
COMMIT;

-- PREPARE TRANSACTION would outlive the lease.
BEGIN;
SELECT token > 0 AS taken FROM lease_fence.acquire('lease:a');
PREPARE TRANSACTION 'leases';
BEGIN;
SELECT token AS f FROM lease_fence.acquire('lease:a') \gset
SELECT lease_fence.release(:f);
PREPARE TRANSACTION 'leases';
ROLLBACK PREPARED 'leases';

-- ---------------------------------------------------------------------------
-- Re-entry: counted, token kept, the wider scope stays
-- ---------------------------------------------------------------------------
SELECT token AS a, expires_in > '29 s' AS default_ttl
FROM lease_fence.acquire('lease:r', scope => 'session') \gset
SELECT token = :a AS re_entered FROM lease_fence.acquire('lease:r', scope => 'session');
SELECT token = :a AS re_entered, retry_after IS NULL AS nothing_to_wait_for
FROM lease_fence.try_acquire('lease:r', scope => 'session');
SELECT lease_fence.release(:a) AS release_1, lease_fence.remaining(:a) > '0' AS held;
SELECT lease_fence.release(:a) AS release_2, lease_fence.remaining(:a) > '0' AS held;
SELECT lease_fence.release(:a) AS release_3, lease_fence.remaining(:a) IS NULL AS given_back;
SELECT lease_fence.release(:a) AS release_4;
SELECT state FROM lease_fence.leases WHERE resource = 'lease:r';

-- Counts taken with scope transaction end with it.
SELECT token AS a FROM lease_fence.acquire('lease:r', scope => 'session') \gset
BEGIN;
SELECT token = :a AS re_entered FROM lease_fence.acquire('lease:r');
SELECT token = :a AS re_entered FROM lease_fence.acquire('lease:r');
SELECT scope FROM lease_fence.leases WHERE resource = 'lease:r';
COMMIT;
SELECT lease_fence.remaining(:a) > '0' AS held_by_the_session;
SELECT lease_fence.release(:a), lease_fence.remaining(:a) IS NULL AS given_back;

-- Begun with scope transaction, widened: it stays when the transaction ends.
BEGIN;
SELECT token AS a FROM lease_fence.acquire('lease:r') \gset
SELECT token = :a AS re_entered FROM lease_fence.acquire('lease:r', scope => 'session');
SELECT scope FROM lease_fence.leases WHERE resource = 'lease:r';
COMMIT;
SELECT lease_fence.remaining(:a) > '0' AS held_by_the_session;
SELECT lease_fence.release(:a), lease_fence.remaining(:a) IS NULL AS given_back;

-- A grant, or a release, is not undone by a rollback.
BEGIN;
SELECT token AS a FROM lease_fence.acquire('lease:r', scope => 'session') \gset
ROLLBACK;
SELECT lease_fence.remaining(:a) > '0' AS still_held;
BEGIN;
SELECT lease_fence.release(:a);
ROLLBACK;
SELECT lease_fence.remaining(:a) IS NULL AS still_released;

-- Another holder in the same session is another holder.
SELECT token AS a FROM lease_fence.acquire('lease:r', scope => 'session', holder => 'me') \gset
SELECT token = :a AS re_entered FROM lease_fence.acquire('lease:r', scope => 'session', holder => 'me');
SELECT token, expires_in, retry_after > '25 s' AS retry
FROM lease_fence.try_acquire('lease:r', scope => 'session', holder => 'not me');
CALL fails($$SELECT lease_fence.acquire('lease:r', wait => '0', holder => 'not me')$$);
CALL fails($$SELECT lease_fence.acquire('lease:r', wait => '50 ms', scope => 'session')$$);
SELECT lease_fence.release(:a), lease_fence.release(:a);

-- ---------------------------------------------------------------------------
-- Scope session: over when it ends, or at DISCARD ALL
-- ---------------------------------------------------------------------------
SELECT token AS a FROM lease_fence.acquire('lease:s', scope => 'session') \gset
DISCARD ALL;
SELECT lease_fence.remaining(:a) IS NULL AS discarded;
SELECT token AS a FROM lease_fence.acquire('lease:s', scope => 'session') \gset
\c -
-- The old session may need a moment to go: asking for it waits for that.
SELECT token > :a AS taken_after_it FROM lease_fence.acquire('lease:s', scope => 'session', wait => '60 s');
\c -

-- ---------------------------------------------------------------------------
-- Scope detached: a ttl, whoever is connected
-- ---------------------------------------------------------------------------
SELECT token AS a FROM lease_fence.acquire('lease:d', scope => 'detached') \gset
SELECT scope, state, pid IS NULL AS no_pid FROM lease_fence.leases WHERE resource = 'lease:d';
-- Without a holder each call is a holder of its own: no re-entry.
SELECT token FROM lease_fence.try_acquire('lease:d', scope => 'detached');
\c -
SELECT lease_fence.remaining(:a) > '0' AS held;
SELECT lease_fence.renew(:a) > '29 s' AS renewed;
SELECT lease_fence.renew(:a, '2 min') > '1 min' AS longer;
SELECT lease_fence.renew(:a, '1 s') > '1 min' AS never_shorter;
SELECT renewals FROM lease_fence.leases WHERE resource = 'lease:d';
DISCARD ALL;
SELECT lease_fence.release(:a), lease_fence.release(:a) AS again;

-- A detached request that names the present holder is a new grant: a restarted
-- worker takes its own lease back, and its frozen former self is fenced.
SELECT token AS a FROM lease_fence.acquire('lease:d', scope => 'detached', holder => 'job-7') \gset
SELECT token AS b FROM lease_fence.acquire('lease:d', scope => 'detached', holder => 'job-7', wait => '0') \gset
SELECT :b > :a AS new_grant, lease_fence.remaining(:a) IS NULL AS old_is_over,
       lease_fence.release(:a) AS old_releases_nothing, lease_fence.remaining(:b) > '0' AS new_is_held;
SELECT format('SELECT lease_fence.renew(%s)', :a) AS statement \gset
CALL fails(:'statement');
SELECT lease_fence.release(:b);
SELECT format('SELECT lease_fence.renew(%s)', :b) AS statement \gset
CALL fails(:'statement');

-- ---------------------------------------------------------------------------
-- The ttl
-- ---------------------------------------------------------------------------
-- Given: fixed, and nobody renews it.
SELECT token AS a, expires_in <= '100 ms' AS short
FROM lease_fence.acquire('lease:t', ttl => '100 ms', scope => 'session') \gset
\echo :short
SELECT pg_sleep(0.15);
SELECT lease_fence.remaining(:a) IS NULL AS lapsed;
SELECT state, renewals, expires_in IS NULL AS ended FROM lease_fence.leases WHERE resource = 'lease:t';
SELECT format('SELECT lease_fence.renew(%s)', :a) AS statement \gset
CALL fails(:'statement');
-- Lapsed and asked for by the same session again: no re-entry, a new grant.
SELECT token > :a AS new_grant FROM lease_fence.acquire('lease:t', ttl => '100 ms', scope => 'session');

-- Re-entered with a ttl of its own: prolonged.
BEGIN;
SELECT token AS a FROM lease_fence.acquire('lease:t2', ttl => '20 s') \gset
SELECT token = :a AS re_entered, expires_in > '30 s' AS prolonged
FROM lease_fence.acquire('lease:t2', ttl => '1 min');
COMMIT;

-- The limits.
SELECT expires_in > '364 days' AS a_year
FROM lease_fence.acquire('lease:t3', ttl => '1 year', scope => 'detached');
SELECT token > 0 AS ten_ms FROM lease_fence.acquire('lease:t4', ttl => '10 ms', scope => 'detached');

-- ---------------------------------------------------------------------------
-- Several at once
-- ---------------------------------------------------------------------------
BEGIN;
-- Distinct names, in byte order, tokens in that order.
SELECT resource, token > lag(token) OVER (ORDER BY n) AS in_order
FROM lease_fence.acquire_all('{lease:m2,lease:m1,lease:M,lease:m1}') WITH ORDINALITY AS x(resource, token, n);
SELECT resource, state FROM lease_fence.leases WHERE resource ILIKE 'lease:m%' ORDER BY resource COLLATE "C";
COMMIT;
SELECT resource, state FROM lease_fence.leases WHERE resource ILIKE 'lease:m%' ORDER BY resource COLLATE "C";

-- All or none: one is another's, so none is taken; what was held before stays.
SELECT token AS other FROM lease_fence.acquire('lease:m2', scope => 'detached', holder => 'other') \gset
BEGIN;
SELECT token AS mine FROM lease_fence.acquire('lease:m1') \gset
CALL fails($$SELECT * FROM lease_fence.acquire_all('{lease:m3,lease:m2,lease:m1,lease:M}', wait => '50 ms')$$);
SELECT lease_fence.remaining(:mine) > '0' AS mine_is_kept;
SELECT resource, state FROM lease_fence.leases WHERE resource ILIKE 'lease:m%' ORDER BY resource COLLATE "C";
SELECT lease_fence.release(:mine), lease_fence.remaining(:mine) IS NULL AS counted_right;
COMMIT;
SELECT lease_fence.release(:other);

-- Some held already: those are re-entered, the rest is new.
SELECT token AS mine FROM lease_fence.acquire('lease:m1', scope => 'session') \gset
SELECT resource, token = :mine AS kept FROM lease_fence.acquire_all('{lease:m1,lease:m2}', scope => 'session');
SELECT resource, token = :mine AS kept FROM lease_fence.acquire_all('{lease:m1}', scope => 'session');
SELECT lease_fence.release(:mine), lease_fence.release(:mine), lease_fence.release(:mine),
       lease_fence.remaining(:mine) IS NULL AS given_back;
DISCARD ALL;
SELECT count(*) FROM lease_fence.acquire_all('{lease:m1,lease:m2}', ttl => '10 s', scope => 'detached');
SELECT count(*) FROM lease_fence.acquire_all((SELECT array_agg('lease:many' || n) FROM generate_series(1, 200) n),
                                             scope => 'detached', ttl => '10 ms');

-- ---------------------------------------------------------------------------
-- Revoking
-- ---------------------------------------------------------------------------
SELECT lease_fence.revoke('lease:never') AS nobody_had_it;
SELECT token AS a FROM lease_fence.acquire('lease:v', scope => 'session') \gset
SELECT lease_fence.revoke('lease:v', 'its host is gone');
SELECT lease_fence.revoke('lease:v') AS again;
SELECT state FROM lease_fence.leases WHERE resource = 'lease:v';
SELECT how_ended, end_reason, ended_at >= granted_at AS ended FROM lease_fence.grants WHERE token = :a;
SELECT lease_fence.remaining(:a) IS NULL AS not_held, lease_fence.release(:a) AS released;
SELECT format('SELECT lease_fence.renew(%s)', :a) AS statement \gset
CALL fails(:'statement');
-- The session that lost it may ask again, and gets a new grant.
SELECT token > :a AS new_grant FROM lease_fence.acquire('lease:v', scope => 'session');
DISCARD ALL;

-- The durable history: every grant once.
SELECT token AS a FROM lease_fence.acquire('lease:h', scope => 'detached', holder => 'one', ttl => '1 min') \gset
SELECT lease_fence.release(:a);
SELECT resource, convert_from(holder, 'UTF8') AS holder, coordinator, role = current_user AS my_role,
       scope, ttl, external_number, granted_at <= now() + '1 min' AS granted
FROM lease_fence.grants WHERE resource = 'lease:h';
SELECT count(*) > 30 AS many, count(DISTINCT token) = count(*) AS distinct_tokens
FROM lease_fence.grants;

DROP FUNCTION take(text);
DROP FUNCTION take_sql(text);
DROP PROCEDURE fails;
