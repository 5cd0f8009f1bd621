"""Many resources, many live leases, many databases.

Size: clusters that differ only in how many resources were ever leased, and how many
leases are live. The histories are real: acquire_all() of 1000 names in a transaction, all
of them over, with their ends in the table; then one VACUUM ANALYZE and a checkpoint, as
would come by themselves. fsync is off: a flush would hide what it costs to look
something up. Measured is one client's transaction: acquire() of a random one of the
resources ever leased, which a cluster with many of them has to look up in the table; and
the UPDATE of a random one of 100 000 guarded rows, under the lease that this row belongs
to. The token of each row comes from a table of the same size everywhere, so that the
number of leases is all that differs.

Databases: a cluster with 200 databases that have the extension; nobody asks anything.
Wake-ups are the kernel's count of voluntary context switches. All databases are named in
lease_fence.databases, or their workers would retire by themselves. Then each of them
adopts one lock: so it has a connection to Redis, another one for events, and a live lease.

Checked: all ends are in the table, as many grants as there were leases, no token twice;
as many leases live as should be; stock is down by the number of writes; the same workers
are there before and after they were watched.
"""

import time

import measure
import servers

TITLE = 'Many leases, many databases'

BATCH = 1000
APART = 100000
STOCK = 1000000


class Size:
    """A cluster with a history."""

    def __init__(self, bench, ever, live, rows):
        self.ever = ever
        self.live = live
        self.rows = rows
        self.written = 0
        self.pg = bench.postgres(fsync='off', **{'lease_fence.databases': 'postgres'})   # its worker stays
        self.worker = self.pg.pid('lease_fence worker')
        self.connection = self.pg.connect()
        self.cursor = self.connection.cursor()
        empty = self.table_size()
        began = time.monotonic()
        for first in range(0, ever, APART):
            self.lease('ever', first, min(first + APART, ever), 'transaction')
            self.await_ends(min(first + APART, ever))
        self.took = time.monotonic() - began
        self.pg.execute('VACUUM ANALYZE lease_fence.grants')
        self.size = (self.table_size() - empty) / ever
        before = self.memory()
        self.lease('live', 0, live, 'detached')
        self.more_memory = (self.memory() - before) / live
        self.make_stock()
        self.pg.execute('CHECKPOINT')

    def table_size(self):
        return self.pg.value("SELECT pg_total_relation_size('lease_fence.grants')")

    def memory(self):
        return 1024 * servers.status(self.worker)['RssAnon']

    def await_ends(self, count):
        """They are written a few at a time, and take the place of live leases until then."""
        servers.wait_until(120, lambda: self.pg.value('SELECT released FROM lease_fence.stat') >= count,
                           'the ends are not written')

    def lease(self, kind, begin, end, scope):
        for first in range(begin, end, BATCH):
            self.cursor.execute('BEGIN')
            self.cursor.execute(
                'SELECT count(*) FROM lease_fence.acquire_all(ttl => %s, wait => NULL, scope => %s, resources =>'
                " (SELECT array_agg(%s || ':' || i) FROM generate_series(%s, %s) AS i))",
                ('1d', scope, kind, first, min(first + BATCH, end) - 1))
            self.cursor.execute('COMMIT')

    def make_stock(self):
        self.pg.execute('CREATE TABLE stock (id int PRIMARY KEY, lease int NOT NULL, units int NOT NULL)'
                        ' WITH (fillfactor = 50);'
                        f' INSERT INTO stock SELECT id, id % {self.live}, {STOCK}'
                        f'  FROM generate_series(1, {self.rows}) AS id;'
                        " SELECT lease_fence.protect(relation => 'stock', resource => 'live:{lease}');"
                        ' CREATE TABLE held (id int PRIMARY KEY, token text NOT NULL);'
                        " INSERT INTO held SELECT id, token FROM stock JOIN lease_fence.leases"
                        "  ON resource = 'live:' || lease WHERE state = 'live';"
                        ' ANALYZE stock, held')

    def acquire(self, transactions):
        """Milliseconds of one, with its commit."""
        return 1000 / self.pgbench(transactions,
                                   f'\\set n random(0, {self.ever - 1})\nBEGIN;\n'
                                   "SELECT token FROM lease_fence.acquire(resource => 'ever:' || :n);\nCOMMIT;\n")

    def write(self, transactions):
        self.written += transactions
        return 1000 / self.pgbench(transactions,
                                   f'\\set n random(1, {self.rows})\nBEGIN;\n'
                                   "SELECT set_config('lease_fence.token', token, true) FROM held WHERE id = :n;\n"
                                   'UPDATE stock SET units = units - 1 WHERE id = :n;\nCOMMIT;\n')

    def pgbench(self, transactions, script):
        return self.pg.pgbench(script, transactions=transactions)

    def check(self, acquired):
        servers.wait_until(60, lambda: self.pg.value('SELECT count(*) FROM lease_fence.grants WHERE ended_at IS NULL')
                           == self.live, 'grants have no end, or live ones have')
        grants, tokens = self.pg.execute("SELECT count(*), count(DISTINCT token) FROM lease_fence.grants"
                                         " WHERE resource ^@ 'ever:'")[0]
        if grants != self.ever + acquired or tokens != grants:
            raise AssertionError(f'{grants} grants, {tokens} tokens, of {self.ever} and {acquired} acquired')
        if self.pg.value("SELECT count(*) FROM lease_fence.leases WHERE state = 'live'") != self.live:
            raise AssertionError('leases are missing')
        if self.pg.value(f'SELECT sum({STOCK} - units) FROM stock') != self.written:
            raise AssertionError('stock is not down by what was written')


