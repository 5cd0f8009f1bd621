-- Bad arguments of the lease functions: each refused by name, before anything
-- is granted.
\set ECHO none
\getenv source PG_ABS_SRCDIR
\set helper :source '/sql/include/fails.sql'
\i :helper
\set ECHO all
-- The first lease of a database begins its first epoch.
SELECT token > 0 AS first FROM lease_fence.acquire('bad:first', ttl => '10 ms', scope => 'detached');
SELECT count(*) AS before FROM lease_fence.grants \gset

-- ---------------------------------------------------------------------------
-- Names of resources
-- ---------------------------------------------------------------------------
CALL fails($$SELECT lease_fence.acquire(NULL)$$);
CALL fails($$SELECT lease_fence.acquire('')$$);
CALL fails($$SELECT lease_fence.acquire(repeat('x', 513))$$);
-- 512 bytes, not characters.
CALL fails($$SELECT lease_fence.acquire(repeat('é', 257))$$);
CALL fails($$SELECT lease_fence.acquire(repeat('x', 100000000))$$);
CALL fails($$SELECT lease_fence.try_acquire(NULL)$$);
CALL fails($$SELECT lease_fence.try_acquire('')$$);
CALL fails($$SELECT lease_fence.try_acquire(repeat('x', 513))$$);
CALL fails($$SELECT lease_fence.acquire_all(NULL)$$);
CALL fails($$SELECT lease_fence.acquire_all('{}')$$);
CALL fails($$SELECT lease_fence.acquire_all('{a,NULL}')$$);
CALL fails($$SELECT lease_fence.acquire_all('{a,""}')$$);
CALL fails($$SELECT lease_fence.acquire_all(ARRAY['a', repeat('x', 513)])$$);
CALL fails($$SELECT lease_fence.acquire_all((SELECT array_agg('bad' || n) FROM generate_series(1, 1001) n))$$);
CALL fails($$SELECT lease_fence.revoke(NULL)$$);
CALL fails($$SELECT lease_fence.revoke('')$$);
CALL fails($$SELECT lease_fence.revoke(repeat('x', 513))$$);
CALL fails($$SELECT lease_fence.revoke('bad:a', repeat('because ', 1000))$$);

-- ---------------------------------------------------------------------------
-- The ttl: whole milliseconds, 10 ms to 1 year
-- ---------------------------------------------------------------------------
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '0')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '-1 s')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '9 ms')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '10.5 ms')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '1 microsecond')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '1 year 1 ms')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '100 years')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '-100 years')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', ttl => '170000000 years')$$);
CALL fails($$SELECT lease_fence.try_acquire('bad:a', ttl => '0')$$);
CALL fails($$SELECT lease_fence.acquire_all('{bad:a}', ttl => '0')$$);

