"""What it costs to keep many leases alive.

Sessions hold leases of the default ttl, 30 s, which the worker renews every third of
it: in this database, and in Redis. Each size and place has a cluster of its own, with
room for 200 000 leases, so that they do not share a worker.

In everyday life leases are renewed when each of them is due, a few at a time. What
that costs is the processor time of the worker and of Redis over whole rounds (10 s),
less what each used before there were leases, by the renewals that were made. Nobody
else asks anything meanwhile.

The time of a round is taken apart: all workers are held (SIGSTOP) until every lease is
due, and let go one after the other; one is done when it uses no processor any more.
Beside them a C client renews as many locks in the same way, in a Redis of its own: it
keeps one connection, and pipelines EVALSHA of compare-and-prolong by 256. It knows its
locks, and does nothing else.

Checked: all leases are live under the tokens that they had, every one was renewed in
each round, Redis has all their keys, and the counters say that none was lost.
"""

import os
import signal
import subprocess
import threading
import time

import measure
import servers

TITLE = 'Renewals'

HEADS = ['leases', 'round, ms', 'worker, µs', 'Redis, µs', 'as due: worker, µs', 'Redis, µs', 'least left, s',
         'memory, bytes']
BATCH = 100                             # leases taken by one call
LOOK_APART = 0.001
QUIET = 0.3                             # a worker that did nothing for so long is done


