"""The ways to lock that acquire and decrement measure: the programs in clients/, and
the servers they lock with.

All programs have one interface: see clients/callers.c.  What cannot be had here (a
package that does not install, npm without a registry) is tried once, and its row
says why.
"""

import json
import os
import shutil
import subprocess
import sys
import time

import servers

CLIENTS = os.path.dirname(os.path.abspath(__file__)) + '/clients'
ZOOKEEPER_JAR = '/usr/share/java/zookeeper.jar'


class Service:
    """A server with its data in a folder of its own, on free ports of 127.0.0.1."""

    def __init__(self, folder, name, words):
        self.folder = f'{folder}/{name}'
        with open(f'{folder}/{name}.log', 'a', encoding='utf-8') as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def etcd(bench):
    """Its address, or None."""
    if not shutil.which('etcd'):
        return None
    client, peer = (f'127.0.0.1:{servers.free_port()}' for _ in range(2))
    bench.start(Service(bench.folder, 'etcd', [
        'etcd', '--data-dir', bench.folder + '/etcd', '--log-level', 'error',
        '--listen-client-urls', f'http://{client}', '--advertise-client-urls', f'http://{client}',
        '--listen-peer-urls', f'http://{peer}', '--initial-advertise-peer-urls', f'http://{peer}',
        '--initial-cluster', f'default=http://{peer}']))
    return client


def zookeeper(bench):
    """Its address, or None."""
    if not shutil.which('java') or not os.path.exists(ZOOKEEPER_JAR):
        return None
    port = servers.free_port()
    os.makedirs(bench.folder + '/zookeeper')
    with open(bench.folder + '/zookeeper/zoo.cfg', 'w', encoding='utf-8') as conf:
        conf.write(f'tickTime=2000\ndataDir={bench.folder}/zookeeper/data\nclientPort={port}\n'
                   'clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n')
    bench.start(Service(bench.folder, 'zookeeper', [
        'java', '-cp', ZOOKEEPER_JAR, 'org.apache.zookeeper.server.quorum.QuorumPeerMain',
        bench.folder + '/zookeeper/zoo.cfg']))
    return f'127.0.0.1:{port}'


def compile_callers(bench):
    return bench.build('callers', CLIENTS + '/locks.c', '-lpq', '-lhiredis', '-lpthread')


def database(server):
    return f'host={server.host} port=5432 user=postgres dbname=postgres'


class Way:
    """One way to lock.  token: what proves later who had it last; kept: where a
    restart of the server leaves the lock and its token."""

    def __init__(self, name, token, kept, program, info, more=(), work=''):
        self.name = name
        self.token = token
        self.kept = kept
        self.program = program
        self.info = info
        self.more = list(more)
        self.work = work            # the database where its jobs are done, if that is not where it locks
        self.missing = 'no server' if info is None else None
        self.answers = {}           # (callers, mode): all that its runs said
        self.jobs = 0

    def run(self, callers, seconds, mode):
        words = self.program + [self.info, str(callers), str(seconds), mode, self.work or '-'] + self.more
        run = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
        if run.returncode != 0:
            raise RuntimeError(f'{self.name}: {run.stderr.strip() or run.returncode}')
        answer = json.loads(run.stdout)
        # a lock that runs out under a paused caller excludes nobody: what tokens are for
        if answer['violations'] != 0 and self.token != 'none':
            raise RuntimeError(f'{self.name}, {callers} callers: excluded nobody {answer["violations"]} times')
        self.jobs += answer['jobs']
        self.answers.setdefault((callers, mode), []).append(answer)
        return answer

    def overlaps(self):
        """How often two callers had the lock at once."""
        return sum(answer['violations'] for answers in self.answers.values() for answer in answers)

    def time(self, callers, seconds, mode):
        """Microseconds between two jobs, of all callers together; if there was none,
        twice the time that was given, so that a ratio can be told."""
        rate = self.run(callers, seconds, mode)['rate']
        return 1e6 / rate if rate > 0 else 2e6 * seconds

    def try_once(self, mode):
        """Is it here at all?  Its server may take a moment."""
        deadline = time.monotonic() + 10
        while self.missing is None:
            try:
                self.run(1, 0.1, mode)
                break
            except OSError as error:
                self.missing = reason(error)
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                if time.monotonic() > deadline or 'annot find module' in str(error) or 'No module' in str(error):
                    self.missing = reason(error)
            time.sleep(0.2)
        self.answers.clear()


def try_all(ways, mode, but):
    """Each program once, but for the one in C, which is ours."""
    tried = {}
    for way in ways:
        if way.program == [but]:
            continue
        key = (way.program[-1], tuple(way.more) if way.work else ())
        if key in tried:
            way.missing = tried[key]
        else:
            way.try_once(mode)
            tried[key] = way.missing


def reason(error):
    """A line of it, for a table."""
    lines = [line.strip() for line in str(error).splitlines() if 'rror' in line or 'annot' in line]
    return (lines[-1] if lines else str(error).splitlines()[-1])[:100].replace('|', '/')


def python(name):
    return ['/usr/bin/python3' if os.path.exists('/usr/bin/python3') else sys.executable, '-B', f'{CLIENTS}/{name}.py']


def node(name):
    return ['node', f'{CLIENTS}/{name}.js']
