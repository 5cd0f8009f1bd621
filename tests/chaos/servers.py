"""The PostgreSQL cluster and the Redis of one run: made, killed, started again,
each with a standby that can take its place.

All belong to the run alone: sockets and data are in its folder, Redis also has a
free port of 127.0.0.1.  Whoever is primary now is found by a symbolic link, pg
and redis.sock.  The PostgreSQL programs are those found in PATH.
"""

import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import time

import psycopg2
import redis

import oracle

HERE = os.path.dirname(os.path.abspath(__file__))

SETTINGS = '''
shared_preload_libraries = 'lease_fence'
listen_addresses = ''
port = 5432                     # of the socket in the run's folder
max_connections = 400
max_prepared_transactions = 50
wal_level = logical
max_wal_size = '4GB'
fsync = off                     # processes die here, the machine does not
restart_after_crash = on
deadlock_timeout = '300ms'
log_min_error_statement = panic
log_line_prefix = '%m [%p] %a '
log_checkpoints = off
wal_retrieve_retry_interval = '200ms'
include_if_exists 'sync.conf'
lease_fence.drain_timeout = '500ms'
lease_fence.max_leases = 10000
'''

SCHEMA = '''
CREATE EXTENSION lease_fence;
CREATE ROLE app LOGIN;
ALTER ROLE app SET statement_timeout = '20s';
GRANT USAGE ON SCHEMA lease_fence TO app;
CREATE TABLE item (resource text, n int, version bigint NOT NULL, marker text, PRIMARY KEY (resource, n));
CREATE TABLE stock (resource text PRIMARY KEY, units bigint NOT NULL);
ALTER TABLE item REPLICA IDENTITY FULL;
ALTER TABLE stock REPLICA IDENTITY FULL;
GRANT SELECT, UPDATE ON item, stock TO app;

-- Writes from within a query, so that a cursor can do it row by row.
CREATE FUNCTION write_item(resource text, n int, version bigint, marker text, token bigint) RETURNS int
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE item i SET version = write_item.version, marker = write_item.marker
    WHERE i.resource = write_item.resource AND i.n = write_item.n;
    RETURN n;
END $$;
'''

PROFILES = '''
CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis
    OPTIONS (host '127.0.0.1', port '{port}', connect_timeout '1s', command_timeout '1s');
SELECT lease_fence.add_profile(name => 'red', prefix => 'red:', servers => '{{locks}}', ttl => '2s');
SELECT lease_fence.add_profile(name => 'rsn', prefix => 'rsn:', servers => '{{locks}}', shape => 'redisson', ttl => '2s');
SELECT lease_fence.add_profile(name => 'ext', prefix => 'ext:', policy => 'external', ttl => '2s');
'''


def wait_until(seconds, condition, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def point_to(link, target):
    """Makes the link, or lets it point elsewhere, at once."""
    os.symlink(target, link + '.new')
    os.rename(link + '.new', link)


class Clock:
    """The wall clock of a server's processes, which can be moved (clock_shim.c).
    Without a compiler it cannot."""

    def __init__(self, folder, name):
        self.path = f'{folder}/clock.{name}'
        self.library = f'{folder}/clock_shim.so'
        self.seconds = 0
        self.set(0)
        if not os.path.exists(self.library):
            compiler = shutil.which('cc') or shutil.which('gcc')
            if compiler:
                subprocess.run([compiler, '-shared', '-fPIC', '-O1', '-o', self.library,
                                HERE + '/../clock_shim.c'], check=False)

    @property
    def movable(self):
        return os.path.exists(self.library)

    def environment(self):
        more = {'LD_PRELOAD': self.library, 'CLOCK_SHIM_FILE': self.path} if self.movable else {}
        return dict(os.environ, **more)

    def set(self, seconds):
        """How much it is ahead of the machine's."""
        self.seconds = seconds
        # In place: the servers have it mapped.
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, seconds.to_bytes(8, 'little', signed=True))
        os.close(file)


