"""Holders: each takes leases in its own way, reads, and writes read + 1.

A holder is one thread with one or two database sessions.  It is honest in what
it reads and writes, and careless in everything else: it dawdles, forgets to
release, and now and then writes again under a token that it had earlier.
"""

import fcntl
import os
import struct
import uuid
from collections import deque

import psycopg2
import redis
from redis.exceptions import LockError

import history
from checker import REFUSALS
from guards import Refused

NOT_REPLICATED = 'canceling wait for synchronous replication'


def is_refusal(error):
    return error.pgcode in REFUSALS or (error.pgcode == '40001' and 'older than the grant' in str(error))


class Session:
    """A connection that is made when it is needed."""

    def __init__(self, config, pooled=False):
        self.host = config['pooler' if pooled else 'host']
        self.connection = None
        self.cursor = None

    def execute(self, text, arguments=None):
        if self.connection is None:
            self.connection = psycopg2.connect(
                host=self.host, port=5432, dbname='postgres', user='app', connect_timeout=10)
            self.connection.autocommit = True
            self.cursor = self.connection.cursor()
        self.cursor.execute(text, arguments)
        return self.cursor

    @property
    def lost(self):
        return self.connection is None or self.connection.closed != 0

    def replicated(self):
        """Whether a commit that succeeded can count as done: who cancels its wait
        for a standby is told so in a warning alone."""
        return not any(NOT_REPLICATED in notice for notice in self.connection.notices)

    def leave_transaction(self):
        """After an error; a session that cannot go on is given up."""
        try:
            if not self.lost:
                self.cursor.execute('ROLLBACK')
        except psycopg2.Error:
            pass
        if self.lost:
            self.close()

    def send(self, command, name):
        """A command of transaction control, and the name that it may take."""
        if name is None:
            return self.execute(command)
        return self.execute(command + ' %s', (name,))

    def send_and_leave(self, command, name):
        """Sends it and is gone: whether it was done is not known, nor when it
        will be."""
        body = (command if name is None else f"{command} '{name}'").encode() + b'\0'
        try:
            os.write(self.connection.fileno(), b'Q' + struct.pack('!I', len(body) + 4) + body)
        except OSError:
            pass                # the server was gone first
        self.close()

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class Holder:
    """What all have in common: acquiring, writing, counting down."""

    scope = None
    prefixes = ()
    pooled = False

    def __init__(self, config, recorder, random, stop, guard):
        self.config = config
        self.recorder = recorder
        self.random = random
        self.stop = stop
        self.guard = guard
        self.slow = False
        self.session = Session(config, self.pooled)
        self.earlier = deque(maxlen=6)      # (resource, token), over or not
        self.resources = [r for r in config['resources'] if r.startswith(self.prefixes)]

    def run(self):
        while not self.stop.is_set():
            resource = self.random.choice(self.resources)
            try:
                self.round(resource)
                if self.earlier and self.random.random() < self.config['careless']:
                    self.write_again()
            except psycopg2.Error:
                self.session.leave_transaction()
                self.stop.wait(0.1)
            except (redis.RedisError, LockError):
                self.stop.wait(0.2)
            except AttributeError as error:
                # redis-py 4.3 stumbles over the message of its own error
                if "no attribute 'host'" not in str(error):
                    raise
                self.stop.wait(0.2)
        self.session.close()

    def round(self, resource):
        raise NotImplementedError

    # ---- leases ----

    def grant(self, kind, resource, text, arguments, session=None):
        """Calls acquire, adopt or import_grant, and records what came of it."""
        session = session or self.session
        operation = self.recorder.begin(kind, resource, scope=self.scope)
        try:
            token = session.execute(text, arguments).fetchone()[0]
        except psycopg2.Error as error:
            if session.lost or error.pgcode is None:
                operation.unknown(error.pgcode)
            else:
                operation.fail(error.pgcode)
            raise
        if token is None:
            operation.fail('none')
        else:
            operation.ok(token=token)
        return token

    def acquire(self, resource, ttl, session=None):
        return self.grant('acquire', resource,
                          "SELECT token FROM lease_fence.try_acquire(%s, %s, '2s', %s)",
                          (resource, ttl, self.scope), session)

    def release(self, resource, token):
        operation = self.recorder.begin('release', resource, token=token)
        try:
            held = self.session.execute('SELECT lease_fence.release(%s)', (token,)).fetchone()[0]
            operation.ok(held=held)
        except psycopg2.Error as error:
            operation.fail(error.pgcode)
            raise

    # ---- writing ----

    def dawdle(self):
        die = self.random.random()
        if die < 0.25 and not self.slow:
            self.stop.wait(self.random.uniform(0, 0.02))
        elif die < 0.32 or self.slow:
            self.stop.wait(self.random.uniform(0.1, 1.0))

    def next_mark(self):
        return f'{self.recorder.process}/{self.recorder.next_number()}'

    def attempt(self, operation, call):
        """One statement that the guard may refuse.  The audit knows it by
        application_name, which is set for it alone."""
        tries = operation.record.setdefault('tries', 0) + 1
        operation.record['tries'] = tries
        name = f'{operation.record["marker"]}.{tries}'
        self.session.execute('SET LOCAL application_name = %s', (name,))
        try:
            call()
        except psycopg2.Error as error:
            if is_refusal(error):
                operation.record.setdefault('rejections', []).append(name)
            raise

    def read(self, resource, session=None):
        rows = (session or self.session).execute(
            'SELECT n, version FROM item WHERE resource = %s', (resource,)).fetchall()
        return dict(rows)

    def transaction(self, operation, body, begin='BEGIN'):
        """Runs body between BEGIN and COMMIT and records the outcome.  True: it
        is known, and the session can go on."""
        session = self.session
        committing = False
        try:
            session.execute(begin)
            if self.random.random() < 0.03:
                session.execute("SET LOCAL statement_timeout = '20ms'")
            body()
            xid = session.execute('SELECT pg_current_xact_id()::text').fetchone()[0]
            operation.note(xid=int(xid))
            if operation.record.get('style') == 'prepared':
                session.execute('PREPARE TRANSACTION %s', (operation.record['marker'],))
                committing = True           # somebody else may roll it back
                self.dawdle()
                commit = ('COMMIT PREPARED', operation.record['marker'])
            else:
                commit = ('COMMIT', None)
            if self.random.random() < 0.03:
                session.send_and_leave(*commit)
                operation.unknown('answer lost')
                self.forget(operation.record['token'])
                return False
            committing = True
            del session.connection.notices[:]
            if session.send(*commit).statusmessage == commit[0]:
                if session.replicated():
                    operation.ok()
                else:
                    operation.unknown('not replicated')
            else:
                operation.fail('rolled back')
            return True
        except Refused:
            operation.fail('refused')
        except psycopg2.Error as error:
            if committing and (session.lost or error.pgcode is None):
                operation.unknown(error.pgcode)
                self.forget(operation.record['token'])
                session.leave_transaction()
                return False
            operation.fail(error.pgcode)
            if session.lost:
                self.stop.wait(0.1)         # the server may be away
        session.leave_transaction()
        return True

    def write(self, resource, token=None, enter=None):
        """Under a token, or under what enter() takes at the start of the
        transaction.  False: the outcome is unknown, or the token is no good."""
        style = self.random.choice(self.guard.styles)
        operation = self.recorder.begin('write', resource, token=token, marker=self.next_mark(),
                                        style=style, wrote={})
        begin = 'BEGIN'
        if enter is None and self.random.random() < 0.2:
            begin = 'BEGIN ISOLATION LEVEL REPEATABLE READ'

        def body():
            held = token
            if enter is not None:
                held = enter()
                if held is None:
                    raise Refused()
                operation.note(token=held)
            elif style != 'guarded':
                self.guard.present(self.session, held, style)
            operation.note(read=self.read(resource))
            self.dawdle()
            self.update_rows(operation, resource, held, style)
            self.dawdle()

        if self.guard.name == 'split' and token is not None:
            try:
                self.guard.begin(self.session, resource, token)
            except Refused:
                operation.fail('refused')
                return False
        return self.transaction(operation, body, begin) and \
            operation.record['outcome'] == history.OK

    def update_rows(self, operation, resource, token, style):
        read, wrote = operation.record['read'], operation.record['wrote']
        marker = operation.record['marker']
        for row in self.random.sample(sorted(read), self.random.choice((1, 1, 2))):
            def update(version=read[row] + 1, row=row):
                self.guard.update(self.session, resource, token, row, version, marker, style)

            if style == 'savepoint':
                # What a rolled back savepoint wrote, and what it checked, is gone.
                self.session.execute('SAVEPOINT s')
                self.attempt(operation, update)
                self.session.execute('ROLLBACK TO SAVEPOINT s')
            self.attempt(operation, update)
            wrote[row] = read[row] + 1

    def write_again(self):
        """Under a token from earlier, or as one who unlocked too soon: that it is
        over does not stop the careless."""
        resource, token = self.random.choice((self.earlier[-1], self.random.choice(self.earlier)))
        self.slow = self.random.random() < 0.5
        self.write(resource, token)
        self.slow = False

    def count_down(self, resource, token, amount=None):
        """Takes from the stock under an operation key; asks again with the same
        key when the answer was lost."""
        if self.guard.name != 'fence':
            return
        amount = amount or self.random.randint(1, 5)
        key = self.next_mark()
        name = 'guarded_decrement' if amount > 0 else 'guarded_increment'
        for _ in range(3):
            operation = self.recorder.begin('decrement', resource, token=token, key=key,
                                            marker=key, amount=amount)

            def body(operation=operation):
                def call():
                    self.session.execute(
                        f"SELECT outcome, remaining FROM lease_fence.{name}('stock', %s, 'units', "
                        'token => %s, amount => %s, operation_key => %s)',
                        (resource, token, abs(amount), key))
                    outcome, remaining = self.session.cursor.fetchone()
                    operation.note(answer=outcome,
                                   remaining=None if remaining is None else int(remaining))

                self.attempt(operation, call)

            if self.transaction(operation, body):
                break
        if operation.record.get('answer') == 'not_met' and amount > 0:
            self.count_down(resource, token, amount=-self.random.randint(10, 60))

    def keep(self, resource, token):
        self.earlier.append((resource, token))

    def forget(self, token):
        """Something under it may be committed any moment, and a holder that goes
        on under the same token would race with itself."""
        self.earlier = deque((e for e in self.earlier if e[1] != token), self.earlier.maxlen)

    def work(self, resource, token, transactions):
        """Some transactions under one token; false as soon as one went wrong."""
        for _ in range(transactions):
            if self.random.random() < 0.3:
                self.count_down(resource, token)
            elif not self.write(resource, token):
                return False
            if self.stop.is_set():
                break
        self.keep(resource, token)
        return True