-- ---------------------------------------------------------------------------
-- wait, scope and holder
-- ---------------------------------------------------------------------------
CALL fails($$SELECT lease_fence.acquire('bad:a', wait => '-1 ms')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', wait => '-170000000 years')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', scope => NULL)$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', scope => '')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', scope => 'Session')$$);
CALL fails($$SELECT lease_fence.acquire_all('{bad:a}', scope => 'forever')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', holder => '')$$);
CALL fails($$SELECT lease_fence.acquire('bad:a', holder => repeat('x', 256))$$);

-- ---------------------------------------------------------------------------
-- Tokens: 0, negative, NULL, one that was never minted, the largest there is
-- ---------------------------------------------------------------------------
CALL fails($$SELECT lease_fence.present(0)$$);
CALL fails($$SELECT lease_fence.present(-1)$$);
CALL fails($$SELECT lease_fence.present(NULL)$$);
CALL fails($$SELECT lease_fence.present(1)$$);
CALL fails($$SELECT lease_fence.present(9223372036854775807)$$);
CALL fails($$SELECT lease_fence.present((-9223372036854775808)::bigint)$$);
CALL fails($$SELECT lease_fence.present(VARIADIC '{}')$$);
CALL fails($$SELECT lease_fence.present(VARIADIC NULL)$$);
CALL fails($$SELECT lease_fence.renew(0)$$);
CALL fails($$SELECT lease_fence.renew(-1)$$);
CALL fails($$SELECT lease_fence.renew(NULL)$$);
CALL fails($$SELECT lease_fence.renew(1)$$);
CALL fails($$SELECT lease_fence.renew(9223372036854775807)$$);
CALL fails($$SELECT lease_fence.renew(1, '0')$$);
CALL fails($$SELECT lease_fence.remaining(0)$$);
CALL fails($$SELECT lease_fence.remaining(NULL)$$);
CALL fails($$SELECT lease_fence.remaining(1)$$);
CALL fails($$SELECT lease_fence.remaining(9223372036854775807)$$);
CALL fails($$SELECT lease_fence.release(0)$$);
CALL fails($$SELECT lease_fence.release(NULL)$$);
CALL fails($$SELECT lease_fence.release(1)$$);
CALL fails($$SELECT lease_fence.release(9223372036854775807)$$);
CALL fails($$SET LOCAL lease_fence.token = '0'$$);
CALL fails($$SET LOCAL lease_fence.token = '-1'$$);
CALL fails($$SET LOCAL lease_fence.token = '9223372036854775808'$$);
CALL fails($$SET LOCAL lease_fence.token = '1 2'$$);
CALL fails($$SET LOCAL lease_fence.token = '1,'$$);
CALL fails($$SET LOCAL lease_fence.token = ','$$);
CALL fails($$SET LOCAL lease_fence.token = '0x10'$$);
CALL fails($$SET LOCAL lease_fence.token = 'x'$$);
-- A thousand is the most.
\set VERBOSITY sqlstate
SELECT length(set_config('lease_fence.token', (SELECT string_agg('1', ',') FROM generate_series(1, 1000)), true));
SELECT length(set_config('lease_fence.token', (SELECT string_agg('1', ',') FROM generate_series(1, 1001)), true));
\set VERBOSITY default

CALL fails($$SELECT lease_fence.begin_epoch(NULL)$$);
CALL fails($$SELECT lease_fence.begin_epoch('')$$);

-- ---------------------------------------------------------------------------
-- None of it granted or changed anything; this session is well.
-- ---------------------------------------------------------------------------
SELECT count(*) = :before AS nothing_granted FROM lease_fence.grants;
SELECT count(*) FROM lease_fence.leases WHERE resource LIKE 'bad:a%' OR resource LIKE 'x%';

-- Odd names and holders that are allowed: newline, emoji, blanks, SQL, the longest.
CREATE TEMP TABLE odd (n serial, name text);
INSERT INTO odd (name) VALUES
    (E'bad:line one\nline two'), ('bad:🔒🧵'), ('bad: '), (' '), (E'\t'), ('{id}'), ('''; DROP TABLE odd; --'),
    ('bad:"quoted"'), (E'bad:back\\slash'), (repeat('é', 256)), ('BAD:A'), ('bad:a'), ('bad:%s%n');
SELECT n, token > 0 AS granted
FROM odd, lease_fence.acquire(name, scope => 'detached', ttl => '1 min', holder => left(name, 100))
ORDER BY n;
SELECT n, octet_length(resource), state, convert_from(holder, 'UTF8') = left(name, 100) AS holder
FROM odd JOIN lease_fence.leases ON resource = name COLLATE "C" ORDER BY n;
SELECT n, token > 0 AS granted, retry_after > '0' AS retry
FROM odd, lease_fence.try_acquire(name, scope => 'detached') ORDER BY n LIMIT 3;
SELECT count(lease_fence.release(token)) FROM odd JOIN lease_fence.leases ON resource = name COLLATE "C";
SELECT token > 0 AS longest_holder
FROM lease_fence.acquire('bad:a', scope => 'detached', holder => repeat('x', 255), ttl => '10 ms');

-- NULL for wait is no limit, NULL for ttl the default.
SELECT expires_in > '29 s' AS default_ttl
FROM lease_fence.acquire('bad:b', ttl => NULL, wait => NULL, scope => 'session', holder => NULL);
SELECT token > 0 AS long_wait
FROM lease_fence.acquire('bad:b', wait => '170000000 years', scope => 'session');
DISCARD ALL;

DROP PROCEDURE fails;
