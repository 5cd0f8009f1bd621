-- Servers of lease_fence_redis: their options, those of user mappings, and who sees
-- and who may define what. No Redis is needed: nothing is connected to.
\set ECHO none
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
-- One option of a server: what it is told, or nothing.
CREATE FUNCTION server_option(name text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    hint text;
BEGIN
    EXECUTE format('CREATE SERVER rs_try FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (%I %L)', name, value);
    DROP SERVER rs_try;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
    RETURN format('%s: %s (%s)', SQLSTATE, left(SQLERRM, 70), hint);
END $$;
\set ECHO all
CREATE ROLE lf_rs_owner;
CREATE ROLE lf_rs_other;

-- The wrapper is the extension's, and is for whom it is granted to.
SELECT fdwname, fdwhandler = 0 AS no_handler, fdwvalidator::regproc, fdwacl
FROM pg_foreign_data_wrapper WHERE fdwname = 'lease_fence_redis';
SELECT obj_description(oid, 'pg_foreign_data_wrapper') IS NOT NULL AS described
FROM pg_foreign_data_wrapper WHERE fdwname = 'lease_fence_redis';
SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
WHERE d.classid = 'pg_foreign_data_wrapper'::regclass AND deptype = 'e' AND extname = 'lease_fence';
SET ROLE lf_rs_owner;
CALL fails($$CREATE SERVER rs_a FOREIGN DATA WRAPPER lease_fence_redis$$);
CALL fails($$SELECT lease_fence.redis_validator('{}', 1417)$$);
RESET ROLE;

-- All defaults.
CREATE SERVER rs_a FOREIGN DATA WRAPPER lease_fence_redis;

-- Good values, and bad ones.
SELECT name, value, server_option(name, value) AS refused
FROM (VALUES ('host', 'localhost'), ('host', 'redis-1.internal_net'), ('host', '10.0.0.1'), ('host', '::1'),
             ('host', 'fe80::1%eth0'), ('host', repeat('a', 255)),
             ('port', '1'), ('port', '65535'), ('port', '06379'), ('socket', '/run/redis/redis.sock'),
             ('socket', '/' || repeat('a', 100)), ('db', '0'), ('db', '15'), ('db', '2147483647'),
             ('connect_timeout', '10ms'), ('connect_timeout', '60s'), ('connect_timeout', '1min'),
             ('connect_timeout', '500'), ('command_timeout', '1.5s'), ('command_timeout', ' 20 ms '),
             ('tls', 'off'), ('tls', 'false'), ('set_events', 'on'), ('set_events', 'off'), ('set_events', 'yes'),
             ('set_events', '1')) AS v (name, value)
WHERE server_option(name, value) IS NOT NULL;
SELECT name, left(value, 30) AS value, server_option(name, value) AS refused
FROM (VALUES ('host', ''), ('host', ' '), ('host', 'a b'), ('host', 'localhost:6379'), ('host', '/run/redis.sock'),
             ('host', 'redis://localhost'), ('host', '[::1]'), ('host', 'user@localhost'), ('host', E'a\nb'),
             ('host', 'a,b'), ('host', 'bücher.example'), ('host', repeat('a', 256)),
             ('port', ''), ('port', '0'), ('port', '65536'), ('port', '-1'), ('port', '+1'), ('port', ' 6379'),
             ('port', '6379.5'), ('port', '0x18eb'), ('port', 'redis'), ('port', '18446744073709557995'),
             ('socket', ''), ('socket', 'redis.sock'), ('socket', '@redis'), ('socket', '/' || repeat('a', 200)),
             ('db', ''), ('db', '-1'), ('db', '2147483648'), ('db', '0 '), ('db', 'zero'),
             ('connect_timeout', ''), ('connect_timeout', '0'), ('connect_timeout', '9ms'),
             ('connect_timeout', '60001ms'), ('connect_timeout', '-1s'), ('connect_timeout', '2 seconds'),
             ('connect_timeout', 'nan'), ('connect_timeout', 'inf'), ('connect_timeout', '1e300s'),
             ('command_timeout', '9'), ('command_timeout', '1h'), ('command_timeout', '2kB'),
             ('tls', ''), ('tls', 'maybe'), ('tls', 'rediss'), ('ca_file', ''), ('ca_file', 'ca.pem'),
             ('ca_file', '/' || repeat('a', 1024)), ('ca_file', '/etc/ca.pem'),
             ('set_events', ''), ('set_events', 'KEA'),
             ('Host', 'localhost'), ('timeout', '1s'), ('username', 'default'), ('password', 'secret'))
     AS v (name, value);

-- TLS: where the library has it, else refused for that reason.
SELECT coalesce(server_option('tls', 'on'), '0A000') ~ '^0A000' AS tls_or_why_not;

-- What does not go together.
CALL fails($$CREATE SERVER rs_b FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (socket '/run/r', host 'localhost')$$);
CALL fails($$CREATE SERVER rs_b FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (port '6379', socket '/run/r')$$);
CALL fails($$CREATE SERVER rs_b FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (socket '/run/r', tls 'on')$$);
CALL fails($$CREATE SERVER rs_b FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (tls 'off', ca_file '/etc/ca.pem')$$);
CALL fails($$CREATE SERVER rs_b FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (db '1', db '2')$$);

-- Changed: what is left must be good as a whole.
ALTER SERVER rs_a OPTIONS (host 'localhost', port '6380', db '3');
CALL fails($$ALTER SERVER rs_a OPTIONS (ADD socket '/run/r')$$);
CALL fails($$ALTER SERVER rs_a OPTIONS (SET port '99999')$$);
CALL fails($$ALTER SERVER rs_a OPTIONS (ADD port '6381')$$);
CALL fails($$ALTER SERVER rs_a OPTIONS (DROP socket)$$);
CALL fails($$ALTER SERVER rs_a OPTIONS (ADD nonsense '1')$$);
ALTER SERVER rs_a OPTIONS (DROP host, DROP port, SET db '4', ADD socket '/run/redis.sock', command_timeout '500ms');
SELECT srvname, srvoptions FROM pg_foreign_server WHERE srvname = 'rs_a';
ALTER SERVER rs_a OPTIONS (DROP socket, DROP db, DROP command_timeout);
SELECT srvname, srvoptions FROM pg_foreign_server WHERE srvname = 'rs_a';

-- User mappings. A password is in no message.
CREATE USER MAPPING FOR lf_rs_owner SERVER rs_a OPTIONS (username 'app', password 'pwd ÄÖ"''\ 1');
CREATE USER MAPPING FOR PUBLIC SERVER rs_a OPTIONS (password 'pwd only');
CREATE USER MAPPING FOR lf_rs_other SERVER rs_a;
DROP USER MAPPING FOR lf_rs_other SERVER rs_a;
CALL fails($$CREATE USER MAPPING FOR lf_rs_other SERVER rs_a OPTIONS (username 'app')$$);
CALL fails($$CREATE USER MAPPING FOR lf_rs_other SERVER rs_a OPTIONS (username '', password 'pwd')$$);
CALL fails($$CREATE USER MAPPING FOR lf_rs_other SERVER rs_a OPTIONS (username 'app', password '')$$);
SELECT format('CREATE USER MAPPING FOR lf_rs_other SERVER rs_a OPTIONS (password %L)', repeat('pwd', 171)) AS statement \gset
CALL fails(:'statement');
SELECT format('CREATE USER MAPPING FOR lf_rs_other SERVER rs_a OPTIONS (username %L, password %L)', repeat('u', 256), 'pwd') AS statement \gset
CALL fails(:'statement');
CALL fails($$CREATE USER MAPPING FOR lf_rs_other SERVER rs_a OPTIONS (user 'app', password 'pwd')$$);
CALL fails($$CREATE USER MAPPING FOR lf_rs_other SERVER rs_a OPTIONS (host 'localhost')$$);
CALL fails($$ALTER USER MAPPING FOR lf_rs_owner SERVER rs_a OPTIONS (DROP password)$$);
CALL fails($$ALTER USER MAPPING FOR PUBLIC SERVER rs_a OPTIONS (SET password '')$$);
ALTER USER MAPPING FOR lf_rs_owner SERVER rs_a OPTIONS (DROP username, SET password 'pwd 2');
ALTER USER MAPPING FOR lf_rs_owner SERVER rs_a OPTIONS (ADD username 'app2');

-- Who sees them: nobody but whose they are, with USAGE, and superusers.
ALTER FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (ADD host 'localhost');
GRANT USAGE ON FOREIGN DATA WRAPPER lease_fence_redis TO lf_rs_owner;
GRANT pg_monitor TO lf_rs_other;
SELECT usename, umoptions FROM pg_user_mappings WHERE srvname = 'rs_a' ORDER BY 1;
SET ROLE lf_rs_other;
SELECT usename, umoptions FROM pg_user_mappings WHERE srvname = 'rs_a' ORDER BY 1;
CALL fails($$SELECT umoptions FROM pg_user_mapping$$);
CALL fails($$CREATE USER MAPPING FOR lf_rs_other SERVER rs_a$$);
CALL fails($$ALTER SERVER rs_a OPTIONS (ADD host 'elsewhere')$$);
SET ROLE lf_rs_owner;
SELECT usename, umoptions FROM pg_user_mappings WHERE srvname = 'rs_a' ORDER BY 1;
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER rs_a TO lf_rs_other, lf_rs_owner;
SET ROLE lf_rs_other;
SELECT usename, umoptions FROM pg_user_mappings WHERE srvname = 'rs_a' ORDER BY 1;
SET ROLE lf_rs_owner;
SELECT usename, umoptions FROM pg_user_mappings WHERE srvname = 'rs_a' ORDER BY 1;

-- With USAGE on the wrapper a role has servers of its own.
CREATE SERVER rs_own FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host 'localhost');
CREATE USER MAPPING FOR CURRENT_USER SERVER rs_own OPTIONS (password 'pwd');
ALTER SERVER rs_own OPTIONS (SET host 'redis');
DROP SERVER rs_own CASCADE;
RESET ROLE;