class Postgres:
    """A primary, and a standby if one is wanted; the n-th of them has its data
    in data<n> and its socket in s<n>."""

    def __init__(self, folder):
        self.folder = folder
        self.host = folder + '/pg'
        self.log = folder + '/server.log'
        self.clock = Clock(folder, 'pg')
        self.number = 1
        self.has_standby = False
        self.history = []               # what the primaries before this one committed

    @property
    def data(self):
        return f'{self.folder}/data{self.number}'

    @property
    def standby_data(self):
        return f'{self.folder}/data{self.number + 1}'

    @property
    def standby_host(self):
        return f'{self.folder}/s{self.number + 1}'

    def create(self):
        with open(self.folder + '/initdb.log', 'w', encoding='utf-8') as log:
            subprocess.run(['initdb', '-D', self.data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8',
                            '--no-locale', '--no-sync'], check=True, stdout=log, stderr=log)
        self._configure(self.number, SETTINGS)
        extra = os.environ.get('TEMP_CONFIG')
        if extra:
            with open(extra, encoding='utf-8') as more:
                self._configure(self.number, more.read())
        point_to(self.host, f's{self.number}')
        self.start()

    def _configure(self, number, text):
        sockets = f'{self.folder}/s{number}'
        os.makedirs(sockets, exist_ok=True)
        with open(f'{self.folder}/data{number}/postgresql.conf', 'a', encoding='utf-8') as conf:
            conf.write(text + f"\nunix_socket_directories = '{sockets}'\n")

    def _pg_ctl(self, *words, data=None):
        return subprocess.run(['pg_ctl', '-D', data or self.data, '-w', '-t', '60', *words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=self.clock.environment(),
                              check=False).returncode == 0

    def start(self, *words, data=None):
        # Right after a crash an old child may still be there.
        wait_until(60, lambda: self._pg_ctl('-l', self.log, *words, 'start', data=data),
                   'the server does not start')

    def stop(self, mode='fast', data=None):
        return self._pg_ctl('-m', mode, 'stop', data=data)

    def kill(self):
        """The postmaster alone; its children are to notice."""
        with open(self.data + '/postmaster.pid', encoding='utf-8') as file:
            os.kill(int(file.readline()), signal.SIGKILL)

    def stop_all(self):
        for data in glob.glob(self.folder + '/data*'):
            self.stop('immediate', data)

    def connect(self, user='postgres', host=None, **options):
        connection = psycopg2.connect(host=host or self.host, port=5432, dbname='postgres', user=user,
                                      **options)
        connection.autocommit = True
        return connection

    def query(self, text, arguments=None, host=None):
        """The rows of a statement on a connection of its own."""
        connection = self.connect(host=host, application_name='chaos control')
        try:
            cursor = connection.cursor()
            cursor.execute(text, arguments)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def is_up(self, host=None):
        try:
            return bool(self.query('SELECT NOT pg_is_in_recovery()', host=host)[0][0])
        except psycopg2.Error:
            return False

    def wait_up(self, seconds=60, host=None):
        wait_until(seconds, lambda: self.is_up(host), 'the server does not come up')

    # ---- the standby ----

    def make_standby(self):
        """Synchronous when this returns: what is acknowledged from then on, it
        has."""
        shutil.rmtree(self.standby_data, ignore_errors=True)
        subprocess.run(['pg_basebackup', '-h', f'{self.folder}/s{self.number}', '-p', '5432', '-U',
                        'postgres', '-D', self.standby_data, '-R', '-c', 'fast', '--no-sync'],
                       check=True, stdout=subprocess.DEVNULL, env=self.clock.environment())
        self._synchronous(self.standby_data, '')
        self._configure(self.number + 1, '')
        self.start(data=self.standby_data)
        self.has_standby = True
        self.set_synchronous(True)

    @staticmethod
    def _synchronous(data, names):
        with open(data + '/sync.conf', 'w', encoding='utf-8') as conf:
            conf.write(f"synchronous_standby_names = '{names}'\n")

    def set_synchronous(self, on):
        names = '*' if on else ''
        self._synchronous(self.data, names)
        self.query('SELECT pg_reload_conf()')
        wait_until(30, lambda: self.query('SHOW synchronous_standby_names')[0][0] == names and
                   self.query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = %s AND "
                              "state = 'streaming'", ('sync' if on else 'async',)) == [(1,)],
                   'the standby does not follow')
        # It is the checkpointer that tells the others; a checkpoint asked for
        # after the reload comes after that.
        self.query('CHECKPOINT')

    def standby_receiver(self):
        """The process by which the standby follows."""
        rows = self.query('SELECT pid FROM pg_stat_wal_receiver', host=self.standby_host)
        if not rows or rows[0][0] is None:
            raise ProcessLookupError
        return rows[0][0]

    def promote(self, mode, receiver):
        """The primary dies and the standby, whose receiver stands still, takes
        its place.  Nobody is let in before there is an oracle."""
        self.stop('immediate')
        subprocess.run(['pg_ctl', '-D', self.standby_data, '-W', 'promote'], check=True,
                       stdout=subprocess.DEVNULL)
        time.sleep(0.1)
        os.kill(receiver, signal.SIGCONT)
        host = self.standby_host
        self.wait_up(host=host)
        # The slot would wait for them, and does not see what began before it.
        for row in self.query('SELECT gid FROM pg_prepared_xacts', host=host):
            self.query('ROLLBACK PREPARED %s', row, host=host)
        connection = self.connect(host=host)
        oracle.create(connection.cursor())
        connection.close()
        floors = [row[0] for row in self.query('SELECT floor FROM lease_fence.epochs', host=host)]
        switched = oracle.end_of_history(self.standby_data)

        old_data, old_host = self.data, f'{self.folder}/s{self.number}'
        self.number += 1
        self.has_standby = False
        point_to(self.host, f's{self.number}')
        self._post_mortem(mode, old_data, old_host, switched, floors)

    def _post_mortem(self, mode, data, host, switched, floors):
        """What the old primary had committed, and what of it is lost; started
        once more, without our library, where nobody finds it."""
        self.start('-o', "-c shared_preload_libraries= -c synchronous_standby_names= "
                   '-c autovacuum=off', data=data)
        connection = self.connect(host=host)
        rows = oracle.consume_with_lsn(connection.cursor())
        connection.close()
        self.stop('immediate', data)
        self.history += oracle.cut(rows, mode, switched, floors)
        shutil.rmtree(data)