def run_sizes(bench):
    transactions = 50 if bench.quick else 1000
    rounds = 1 if bench.quick else 7
    rows = 1000 if bench.quick else 100000
    sizes = []
    for ever, live in ((10, 10), (1000, 1000)) if bench.quick else \
            ((10, 10), (10000, 10), (1000000, 10), (1000000, 100000)):
        sizes.append(Size(bench, ever, live, rows))
        bench.say(f'many: {ever} resources, {live} live: {sizes[-1].took:.0f} s')
    for size in sizes:                  # what is found at the first time only
        size.acquire(transactions)
        size.write(transactions)
    acquires = measure.interleave({n: lambda size=size: size.acquire(transactions)
                                   for n, size in enumerate(sizes)}, rounds)
    writes = measure.interleave({n: lambda size=size: size.write(transactions)
                                 for n, size in enumerate(sizes)}, rounds)
    for size in sizes:
        size.check(transactions * (rounds + 1))
    table = measure.table(
        ['resources ever leased, live leases', 'acquire and commit, ms', 'ratio', 'guarded write, ms', 'ratio',
         'table, bytes a grant', 'worker, MB'],
        [[f'{size.ever:,}, {size.live:,}'.replace(',', ' ').replace('  ', ', '),
          measure.spread(acquires, n), measure.ratio(acquires, n, 0),
          measure.spread(writes, n), measure.ratio(writes, n, 0),
          f'{size.size:.0f}', f'{size.memory() / 1e6:.1f}'] for n, size in enumerate(sizes)])
    last = sizes[-1]
    entries, all_of_it = last.pg.execute(
        "SELECT sum(allocated_size) FILTER (WHERE name = 'lease_fence entries')::float8 / current_setting(%s)::int,"
        " sum(allocated_size)::float8 / current_setting(%s)::int FROM pg_shmem_allocations WHERE name ^@ 'lease_fence'",
        ('lease_fence.max_leases', 'lease_fence.max_leases'))[0]
    return f"""\
One row: a cluster in which so many resources were ever leased. First a transaction that acquires a random one of them
and commits, then one that looks its token up and updates a random guarded row under it, {rounds} rounds of
{transactions} transactions of one client.

{table}

Shared memory is reserved at the start, for `lease_fence.max_leases`: {entries:.0f} bytes for each ({all_of_it:.0f} with
all else that the extension reserves), an eighth of which is room for names whose lease is over. The worker itself takes
{max(0, last.more_memory):.0f} bytes more for each live lease of this database; for those in Redis see above.

Aim: flat; ≤ 1 kB a live lease."""


