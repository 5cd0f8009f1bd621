"""The PostgreSQL and Redis servers of a benchmark, and pgbench.

All are the run's own, in its folder, on unix sockets; Redis also has a free port
of 127.0.0.1.  The PostgreSQL programs are those found in PATH.
"""

import os
import re
import shutil
import socket
import subprocess
import time

import psycopg2
import redis

SETTINGS = {
    'shared_preload_libraries': 'lease_fence',
    'listen_addresses': '',
    'port': '5432',                     # of the socket
    'max_connections': '300',
    'shared_buffers': '1GB',
    'max_wal_size': '8GB',
    'checkpoint_timeout': '1h',
    'autovacuum': 'off',
    'jit': 'off',
    'log_min_messages': 'fatal',        # a rejected write is an error, thousands of them a second
    'log_min_error_statement': 'panic',
    'lease_fence.max_leases': '200000',
}


def wait_until(seconds, condition, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


class Postgres:
    """A fresh cluster with the extension in its database postgres."""

    def __init__(self, folder, name, **settings):
        self.host = f'{folder}/{name}'
        self.data = self.host + '/data'
        self.processed = 0
        os.makedirs(self.host)
        self._run('initdb', '-D', self.data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--no-locale', '--no-sync')
        with open(self.data + '/postgresql.conf', 'a', encoding='utf-8') as conf:
            for key, value in {**SETTINGS, 'unix_socket_directories': self.host, **settings}.items():
                conf.write(f"{key} = '{value}'\n")
            extra = os.environ.get('TEMP_CONFIG')
            if extra:
                with open(extra, encoding='utf-8') as more:
                    conf.write(more.read())
        self._run('pg_ctl', '-D', self.data, '-l', self.host + '/server.log', '-w', '-t', '60', 'start')
        self.execute('CREATE EXTENSION lease_fence')
        self.wait_worker()

    def _run(self, *words):
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def stop(self):
        subprocess.run(['pg_ctl', '-D', self.data, '-m', 'immediate', '-w', 'stop'], check=False,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def restart(self, **settings):
        for key, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {key} = '{value}'")
        self._run('pg_ctl', '-D', self.data, '-l', self.host + '/server.log', '-m', 'fast', '-w', '-t', '60', 'restart')

    def connect(self, dbname='postgres', **options):
        connection = psycopg2.connect(host=self.host, port=5432, dbname=dbname, user='postgres', **options)
        connection.autocommit = True
        return connection

    def execute(self, text, arguments=None, dbname='postgres'):
        """On a connection of its own; rows if there are any."""
        connection = self.connect(dbname)
        try:
            cursor = connection.cursor()
            cursor.execute(text, arguments)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def value(self, text, arguments=None, dbname='postgres'):
        return self.execute(text, arguments, dbname)[0][0]

    def set(self, **settings):
        """For the server as a whole, from the next transaction of each session."""
        for key, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {key} = '{value}'")
        self.execute('SELECT pg_reload_conf()')
        for key, value in settings.items():
            wait_until(10, lambda key=key, value=value: self.value(f'SHOW {key}') == str(value), key)

    def wait_worker(self, dbname='postgres'):
        def works():
            try:
                return self.value("SELECT token FROM lease_fence.acquire(resource => 'bench: is the worker there?',"
                                  " ttl => '10ms', scope => 'detached')", dbname=dbname) is not None
            except psycopg2.Error:
                return False
        wait_until(60, works, 'the worker does not come up')

    def add_redis(self, server, name='locks', prefix='r:', **options):
        """A profile over a Redis of ours: resources with the prefix are locked there."""
        more = ''.join(f", {key} '{value}'" for key, value in options.items())
        self.execute(f"CREATE SERVER {name} FOREIGN DATA WRAPPER lease_fence_redis "
                     f"OPTIONS (host '127.0.0.1', port '{server.port}'{more})")
        self.execute('SELECT lease_fence.add_profile(name => %s, prefix => %s, servers => %s)',
                     (name, prefix, [name]))
        wait_until(30, lambda: self.can_lease(prefix + 'bench: is Redis there?'), 'the worker does not reach Redis')

    def can_lease(self, resource):
        try:
            self.execute("SELECT token FROM lease_fence.acquire(resource => %s, ttl => '10ms', scope => 'detached')",
                         (resource,))
            return True
        except psycopg2.Error:
            return False

    def pid(self, backend_type):
        return self.value("SELECT pid FROM pg_stat_activity WHERE backend_type = %s", (backend_type,))

    def pgbench(self, script, clients=1, seconds=1.0, transactions=None, mode='prepared', **variables):
        """Transactions a second of a script, given as text: of a run of so many
        seconds, or of so many transactions a client; processed is then how many
        there were.  An error of the script is an error of the benchmark."""
        path = f'{self.host}/script.sql'
        with open(path, 'w', encoding='utf-8') as file:
            file.write(script)
        words = ['pgbench', '-h', self.host, '-p', '5432', '-U', 'postgres', '-n', '-M', mode, '-c', str(clients),
                 '-j', str(min(clients, 2)), '-f', path]
        words += ['-t', str(transactions)] if transactions else ['-T', str(max(1, round(seconds)))]
        for key, value in variables.items():
            words += ['-D', f'{key}={value}']
        run = subprocess.run(words + ['postgres'], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        found = re.search(r'^tps = ([0-9.]+)', run.stdout, re.MULTILINE)
        if run.returncode != 0 or not found:
            raise RuntimeError(f'pgbench failed\n{script}\n{run.stdout}{run.stderr}')
        self.processed = int(re.search(r'actually processed: ([0-9]+)', run.stdout).group(1))
        return float(found.group(1))


class Redis:
    """A server that keeps nothing on disk."""

    def __init__(self, folder, *options):
        self.port = free_port()
        self.socket = f'{folder}/redis.{self.port}.sock'
        program = shutil.which('redis-server') or '/usr/bin/redis-server'
        with open(f'{folder}/redis.log', 'a', encoding='utf-8') as log:
            self.process = subprocess.Popen(
                [program, '--port', str(self.port), '--bind', '127.0.0.1', '--unixsocket', self.socket, '--save', '',
                 '--appendonly', 'no', '--dir', folder, '--notify-keyspace-events', 'Kg$hx', *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(20, self._answers, 'redis-server does not start')

    def _answers(self):
        try:
            return self.client().ping()
        except redis.RedisError:
            return False

    def client(self):
        return redis.Redis(host='127.0.0.1', port=self.port, socket_timeout=5)

    def stop(self):
        self.process.kill()
        self.process.wait()


def worked_seconds(pid):
    """What a process with one thread has used so far, to the nanosecond."""
    with open(f'/proc/{pid}/schedstat', encoding='utf-8') as file:
        return int(file.read().split()[0]) / 1e9


def status(pid):
    """/proc/PID/status: its first numbers by name."""
    with open(f'/proc/{pid}/status', encoding='utf-8') as file:
        found = re.findall(r'^(\w+):\s+(\d+)', file.read(), re.MULTILINE)
    return {name: int(number) for name, number in found}
