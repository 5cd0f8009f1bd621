-- Names and texts with all that has a meaning to SQL, to formats, to JSON and to logs:
-- each is only ever the name or text that it is, in every place that takes one.
\set ECHO none
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA hostile_names;
SET search_path = hostile_names;
CREATE TABLE nasty (number int PRIMARY KEY, text text);
INSERT INTO nasty VALUES
    (1, ''''), (2, '"'), (3, '\'), (4, '$$'), (5, '%s%n%d'), (6, E'a\nLOG:  b'), (7, E'\x01\x1b[31m\x7f'),
    (8, '''; DROP TABLE hostile_names.nasty; --'), (9, '"; DROP TABLE hostile_names.nasty; --'),
    (10, ') OR true --'), (11, 'a.b'), (12, ' '), (13, 'SELECT'), (14, '😀é"'''), (15, '/* */'), (16, ':x'), (17, '?'),
    (18, '\x00'), (19, 'null'), (20, 'true'), (21, '-1'), (22, '*'), (23, '[0]'), (24, E'\r\n\t'), (25, 'Fence_Token'), (26, '@extschema@');

-- What is not as it should be; empty when all is well.
CREATE PROCEDURE tables(n text) LANGUAGE plpgsql AS $$
DECLARE
    rel CONSTANT text := format('hostile_names.%I', 't ' || n);
    key CONSTANT text := jsonb_build_object('k' || n, n)::text;
    wrong text := '';
    t bigint;
    row record;
BEGIN
    EXECUTE format('CREATE TABLE %s (%I text COLLATE "C" PRIMARY KEY, %I int)', rel, 'k' || n, 'c' || n);
    PERFORM lease_fence.protect(relation => rel::regclass, resource => 'hn:{k' || n || '}', token_column => 'f' || n);
    SELECT * INTO row FROM lease_fence.guards g WHERE g.relation = rel::regclass;
    IF row.resource <> 'hn:{k' || n || '}' OR row.token_column <> 'f' || n THEN wrong := wrong || ' guards'; END IF;

    SELECT token INTO t FROM lease_fence.acquire(resource => 'hn:' || n, scope => 'detached', holder => n);
    SELECT * INTO row FROM lease_fence.leases WHERE token = t;
    IF row.resource <> 'hn:' || n OR convert_from(row.holder, 'UTF8') <> n THEN wrong := wrong || ' leases'; END IF;

    SELECT * INTO row FROM lease_fence.guarded_insert(rel::regclass, jsonb_build_object('k' || n, n, 'c' || n, 5), token => t, operation_key => 'hn insert ' || n);
    IF row.outcome <> 'applied' OR row.new_row_out ->> ('k' || n) <> n THEN wrong := wrong || ' insert'; END IF;
    SELECT * INTO row FROM lease_fence.operation('hn insert ' || n);
    IF row.outcome <> 'applied' OR row.relation <> rel::regclass THEN wrong := wrong || ' operation'; END IF;
    SELECT * INTO row FROM lease_fence.guarded_decrement(rel::regclass, n, ('c' || n)::name, token => t);
    IF row.outcome <> 'applied' OR row.remaining <> 4 THEN wrong := wrong || ' decrement'; END IF;
    SELECT * INTO row FROM lease_fence.guarded_update(rel::regclass, key, jsonb_build_object('c' || n, 9), token => t, expected => jsonb_build_object('c' || n, 4, 'k' || n, n));
    IF row.outcome <> 'applied' OR row.new_row ->> ('c' || n) <> '9' THEN wrong := wrong || ' update'; END IF;
    SELECT * INTO row FROM lease_fence.guarded_increment(rel::regclass, key, ('c' || n)::name, token => t, ceiling => 9);
    IF row.outcome <> 'not_met' OR row.remaining <> 9 THEN wrong := wrong || ' increment'; END IF;

    -- revoked: the refusal, and the audit of it
    COMMIT;
    PERFORM lease_fence.revoke(resource => 'hn:' || n, reason => n);
    PERFORM FROM lease_fence.grants WHERE token = t AND end_reason = n AND resource = 'hn:' || n;
    IF NOT FOUND THEN wrong := wrong || ' grants'; END IF;
    PERFORM set_config('application_name', left(n, 20), true);
    BEGIN
        PERFORM lease_fence.guarded_delete(rel::regclass, key, token => t);
        wrong := wrong || ' stale';
    EXCEPTION WHEN SQLSTATE 'LF002' THEN
        IF position(quote_ident('hn:' || n) IN SQLERRM) > 0 THEN wrong := wrong || ' message'; END IF;
    END;
    SELECT * INTO row FROM lease_fence.rejected_writes WHERE presented_token = t;
    IF row.relation <> rel OR row.resource <> 'hn:' || n OR row.key::jsonb <> key::jsonb OR convert_from(row.presented_holder, 'UTF8') <> n
        THEN wrong := wrong || ' audit'; END IF;
    EXECUTE format('SELECT count(*) AS rows FROM %s', rel) INTO row;
    IF row.rows <> 1 THEN wrong := wrong || ' rows'; END IF;

    -- check() names it as SQL would have it
    EXECUTE format('ALTER TABLE %s ENABLE TRIGGER ALL', rel);
    SELECT * INTO row FROM lease_fence.check() WHERE object = rel;
    IF row.hint IS NULL THEN wrong := wrong || ' check'; ELSE EXECUTE row.hint; END IF;
    PERFORM lease_fence.unprotect(rel::regclass, drop_column => true);
    EXECUTE format('DROP TABLE %s', rel);
    IF wrong <> '' THEN RAISE EXCEPTION '%: %', n, wrong; END IF;
END $$;

-- Roles, profiles and servers.
CREATE PROCEDURE roles(n text) LANGUAGE plpgsql AS $$
DECLARE
    who CONSTANT text := 'regress_lf ' || n;
    wrong text := '';
    t bigint;
    row record;
    detail text;
BEGIN
    EXECUTE format('CREATE ROLE %I', who);
    EXECUTE format('CREATE ROLE %I', who || 2);
    EXECUTE format('GRANT USAGE ON SCHEMA lease_fence, hostile_names TO %I, %I', who, who || 2);
    PERFORM lease_fence.add_profile(name => 'p' || n, prefix => 'p' || n, policy => 'external', roles => ARRAY[who]::name[]);
    EXECUTE format('CREATE SERVER %I FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host ''127.0.0.1'', port ''1'')', 's' || n);
    PERFORM lease_fence.add_profile(name => 's' || n, prefix => 's' || n, servers => ARRAY['s' || n], lock_key => n || '{resource}');
    COMMIT;
    EXECUTE format('SET LOCAL ROLE %I', who);
    SELECT token INTO t FROM lease_fence.import_grant(resource => 'p' || n || n, number => 1, holder => n);
    SELECT * INTO row FROM lease_fence.leases WHERE token = t;
    IF row.role <> who THEN wrong := wrong || ' role'; END IF;
    BEGIN
        PERFORM lease_fence.acquire(resource => 's' || n, scope => 'detached');
        wrong := wrong || ' server';
    EXCEPTION WHEN SQLSTATE 'LF020' THEN NULL;
    END;
    EXECUTE format('SET LOCAL ROLE %I', who || 2);
    BEGIN
        PERFORM lease_fence.import_grant(resource => 'p' || n || n, number => 2);
        wrong := wrong || ' import';
    EXCEPTION WHEN SQLSTATE 'LF006' THEN
        GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
        IF position('"p' || n || '"' IN detail) = 0 THEN wrong := wrong || ' detail'; END IF;
    END;
    RESET ROLE;
    PERFORM FROM lease_fence.grants g WHERE g.token = t AND g.role = who;
    IF NOT FOUND THEN wrong := wrong || ' grants'; END IF;
    PERFORM lease_fence.revoke('p' || n || n);
    PERFORM lease_fence.drop_profile('p' || n), lease_fence.drop_profile('s' || n);
    EXECUTE format('DROP SERVER %I', 's' || n);
    EXECUTE format('DROP OWNED BY %I, %I', who, who || 2);
    EXECUTE format('DROP ROLE %I, %I', who, who || 2);
    IF wrong <> '' THEN RAISE EXCEPTION '%: %', n, wrong; END IF;
END $$;
\set ECHO all
\set ECHO none
SELECT format('CALL tables(%L)', text) FROM nasty ORDER BY number \gexec
\set ECHO all
\set ECHO none
SELECT format('CALL roles(%L)', text) FROM nasty WHERE number IN (1, 2, 3, 5, 6, 9, 14) ORDER BY number \gexec
\set ECHO all
SELECT count(*) FROM nasty;

-- As long as may be, and longer.
SELECT set_config('hostile.long', repeat('x', 1000000), false) IS NOT NULL AS set;
\set VERBOSITY sqlstate
SELECT lease_fence.acquire(resource => current_setting('hostile.long'), scope => 'detached');
SELECT lease_fence.acquire(resource => 'hn:long', scope => 'detached', holder => current_setting('hostile.long'));
SELECT lease_fence.acquire(resource => 'hn:long', scope => current_setting('hostile.long'));
SELECT lease_fence.acquire_all(resources => ARRAY(SELECT 'hn:' || i FROM generate_series(1, 100000) AS i), scope => 'detached');
SELECT lease_fence.acquire_all(resources => array_fill('hn:same'::text, ARRAY[1000, 1000]), scope => 'detached');
SELECT lease_fence.present(VARIADIC ARRAY(SELECT 60000000000000 + i FROM generate_series(1, 1000000) AS i));
SELECT set_config('lease_fence.token', current_setting('hostile.long'), true);
SELECT set_config('lease_fence.token', (SELECT string_agg(i::text, ',') FROM generate_series(1, 100000) AS i), true);
SELECT lease_fence.revoke(resource => 'hn:long', reason => current_setting('hostile.long'));
SELECT lease_fence.begin_epoch(reason => current_setting('hostile.long'));
SELECT lease_fence.operation(current_setting('hostile.long'));
SELECT lease_fence.add_profile(name => current_setting('hostile.long'), prefix => 'hn:', policy => 'external');
SELECT lease_fence.add_profile(name => 'long', prefix => current_setting('hostile.long'), policy => 'external');
SELECT lease_fence.drop_profile(current_setting('hostile.long'));
SELECT lease_fence.import_grant(resource => 'hn:long', number => 1, holder => current_setting('hostile.long'));
SELECT lease_fence.adopt(resource => 'hn:long', holder => current_setting('hostile.long'));
CREATE TABLE long (id text PRIMARY KEY, n int);
SELECT lease_fence.protect(relation => 'long', resource => current_setting('hostile.long'));
SELECT lease_fence.protect(relation => 'long', resource => repeat('{id}:', 1000));
SELECT lease_fence.protect(relation => 'long', resource => '{id}', mode => current_setting('hostile.long'));
SELECT lease_fence.protect(relation => 'long', resource => 'hn:{id}');
INSERT INTO long VALUES (left(current_setting('hostile.long'), 2000), 1);
SELECT lease_fence.guarded_update('long', current_setting('hostile.long'), '{"n": 1}');
SELECT lease_fence.guarded_update('long', '{"id": ' || repeat('[', 10000) || repeat(']', 10000) || '}', '{"n": 1}');
SELECT lease_fence.guarded_update('long', 'x', jsonb_build_object(current_setting('hostile.long'), 1));
SELECT lease_fence.guarded_insert('long', '{"id": "x"}', operation_key => current_setting('hostile.long'));
SELECT lease_fence.guarded_decrement('long', 'x', 'n', amount => repeat('9', 100000)::numeric);
\set VERBOSITY default
SELECT length(key) < 10000 AS cut, resource FROM lease_fence.rejected_writes
WHERE relation = 'hostile_names.long' AND operation = 'INSERT';
SET client_min_messages = warning;
DROP SCHEMA hostile_names CASCADE;
