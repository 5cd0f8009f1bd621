/* lease_fence--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION lease_fence" to load this file. \quit

-- Fails where somebody else has made a schema of this name: nothing of theirs
-- may stand beside what we create and resolve.
CREATE SCHEMA lease_fence;
COMMENT ON SCHEMA lease_fence IS
'leases with fencing tokens: USAGE on this schema lets a role take leases and write to guarded tables';

-- ---------------------------------------------------------------------------
-- Tables. The worker writes all of them but guard_modes.
-- ---------------------------------------------------------------------------

CREATE FUNCTION lease_fence.drop_replicated() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'lf_drop_replicated';
COMMENT ON FUNCTION lease_fence.drop_replicated() IS
'drops what a logical replication subscription would write into our own tables';

-- By floor, which grows over every history of this database: ids begin at 1 in
-- each, and a restore can bring one beside ours.
CREATE TABLE lease_fence.epochs (
    id bigint NOT NULL,
    floor bigint NOT NULL,
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    database_oid oid NOT NULL,
    extension_oid oid NOT NULL,
    nonce bytea NOT NULL,
    begun_at timestamptz NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (floor, id)
);
COMMENT ON TABLE lease_fence.epochs IS
'uninterrupted histories of this database: every token at or below the last floor is refused';

CREATE TABLE lease_fence.grants (
    token bigint PRIMARY KEY,
    resource text COLLATE "C" NOT NULL,
    holder bytea NOT NULL,
    coordinator text NOT NULL,
    role name NOT NULL,
    scope text NOT NULL,
    ttl interval NOT NULL,
    external_number bigint,
    granted_at timestamptz NOT NULL,
    ended_at timestamptz,
    how_ended text,
    end_reason text
) WITH (fillfactor = 70);       -- each row is written once more, when its lease ends
CREATE INDEX grants_resource ON lease_fence.grants (resource, token);
COMMENT ON TABLE lease_fence.grants IS
'every grant of a lease, with the token minted for it, and how it ended';

CREATE TABLE lease_fence.rejected_writes (
    id bigint PRIMARY KEY,
    at timestamptz NOT NULL,
    action text NOT NULL,
    reason text NOT NULL,
    relation text,
    operation text,
    key text,
    resource text COLLATE "C",
    presented_token bigint,
    current_token bigint,
    presented_holder bytea,
    current_holder bytea,
    over_for interval,
    role name,
    application_name text,
    client text,
    pid integer,
    statement text,
    new_row text,
    rows bigint NOT NULL
);
COMMENT ON TABLE lease_fence.rejected_writes IS
'writes that a guard refused (rejected), would have refused (observed), let through for a reason (bypassed), and writers ended by a drain (terminated)';

CREATE TABLE lease_fence.operations (
    key text COLLATE "C" PRIMARY KEY,
    role name NOT NULL,
    relation regclass NOT NULL,
    digest bytea NOT NULL,
    answer jsonb NOT NULL,
    token bigint,
    at timestamptz NOT NULL
);
COMMENT ON TABLE lease_fence.operations IS
'operation keys that were applied, and what they were answered';

CREATE TABLE lease_fence.profiles (
    name name PRIMARY KEY,
    prefix text COLLATE "C" NOT NULL UNIQUE,
    servers text[] NOT NULL,
    policy text NOT NULL,
    shape text NOT NULL,
    lock_key text NOT NULL,
    ttl interval NOT NULL,
    watch boolean NOT NULL,
    roles name[],
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL
);
COMMENT ON TABLE lease_fence.profiles IS
'which resources are handed out by whom, and to which roles; without a profile by this database, to everybody';

CREATE TABLE lease_fence.guard_modes (
    relation regclass PRIMARY KEY,
    mode text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE lease_fence.guard_modes IS
'mode of each guard; the rest of it is its trigger';

CREATE TRIGGER drop_replicated BEFORE INSERT OR UPDATE OR DELETE ON lease_fence.epochs
    FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated();
CREATE TRIGGER drop_replicated BEFORE INSERT OR UPDATE OR DELETE ON lease_fence.grants
    FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated();
CREATE TRIGGER drop_replicated BEFORE INSERT OR UPDATE OR DELETE ON lease_fence.rejected_writes
    FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated();
CREATE TRIGGER drop_replicated BEFORE INSERT OR UPDATE OR DELETE ON lease_fence.operations
    FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated();
CREATE TRIGGER drop_replicated BEFORE INSERT OR UPDATE OR DELETE ON lease_fence.profiles
    FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated();
CREATE TRIGGER drop_replicated BEFORE INSERT OR UPDATE OR DELETE ON lease_fence.guard_modes
    FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated();
ALTER TABLE lease_fence.epochs ENABLE REPLICA TRIGGER drop_replicated;
ALTER TABLE lease_fence.grants ENABLE REPLICA TRIGGER drop_replicated;
ALTER TABLE lease_fence.rejected_writes ENABLE REPLICA TRIGGER drop_replicated;
ALTER TABLE lease_fence.operations ENABLE REPLICA TRIGGER drop_replicated;
ALTER TABLE lease_fence.profiles ENABLE REPLICA TRIGGER drop_replicated;
ALTER TABLE lease_fence.guard_modes ENABLE REPLICA TRIGGER drop_replicated;

SELECT pg_catalog.pg_extension_config_dump('lease_fence.epochs', '');
SELECT pg_catalog.pg_extension_config_dump('lease_fence.grants', '');
SELECT pg_catalog.pg_extension_config_dump('lease_fence.rejected_writes', '');
SELECT pg_catalog.pg_extension_config_dump('lease_fence.operations', '');
SELECT pg_catalog.pg_extension_config_dump('lease_fence.profiles', '');
-- Without the modes of tables that were dropped: their bare OIDs would be those
-- of other tables in the restored database.
SELECT pg_catalog.pg_extension_config_dump('lease_fence.guard_modes',
    'WHERE relation::pg_catalog.oid IN (SELECT oid FROM pg_catalog.pg_class)');

-- ---------------------------------------------------------------------------
-- Leases
-- ---------------------------------------------------------------------------

CREATE FUNCTION lease_fence.acquire(
    resource text, ttl interval DEFAULT NULL, wait interval DEFAULT '10s',
    scope text DEFAULT 'transaction', holder text DEFAULT NULL,
    OUT token bigint, OUT expires_in interval)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_acquire';
COMMENT ON FUNCTION lease_fence.acquire(text, interval, interval, text, text) IS
'takes the lease of a resource, or raises 55P03 when the wait runs out. Read what a write depends on after this returned, in a later statement. Write SELECT * FROM acquire(...): (acquire(...)).* calls it once per column';

CREATE FUNCTION lease_fence.try_acquire(
    resource text, ttl interval DEFAULT NULL, wait interval DEFAULT '0',
    scope text DEFAULT 'transaction', holder text DEFAULT NULL,
    OUT token bigint, OUT expires_in interval, OUT retry_after interval)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_try_acquire';
COMMENT ON FUNCTION lease_fence.try_acquire(text, interval, interval, text, text) IS
'as acquire, but answers a NULL token and how long the present lease still runs when it is not to be had. Write SELECT * FROM try_acquire(...): (try_acquire(...)).* calls it once per column';

CREATE FUNCTION lease_fence.acquire_all(
    resources text[], ttl interval DEFAULT NULL, wait interval DEFAULT '10s',
    scope text DEFAULT 'transaction', holder text DEFAULT NULL)
RETURNS TABLE (resource text, token bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_acquire_all';
COMMENT ON FUNCTION lease_fence.acquire_all(text[], interval, interval, text, text) IS
'takes the leases of several resources, all or none, in one order for everybody. Read what a write depends on after this returned, in a later statement';

CREATE FUNCTION lease_fence.adopt(
    resource text, holder text, known_token bigint DEFAULT NULL,
    OUT token bigint, OUT expires_in interval)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_adopt';
COMMENT ON FUNCTION lease_fence.adopt(text, text, bigint) IS
'adopts a lock that its holder has taken with a library of its own: a new grant, or with known_token the same one, verified and extended. Read what a write depends on after this returned, in a later statement. Write SELECT * FROM adopt(...)';

CREATE FUNCTION lease_fence.adopt(
    resource text, holder bytea, known_token bigint DEFAULT NULL,
    OUT token bigint, OUT expires_in interval)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_adopt';
COMMENT ON FUNCTION lease_fence.adopt(text, bytea, bigint) IS
'as adopt(text, text, bigint), for a holder that is any bytes';

CREATE FUNCTION lease_fence.import_grant(
    resource text, number bigint, holder text DEFAULT NULL, ttl interval DEFAULT NULL,
    OUT token bigint, OUT expires_in interval)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_import_grant';
COMMENT ON FUNCTION lease_fence.import_grant(text, bigint, text, interval) IS
'adopts a grant that others order by a number (etcd create revision, ZooKeeper czxid, Consul modify index, Hazelcast fence). Read what a write depends on after this returned, in a later statement. Write SELECT * FROM import_grant(...)';

CREATE FUNCTION lease_fence.present(VARIADIC tokens bigint[]) RETURNS void
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_present';
COMMENT ON FUNCTION lease_fence.present(bigint[]) IS
'names the tokens under which this transaction writes, checks them now and keeps the fence shut until the transaction ends';

CREATE FUNCTION lease_fence.renew(token bigint, ttl interval DEFAULT NULL) RETURNS interval
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_renew';
COMMENT ON FUNCTION lease_fence.renew(bigint, interval) IS
'prolongs a lease from now on by ttl, or by the ttl it was taken with; raises LF001 or LF002 when it is gone';

CREATE FUNCTION lease_fence.remaining(token bigint) RETURNS interval
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_remaining';
COMMENT ON FUNCTION lease_fence.remaining(bigint) IS
'how long the lease still runs, or NULL when it is not held any more; asks nobody and promises nothing';

CREATE FUNCTION lease_fence.release(token bigint) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_release';
COMMENT ON FUNCTION lease_fence.release(bigint) IS
'gives a lease back; false when it was not held any more. What was written under it before stays fenced until this transaction ends';

CREATE FUNCTION lease_fence.revoke(resource text, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_revoke';
COMMENT ON FUNCTION lease_fence.revoke(text, text) IS
'takes a lease away from its holder and returns when no writer under it is left; false when nobody had it';
REVOKE ALL ON FUNCTION lease_fence.revoke(text, text) FROM PUBLIC;

CREATE FUNCTION lease_fence.begin_epoch(reason text) RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_begin_epoch';
COMMENT ON FUNCTION lease_fence.begin_epoch(text) IS
'refuses every token minted so far: call it when a file-system snapshot was put back or a subscriber became the primary';
REVOKE ALL ON FUNCTION lease_fence.begin_epoch(text) FROM PUBLIC;

CREATE FUNCTION lease_fence.add_profile(
    name text, prefix text, servers text[] DEFAULT '{}', policy text DEFAULT 'single',
    shape text DEFAULT 'string', lock_key text DEFAULT '{resource}', ttl interval DEFAULT '30s',
    watch boolean DEFAULT true, roles name[] DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_add_profile';
COMMENT ON FUNCTION lease_fence.add_profile(text, text, text[], text, text, text, interval, boolean, name[]) IS
'says who hands out the leases of all resources whose name begins with prefix, and to which roles';
REVOKE ALL ON FUNCTION lease_fence.add_profile(text, text, text[], text, text, text, interval, boolean, name[]) FROM PUBLIC;

CREATE FUNCTION lease_fence.drop_profile(name text) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_drop_profile';
COMMENT ON FUNCTION lease_fence.drop_profile(text) IS
'forgets a profile: its resources are handed out by this database from then on';
REVOKE ALL ON FUNCTION lease_fence.drop_profile(text) FROM PUBLIC;

-- ---------------------------------------------------------------------------
-- Guards
-- ---------------------------------------------------------------------------

CREATE FUNCTION lease_fence.guard() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'lf_guard';
COMMENT ON FUNCTION lease_fence.guard() IS
'the trigger of a guarded table; its arguments are the resource template, the token column, lapsed and inserts. Made by protect()';

CREATE FUNCTION lease_fence.protect(
    relation regclass, resource text, token_column name DEFAULT 'fence_token',
    mode text DEFAULT 'enforce', lapsed text DEFAULT 'reject', inserts text DEFAULT 'guard')
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_protect';
COMMENT ON FUNCTION lease_fence.protect(regclass, text, name, text, text, text) IS
'guards a table: its rows can only be written under the current token of the resource that the template names. For the table''s owner';

CREATE FUNCTION lease_fence.set_mode(relation regclass, mode text) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_set_mode';
COMMENT ON FUNCTION lease_fence.set_mode(regclass, text) IS
'switches a guard to enforce, observe or off, without waiting for writers. For the table''s owner';

CREATE FUNCTION lease_fence.unprotect(relation regclass, drop_column boolean DEFAULT false) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_unprotect';
COMMENT ON FUNCTION lease_fence.unprotect(regclass, boolean) IS
'takes a table''s guard away. For the table''s owner';

-- ---------------------------------------------------------------------------
-- Guarded rows: one row by key, in one statement
-- ---------------------------------------------------------------------------

CREATE FUNCTION lease_fence.guarded_update(
    relation regclass, key text, changes jsonb, token bigint DEFAULT NULL,
    expected jsonb DEFAULT NULL, operation_key text DEFAULT NULL,
    OUT outcome text, OUT new_row jsonb)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_guarded_update';
COMMENT ON FUNCTION lease_fence.guarded_update(regclass, text, jsonb, bigint, jsonb, text) IS
'updates the one row with that key, if its columns still equal expected: applied, not_met, not_found or replayed; a stale token raises. Write SELECT * FROM guarded_update(...)';

CREATE FUNCTION lease_fence.guarded_decrement(
    relation regclass, key text, column_name name, token bigint DEFAULT NULL,
    amount numeric DEFAULT 1, floor numeric DEFAULT 0, operation_key text DEFAULT NULL,
    OUT outcome text, OUT remaining numeric)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_guarded_decrement';
COMMENT ON FUNCTION lease_fence.guarded_decrement(regclass, text, name, bigint, numeric, numeric, text) IS
'takes amount from a column, if floor is left: applied, not_met, not_found or replayed; a stale token raises. Write SELECT * FROM guarded_decrement(...)';

CREATE FUNCTION lease_fence.guarded_increment(
    relation regclass, key text, column_name name, token bigint DEFAULT NULL,
    amount numeric DEFAULT 1, ceiling numeric DEFAULT NULL, operation_key text DEFAULT NULL,
    OUT outcome text, OUT remaining numeric)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_guarded_increment';
COMMENT ON FUNCTION lease_fence.guarded_increment(regclass, text, name, bigint, numeric, numeric, text) IS
'adds amount to a column, if it stays within ceiling: applied, not_met, not_found or replayed; a stale token raises. Write SELECT * FROM guarded_increment(...)';

CREATE FUNCTION lease_fence.guarded_insert(
    relation regclass, new_row jsonb, token bigint DEFAULT NULL, operation_key text DEFAULT NULL,
    OUT outcome text, OUT new_row_out jsonb)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_guarded_insert';
COMMENT ON FUNCTION lease_fence.guarded_insert(regclass, jsonb, bigint, text) IS
'inserts one row: applied or replayed; a stale token raises. Write SELECT * FROM guarded_insert(...)';

CREATE FUNCTION lease_fence.guarded_delete(
    relation regclass, key text, token bigint DEFAULT NULL,
    expected jsonb DEFAULT NULL, operation_key text DEFAULT NULL,
    OUT outcome text, OUT old_row jsonb)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_guarded_delete';
COMMENT ON FUNCTION lease_fence.guarded_delete(regclass, text, bigint, jsonb, text) IS
'deletes the one row with that key, if its columns still equal expected: applied, not_met, not_found or replayed; a stale token raises. Write SELECT * FROM guarded_delete(...)';

CREATE FUNCTION lease_fence.operation(key text)
RETURNS TABLE (relation regclass, outcome text, answer jsonb, token bigint, at timestamptz)
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'lf_operation';
COMMENT ON FUNCTION lease_fence.operation(text) IS
'what became of an operation key? No row: it was not applied. For the role that used it';

-- ---------------------------------------------------------------------------
-- Lock services
-- ---------------------------------------------------------------------------

-- Called by CREATE and ALTER, which ask nobody's rights for it.
CREATE FUNCTION lease_fence.redis_validator(options text[], catalog oid) RETURNS void
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_redis_validator';
COMMENT ON FUNCTION lease_fence.redis_validator(text[], oid) IS
'checks the options of servers of lease_fence_redis, and of their user mappings';
REVOKE ALL ON FUNCTION lease_fence.redis_validator(text[], oid) FROM PUBLIC;

CREATE FOREIGN DATA WRAPPER lease_fence_redis VALIDATOR lease_fence.redis_validator;
COMMENT ON FOREIGN DATA WRAPPER lease_fence_redis IS
'Redis servers that hand out leases. A server: host, port or socket, db, connect_timeout, command_timeout, tls, ca_file, set_events; the user mapping of its owner, or of PUBLIC: username, password';

-- ---------------------------------------------------------------------------
-- What the DBA reads
-- ---------------------------------------------------------------------------

CREATE FUNCTION lease_fence.live_leases(
    OUT resource text, OUT token bigint, OUT holder bytea, OUT coordinator text, OUT scope text,
    OUT state text, OUT role name, OUT pid integer, OUT granted_at timestamptz,
    OUT expires_in interval, OUT renewals bigint, OUT waiters integer)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'lf_live_leases';
COMMENT ON FUNCTION lease_fence.live_leases() IS
'the leases in memory: all of them for pg_monitor, its own for any other role';

CREATE VIEW lease_fence.leases AS
    SELECT resource, token, holder, coordinator, scope, state, role, pid, granted_at,
           expires_in, renewals, waiters
    FROM lease_fence.live_leases();
COMMENT ON VIEW lease_fence.leases IS
'leases that are live, or over and not superseded yet';

CREATE FUNCTION lease_fence.worker_state(
    OUT worker text, OUT pid integer, OUT since timestamptz, OUT failures integer,
    OUT epoch bigint, OUT floor bigint, OUT epoch_confirmed boolean,
    OUT audit_written bigint, OUT audit_logged bigint)
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'lf_worker_state';
COMMENT ON FUNCTION lease_fence.worker_state() IS
'state of this database''s worker, its epoch, and the counts of audit rows written and of those that went to the server log instead';
REVOKE ALL ON FUNCTION lease_fence.worker_state() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lease_fence.worker_state() TO pg_monitor;

CREATE FUNCTION lease_fence.server_states(
    OUT server name, OUT connected boolean, OUT events boolean,
    OUT last_success timestamptz, OUT last_error text, OUT last_error_at timestamptz,
    OUT back_off interval, OUT queue integer, OUT warning text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'lf_server_states';
COMMENT ON FUNCTION lease_fence.server_states() IS
'what this database''s worker knows of each server of its lock services';
REVOKE ALL ON FUNCTION lease_fence.server_states() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lease_fence.server_states() TO pg_monitor;

CREATE VIEW lease_fence.worker_status AS
    SELECT w.worker, w.pid, w.since, w.failures, w.epoch, w.floor, w.epoch_confirmed,
           w.audit_written, w.audit_logged,
           s.server, s.connected, s.events, s.last_success, s.last_error, s.last_error_at,
           s.back_off, s.queue, s.warning
    FROM lease_fence.worker_state() w
    LEFT JOIN lease_fence.server_states() s ON true;
COMMENT ON VIEW lease_fence.worker_status IS
'state of this database''s worker, of its epoch, and of each server of a lock service: one row a server, one without any';

CREATE FUNCTION lease_fence.counters(
    OUT granted bigint, OUT mints bigint, OUT released bigint, OUT lapsed bigint,
    OUT revoked bigint, OUT taken_over bigint, OUT terminated bigint, OUT rejected bigint,
    OUT deadlocks bigint, OUT notifications bigint, OUT notifications_dropped bigint,
    OUT purged bigint)
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'lf_counters';
COMMENT ON FUNCTION lease_fence.counters() IS
'counters of this database since the server''s start';
REVOKE ALL ON FUNCTION lease_fence.counters() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lease_fence.counters() TO pg_monitor;

CREATE VIEW lease_fence.stat AS
    SELECT granted, mints, released, lapsed, revoked, taken_over, terminated, rejected,
           deadlocks, notifications, notifications_dropped, purged
    FROM lease_fence.counters();
COMMENT ON VIEW lease_fence.stat IS
'counters of this database since the server''s start: grants, and the commits (mints) that made them, how they ended, writers terminated by drains, rejected writes';

CREATE VIEW lease_fence.guards AS
    SELECT t.tgrelid::pg_catalog.regclass AS relation,
           a.args[1] AS resource,
           a.args[2]::pg_catalog.name AS token_column,
           COALESCE(m.mode, 'enforce') AS mode,
           a.args[3] AS lapsed,
           a.args[4] AS inserts,
           CASE t.tgenabled WHEN 'A' THEN 'always' WHEN 'D' THEN 'disabled'
                            WHEN 'R' THEN 'replica' ELSE 'origin' END AS enabled
    FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid
                              AND c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p']::pg_catalog."char"[])
    CROSS JOIN LATERAL (
        SELECT pg_catalog.array_agg(pg_catalog.convert_from(
                   pg_catalog.decode(p.part, 'hex'), pg_catalog.getdatabaseencoding())
                   ORDER BY p.ord) AS args
        FROM pg_catalog.regexp_split_to_table(
                 pg_catalog.regexp_replace(pg_catalog.encode(t.tgargs, 'hex'), '(..)', '\1 ', 'g'),
                 '00 ') WITH ORDINALITY AS s (raw, ord)
        CROSS JOIN LATERAL (SELECT pg_catalog.replace(s.raw, ' ', '') AS part, s.ord) AS p
        WHERE p.ord OPERATOR(pg_catalog.<=) t.tgnargs) AS a
    LEFT JOIN lease_fence.guard_modes m
           ON m.relation::pg_catalog.oid OPERATOR(pg_catalog.=) t.tgrelid
    WHERE t.tgfoid OPERATOR(pg_catalog.=) 'lease_fence.guard()'::pg_catalog.regprocedure::pg_catalog.oid
      AND t.tgparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid;
COMMENT ON VIEW lease_fence.guards IS
'guarded tables: their triggers'' arguments, and their modes';

-- ---------------------------------------------------------------------------
-- check()
-- ---------------------------------------------------------------------------

CREATE FUNCTION lease_fence.examine_guard(relation regclass, OUT problem text, OUT stamp_ahead boolean)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'lf_examine_guard';
COMMENT ON FUNCTION lease_fence.examine_guard(regclass) IS
'for check(): whether a guard''s template and token column still fit its table, and whether a stamp is above the last token';
REVOKE ALL ON FUNCTION lease_fence.examine_guard(regclass) FROM PUBLIC;

CREATE FUNCTION lease_fence.check_catalogs()
RETURNS TABLE (severity text, object text, problem text, hint text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $check$
WITH guard AS (
    SELECT t.tgrelid, t.tgname, t.tgenabled, t.tgparentid, c.relkind, c.relpersistence,
           c.relispartition, c.oid::regclass::text AS name
    FROM pg_trigger t
    JOIN pg_class c ON c.oid = t.tgrelid
    WHERE t.tgfoid = 'lease_fence.guard()'::regprocedure
), profile AS (
    SELECT p.name, p.policy, n.server, w.fdwname AS wrapper,
           p.system_identifier = (SELECT system_identifier FROM pg_control_system())
           AND p.database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()) AS here
    FROM lease_fence.profiles p
    CROSS JOIN LATERAL array_to_string(p.servers, ', ') AS n (server)
    LEFT JOIN pg_foreign_server s ON s.srvname = n.server
    LEFT JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw
)
SELECT 'error', name, 'its guard is disabled: anybody can write it',
       'ALTER TABLE ' || name || ' ENABLE ALWAYS TRIGGER ' || quote_ident(tgname)
FROM guard WHERE tgenabled = 'D'
UNION ALL
SELECT 'error', name, 'its guard does not fire in every session_replication_role',
       'ALTER TABLE ' || name || ' ENABLE ALWAYS TRIGGER ' || quote_ident(tgname)
FROM guard WHERE tgenabled IN ('O', 'R')
UNION ALL
SELECT 'error', p.oid::regclass::text, 'it is a partition of the guarded table ' || g.name || ' and has no guard',
       'detach it, or attach it again as a plain table'
FROM guard g, LATERAL pg_partition_tree(g.tgrelid) tree
JOIN pg_class p ON p.oid = tree.relid
WHERE g.tgparentid = 0 AND g.relkind = 'p'
  AND NOT EXISTS (SELECT FROM guard x WHERE x.tgrelid = p.oid)
UNION ALL
SELECT 'error', i.inhrelid::regclass::text, 'it inherits from the guarded table ' || g.name || ', whose guard does not fire for it',
       'ALTER TABLE ... NO INHERIT, and guard it by itself'
FROM guard g
JOIN pg_inherits i ON i.inhparent = g.tgrelid
JOIN pg_class c ON c.oid = i.inhrelid
WHERE NOT c.relispartition
UNION ALL
SELECT 'error', g.name, 'trigger ' || quote_ident(t.tgname) || ' fires after its guard and could change the row: every write is refused',
       'rename that trigger so that its name sorts before ' || quote_ident(g.tgname)
FROM guard g
JOIN pg_trigger t ON t.tgrelid = g.tgrelid
WHERE t.tgtype & 1 = 1 AND t.tgtype & 2 = 2 AND t.tgenabled <> 'D'
  AND t.tgname COLLATE "C" > g.tgname COLLATE "C"
UNION ALL
SELECT 'warning', name, 'it is unlogged: a crash empties it', 'ALTER TABLE ' || name || ' SET LOGGED'
FROM guard WHERE relpersistence = 'u'
UNION ALL
SELECT 'warning', name, 'it has no primary key: the audit cannot name its rows', 'add one'
FROM guard g
WHERE tgparentid = 0 AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = g.tgrelid AND i.indisprimary)
UNION ALL
SELECT 'warning', c.oid::regclass::text, 'it has a token column and no guard: was it a partition?',
       'guard it with lease_fence.protect(), or drop the column'
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'fence_token' AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND a.atttypid = 'int8'::regtype AND a.attnotnull
  AND NOT EXISTS (SELECT FROM guard x WHERE x.tgrelid = c.oid)
UNION ALL
SELECT 'warning', g.name, 'publication ' || quote_ident(p.pubname) || ' publishes it without its token column',
       'add the column to the publication''s list, so that a subscriber that becomes the primary has the stamps'
FROM guard g
JOIN pg_publication_rel pr ON pr.prrelid = g.tgrelid
JOIN pg_publication p ON p.oid = pr.prpubid
JOIN lease_fence.guards v ON v.relation::oid = g.tgrelid
JOIN pg_attribute a ON a.attrelid = g.tgrelid AND a.attname = v.token_column
WHERE pr.prattrs IS NOT NULL AND NOT a.attnum = ANY (pr.prattrs::int2[])
UNION ALL
SELECT 'warning', v.relation::text, 'process ' || s.pid || ' runs a transaction from before its guard was switched to enforce',
       'what it writes is not fenced until it ends'
FROM lease_fence.guards v
JOIN lease_fence.guard_modes m ON m.relation::oid = v.relation::oid
JOIN pg_stat_activity s ON s.datname = current_database() AND s.xact_start < m.changed_at
                       AND s.backend_type = 'client backend' AND s.backend_xid IS NOT NULL
WHERE v.mode = 'enforce'
UNION ALL
SELECT 'warning', v.relation::text, 'its guard is in mode ' || v.mode || ': nothing is refused', 'lease_fence.set_mode(relation => ..., mode => ''enforce'')'
FROM lease_fence.guards v WHERE v.mode <> 'enforce'
UNION ALL
SELECT 'warning', 'lease_fence.enforce', 'no guard refuses anything', 'set it to on'
WHERE current_setting('lease_fence.enforce') <> 'on'
UNION ALL
SELECT 'error', name, 'with ' || name || ' off a crash can lose tokens that were handed out', 'set it to on'
FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'
UNION ALL
SELECT 'error', 'worker', 'the worker of this database is ' || worker || ', after ' || failures || ' failed starts',
       'the server log says why; it, and the launcher that starts it, need free places within max_worker_processes'
FROM lease_fence.worker_state()
WHERE worker <> 'running' AND (failures > 0 OR (worker = 'wanted' AND since < clock_timestamp() - '5 seconds'::interval))
UNION ALL
SELECT 'warning', 'server ' || quote_ident(server), warning,
       'give locks a Redis of their own, with maxmemory-policy noeviction'
FROM lease_fence.worker_status WHERE warning IS NOT NULL
UNION ALL
SELECT 'warning', 'profile ' || quote_ident(name), 'it was added in another system or database and is off here',
       'drop it, and add it again if this copy is to use the same lock service'
FROM profile WHERE NOT here
UNION ALL
SELECT 'error', 'profile ' || quote_ident(name), 'its server ' || quote_ident(server) || ' does not exist',
       'create the server, or drop the profile and add it again'
FROM profile WHERE here AND policy = 'single' AND wrapper IS NULL
UNION ALL
SELECT 'error', 'profile ' || quote_ident(name), 'its server ' || quote_ident(server) || ' is not one of lease_fence_redis',
       'drop the profile, and add it again with another server'
FROM profile WHERE here AND policy = 'single' AND wrapper <> 'lease_fence_redis'
UNION ALL
SELECT 'warning', t.tgrelid::regclass::text, 'its trigger ' || quote_ident(t.tgname) || ' does not fire for what a subscription brings',
       'ALTER TABLE ' || t.tgrelid::regclass::text || ' ENABLE REPLICA TRIGGER ' || quote_ident(t.tgname)
FROM pg_trigger t
WHERE t.tgfoid = 'lease_fence.drop_replicated()'::regprocedure AND t.tgenabled NOT IN ('R', 'A')
$check$;
COMMENT ON FUNCTION lease_fence.check_catalogs() IS
'the part of check() that reads no guarded table: the worker looks at it every minute, and when the configuration is reloaded';
REVOKE ALL ON FUNCTION lease_fence.check_catalogs() FROM PUBLIC;

CREATE FUNCTION lease_fence.check()
RETURNS TABLE (severity text, object text, problem text, hint text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $check$
WITH examined AS (
    SELECT t.tgrelid::regclass::text AS name, e.problem, e.stamp_ahead
    FROM pg_trigger t, LATERAL lease_fence.examine_guard(t.tgrelid) e
    WHERE t.tgfoid = 'lease_fence.guard()'::regprocedure AND t.tgparentid = 0
)
SELECT severity, object, problem, hint FROM lease_fence.check_catalogs()
UNION ALL
SELECT 'error', name, problem, 'rename the column back, or call unprotect() and protect() again'
FROM examined WHERE problem IS NOT NULL
UNION ALL
SELECT 'error', name, 'it has a stamp above the last token minted here: a history was lost',
       'call lease_fence.begin_epoch(reason), so that tokens go on above it'
FROM examined WHERE stamp_ahead
$check$;
COMMENT ON FUNCTION lease_fence.check() IS
'what would let a write past a guard, or keep leases from working; empty when all is well';
REVOKE ALL ON FUNCTION lease_fence.check() FROM PUBLIC;

GRANT SELECT ON lease_fence.leases TO PUBLIC;
GRANT SELECT ON lease_fence.guards TO PUBLIC;
GRANT SELECT ON lease_fence.guard_modes TO PUBLIC;
GRANT SELECT ON lease_fence.grants, lease_fence.epochs, lease_fence.profiles, lease_fence.operations, lease_fence.rejected_writes,
                lease_fence.worker_status, lease_fence.stat TO pg_monitor;