class TransactionHolder(Holder):
    """acquire at the start of each transaction."""

    scope = 'transaction'
    prefixes = ('pg:', 'red:', 'rsn:')

    def round(self, resource):
        ttl = self.random.choice((None, '2s'))
        taken = []

        def enter():
            token = self.acquire(resource, ttl)
            taken.append(token)
            return token

        if self.write(resource, enter=enter):
            self.keep(resource, taken[0])


class SessionHolder(Holder):
    """A lease of its session, for several transactions."""

    scope = 'session'
    prefixes = ('pg:', 'red:', 'rsn:')

    def round(self, resource):
        token = self.acquire(resource, self.random.choice((None, '1s', '3s')))
        if token is None:
            return
        if not self.work(resource, token, self.random.randint(1, 6)) and self.session.lost:
            return
        self.dawdle()
        self.release(resource, token)


class DetachedHolder(Holder):
    """A lease with a time to live and no session; sometimes the transaction
    begins, in another session, before the lease is taken."""

    scope = 'detached'
    prefixes = ('pg:', 'red:', 'rsn:')

    def round(self, resource):
        if self.random.random() < 0.15:
            self.read_too_early(resource)
            return
        token = self.acquire(resource, self.random.choice(('500ms', '1500ms', '3s')))
        if token is None:
            return
        well = self.work(resource, token, self.random.randint(1, 4))
        if well and self.random.random() < 0.5:
            self.renew(resource, token)
            well = self.work(resource, token, 2)
        if self.random.random() < 0.7 and not self.session.lost:
            self.release(resource, token)

    def renew(self, resource, token):
        operation = self.recorder.begin('renew', resource, token=token)
        try:
            self.session.execute('SELECT lease_fence.renew(%s)', (token,))
            operation.ok()
        except psycopg2.Error as error:
            operation.fail(error.pgcode)

    def read_too_early(self, resource):
        """The snapshot is older than the grant: nothing may be written from it
        that an earlier grant has changed since."""
        other = Session(self.config, self.pooled)
        operation = self.recorder.begin('write', resource, marker=self.next_mark(), style='early',
                                        wrote={})

        def body():
            operation.note(read=self.read(resource))
            self.dawdle()
            token = self.acquire(resource, '2s', session=other)
            if token is None:
                raise Refused()
            operation.note(token=token)
            self.guard.present(self.session, token, 'setting')
            self.update_rows(operation, resource, token, 'setting')

        try:
            self.transaction(operation, body, 'BEGIN ISOLATION LEVEL REPEATABLE READ')
        finally:
            other.close()