-- There is nothing to read through them, and no option elsewhere.
CALL fails($$CREATE FOREIGN TABLE rs_table (id int) SERVER rs_a OPTIONS (key 'x')$$);
CALL fails($$CREATE FOREIGN TABLE rs_table (id int OPTIONS (field 'x')) SERVER rs_a$$);
CREATE FOREIGN TABLE rs_table (id int) SERVER rs_a;
CALL fails($$SELECT FROM rs_table$$);
DROP FOREIGN TABLE rs_table;

-- The validator itself, called by a superuser with what no command would pass.
CALL fails($$SELECT lease_fence.redis_validator(ARRAY['port'], 'pg_foreign_server'::regclass)$$);
CALL fails($$SELECT lease_fence.redis_validator(ARRAY['=6379'], 'pg_foreign_server'::regclass)$$);
CALL fails($$SELECT lease_fence.redis_validator(ARRAY[NULL], 'pg_foreign_server'::regclass)$$);
CALL fails($$SELECT lease_fence.redis_validator('{{port=1,port=x},{a=b,c=d}}', 'pg_foreign_server'::regclass)$$);
CALL fails($$SELECT lease_fence.redis_validator('{port=1}', 0)$$);
SELECT lease_fence.redis_validator('{port=1,port=2,host=a=b}', NULL) IS NULL AS strict;
-- and with rubbish: refused or not, in the ways it refuses
SELECT setseed(0.5);
DO $$
DECLARE
    names CONSTANT text[] := '{host,port,socket,db,connect_timeout,command_timeout,tls,ca_file,set_events,username,password,"",x}';
    pieces CONSTANT text[] := '{"",0,1,6379,60s,10ms,ms,/,/a,localhost,:,::1,on,off,e,.,-," ",%,%s,%n,=,"\"","\\",ü,€,😀}';
    given text[];
