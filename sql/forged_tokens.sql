-- Numbers that were not given to the caller: guessed, seen in a row, another role's.
-- They write nothing, end nothing, and tell nothing of what others have leased.
\set ECHO none
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
SET client_min_messages = warning;
CREATE SCHEMA forged;
CREATE ROLE regress_lf_victim;
CREATE ROLE regress_lf_forger;
CREATE ROLE regress_lf_auditor;
GRANT pg_monitor TO regress_lf_auditor;
GRANT USAGE ON SCHEMA lease_fence, forged TO regress_lf_victim, regress_lf_forger, regress_lf_auditor;
CREATE TABLE forged.stock (id int PRIMARY KEY, n int);
INSERT INTO forged.stock VALUES (1, 10), (2, 20);
GRANT ALL ON forged.stock TO PUBLIC;
SELECT lease_fence.protect(relation => 'forged.stock', resource => 'forged:{id}');

SET ROLE regress_lf_victim;
SELECT token AS old FROM lease_fence.acquire(resource => 'forged:1', scope => 'detached') \gset
SELECT lease_fence.release(:old);
SELECT token AS live FROM lease_fence.acquire(resource => 'forged:1', scope => 'detached') \gset
SELECT token AS private FROM lease_fence.acquire(resource => 'merger with ACME', scope => 'detached') \gset
RESET ROLE;
SELECT count(*) AS epochs FROM lease_fence.epochs \gset