class Databases:
    def __init__(self, bench, count):
        self.pg = bench.postgres(fsync='off', max_worker_processes=str(count + 20),
                                 max_connections=str(count + 50), **{'lease_fence.max_leases': '10000'})
        self.redis = bench.redis()
        self.pg.execute('CREATE DATABASE first')
        self.pg.execute('CREATE EXTENSION lease_fence', dbname='first')
        self.names = ['postgres', 'first'] + [f'd{number}' for number in range(3, count + 1)]
        for name in self.names[2:]:
            self.pg.execute(f'CREATE DATABASE {name} TEMPLATE first')
        self.pg.set(**{'lease_fence.databases': ', '.join(self.names)})
        self.wait()

    def workers(self):
        return [row[0] for row in self.pg.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_fence worker'")]

    def wait(self):
        servers.wait_until(120, lambda: len(self.workers()) == len(self.names), 'a worker is missing')

    def lease(self):
        """A lock in Redis, adopted, for each."""
        library = self.redis.client()
        for name in self.names:
            library.set(f'lock:{name}', 'a', px=86400000)
            connection = self.pg.connect(name)
            cursor = connection.cursor()
            cursor.execute('CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis'
                           f" OPTIONS (host '127.0.0.1', port '{self.redis.port}')")
            cursor.execute("SELECT lease_fence.add_profile(name => 'locks', prefix => 'lock:', servers => '{locks}')")
            cursor.execute("SELECT token FROM lease_fence.adopt(resource => %s, holder => 'a')", (f'lock:{name}',))
            connection.close()
        clients = library.info('clients')['connected_clients']
        if clients < 2 * len(self.names):
            raise AssertionError(f'{clients} connections to Redis')

    def watch(self, seconds):
        """Of all workers: processor time a second, wake-ups a second of one (median, most), its memory."""
        pids = self.workers()
        launcher = self.pg.pid('lease_fence launcher')
        redis = self.redis.process.pid

        def look():
            return ([servers.status(pid)['voluntary_ctxt_switches'] for pid in pids + [launcher]],
                    [servers.worked_seconds(pid) for pid in pids + [redis]])

        wakes, used = look()
        began = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        wakes_then, used_then = look()
        if set(self.workers()) != set(pids):
            raise AssertionError('workers came or went')
        rates = [(b - a) / passed for a, b in zip(wakes, wakes_then)]
        used = [1000 * (b - a) / passed for a, b in zip(used, used_then)]
        memory = [servers.status(pid)['RssAnon'] / 1024 for pid in pids]
        return [f'{measure.median(rates[:-1]):.2f} [{min(rates[:-1]):.2f}..{max(rates[:-1]):.2f}]',
                f'{sum(used[:-1]) / len(pids):.2f}', f'{sum(used[:-1]):.0f}', f'{used[-1]:.0f}',
                f'{measure.median(memory):.1f}']


def run_databases(bench):
    count = 3 if bench.quick else 200
    seconds = 2 if bench.quick else 20
    began = time.monotonic()
    databases = Databases(bench, count)
    bench.say(f'many: {count} databases: {time.monotonic() - began:.0f} s')
    time.sleep(0 if bench.quick else 3)
    rows = [['named, idle'] + databases.watch(seconds)]
    databases.lease()
    time.sleep(1 if bench.quick else 5)
    rows.append(['and with Redis, one live lease each'] + databases.watch(seconds))
    if not bench.quick:
        databases.pg.restart(**{'lease_fence.max_leases': '200000'})
        databases.wait()
        time.sleep(3)
        rows.append(['idle, with room for 200 000 leases'] + databases.watch(seconds))
    heads = ['workers', 'wake-ups a second of one', 'ms a second of one', 'ms a second of all', 'of Redis, ms a second',
             'memory of one, MB']
    return f"""\
One row: the workers of {count} databases of one cluster, of which nobody asks anything, over {seconds} s: how often one
wakes up (median, with the one that does least and most), the processor time of one and of all of them in each second,
and the memory that one has for itself (RssAnon). `lease_fence.max_leases` is 10 000, the default, but in the last row.
A database that is not named in `lease_fence.databases` has no worker ten seconds after its last lease was over.

{measure.table(heads, rows)}

Aim: an idle worker wakes ≤ 2 times a second."""


def run(bench):
    text = run_sizes(bench)
    bench.stop()
    return text + '\n\n' + run_databases(bench)
