"""The whole job: lock an item, read its stock, take one off if there is any, unlock;
by us and by what people use instead.  Callers are those of acquire, each job is about
one of 100 items at random, so that 64 callers are often in each other's way.

With libraries the lock is theirs and the work two statements in PostgreSQL; where
the lock is in PostgreSQL all is on one connection.  Rows without a token do less: there
a holder that was stopped for longer than its lock lives overwrites its successor's
work.

The check: each table's stock went down by exactly the number of jobs, those of the
warm-up too, and no UPDATE of a job met no row.
"""

from statistics import median

import acquire
import lockers
import measure
from lockers import Way

TITLE = 'Protected decrement'

ITEMS = 100
STOCK = 1000000000
TRANSACTION = 'lease_fence: BEGIN, acquire, SELECT, UPDATE, COMMIT'
ADVISORY = 'pg_advisory_xact_lock: BEGIN, lock, SELECT, UPDATE, COMMIT'
ANEW = 'adopt each time'


def make_tables(server):
    for table in ('item', 'r_item', 'plain_item', 'fenced_item'):
        server.execute(f'CREATE TABLE {table} (id int PRIMARY KEY, stock bigint NOT NULL) WITH (fillfactor = 50)')
        server.execute(f'INSERT INTO {table} SELECT id, {STOCK} FROM generate_series(1, {ITEMS}) id')
    server.execute('ALTER TABLE fenced_item ADD fence_token bigint NOT NULL DEFAULT 0')
    server.execute("SELECT lease_fence.protect(relation => 'item', resource => 'item:{id}')")
    server.execute("SELECT lease_fence.protect(relation => 'r_item', resource => 'r:item:{id}')")
    server.execute('CREATE TABLE lease (name text PRIMARY KEY, holder int, token bigint, expires_at timestamptz)')


def make_ways(bench, program, server, redis):
    """Those that are compared, and two about locks that are held for ten jobs."""
    address = f'127.0.0.1:{redis.port}'
    info = lockers.database(server)

    def sql(name, token, kept, word):
        return Way(name, token, kept, [program], info, [word])

    def c(name, token, kept, word):
        return Way(name, token, kept, [program], address, [word], info)

    def library(name, token, kept, words, where, more=()):
        return Way(name, token, kept, words, where, more, info)

    both = 'lock: memory, token: fsync'
    ways = [
        sql(TRANSACTION, 'checked', 'fsync', 'lease-transaction'),
        sql('lease_fence: BEGIN, acquire, guarded_decrement, COMMIT', 'checked', 'fsync', 'lease-transaction-call'),
        sql('lease_fence: acquire, SELECT, UPDATE, release', 'checked', 'fsync', 'lease-session'),
        sql('lease_fence: acquire, guarded_decrement, release', 'checked', 'fsync', 'lease-session-call'),
        sql('lease_fence on Redis: BEGIN, acquire, SELECT, UPDATE, COMMIT', 'checked', both, 'redis-transaction'),
        sql('lease_fence on Redis: BEGIN, acquire, guarded_decrement, COMMIT', 'checked', both,
            'redis-transaction-call'),
        c('hiredis: lock; BEGIN, adopt, SELECT, UPDATE, COMMIT; unlock', 'checked', both, 'hiredis-adopt'),
        library('redis-py: lock; BEGIN, adopt, SELECT, UPDATE, COMMIT; unlock', 'checked', both,
                lockers.python('redis_py'), address, ['adopt']),
        sql('lease table by hand: lock, SELECT, UPDATE … WHERE fence_token <= …, unlock', 'checked', 'fsync', 'table'),
        sql(ADVISORY, 'none', 'memory', 'advisory-transaction'),
        sql('pg_advisory_lock: lock, SELECT, UPDATE, unlock', 'none', 'memory', 'advisory-session'),
        c('hiredis: lock, SELECT, UPDATE, unlock', 'none', 'memory', 'hiredis'),
        library('redis-py: lock, SELECT, UPDATE, unlock', 'none', 'memory', lockers.python('redis_py'), address),
        library('node-redlock: the same', 'none', 'memory', lockers.node('node_redlock'), address),
        library('redis-semaphore: the same', 'none', 'memory', lockers.node('redis_semaphore'), address),
        library('etcd: the same', 'not used', 'fsync', lockers.node('etcd'), lockers.etcd(bench)),
        library('ZooKeeper, kazoo: the same', 'not used', 'fsync', lockers.python('zookeeper'),
                lockers.zookeeper(bench)),
    ]
    held = [c(ANEW, 'checked', both, 'hiredis-adopt-10'),
            c('adopt, then with known_token', 'checked', both, 'hiredis-adopt-10-known')]
    return ways, held