BEGIN
    FOR i IN 1 .. 5000 LOOP
        SELECT array_agg(names[1 + floor(random() * 13)] || '=' ||
                         repeat(pieces[1 + floor(random() * 27)], CASE WHEN random() < 0.05 THEN 300 ELSE 1 END) ||
                         pieces[1 + floor(random() * 27)] || pieces[1 + floor(random() * 27)])
        INTO given FROM generate_series(1, 1 + (i % 4));
        BEGIN
            PERFORM lease_fence.redis_validator(given,
                CASE WHEN i % 3 = 0 THEN 'pg_user_mapping'::regclass ELSE 'pg_foreign_server'::regclass END);
        EXCEPTION
            WHEN fdw_invalid_option_name OR invalid_parameter_value OR feature_not_supported THEN NULL;
        END;
    END LOOP;
END $$;

-- The extension does not go while a server is there, unless with it.
CALL fails($$DROP FOREIGN DATA WRAPPER lease_fence_redis$$);
DROP SERVER rs_a CASCADE;
SET client_min_messages = warning;
REVOKE ALL ON FOREIGN DATA WRAPPER lease_fence_redis FROM lf_rs_owner;
DROP ROLE lf_rs_owner, lf_rs_other;
SELECT current_database() AS here \gset
DROP DATABASE IF EXISTS regress_lf_servers;
CREATE DATABASE regress_lf_servers TEMPLATE template0;
\c regress_lf_servers
SET client_min_messages = warning;
CREATE EXTENSION lease_fence;
CREATE SERVER rs_b FOREIGN DATA WRAPPER lease_fence_redis;
CREATE USER MAPPING FOR PUBLIC SERVER rs_b OPTIONS (password 'pwd');
SELECT lease_fence.add_profile(name => 'redis', prefix => 'r:', servers => '{rs_b}');
DROP EXTENSION lease_fence;
DROP EXTENSION lease_fence CASCADE;
SELECT count(*) FROM pg_foreign_server;
CREATE EXTENSION lease_fence;
CREATE SERVER rs_b FOREIGN DATA WRAPPER lease_fence_redis;
SELECT count(*) FROM lease_fence.check_catalogs() WHERE object ~ '^profile';
\c :here
SET client_min_messages = warning;
DROP DATABASE regress_lf_servers;
DROP FUNCTION server_option;
DROP PROCEDURE fails;
