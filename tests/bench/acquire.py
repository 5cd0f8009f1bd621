"""What it costs to lock a name and unlock it, by us and by what people use instead:
callers that do nothing else, each with a connection of its own (those of node share
one, in one process), each on a name of its own, or all on one.

Each row is a client program (clients/) with the same clock: every caller has done a
pair before any counts, then all run for a moment, then the clock starts.  The programs
check themselves: two at once inside one lock, an unlock that found nothing, a token
that is not higher than the one before are errors here, and at the end every pair of
ours must have its row in the table of grants, no token twice.

Traps: a library that asks again after a sleep lets the one who has just unlocked take
the lock again, so many pairs a second on one name may all be one caller's: it is
reported how many callers got anything.  What a commit costs is the disk's affair, so
it is stated what of lock and token is on disk, and our own figures without fsync are
apart.
"""

from statistics import median

import lockers
import measure
from lockers import Way

TITLE = 'Acquire and release'

SESSION = 'lease_fence: acquire, release'
TRANSACTION = 'lease_fence: BEGIN, acquire, COMMIT'
TABLE = 'lease table by hand, INSERT … ON CONFLICT'
HIREDIS = 'C with hiredis, SET NX PX'

NO_TOKEN = 'none'


def rate(way, callers, mode):
    rates = [answer['rate'] for answer in way.answers[callers, mode]]
    return f'{measure.figure(median(rates))} [{measure.figure(min(rates))}..{measure.figure(max(rates))}]'


def latency(way, callers, mode):
    """Median and 99 % in ms, of the rounds' medians."""
    of = [answer for answer in way.answers[callers, mode] if answer['served'] > 0]
    if not of:
        return '—'
    return ' / '.join(measure.figure(median(answer[part] for answer in of) / 1000) for part in ('p50', 'p99'))


def ours(server, suffix=''):
    """(way, its program's word) of the ways with our sessions."""
    info, kept = lockers.database(server), 'fsync' if not suffix else 'no fsync'
    return [(TRANSACTION + suffix, 'durable', 'token: ' + kept, info, 'lease-transaction'),
            (SESSION + suffix, 'durable', 'token: ' + kept, info, 'lease-session'),
            ('lease_fence on Redis: BEGIN, acquire, COMMIT' + suffix, 'durable', f'lock: memory, token: {kept}', info,
             'redis-transaction'),
            ('lease_fence on Redis: acquire, release' + suffix, 'durable', f'lock: memory, token: {kept}', info,
             'redis-session'),
            (TABLE + suffix, 'durable', kept, info, 'table')]


def make_ways(bench, program, server, unsafe, redis):
    """Those that are compared; our own without fsync; those that only wait in
    another way than they do by themselves."""
    address = f'127.0.0.1:{redis.port}'
    info = lockers.database(server)

    def c(name, token, kept, where, word):
        return Way(name, token, kept, [program], where, [word])

    ways = [c(*words) for words in ours(server)]
    ways += [c('pg_advisory_xact_lock: BEGIN, lock, COMMIT', NO_TOKEN, 'memory', info, 'advisory-transaction'),
             c('pg_advisory_lock, pg_advisory_unlock', NO_TOKEN, 'memory', info, 'advisory-session'),
             c(HIREDIS, NO_TOKEN, 'memory', address, 'hiredis'),
             Way('redis-py', NO_TOKEN, 'memory', lockers.python('redis_py'), address),
             Way('node-redlock', NO_TOKEN, 'memory', lockers.node('node_redlock'), address),
             Way('redis-semaphore', NO_TOKEN, 'memory', lockers.node('redis_semaphore'), address),
             Way('etcd, its Lock service, from node', 'durable', 'fsync', lockers.node('etcd'), lockers.etcd(bench)),
             Way('ZooKeeper, kazoo', 'durable', 'fsync', lockers.python('zookeeper'), lockers.zookeeper(bench))]
    without = [c(*words) for words in ours(unsafe, ', fsync off')]
    tuned = [Way('redis-py, asking every 10 ms', NO_TOKEN, 'memory', lockers.python('redis_py'), address, ['0.01']),
             Way('node-redlock, asking every 10 ms', NO_TOKEN, 'memory', lockers.node('node_redlock'), address, ['10'])]
    return ways, without, tuned


def compare(ways, callers, mode, rounds, seconds):
    """Samples of µs per pair."""
    return measure.interleave({way.name: lambda way=way: way.time(callers, seconds, mode)
                               for way in ways if not way.missing}, rounds)


def missing_row(way, columns):
    return [way.name, f'not measured: {way.missing}'] + [''] * (columns - 2)