-- Every way to name a token, for every number that can be thought of.
CREATE FUNCTION forged.try(what text, token bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    message text;
    detail text;
BEGIN
    CASE what
        WHEN 'setting' THEN
            PERFORM set_config('lease_fence.token', token::text, true);
            UPDATE forged.stock SET n = 0 WHERE id = 1;
        WHEN 'present' THEN PERFORM lease_fence.present(token);
        WHEN 'guarded_update' THEN PERFORM lease_fence.guarded_update('forged.stock', '1', '{"n": 0}', token => token);
        WHEN 'guarded_decrement' THEN PERFORM lease_fence.guarded_decrement('forged.stock', '1', 'n', token => token);
        WHEN 'guarded_increment' THEN PERFORM lease_fence.guarded_increment('forged.stock', '1', 'n', token => token);
        WHEN 'guarded_insert' THEN PERFORM lease_fence.guarded_insert('forged.stock', '{"id": 3}', token => token);
        WHEN 'guarded_delete' THEN PERFORM lease_fence.guarded_delete('forged.stock', '1', token => token);
        WHEN 'renew' THEN PERFORM lease_fence.renew(token, '1 s');
        WHEN 'release' THEN PERFORM lease_fence.release(token);
        WHEN 'remaining' THEN PERFORM lease_fence.remaining(token);
    END CASE;
    RETURN 'done';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || CASE WHEN message || detail ~ 'merger' THEN ', and tells' ELSE '' END;
END $$;
SET ROLE regress_lf_forger;
SELECT what,
       forged.try(what, :live) AS live, forged.try(what, :old) AS superseded, forged.try(what, :private) AS private,
       forged.try(what, :private + 1) AS next, forged.try(what, 1) AS one,
       forged.try(what, 9007199254740992) AS pow_53, forged.try(what, 9223372036854775807) AS max,
       forged.try(what, 0) AS zero, forged.try(what, -1) AS minus
FROM unnest('{setting,present,guarded_update,guarded_decrement,guarded_increment,guarded_insert,guarded_delete,renew,release,remaining}'::text[])
     WITH ORDINALITY AS w (what, number)
ORDER BY number;
SELECT format('SELECT lease_fence.present(%s)', :private) AS present_private, format('SELECT lease_fence.present(%s)', :old) AS present_old \gset
CALL fails(:'present_private');
CALL fails(:'present_old');
-- a list, and the forger's own token of another resource beside it
SELECT token AS own FROM lease_fence.acquire(resource => 'forged:2', scope => 'detached') \gset
BEGIN;
SELECT set_config('lease_fence.token', concat_ws(',', :own, :live, :old, :private + 5, 9223372036854775807), true) IS NOT NULL AS set;
UPDATE forged.stock SET n = 21 WHERE id = 2;
CALL fails('UPDATE forged.stock SET n = 0 WHERE id = 1');
COMMIT;
RESET ROLE;
-- Nothing came of it: the rows, the leases, the epoch are as they were.
SELECT id, n, fence_token = :own AS own FROM forged.stock ORDER BY id;
SELECT count(*) = :epochs AS same_epoch FROM lease_fence.epochs;
SET ROLE regress_lf_victim;
SELECT lease_fence.remaining(:live) > '10 s' AS live, lease_fence.remaining(:private) > '10 s' AS private;
BEGIN;
SELECT lease_fence.present(:live);
UPDATE forged.stock SET n = 11 WHERE id = 1;
COMMIT;
RESET ROLE;

-- The number in a row is no right to write it, whoever the row says.
SET ROLE regress_lf_forger;
BEGIN;
SELECT set_config('lease_fence.token', fence_token::text, true) = fence_token::text AS set FROM forged.stock WHERE id = 1;
CALL fails('UPDATE forged.stock SET n = 0 WHERE id = 1');
COMMIT;
-- Nor does who stamps a row himself.
BEGIN;
SELECT lease_fence.present(:own);
UPDATE forged.stock SET fence_token = 9007199254740991 WHERE id = 2;
COMMIT;
RESET ROLE;
SELECT fence_token = :own AS own FROM forged.stock WHERE id = 2;

-- ---------------------------------------------------------------------------
-- Changing the role on the way
-- ---------------------------------------------------------------------------
-- what one role set, another one does not write under; back again it does
SET ROLE regress_lf_victim;
BEGIN;
SELECT set_config('lease_fence.token', :'live', true) = :'live' AS set;
SET LOCAL ROLE regress_lf_forger;
CALL fails('UPDATE forged.stock SET n = 0 WHERE id = 1');
SET LOCAL ROLE regress_lf_victim;
UPDATE forged.stock SET n = 12 WHERE id = 1;
COMMIT;
RESET ROLE;
SET SESSION AUTHORIZATION regress_lf_victim;
SELECT token AS kept FROM lease_fence.acquire(resource => 'forged:kept', scope => 'session') \gset
SET SESSION AUTHORIZATION regress_lf_forger;
SELECT format('SELECT lease_fence.renew(%s)', :kept) AS renew_kept, format('SELECT lease_fence.release(%s)', :kept) AS release_kept,
       format('SELECT lease_fence.remaining(%s)', :kept) AS remaining_kept \gset
CALL fails(:'renew_kept');
CALL fails(:'release_kept');
CALL fails(:'remaining_kept');
CALL fails($$SELECT lease_fence.acquire(resource => 'forged:kept', scope => 'session', wait => '0')$$);
SELECT token FROM lease_fence.try_acquire(resource => 'forged:kept', scope => 'session');
CALL fails($$SELECT lease_fence.acquire_all(resources => '{forged:other,forged:kept}', scope => 'session', wait => '0')$$);
-- also to wait for it would be for ever
CALL fails($$SELECT lease_fence.acquire(resource => 'forged:kept', scope => 'session', wait => NULL)$$);
SELECT count(*) FROM lease_fence.leases WHERE resource = 'forged:kept';
RESET SESSION AUTHORIZATION;
SET SESSION AUTHORIZATION regress_lf_victim;
SELECT token = :kept AS entered_again FROM lease_fence.acquire(resource => 'forged:kept', scope => 'session');
SELECT lease_fence.release(:kept), lease_fence.release(:kept), lease_fence.release(:kept);
RESET SESSION AUTHORIZATION;

-- ---------------------------------------------------------------------------
-- SECURITY DEFINER: the error, and the function on its way, are two roles
-- ---------------------------------------------------------------------------
SET ROLE regress_lf_forger;
SELECT lease_fence.release(:own);
RESET ROLE;
SELECT token AS newer FROM lease_fence.acquire(resource => 'forged:2', scope => 'detached', holder => 'very secret holder') \gset
CREATE FUNCTION forged.write(token bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
BEGIN
    PERFORM lease_fence.guarded_update('forged.stock', '2', '{"n": 0}', token => token);
    RETURN 'written';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || CASE WHEN detail ~ 'very secret' THEN ', and tells' ELSE '' END;
END $$;
CREATE FUNCTION forged.write_as_owner(token bigint) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT forged.write($1)';
-- a function of a superuser's, called by a nobody; of a nobody's, called by a DBA
SET ROLE regress_lf_forger;
SELECT forged.write_as_owner(:own);
RESET ROLE;
ALTER FUNCTION forged.write_as_owner(bigint) OWNER TO regress_lf_forger;
SELECT forged.write_as_owner(:own);
ALTER FUNCTION forged.write_as_owner(bigint) OWNER TO regress_lf_auditor;
SELECT forged.write_as_owner(:own);

-- A token of a role that is gone is a superuser's, not of who calls his function.
CREATE ROLE regress_lf_gone;
GRANT USAGE ON SCHEMA lease_fence TO regress_lf_gone;
SET ROLE regress_lf_gone;
SELECT token AS orphan FROM lease_fence.acquire(resource => 'forged:orphan', scope => 'detached') \gset
RESET ROLE;
DROP OWNED BY regress_lf_gone;
DROP ROLE regress_lf_gone;
CREATE FUNCTION forged.release(token bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS 'SELECT lease_fence.release($1)';
SELECT format('SELECT forged.release(%s)', :orphan) AS statement \gset
SET ROLE regress_lf_forger;
CALL fails(:'statement');
RESET ROLE;
SELECT forged.release(:orphan);

SELECT lease_fence.revoke(resource) FROM (VALUES ('forged:1'), ('forged:2'), ('merger with ACME')) AS v (resource);
DROP SCHEMA forged CASCADE;
DROP PROCEDURE fails;
DROP OWNED BY regress_lf_victim, regress_lf_forger, regress_lf_auditor;
DROP ROLE regress_lf_victim, regress_lf_forger, regress_lf_auditor;