class PooledHolder(TransactionHolder):
    """Behind pgbouncer, where each transaction may have another backend."""

    pooled = True


class PooledDetachedHolder(DetachedHolder):
    pooled = True


class RedisPyHolder(Holder):
    """An application with redis-py's Lock, whose lock is adopted."""

    scope = 'adopted'
    prefixes = ('red:',)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.redis = redis.Redis(unix_socket_path=self.config['redis_socket'], socket_timeout=1.5)

    def lock(self, resource):
        """The lock's holder and its release, or None."""
        lock = self.redis.lock(resource, timeout=self.random.choice((1, 2, 3)), sleep=0.05,
                               blocking_timeout=2)
        if not lock.acquire():
            return None
        return lock.local.token.decode(), lock.release

    def round(self, resource):
        locked = self.lock(resource)
        if locked is None:
            return
        holder, unlock = locked
        self.work_adopted(resource, holder)
        if self.random.random() < 0.9:
            unlock()

    def work_adopted(self, resource, holder):
        """Adopts at the start of each transaction: anew, or knowing the token."""
        known = self.random.random() < 0.5
        token = None
        for _ in range(self.random.randint(1, 4)):
            taken = []

            def enter(token=token, taken=taken):
                taken.append(self.grant('adopt', resource,
                                        'SELECT token FROM lease_fence.adopt(%s, %s::text, %s)',
                                        (resource, holder, token if known else None)))
                return taken[0]

            if not self.write(resource, enter=enter):
                return
            token = taken[0]
            if self.random.random() < 0.3:
                self.count_down(resource, token)
            self.dawdle()
        self.keep(resource, token)


