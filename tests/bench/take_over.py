"""How soon the next holder can write, and how soon the last one cannot.

After a lapse: a holder takes a lease with a fixed ttl, and its backend is stopped
(SIGSTOP). The next one waits in acquire() and then writes. When the lease lapses is
known from its expires_in, read between two looks at the clock that deadlines go by
(CLOCK_BOOTTIME, of one machine): the narrowest of some, less than a millisecond wide,
and its earlier end, so that the figure is at worst that much too long. What is
measured ends when the write is accepted, that is, when the UPDATE has returned.

A lock that others take: a library's lock in Redis is adopted, and one connection
writes under its token without a pause, until it is refused. Time runs from before the
SET of the next holder. One thread does all of it: no other one delays it.

Checked: every old token is refused at its next write, the new tokens are greater,
and stock is down by the writes that were accepted, no more and no less.
"""

import os
import random
import signal
import time

import psycopg2

import measure

TITLE = 'Take-over'

TTL = 0.3
DRAIN = 0.2
LOOKED_AT = 1.5                         # ttl of adopted locks where there are no events
STOCK = 1000000


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Writer:
    """A session that counts what it wrote."""

    def __init__(self, pg):
        self.pg = pg
        self.connection = pg.connect()
        self.cursor = self.connection.cursor()
        self.written = 0

    def one(self, text, *arguments):
        self.cursor.execute(text, arguments)
        return self.cursor.fetchone()

    def acquire(self, resource, ttl, scope):
        return self.one('SELECT token FROM lease_fence.acquire(resource => %s, ttl => %s, scope => %s)',
                        resource, f'{round(1000 * ttl)}ms', scope)[0]

    def write(self, table, number, token):
        """True: it was accepted. False: refused, for the lease is over."""
        try:
            outcome = self.one('SELECT outcome FROM lease_fence.guarded_decrement(relation => %s, key => %s,'
                               " column_name => 'units', token => %s)", table, str(number), token)[0]
        except psycopg2.Error as error:
            if error.pgcode not in ('LF001', 'LF002'):
                raise
            return False
        if outcome != 'applied':
            raise AssertionError(f'a write was {outcome}')
        self.written += 1
        return True


class Trials:
    """Each trial has a row, and so a resource, of its own."""

    def __init__(self, bench):
        self.pg = bench.postgres(**{'lease_fence.drain_timeout': f'{round(1000 * DRAIN)}ms',
                                    'lease_fence.max_leases': '2000'})
        self.locks = bench.redis()
        self.quiet = bench.redis()
        self.quiet.client().config_set('notify-keyspace-events', '')
        self.pg.add_redis(self.locks, 'locks', 'locks:')
        self.pg.add_redis(self.quiet, 'quiet', 'quiet:')
        self.number = 0
        for table in ('stock', 'locks', 'quiet'):
            self.pg.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, units int NOT NULL);"
                            f" INSERT INTO {table} SELECT id, {STOCK} FROM generate_series(1, 2000) AS id;"
                            f" SELECT lease_fence.protect(relation => '{table}', resource => '{table}:{{id}}')")
        self.watcher = Writer(self.pg)
        self.old = Writer(self.pg)
        self.new = Writer(self.pg)
        self.library = {'locks': self.locks.client(), 'quiet': self.quiet.client()}
        self.random = random.Random(1)
        self.lost = 0                   # writers that were terminated

    def next(self):
        self.number += 1
        return self.number

    def lapse(self, token):
        """When the lease lapses, not too late."""
        best = (1, None)
        while best[0] > 0.001:
            before = now()
            left = self.watcher.one('SELECT extract(epoch FROM expires_in)::float8 FROM lease_fence.leases'
                                    ' WHERE token = %s', token)[0]
            best = min(best, (now() - before, before + left))
        return best[1]

    def succeed(self, table, number, token):
        """The next holder waits, and writes: when that was accepted."""
        new = self.new
        new.cursor.execute('BEGIN')
        successor = new.one('SELECT token FROM lease_fence.acquire(resource => %s)', f'{table}:{number}')[0]
        new.cursor.execute(f'UPDATE {table} SET units = units - 1 WHERE id = %s', (number,))
        written = now()
        new.cursor.execute('COMMIT')
        new.written += 1
        if successor <= token:
            raise AssertionError('the new token is not greater')
        return written

    def stopped(self, table, scope):
        number = self.next()
        pid = self.old.connection.get_backend_pid()
        token = self.old.acquire(f'{table}:{number}', TTL, scope)
        os.kill(pid, signal.SIGSTOP)
        try:
            lapse = self.lapse(token)
            written = self.succeed(table, number, token)
        finally:
            os.kill(pid, signal.SIGCONT)
        if self.old.write(table, number, token):
            raise AssertionError('the stopped holder has written under its old token')
        return 1000 * (written - lapse)

    def in_transaction(self, table):
        """The holder has written and does not commit; what it wrote is gone."""
        number = self.next()
        holder = Writer(self.pg)
        holder.cursor.execute('BEGIN')
        token = holder.acquire(f'{table}:{number}', TTL, 'detached')
        holder.write(table, number, token)
        lapse = self.lapse(token)
        written = self.succeed(table, number, token)
        try:
            holder.cursor.execute('COMMIT')
            raise AssertionError('who was in the way has committed')
        except psycopg2.OperationalError:
            holder.connection.close()
        self.lost += 1
        return 1000 * (written - lapse)

    def adopt(self, table, number, ttl):
        library = self.library[table]
        if not library.set(f'{table}:{number}', 'a', nx=True, px=round(1000 * ttl)):
            raise AssertionError('a lock is there already')
        return self.old.one("SELECT token FROM lease_fence.adopt(resource => %s, holder => 'a')",
                            f'{table}:{number}')[0]

    def given_back(self, table, ttl, longest):
        """Its holder goes on writing, thinking that it has it."""
        number = self.next()
        library = self.library[table]
        key = f'{table}:{number}'
        token = self.adopt(table, number, ttl)
        until = now() + self.random.uniform(0, longest)
        while now() < until:
            if not self.old.write(table, number, token):
                raise AssertionError('refused while it had the lock')
        library.delete(key)
        taken = now()
        if not library.set(key, 'b', nx=True, px=60000):
            raise AssertionError('the lock is not free')
        while self.old.write(table, number, token):
            pass
        return 1000 * (now() - taken)

    def adopted_anew(self, table):
        """The next holder adopts the lock before anything else, as it has to before it writes."""
        number = self.next()
        library = self.library[table]
        key = f'{table}:{number}'
        token = self.adopt(table, number, 60)
        self.old.write(table, number, token)
        library.delete(key)
        taken = now()
        library.set(key, 'b', nx=True, px=60000)
        self.new.one("SELECT token FROM lease_fence.adopt(resource => %s, holder => 'b')", key)
        if self.old.write(table, number, token):
            raise AssertionError('the old token passes after the lock was adopted')
        return 1000 * (now() - taken)

    def run_out(self, table):
        """Others try to take it, and its holder to write, in turn: writes after they have it."""
        number = self.next()
        library = self.library[table]
        token = self.adopt(table, number, TTL)
        taken = False
        late = 0
        while self.old.write(table, number, token):
            late += taken
            taken = taken or library.set(f'{table}:{number}', 'b', nx=True, px=60000) is not None
        return late

    def check(self):
        down = sum(self.pg.value(f'SELECT sum({STOCK} - units) FROM {table}') for table in ('stock', 'locks', 'quiet'))
        if down != self.old.written + self.new.written:
            raise AssertionError(f'stock is down by {down}, not by {self.old.written + self.new.written}')
        if self.pg.value('SELECT terminated FROM lease_fence.stat') != self.lost:
            raise AssertionError('others were terminated than those in the way')