def table_jobs(ways, samples, counts):
    heads = ['one job', 'token', 'lock kept'] + [f'jobs/s, {n} caller{"s" * (n > 1)}' for n in counts]
    heads += [f'time, {n}' for n in counts] + [f'ms at {counts[-1]}, p50 / p99']
    rows = []
    for way in ways:
        if way.missing:
            rows.append(acquire.missing_row(way, len(heads)))
            continue
        rows.append([way.name, way.token, way.kept] + [acquire.rate(way, n, 'items') for n in counts]
                    + [measure.ratio(samples[n], way.name, ADVISORY) for n in counts]
                    + [acquire.latency(way, counts[-1], 'items')])
    return measure.table(heads, rows)


def table_held(ways, samples, counts):
    heads = ['a lock in Redis for 10 transactions'] + [f'jobs/s, {n} caller{"s" * (n > 1)}' for n in counts]
    heads += [f'time, {n}' for n in counts]
    return measure.table(heads, [[way.name] + [acquire.rate(way, n, 'items') for n in counts]
                                 + [measure.ratio(samples[n], way.name, ANEW) for n in counts] for way in ways])


def check_stock(server, ways):
    jobs = sum(way.jobs for way in ways)
    gone = sum(server.value(f'SELECT {STOCK}::bigint * {ITEMS} - sum(stock) FROM {table}')
               for table in ('item', 'r_item', 'plain_item', 'fenced_item'))
    if gone != jobs:
        raise RuntimeError(f'{jobs} jobs were done, {gone} pieces are gone')
    return jobs


def first_with_token(ways, counts):
    """Who is fastest of those whose token the database checks."""
    checked = [way for way in ways if way.token == 'checked' and not way.missing]

    def rate(way, n):
        return median(answer['rate'] for answer in way.answers[n, 'items'])
    return '; '.join(f'{n}: {max(checked, key=lambda way, n=n: rate(way, n)).name}' for n in counts)


def run(bench):
    program = lockers.compile_callers(bench)
    server, redis = bench.postgres(), bench.redis()
    server.add_redis(redis)
    make_tables(server)
    ways, held = make_ways(bench, program, server, redis)
    lockers.try_all(ways, 'items', program)
    counts = [2] if bench.quick else [1, 8, 64]
    rounds, seconds = (1, 0.1) if bench.quick else (3, 1)
    samples = {}
    for n in counts:
        bench.say(f'decrement: {n} callers')
        samples[n] = acquire.compare(ways + held, n, 'items', rounds, seconds)
    jobs = check_stock(server, ways + held)
    return f'''\
A job locks one of {ITEMS} items at random, reads its stock, takes one off unless it is 0, and unlocks.
{rounds} rounds of {seconds} s, callers and waiting as in "{acquire.TITLE}". Times against
{ADVISORY}, the shortest way where all writers are in
this database. *token*: "checked" if each write is, "not used" where the lock service has a number and the write ignores
it, "none" where there is none. The write itself is committed with fsync in every row.

{table_jobs(ways, samples, counts)}

Programs in C that keep a lock in Redis for ten transactions (and take one off the same item in each): either each of
them adopts the lock anew, which mints a token, or the later ones name the token they have, which asks Redis and mints
nothing.

{table_held(held, samples, counts)}

{jobs} jobs were done, and {jobs} pieces are gone from the stock.

Aim: first among those with a durable token that is checked; the ratio to pg_advisory_xact_lock is in the table. First
here: {first_with_token(ways, counts)}.'''