class RedissonHolder(RedisPyHolder):
    """The hash that Redisson's RLock keeps, taken and given back as it does."""

    prefixes = ('rsn:',)
    take = '''if redis.call('exists', KEYS[1]) == 0 then
                redis.call('hincrby', KEYS[1], ARGV[2], 1)
                redis.call('pexpire', KEYS[1], ARGV[1])
                return 1
              end
              return 0'''
    give = '''if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
                redis.call('del', KEYS[1])
                redis.call('publish', 'redisson_lock__channel:{' .. KEYS[1] .. '}', 0)
              end'''

    def lock(self, resource):
        holder = f'{uuid.UUID(int=self.random.getrandbits(128))}:{self.random.randint(1, 9)}'
        for _ in range(20):
            if self.redis.eval(self.take, 1, resource, self.random.choice((1000, 3000)), holder):
                return holder, lambda: self.redis.eval(self.give, 1, resource, holder)
            if self.stop.wait(0.1):
                break
        return None


def next_number(folder, resource):
    """Of a grant: the length of a file, which survives a kill at any moment."""
    with open(f'{folder}/{resource}.number', 'ab', buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b'.')
        return file.tell()


class ImportHolder(Holder):
    """Somebody else's lock service hands out a number per grant, the next one
    whenever somebody asks."""

    scope = 'imported'
    prefixes = ('ext:',)

    def number(self, resource):
        return next_number(self.config['folder'], resource)

    def round(self, resource):
        number = self.number(resource)
        taken = []

        def enter():
            taken.append(self.grant('import', resource,
                                    'SELECT token FROM lease_fence.import_grant(%s, %s, ttl => %s)',
                                    (resource, number, '2s')))
            return taken[0]

        if self.write(resource, enter=enter):
            self.work(resource, taken[0], self.random.randint(0, 3))
        self.stop.wait(self.random.uniform(0, 0.3))


KINDS = {'transaction': TransactionHolder, 'session': SessionHolder, 'detached': DetachedHolder,
         'pooled': PooledHolder, 'pooled-detached': PooledDetachedHolder, 'redis-py': RedisPyHolder,
         'redisson': RedissonHolder, 'import': ImportHolder}


