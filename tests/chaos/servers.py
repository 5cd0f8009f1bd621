"""The PostgreSQL cluster and the Redis of one run: made, killed, started again.

Both belong to the run alone: unix socket and data in its folder, a free port of
127.0.0.1 for Redis.  The PostgreSQL programs are those found in PATH.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import time

import psycopg2
import redis

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
lease_fence.drain_timeout = '500ms'
lease_fence.max_leases = 10000
'''

SCHEMA = '''
CREATE EXTENSION lease_fence;
CREATE ROLE app LOGIN;
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


class Postgres:
    """A cluster in a folder, reached over a socket there."""

    def __init__(self, folder):
        self.folder = folder
        self.data = folder + '/data'
        self.log = folder + '/server.log'

    def create(self):
        with open(self.folder + '/initdb.log', 'w', encoding='utf-8') as log:
            subprocess.run(['initdb', '-D', self.data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8',
                            '--no-locale', '--no-sync'], check=True, stdout=log, stderr=log)
        with open(self.data + '/postgresql.conf', 'a', encoding='utf-8') as conf:
            conf.write(SETTINGS + f"unix_socket_directories = '{self.folder}'\n")
            extra = os.environ.get('TEMP_CONFIG')
            if extra:
                with open(extra, encoding='utf-8') as more:
                    conf.write(more.read())
        self.start()

    def _pg_ctl(self, *words):
        return subprocess.run(['pg_ctl', '-D', self.data, '-w', '-t', '60', *words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    def start(self):
        # Right after a crash an old child may still be there.
        wait_until(60, lambda: self._pg_ctl('-l', self.log, 'start'), 'the server does not start')

    def stop(self, mode='fast'):
        return self._pg_ctl('-m', mode, 'stop')

    def connect(self, user='postgres', **options):
        connection = psycopg2.connect(host=self.folder, port=5432, dbname='postgres', user=user,
                                      **options)
        connection.autocommit = True
        return connection

    def query(self, text, arguments=None):
        """The rows of a statement on a connection of its own."""
        connection = self.connect(application_name='chaos control')
        try:
            cursor = connection.cursor()
            cursor.execute(text, arguments)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def is_up(self):
        try:
            return bool(self.query('SELECT NOT pg_is_in_recovery()'))
        except psycopg2.Error:
            return False

    def wait_up(self, seconds=60):
        wait_until(seconds, self.is_up, 'the server does not come up')


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
        self.port = free_port()
        self.process = None

    def start(self):
        program = shutil.which('redis-server') or '/usr/bin/redis-server'
        log = open(self.folder + '/redis.log', 'a', encoding='utf-8')
        self.process = subprocess.Popen(
            [program, '--port', str(self.port), '--bind', '127.0.0.1', '--save', '',
             '--appendonly', 'no', '--dir', self.folder, '--notify-keyspace-events', 'Kg$hx'],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        wait_until(20, self.answers, 'redis-server does not start')

    def answers(self):
        try:
            return self.client().ping()
        except redis.RedisError:
            return False

    def client(self):
        return redis.Redis(host='127.0.0.1', port=self.port, socket_timeout=1.5,
                           socket_connect_timeout=1.5)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.send_signal(signal.SIGCONT)
        self.process.wait()

    def restart_empty(self):
        self.kill()
        self.forget()
        self.start()

    def save(self):
        self.client().save()

    def forget(self):
        try:
            os.remove(self.folder + '/dump.rdb')
        except FileNotFoundError:
            pass

    def restart_old(self):
        """With what was saved: locks of long ago, those of since then are gone."""
        self.kill()
        self.start()


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