def free_port():
    """Below those that the kernel gives to connections: it must still be free
    after Redis was away for a moment."""
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(('127.0.0.1', port))
                return port
            except OSError:
                continue


class Redis:
    """A server that keeps nothing on disk unless it is asked to: started again,
    it is empty, or has what it had when it was asked."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = folder + '/redis.sock'
        self.clock = Clock(folder, 'redis')
        self.number = 0
        self.replica = None
        self._name()

    def _name(self):
        self.number += 1
        self.port = free_port()
        self.process = None
        self.dir = f'{self.folder}/redis{self.number}'
        os.makedirs(self.dir, exist_ok=True)

    def start(self):
        self.process = self._launch(self.port, self.dir)
        wait_until(20, self.answers, 'redis-server does not start')
        point_to(self.socket, f'redis{self.number}/sock')

    def _launch(self, port, folder, *options):
        program = shutil.which('redis-server') or '/usr/bin/redis-server'
        with open(self.folder + '/redis.log', 'a', encoding='utf-8') as log:
            return subprocess.Popen(
                [program, '--port', str(port), '--bind', '127.0.0.1', '--save', '', '--unixsocket',
                 folder + '/sock', '--repl-diskless-sync-delay', '0', '--appendonly', 'no', '--dir',
                 folder, '--notify-keyspace-events', 'Kg$hx', *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.clock.environment())

    def answers(self):
        try:
            return self.client().ping()
        except redis.RedisError:
            return False

    def client(self, port=None):
        return redis.Redis(host='127.0.0.1', port=port or self.port, socket_timeout=1.5,
                           socket_connect_timeout=1.5)

    def kill(self):
        for process in (self.process, self.replica):
            if process is not None:
                process.kill()
                process.send_signal(signal.SIGCONT)
                process.wait()

    def restart_empty(self):
        self.kill()
        self.forget()
        self.start()

    def save(self):
        self.client().save()

    def forget(self):
        try:
            os.remove(self.dir + '/dump.rdb')
        except FileNotFoundError:
            pass

    def restart_old(self):
        """With what was saved: locks of long ago, those of since then are gone."""
        self.kill()
        self.start()

    # ---- a replica ----

    def fail_over(self, behind, switch, early):
        """To an asynchronous replica that has not seen the last seconds.  switch
        is called with the new port: early, when it is not master yet, or late."""
        master = self.process
        self._name()
        self.replica = self._launch(self.port, self.dir, '--replicaof', '127.0.0.1',
                                    str(self._port_of(master)))
        wait_until(10, self._follows, 'the replica does not follow')
        self.replica.send_signal(signal.SIGSTOP)
        time.sleep(behind)
        master.kill()
        master.wait()
        self.replica.send_signal(signal.SIGCONT)
        self.process, self.replica = self.replica, None
        if early:
            self._switch(switch)
            time.sleep(0.3)
        self.client().replicaof('NO', 'ONE')
        self._switch(switch)

    @staticmethod
    def _port_of(process):
        return process.args[process.args.index('--port') + 1]

    def _follows(self):
        try:
            return self.client().info('replication').get('master_link_status') == 'up'
        except redis.RedisError:
            return False

    def _switch(self, switch):
        point_to(self.socket, f'redis{self.number}/sock')
        switch(self.port)


class Pooler:
    """pgbouncer in transaction mode, with few connections for many clients."""

    def __init__(self, folder, postgres):
        self.folder = folder
        self.postgres = postgres
        self.process = None
        self.host = folder + '/pooler'
        programs = [shutil.which('pgbouncer'), '/usr/sbin/pgbouncer']
        self.program = next((p for p in programs if p and os.access(p, os.X_OK)), None)

    def start(self):
        os.makedirs(self.host, exist_ok=True)
        with open(self.host + '/users', 'w', encoding='utf-8') as users:
            users.write('"app" ""\n')
        with open(self.host + '/ini', 'w', encoding='utf-8') as ini:
            ini.write(f'''[databases]
* = host={self.postgres.host} port=5432 user=app
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = {self.host}
auth_type = any
auth_file = {self.host}/users
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
server_login_retry = 0.2
server_connect_timeout = 3
query_wait_timeout = 15
ignore_startup_parameters = extra_float_digits,options
logfile = {self.host}/log
''')
        with open(self.host + '/out', 'a', encoding='utf-8') as out:
            self.process = subprocess.Popen([self.program, self.host + '/ini'], stdout=out, stderr=out,
                                            stdin=subprocess.DEVNULL)
        wait_until(20, lambda: os.path.exists(self.host + '/.s.PGSQL.5432'),
                   'pgbouncer does not start')

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for path in (self.host + '/.s.PGSQL.5432', self.host + '/.s.PGSQL.5432.lock'):
                if os.path.exists(path):
                    os.remove(path)


def make_schema(postgres, redis_port, resources, rows, units, protect, before_rows):
    """Tables, profiles and rows; before_rows(cursor) runs just before the rows."""
    connection = postgres.connect()
    cursor = connection.cursor()
    cursor.execute(SCHEMA)
    cursor.execute(PROFILES.format(port=redis_port))
    before_rows(cursor)
    for resource in resources:
        cursor.execute('INSERT INTO item SELECT %s, g, 0, NULL FROM generate_series(1, %s) g',
                       (resource, rows))
        cursor.execute('INSERT INTO stock VALUES (%s, %s)', (resource, units))
    if protect:
        cursor.execute("SELECT lease_fence.protect('item', '{resource}')")
        cursor.execute("SELECT lease_fence.protect('stock', '{resource}')")
    else:
        cursor.execute('ALTER TABLE item ADD fence_token bigint NOT NULL DEFAULT 0')
        cursor.execute('ALTER TABLE stock ADD fence_token bigint NOT NULL DEFAULT 0')
        cursor.execute('GRANT SELECT, UPDATE ON lease_fence.grants TO app')
    connection.close()