def row(samples, name, label):
    values = samples.of[name]
    return label, measure.spread(samples, name), measure.figure(measure.p95(values)), len(values)


HEADS = ('', 'ms', '95 % within, ms', 'trials')


def run(bench):
    trials = Trials(bench)
    lapses = {
        'this database, session': lambda: trials.stopped('stock', 'session'),
        'this database, detached': lambda: trials.stopped('stock', 'detached'),
        'Redis, session': lambda: trials.stopped('locks', 'session'),
        'Redis, detached': lambda: trials.stopped('locks', 'detached'),
        'this database, in a transaction that wrote': lambda: trials.in_transaction('stock'),
        'Redis, in a transaction that wrote': lambda: trials.in_transaction('locks'),
    }
    takings = {
        'given back and taken, with events': lambda: trials.given_back('locks', 60, 0.05),
        'given back and taken, without events': lambda: trials.given_back('quiet', LOOKED_AT, LOOKED_AT / 3),
        'the next holder adopts at once, without events': lambda: trials.adopted_anew('quiet'),
    }
    after_lapse = measure.interleave(lapses, 2 if bench.quick else 30)
    after_taking = measure.interleave(takings, 2 if bench.quick else 40)
    run_out = 2 if bench.quick else 20
    late = sum(trials.run_out('locks') for _ in range(run_out))
    trials.check()
    return f"""\
One row: a lease of {1000 * TTL:.0f} ms, its holder stopped; from the lapse to the first write that the next holder,
who waited in `acquire`, could make. In Redis a look of the worker can bring the lapse forward by as long as its answer
took. In the last two the holder's client is silent in a transaction that has written: it is in the way until it is
terminated, `lease_fence.drain_timeout` ({1000 * DRAIN:.0f} ms here) after the lapse. (A backend that is itself stopped
by SIGSTOP cannot be terminated by anybody; who waits for what it wrote waits until it goes on.)

{measure.table(HEADS, [row(after_lapse, name, name) for name in lapses])}

Aim: ≤ 10 ms after the lapse; in the way, `drain_timeout` and 10 ms.

One row: a library's lock in Redis was adopted, and its holder writes without a pause while others take the lock; from
then until its token is refused. Without events the worker looks at a third of the time that the lock had left, at most
{1000 * LOOKED_AT / 3:.0f} ms here; a new holder that adopts, as it has to before it writes, need not wait for that. A
lock that runs out is over here before others can take it: in {run_out} trials {late} writes under the old token were
accepted after that.

{measure.table(HEADS, [row(after_taking, name, name) for name in takings])}

Aim: ≤ 20 ms with events; one look without."""
