-- Profiles: which resources, which policy, which roles, and copies of a database.
\set VERBOSITY terse
CREATE SCHEMA profiles_test;
SET search_path = profiles_test, lease_fence, public;
CREATE ROLE lf_pr_in;
CREATE ROLE lf_pr_member;
CREATE ROLE lf_pr_out;
GRANT lf_pr_in TO lf_pr_member;
GRANT USAGE ON SCHEMA lease_fence, profiles_test TO lf_pr_in, lf_pr_member, lf_pr_out;

-- What is refused.
SELECT add_profile(name => NULL, prefix => 'a', policy => 'external');
SELECT add_profile(name => '', prefix => 'a', policy => 'external');
SELECT add_profile(name => repeat('x', 64), prefix => 'a', policy => 'external');
SELECT add_profile(name => 'a', prefix => '', policy => 'external');
SELECT add_profile(name => 'a', prefix => repeat('x', 513), policy => 'external');
SELECT add_profile(name => 'a', prefix => 'a');
SELECT add_profile(name => 'a', prefix => 'a', policy => 'quorum', servers => '{s1,s2,s3}');
SELECT add_profile(name => 'a', prefix => 'a', policy => 'nonsense');
SELECT add_profile(name => 'a', prefix => 'a', policy => 'external', servers => '{s1}');
SELECT add_profile(name => 'a', prefix => 'a', policy => 'external', shape => 'nonsense');
SELECT add_profile(name => 'a', prefix => 'a', policy => 'external', ttl => '0');
SELECT add_profile(name => 'a', prefix => 'a', policy => 'external', roles => '{lf_pr_nobody}');
SELECT add_profile(name => 'a', prefix => 'a', policy => 'external', roles => '{lf_pr_in,NULL}');
SELECT drop_profile('a');
SELECT drop_profile(NULL);
SELECT count(*) FROM profiles;
SELECT add_profile(name => 'a', prefix => 'a:', policy => 'external');
SELECT add_profile(name => 'a', prefix => 'b:', policy => 'external');
SELECT add_profile(name => 'b', prefix => 'a:', policy => 'external');

-- The longest prefix decides, compared byte by byte.
SELECT add_profile(name => 'inner', prefix => 'a:in', policy => 'external', roles => '{lf_pr_in}');
SELECT add_profile(name => 'odd', prefix => 'ü%_', policy => 'external');
SET SESSION AUTHORIZATION lf_pr_out;
SELECT token > 0 AS granted FROM import_grant(resource => 'a:1', number => 1);
SELECT import_grant(resource => 'a:inner', number => 1);
SELECT token > 0 AS granted FROM import_grant(resource => 'a:i', number => 1);
SELECT import_grant(resource => 'A:1', number => 1);
SELECT import_grant(resource => 'a', number => 1);
SELECT token > 0 AS granted FROM import_grant(resource => 'ü%_1', number => 1);
SELECT import_grant(resource => 'ü1', number => 1);
-- roles: members too, by the outer user
SET SESSION AUTHORIZATION lf_pr_member;
SELECT token > 0 AS granted FROM import_grant(resource => 'a:inner', number => 2);
RESET SESSION AUTHORIZATION;
SET ROLE lf_pr_out;
SELECT import_grant(resource => 'a:inner', number => 3);
RESET ROLE;
SET ROLE lf_pr_in;
SELECT token AS theirs FROM import_grant(resource => 'a:inner', number => 4) \gset
RESET ROLE;
-- nobody
SELECT add_profile(name => 'nobody', prefix => 'none:', policy => 'external', roles => '{}');
SET ROLE lf_pr_in;
SELECT import_grant(resource => 'none:1', number => 4);
RESET ROLE;

-- SECURITY DEFINER does not lend its rights to the caller.
CREATE FUNCTION import_for_all(resource text, number bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS 'SELECT token > 0 FROM lease_fence.import_grant(resource => $1, number => $2)';
SET SESSION AUTHORIZATION lf_pr_out;
SELECT import_for_all('a:inner', 9);
RESET SESSION AUTHORIZATION;

-- Changes are seen at once, in the same transaction and in others; undone, too.
BEGIN;
SELECT drop_profile('a');
SELECT token > 0 AS granted FROM acquire(resource => 'a:2');
ROLLBACK;
SELECT acquire(resource => 'a:2', scope => 'detached');
BEGIN;
SELECT add_profile(name => 'later', prefix => 'later:', policy => 'external');
SELECT token > 0 AS granted FROM import_grant(resource => 'later:1', number => 1);
ROLLBACK;
SELECT token > 0 AS granted FROM acquire(resource => 'later:2', scope => 'detached');

-- A copy: the profile belongs to another system or another database.
SELECT count(*) FROM lease_fence.check() WHERE object ~ '^profile';
UPDATE profiles SET system_identifier = 1 WHERE name = 'a';
UPDATE profiles SET database_oid = 1 WHERE name = 'odd';
\c -
SET search_path = profiles_test, lease_fence, public;
\set VERBOSITY terse
SELECT import_grant(resource => 'a:1', number => 100);
SELECT import_grant(resource => 'ü%_1', number => 100);
SELECT acquire(resource => 'a:1', scope => 'detached');
SELECT severity, object, problem FROM lease_fence.check() WHERE object ~ '^profile' ORDER BY object;
SELECT drop_profile('a'), drop_profile('odd');
SELECT add_profile(name => 'a', prefix => 'a:', policy => 'external');
SELECT token > 0 AS granted FROM import_grant(resource => 'a:1', number => 100);
SELECT count(*) FROM lease_fence.check() WHERE object ~ '^profile';

SELECT drop_profile(name::text) FROM profiles;
\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA profiles_test CASCADE;
REVOKE ALL ON SCHEMA lease_fence FROM lf_pr_in, lf_pr_member, lf_pr_out;
DROP ROLE lf_pr_in, lf_pr_member, lf_pr_out;