class Place:
    """Leases of one size in one place: a cluster, and perhaps a Redis."""

    def __init__(self, bench, leases, in_redis, ttl):
        self.leases = leases
        self.ttl = ttl
        self.pg = bench.postgres(**{'lease_fence.databases': 'postgres'})    # its worker stays
        self.redis = None
        self.prefix = 'bench:'
        if in_redis:
            self.redis = bench.redis()
            self.prefix = 'locks:'
            self.pg.add_redis(self.redis, 'locks', self.prefix)
            self.pg.execute("SELECT lease_fence.drop_profile('locks');"
                            " SELECT lease_fence.add_profile(name => 'locks', prefix => %s, servers => '{locks}',"
                            ' ttl => %s)', (self.prefix, f'{ttl}s'))
        self.worker = self.pg.pid('lease_fence worker')
        self.idle = None                # processor time of worker and Redis, a second
        self.memory = None
        self.sessions = []
        self.before = None
        self.renewals = 0               # when the worker was held

    def used(self):
        return [servers.worked_seconds(self.worker),
                servers.worked_seconds(self.redis.process.pid) if self.redis else 0.0]

    def take(self):
        """A tenth of them by each session, 1000 at least; all sessions ask at once."""
        empty = servers.status(self.worker)['RssAnon']
        each = max(1000, self.leases // 10)
        errors = []

        def take_part(connection, first):
            try:
                cursor = connection.cursor()
                for number in range(first, first + each, BATCH):
                    names = [f'{self.prefix}{i}' for i in range(number, number + BATCH)]
                    cursor.execute('SELECT count(*) FROM lease_fence.acquire_all(resources => %s,'
                                   " scope => 'session', wait => '60s')", (names,))
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        self.sessions = [self.pg.connect() for _ in range(0, self.leases, each)]
        threads = [threading.Thread(target=take_part, args=(connection, number * each))
                   for number, connection in enumerate(self.sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        self.memory = 1024 * (servers.status(self.worker)['RssAnon'] - empty) / self.leases
        self.before = self.look()

    def look(self):
        """How many are live, renewals of all and of the one with the fewest, the least time left, the tokens."""
        return self.pg.execute(
            'SELECT count(*), sum(renewals)::bigint, min(renewals), extract(epoch FROM min(expires_in))::float8,'
            " md5(string_agg(resource || '=' || token, ',' ORDER BY resource)) FROM lease_fence.leases"
            " WHERE state = 'live' AND scope = 'session'")[0]

    def hold(self):
        self.renewals = self.look()[1]
        os.kill(self.worker, signal.SIGSTOP)

    def let_go(self):
        """Seconds until all are renewed, and what worker and Redis used for it."""
        before = self.used()
        began = done = time.monotonic()
        last = before[0]
        os.kill(self.worker, signal.SIGCONT)
        while time.monotonic() < done + QUIET:
            time.sleep(LOOK_APART)
            now = servers.worked_seconds(self.worker)
            if now != last:
                last, done = now, time.monotonic()
        used = [b - a for a, b in zip(before, self.used())]
        if self.look()[1] < self.renewals + self.leases:
            raise AssertionError('the worker was done before all leases were renewed')
        return done - began, used

    def check(self, rounds):
        live, _, fewest, _, tokens = self.look()
        if live != self.leases or tokens != self.before[4]:
            state = self.pg.execute('SELECT lapsed, last_error FROM lease_fence.stat, lease_fence.worker_status')
            raise AssertionError(f'{live} of {self.leases} leases {self.prefix}… are live, or others: {state}')
        if fewest - self.before[2] < rounds:
            raise AssertionError(f'a lease was renewed {fewest - self.before[2]} times in {rounds} rounds')
        if self.pg.value('SELECT lapsed + taken_over + revoked FROM lease_fence.stat') > 2:
            raise AssertionError('leases were lost')    # 2: the frame's own, of 10 ms
        if self.redis and self.redis.client().dbsize() != self.leases:
            raise AssertionError('Redis does not have the keys')


class Client:
    """clients/renew.c, and a Redis for it."""

    def __init__(self, bench, program, leases, ttl):
        self.leases = leases
        self.redis = bench.redis()
        self.process = bench.start(Process(subprocess.Popen(
            [program, str(self.redis.port), str(leases), '256', str(round(1000 * ttl))], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)))
        if self.process.ask(None) != 'taken':
            raise AssertionError('the client could not take its locks')

    def round(self):
        before = servers.worked_seconds(self.redis.process.pid)
        renewed, seconds, used = self.process.ask('renew').split()
        if int(renewed) != self.leases:
            raise AssertionError(f'the client renewed {renewed} of {self.leases}')
        return float(seconds), [float(used), servers.worked_seconds(self.redis.process.pid) - before]


class Process:
    def __init__(self, process):
        self.process = process

    def ask(self, line):
        if line is not None:
            self.process.stdin.write(line + '\n')
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def stop(self):
        self.process.kill()
        self.process.wait()


def measure_idle(places, seconds):
    before = [place.used() for place in places]
    time.sleep(seconds)
    for place, used in zip(places, before):
        place.idle = [(b - a) / seconds for a, b in zip(used, place.used())]


def everyday(places, seconds):
    """Processor time for one renewal, of worker and Redis, by place."""
    renewals = [place.look()[1] for place in places]
    before = [place.used() for place in places]
    began = time.monotonic()
    time.sleep(seconds)
    after = [place.used() for place in places]
    passed = time.monotonic() - began
    costs = []
    for number, place in enumerate(places):
        made = place.look()[1] - renewals[number]
        costs.append([max(0, b - a - idle * passed) / max(1, made)
                      for a, b, idle in zip(before[number], after[number], place.idle)])
    return costs


def least_left(places, seconds):
    least = [place.ttl for place in places]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for number, place in enumerate(places):
            least[number] = min(least[number], place.look()[3] or 0)
        time.sleep(0.3)
    return least


def microseconds(values):
    return measure.figure(1e6 * measure.median(values))


def run(bench):
    ttl = 3 if bench.quick else 30
    sizes = (1000,) if bench.quick else (1000, 10000, 100000)
    rounds = 2 if bench.quick else 3
    names, places, clients = [], [], {}
    for size in sizes:
        for in_redis in (True,) if bench.quick else (False, True):
            places.append(Place(bench, size, in_redis, ttl))
            names.append((size, 'Redis' if in_redis else 'this database'))
    program = bench.build('renew', '-lhiredis')
    measure_idle(places, 1 if bench.quick else 5)
    for place in places:
        place.take()

    costs = [everyday(places, ttl / 3) for _ in range(1 if bench.quick else 3)]
    least = least_left(places, ttl / 3)
    for place in places:
        place.check(len(costs))

    clients = {size: Client(bench, program, size, 600) for size in sizes}
    rounds_of = {name: [] for name in names + [(size, 'client') for size in sizes]}
    for number in range(rounds):
        for place in places:
            place.hold()
        time.sleep(ttl / 3 + 0.2)
        order = list(zip(names, places))
        for name, place in order if number % 2 == 0 else reversed(order):
            rounds_of[name].append(place.let_go())
        for size in sizes:
            rounds_of[size, 'client'].append(clients[size].round())
    for place in places:
        place.check(len(costs) + rounds)

    rows = []
    for size in sizes:
        for kind in ('this database', 'Redis', 'client'):
            if (size, kind) not in rounds_of:
                continue
            results = rounds_of[size, kind]
            seconds = [1000 * result[0] for result in results]
            row = [f'{size:,}'.replace(',', ' ') + (', C client' if kind == 'client' else ', ' + kind),
                   f'{measure.figure(measure.median(seconds))}'
                   f' [{measure.figure(min(seconds))}..{measure.figure(max(seconds))}]',
                   microseconds([result[1][0] / size for result in results]),
                   '' if kind == 'this database' else microseconds([result[1][1] / size for result in results])]
            if kind == 'client':
                row += ['', '', '', '']
            else:
                at = names.index((size, kind))
                row += [microseconds([cost[at][0] for cost in costs]),
                        microseconds([cost[at][1] for cost in costs]) if kind == 'Redis' else '',
                        f'{least[at]:.1f}', f'{max(0, places[at].memory):.0f}']
            rows.append(row)
    idle = 1000 * measure.median([place.idle[0] for place in places])
    return f"""\
One row: so many leases with a ttl of {ttl} s, renewed every {ttl // 3} s. First a round in which all are due at once,
until the last is renewed, with the processor time of the worker (or client) and of Redis for each lease; {rounds}
rounds. Then the same processor time when each is renewed as it becomes due, a few at a time; the least time that any
lease had left then; and the worker's own memory for each lease. Before there were leases a worker with room for
200 000 used {idle:.1f} ms of each second, which is taken off. None was lost.

{measure.table(HEADS, rows)}

Aim: ≤ 3 µs a lease, and linear."""