def table_own(ways, samples, counts):
    heads = ['each caller its own name', 'token', 'kept'] + [f'pairs/s, {n} caller{"s" * (n > 1)}' for n in counts]
    heads += [f'time, {n}' for n in counts] + [f'ms at {counts[-1]}, p50 / p99']
    rows = []
    for way in ways:
        if way.missing:
            rows.append(missing_row(way, len(heads)))
            continue
        rows.append([way.name, way.token, way.kept] + [rate(way, n, 'own') for n in counts]
                    + [measure.ratio(samples[n], way.name, SESSION) for n in counts]
                    + [latency(way, counts[-1], 'own')])
    return measure.table(heads, rows)


def table_one(ways, samples, counts):
    heads = ['all on one name']
    for n in counts:
        heads += [f'grants/s, {n} callers', f'callers served in {n}', 'time', 'ms, p50 / p99']
    rows = []
    for way in ways:
        if way.missing:
            rows.append(missing_row(way, len(heads)))
            continue
        row = [way.name]
        for n in counts:
            served = median(answer['served'] for answer in way.answers[n, 'one'])
            row += [rate(way, n, 'one'), f'{served:.0f}', measure.ratio(samples[n], way.name, SESSION),
                    latency(way, n, 'one')]
        rows.append(row)
    return measure.table(heads, rows)


def table_without(ways, samples, counts):
    heads = ['without the commit on disk'] + [f'pairs/s, {n} caller{"s" * (n > 1)}' for n in counts]
    heads += [f'time, {n}' for n in counts]
    return measure.table(heads, [[way.name] + [rate(way, n, 'own') for n in counts]
                                 + [measure.ratio(samples[n], way.name, HIREDIS) for n in counts] for way in ways])


def check_grants(server, ways):
    """Every pair of ours has its grant, and no token was granted twice."""
    info = lockers.database(server)
    expected = sum(way.jobs for way in ways if way.info == info and way.name.startswith('lease_fence'))
    found, distinct = server.execute("SELECT count(*), count(DISTINCT token) FROM lease_fence.grants"
                                     " WHERE resource NOT LIKE '%%bench:%%'")[0]
    if not found == distinct == expected:
        raise RuntimeError(f'{expected} pairs, {found} grants, {distinct} tokens')
    return found


def run(bench):
    program = lockers.compile_callers(bench)
    server, redis = bench.postgres(), bench.redis()
    unsafe = server if bench.quick else bench.postgres(fsync='off')
    for each in {server, unsafe}:
        each.add_redis(redis)
        each.execute('CREATE TABLE lease (name text PRIMARY KEY, holder int, token bigint, expires_at timestamptz)')
    ways, without, tuned = make_ways(bench, program, server, unsafe, redis)
    if bench.quick:
        without = without[1:2]
    lockers.try_all(ways + tuned, 'own', program)
    own_counts, one_counts = ([2], [2]) if bench.quick else ([1, 8, 64], [8, 64])
    rounds, seconds = (1, 0.1) if bench.quick else (3, 1)
    waiting = [way for way in ways if way.program == [program]] if bench.quick else ways + tuned
    own, one = {}, {}
    for n in own_counts:
        bench.say(f'acquire: {n} callers, each its own name')
        own[n] = compare(ways + without, n, 'own', rounds, seconds)
    for n in one_counts:
        bench.say(f'acquire: {n} callers, one name')
        one[n] = compare(waiting, n, 'one', rounds, seconds)
    grants = sum(check_grants(each, ways + without) for each in {server, unsafe})
    overlaps = ', '.join(f'{way.name} {count} times' for way in waiting for count in [way.overlaps()] if count)
    hiredis = [way for way in ways if way.name == HIREDIS]
    return f'''\
A pair is to lock a name and to unlock it: 1, 8 or 64 callers do nothing else, each with its own connection and, first,
its own name. {rounds} rounds of {seconds} s. Times against "{SESSION}" (scope session).
*token*: does each grant have a number that the database can compare, and that outlives a crash; *kept*: where lock and
token are. Callers are threads of a C program for SQL and hiredis, processes for Python, one process for node, as each
is used.

{table_own(ways, own, own_counts)}

All callers want the same name, and wait as their library does: redis-py asks again every 0.1 s, node-redlock every
200 ms (and without its limit of 10 times), redis-semaphore and what is written by hand every 10 ms; advisory locks,
etcd, ZooKeeper and we queue and wake. Where callers ask again, the one who unlocks takes the lock again at once, and
the others get little: *callers served* is how many had the lock at all in {seconds} s, and the times are of those.

{table_one(waiting, one, one_counts)}

The price of durability: the same with fsync off, against one hiredis connection per caller. A token is committed before
anybody gets it, and the product has no setting that leaves this out.

{table_without(without + hiredis, own, own_counts)}

Two callers in the same lock at once: {overlaps or 'never'}. {grants} pairs of ours had {grants} different tokens, higher each
time, all of them in the table of grants afterwards.

Aim: with a durable token, faster than the lease table by hand and than every library at 8 and 64 callers; without the
commit's fsync, at most 1.05 of the time of hiredis (0.95 of its rate).'''
