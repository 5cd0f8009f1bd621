-- Profiles of policy "single": one server of lease_fence_redis. No Redis is needed.
\set ECHO none
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
SET search_path = lease_fence, public;
CREATE ROLE lf_rp_dba;
GRANT USAGE ON SCHEMA lease_fence TO lf_rp_dba;
GRANT EXECUTE ON FUNCTION add_profile, drop_profile TO lf_rp_dba;
CREATE SERVER rp_a FOREIGN DATA WRAPPER lease_fence_redis;
CREATE SERVER "rp B" FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host 'localhost');
CREATE FOREIGN DATA WRAPPER rp_wrapper;
CREATE SERVER rp_other FOREIGN DATA WRAPPER rp_wrapper;

-- Servers: exactly one, of the right kind.
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => NULL)$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{}')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a,"rp B"}')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a,rp_a}')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{NULL}')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{""}')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_nowhere}')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{RP_A}')$$);
SELECT format('SELECT add_profile(name => ''a'', prefix => ''a:'', servers => ARRAY[%L])', repeat('x', 70)) AS statement \gset
CALL fails(:'statement');
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_other}')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', policy => 'external')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', policy => 'all')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a,"rp B"}', policy => 'quorum')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', policy => 'Single')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', shape => 'hash')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', ttl => '1ms')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => '', servers => '{rp_a}')$$);

-- Keys: a name of their own for each resource.
CREATE FUNCTION key_refused(lock_key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
BEGIN
    PERFORM lease_fence.add_profile(name => 'key', prefix => 'key', servers => '{rp_a}', lock_key => lock_key);
    PERFORM lease_fence.drop_profile('key');
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN format('%s: %s (%s)', SQLSTATE, left(SQLERRM, 60), detail);
END $$;
SELECT key, key_refused(key) AS refused
FROM unnest(ARRAY['{resource}', 'lock:{resource}', '{resource}:{resource}', '{{{resource}}}', 'a{{b}}c{resource}',
                  'job-lock:shop:{resource}', '}}{{{resource}', '{resource}}}', 'ü{resource} "'' ',
                  repeat('x', 502) || '{resource}', 'my:redisson_lock_token:{resource}',
                  '{resource}redisson_lock_token:', 'lock-signals:{resource}', 'a:rwlock_timeout{resource}'])
     AS k (key)
WHERE key_refused(key) IS NOT NULL;
SELECT left(key, 40) AS key, key_refused(key) AS refused
FROM unnest(ARRAY['', 'lock', ' ', '{{resource}}', '{Resource}', '{resource', 'resource}', '{resource}}', '{{resource}',
                  '{ resource }', '{}', '{id}', '{resource}:{id}', '{resource}{', '{resource}}{', '{', '}',
                  repeat('x', 503) || '{resource}',
                  'redisson_lock_token:{{{resource}}}', 'redisson_unlock_latch:{{{resource}}}:x',
                  'redisson_lock_queue:{resource}', 'redisson_lock_timeout:{resource}', 'lock-signal:{resource}',
                  '{{{resource}}}:x:1:rwlock_timeout:1', ':rwlock_timeout:{resource}']) AS k (key);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', lock_key => NULL)$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', lock_key => 'x{y}z')$$);
CALL fails($$SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}', lock_key => 'subscription-')$$);
SELECT count(*) FROM profiles;
-- where nothing is locked, keys have no meaning
SELECT add_profile(name => 'ext', prefix => 'ext:', policy => 'external', lock_key => 'x{y');

-- Kept as they were given.
SELECT add_profile(name => 'a', prefix => 'a:', servers => '{rp_a}');
SELECT add_profile(name => 'in', prefix => 'a:in:', servers => '{rp B}', shape => 'redisson',
                   lock_key => '{{{resource}}}', ttl => '10s', watch => false, roles => '{lf_rp_dba}');
SELECT name, prefix, servers, policy, shape, lock_key, ttl, watch, roles FROM profiles ORDER BY name;
-- the same again
CALL fails($$SELECT add_profile(name => 'a', prefix => 'b:', servers => '{rp_a}')$$);
CALL fails($$SELECT add_profile(name => 'b', prefix => 'a:in:', servers => '{rp_a}')$$);
CALL fails($$SELECT add_profile(name => n, prefix => 'c:', servers => '{rp_a}') FROM unnest('{c,d}'::text[]) n$$);
SELECT count(*) FROM profiles;
-- with the same server, and a prefix that only looks the same
SELECT add_profile(name => 'b', prefix => 'A:', servers => '{rp_a}');

-- USAGE on the server is needed to name it.
SET ROLE lf_rp_dba;
CALL fails($$SELECT add_profile(name => 'mine', prefix => 'mine:', servers => '{rp_a}')$$);
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER rp_a TO lf_rp_dba;
SET ROLE lf_rp_dba;
SELECT add_profile(name => 'mine', prefix => 'mine:', servers => '{rp_a}');
SELECT drop_profile('mine');
RESET ROLE;

-- Its leases are not imported.
CALL fails($$SELECT import_grant(resource => 'a:1', number => 1)$$);

-- A server that is gone, has another name, or is another one.
SELECT count(*) FROM check_catalogs() WHERE object ~ '^profile';
ALTER SERVER "rp B" RENAME TO rp_renamed;
SELECT severity, object, problem, hint FROM check_catalogs() WHERE object ~ '^profile';
DROP SERVER rp_a;
SELECT severity, object, problem FROM check_catalogs() WHERE object ~ '^profile' ORDER BY object COLLATE "C";
CREATE SERVER rp_a FOREIGN DATA WRAPPER rp_wrapper;
SELECT severity, object, problem, hint FROM check_catalogs() WHERE object ~ '^profile' ORDER BY object COLLATE "C";
DROP SERVER rp_a;
CREATE SERVER rp_a FOREIGN DATA WRAPPER lease_fence_redis;
ALTER SERVER rp_renamed RENAME TO "rp B";
SELECT count(*) FROM check_catalogs() WHERE object ~ '^profile';
-- in a copy a profile is off, whatever its server
UPDATE profiles SET system_identifier = 1 WHERE name = 'in';
DROP SERVER "rp B";
SELECT severity, object, problem FROM check_catalogs() WHERE object ~ '^profile' ORDER BY object COLLATE "C";
SELECT drop_profile('in');

-- What this version does not know it does not take for something else.
UPDATE profiles SET policy = 'quorum' WHERE name = 'a';
\c -
SET search_path = lease_fence, public;
CALL fails($$SELECT import_grant(resource => 'a:1', number => 1)$$);
UPDATE profiles SET policy = 'single', shape = 'zset' WHERE name = 'a';
\c -
SET search_path = lease_fence, public;
CALL fails($$SELECT import_grant(resource => 'a:1', number => 1)$$);
UPDATE profiles SET shape = 'string', servers = '{rp_a,rp_b}' WHERE name = 'a';
\c -
SET search_path = lease_fence, public;
CALL fails($$SELECT import_grant(resource => 'a:1', number => 1)$$);
SELECT drop_profile('a');

SELECT drop_profile(name::text) FROM profiles;
SET client_min_messages = warning;
DROP SERVER rp_a;
DROP FOREIGN DATA WRAPPER rp_wrapper CASCADE;
DROP FUNCTION key_refused;
REVOKE ALL ON SCHEMA lease_fence FROM lf_rp_dba;
REVOKE ALL ON FUNCTION add_profile, drop_profile FROM lf_rp_dba;
DROP ROLE lf_rp_dba;
DROP PROCEDURE fails;
