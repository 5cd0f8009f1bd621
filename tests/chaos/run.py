#!/usr/bin/python3
"""One run: holders and faults, then no faults and progress, then the checker.

    run.py --seconds 90 --seed 7 [--faults cancel,redis_restart:3] [--guard fence]

--faults   all of nemesis.py when not given; name:N happens N times, evenly
           spread; none: no faults
--sql, --redis, --other    sessions that acquire in SQL, that lock with redis-py,
           and of all further kinds
--careless N               how likely a holder writes again under an earlier token
--resources pg:2,red:4     how many resources of each kind
--guard    fence, or one that is written by hand (guards.py): then the checker
           must find a violation
--folder   where everything is kept; made when not given, and removed after a
           run without a violation

The same seed gives the same plan of faults and the same choices of each holder;
not the same interleaving, which is left to the machine.

Exit status: 0 no violation and enough traffic, 1 otherwise.  With a guard
written by hand: 0 if the checker found a violation.
"""

import argparse
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

import psycopg2
import redis

import checker
import guards
import history
import holders
import nemesis
import oracle
import proxy
import servers

ROWS = 4
UNITS = 300
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRESS_WITHIN = 20            # seconds: ttl, drain, a worker's restart, back-off


class Client:
    """A client process, which may be killed and started again."""

    def __init__(self, folder, name, kinds):
        self.folder = folder
        self.name = name
        self.kinds = kinds
        self.incarnation = 0
        self.process = None

    def start(self):
        self.incarnation += 1
        with open(f'{self.folder}/{self.name}.err', 'ab') as errors:
            self.process = subprocess.Popen(
                [sys.executable, HERE + '/client.py', self.folder + '/config.json', self.name,
                 str(self.incarnation), *self.kinds], stdin=subprocess.DEVNULL, stderr=errors)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Sampler(threading.Thread):
    """Looks at the view of leases now and then."""

    def __init__(self, postgres, path):
        super().__init__(name='sampler', daemon=True)
        self.postgres = postgres
        self.path = path
        self.stop = threading.Event()

    def run(self):
        with open(self.path, 'w', encoding='utf-8') as file:
            while not self.stop.wait(0.3):
                try:
                    rows = self.postgres.query('SELECT resource, token, state FROM lease_fence.leases')
                    file.write(json.dumps({'at': history.now(), 'leases': rows}) + '\n')
                except psycopg2.Error:
                    pass


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float, default=30)
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(10 ** 9))
    parser.add_argument('--faults', default='all')
    parser.add_argument('--every', type=float, default=0.7, help='seconds between random faults')
    parser.add_argument('--guard', default='fence',
                        choices=('fence', 'none', 'stamp', 'check', 'share', 'split'))
    parser.add_argument('--careless', type=float, default=0.2,
                        help='how likely a holder writes again under a token that it had earlier')
    parser.add_argument('--sql', type=int, default=24)
    parser.add_argument('--redis', type=int, default=16)
    parser.add_argument('--other', type=int, default=12)
    parser.add_argument('--per-process', type=int, default=4)
    parser.add_argument('--resources', default='pg:3,red:3,rsn:2,ext:2')
    parser.add_argument('--folder')
    return parser.parse_args()


def faults_of(text):
    if text == 'none':
        return {}
    if text == 'all':
        return dict.fromkeys(nemesis.WEIGHTS)
    faults = {}
    for item in text.split(','):
        name, _, count = item.partition(':')
        if name not in nemesis.WEIGHTS:
            sys.exit(f'there is no fault {name}: ' + ', '.join(nemesis.WEIGHTS))
        faults[name] = int(count) if count else None
    return faults


def resources_of(text):
    names = []
    for item in text.split(','):
        kind, _, count = item.partition(':')
        names += [f'{kind}:{i}' for i in range(int(count))]
    return names


def kinds_of(options, resources, known):
    """The holders of this run, mixed over the processes.  A kind that finds no
    resource of its own is left out."""
    def having(names):
        return [name for name in names
                if name in known and any(r.startswith(known[name].prefixes) for r in resources)]

    kinds = []
    for count, names in ((options.sql, having(['transaction', 'session', 'detached'])),
                         (options.redis, having(['redis-py'])),
                         (options.other, having(['redisson', 'import', 'pooled', 'pooled-detached']))):
        kinds += [names[i % len(names)] for i in range(count) if names]
    random.Random(options.seed).shuffle(kinds)
    return kinds


class Run:
    """What is there during a run."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.resources = resources_of(options.resources)
        self.problems = []
        self.postgres = servers.Postgres(folder)
        self.redis = servers.Redis(folder)
        self.link = proxy.Proxy(self.redis.port)
        self.pooler = servers.Pooler(folder, self.postgres)
        self.janitor = nemesis.Janitor(self.postgres)
        self.faults = self.possible(faults_of(options.faults))
        self.kinds = dict(holders.KINDS)
        if not self.pooler.program:
            print('no pgbouncer here: no holders behind a pooler')
            self.kinds = {name: kind for name, kind in self.kinds.items() if not kind.pooled}
        kinds = kinds_of(options, self.resources, self.kinds)
        per = options.per_process
        self.pool = [Client(folder, f'c{i // per}', kinds[i:i + per])
                     for i in range(0, len(kinds), per)]

    def possible(self, faults):
        """Without those that this machine cannot do."""
        def can(name):
            return not (name.startswith('clock_') and not self.postgres.clock.movable or
                        name.startswith('pooler_') and not self.pooler.program)

        for name in [name for name in faults if not can(name)]:
            print(f'no {name} here')
            del faults[name]
        return faults

    def set_up(self):
        self.redis.start()
        self.link.start()
        self.postgres.create()
        if self.pooler.program:
            self.pooler.start()
        servers.make_schema(self.postgres, self.link.port, self.resources, ROWS, UNITS,
                            protect=self.options.guard == 'fence', before_rows=oracle.create)
        if any(name.startswith('promote_') for name in self.faults):
            self.postgres.make_standby()
        config = {'folder': self.folder, 'host': self.postgres.host, 'pooler': self.pooler.host,
                  'redis_socket': self.redis.socket,
                  'resources': self.resources, 'seed': self.options.seed,
                  'guard': self.options.guard, 'careless': self.options.careless}
        with open(self.folder + '/config.json', 'w', encoding='utf-8') as file:
            json.dump(config, file)
        self.config = config

    # ---- safety ----

    def traffic_with_faults(self):
        sampler = Sampler(self.postgres, self.folder + '/samples.jsonl')
        with open(self.folder + '/faults.log', 'w', encoding='utf-8') as log:
            enemy = nemesis.Nemesis(self.postgres, self.redis, self.link, self.pooler, self.pool,
                                    random.Random(f'{self.options.seed} faults'), self.faults,
                                    self.options.every, log)
            for client in self.pool:
                client.start()
            sampler.start()
            enemy.begin(self.options.seconds)
            time.sleep(self.options.seconds)
            enemy.finish()
            self.problems += enemy.errors
            self.stop_clients()
        sampler.stop.set()
        sampler.join()
        return enemy.done

    def stop_clients(self):
        for client in self.pool:
            client.process.terminate()
        deadline = time.monotonic() + 45
        for client in self.pool:
            try:
                status = client.process.wait(max(0.1, deadline - time.monotonic()))
                if status not in (0, -15):
                    self.problems.append(f'{client.name} ended with status {status}')
            except subprocess.TimeoutExpired:
                self.problems.append(f'{client.name} does not come to an end: ' + repr(
                    self.postgres.query("SELECT pid, state, wait_event, left(query, 90) FROM "
                                        "pg_stat_activity WHERE usename = 'app'")))
                client.kill()

    # ---- liveness ----

    def progress(self):
        """Faults are off: every resource can be had and written, by everybody
        who may take it.  Answers the longest time that one took, and which."""
        recorder = history.Recorder(self.folder + '/history-liveness.jsonl', 'liveness')
        slowest = (0, 'none')
        self.postgres.wait_up()
        for resource in self.resources:
            for kind, holder in self.kinds.items():
                if not resource.startswith(holder.prefixes):
                    continue
                began = time.monotonic()
                if not self.one_round(holder, recorder, resource):
                    self.problems.append(f'no progress: {kind} could not write {resource} within '
                                         f'{PROGRESS_WITHIN} s')
                slowest = max(slowest, (time.monotonic() - began, f'{kind} {resource}'))
        return slowest

    def one_round(self, holder, recorder, resource):
        """Until a write succeeded."""
        stop = threading.Event()
        holder = holder(self.config, recorder, random.Random(f'{self.options.seed} {resource}'),
                        stop, guards.by_name(self.options.guard))
        deadline = time.monotonic() + PROGRESS_WITHIN
        written = []
        append = recorder.append

        def watch(record):
            append(record)
            if record['kind'] == 'write' and record['outcome'] == history.OK:
                written.append(record)

        recorder.append = watch
        try:
            while not written and time.monotonic() < deadline:
                try:
                    holder.round(resource)
                except (psycopg2.Error, redis.RedisError, redis.exceptions.LockError):
                    holder.session.leave_transaction()
                    time.sleep(0.1)
        finally:
            recorder.append = append
            holder.session.close()
        return bool(written)

    # ---- the end ----

    def collect(self):
        connection = self.postgres.connect()
        lines = oracle.consume(connection.cursor())
        connection.close()
        with open(self.folder + '/oracle.txt', 'w', encoding='utf-8') as file:
            for line in self.postgres.history + lines:
                file.write(json.dumps(line) + '\n')
        self.postgres.stop('fast')
        with open(self.postgres.log, encoding='utf-8', errors='replace') as log:
            for line in log:
                if 'TRAP:' in line or 'PANIC:' in line or 'signal 6' in line or 'signal 11' in line:
                    self.problems.append('in the server log: ' + line.strip())
        for path in glob.glob(self.folder + '/c*.err'):
            with open(path, encoding='utf-8', errors='replace') as file:
                text = file.read()
            # Not what libpq says of a connection that was ended as it began.
            if 'Traceback' in text or 'holders of this process' in text:
                self.problems.append(f'{os.path.basename(path)}: {text[-600:]}')

    def tear_down(self):
        for client in self.pool:
            if client.process is not None and client.process.poll() is None:
                client.kill()
        self.postgres.stop_all()
        self.redis.kill()
        self.pooler.kill()


def count(operations, done):
    """What happened, in numbers; and what there was too little of."""
    outcomes = Counter(o['outcome'] for o in operations if o['kind'] in ('write', 'decrement'))
    grants = Counter(o['kind'] for o in operations
                     if o['kind'] in ('acquire', 'adopt', 'import') and o['outcome'] == history.OK)
    rejected = sum(len(o.get('rejections', ())) for o in operations)
    print(f'operations {len(operations)}, writes accepted {outcomes[history.OK]}, '
          f'failed {outcomes[history.FAIL]}, unknown {outcomes[history.UNKNOWN]}, '
          f'rejections seen {rejected}')
    print('grants: ' + ', '.join(f'{kind} {number}' for kind, number in sorted(grants.items())))
    errors = Counter(o['sqlstate'] for o in operations if o.get('sqlstate'))
    print('errors: ' + ', '.join(f'{state} {number}' for state, number in sorted(errors.items())))
    print('faults: ' + (', '.join(f'{name} {number}' for name, number in sorted(done.items()))
                        or 'none'))
    return outcomes, rejected


def enough(options, outcomes, rejected):
    """Too little traffic proves nothing."""
    if outcomes[history.OK] < 5 * options.seconds:
        yield f'too few accepted writes: {outcomes[history.OK]}'
    if options.guard == 'fence' and rejected < options.seconds:
        yield f'too few rejections: {rejected}'


def how_soon(h, violations):
    """Per invariant: how often it was violated, and when first."""
    start = min(o['start'] for o in h.operations)
    count, first = Counter(), {}
    for violation in violations:
        count[violation.invariant] += 1
        for item in violation.evidence:
            if isinstance(item, dict) and 'end' in item:
                after = item['end'] - start
                first[violation.invariant] = min(after, first.get(violation.invariant, after))
    return ', '.join(f'{name} {count[name]} times, first after {first.get(name, 0):.1f} s'
                     for name in sorted(count))


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('terminated'))    # servers go with us
    # What a caller's shell has set for other servers must not reach ours.
    for name in [name for name in os.environ if name.startswith('PG')]:
        del os.environ[name]
    folder = options.folder or tempfile.mkdtemp(prefix='lf_chaos_', dir='/tmp')
    os.makedirs(folder, exist_ok=True)
    print(f'seed {options.seed}, {options.seconds:g} s, guard {options.guard}, in {folder}', flush=True)
    run = Run(options, folder)
    try:
        run.set_up()
        run.janitor.start()
        done = run.traffic_with_faults()
        slowest = run.progress()
        run.janitor.end()
        run.collect()
    finally:
        run.tear_down()

    h = checker.load(folder)
    outcomes, rejected = count(h.operations, done)
    print(f'committed: mints {len(h.oracle.mints)}, rows written {len(h.oracle.writes)}, changes of '
          f'stock {len(h.oracle.stock)}, audit rows {sum(map(len, h.oracle.rejected.values()))}, '
          f'in the log instead {sum(h.logged.values())}')
    if h.oracle.promotions:
        acknowledged = sum(o['outcome'] == history.OK and o['marker'] in h.lost.writes
                           for o in h.operations if o['kind'] == 'write')
        print(f'lost with asynchronous standbys: {h.lost.transactions} transactions, among them '
              f'{len(h.lost.mint_of)} mints and {acknowledged} acknowledged writes')
    print('slowest progress after the faults: %.1f s, %s' % slowest)
    violations = checker.check(h)
    checker.report(violations)
    problems = run.problems + list(enough(options, outcomes, rejected))
    for problem in problems:
        print('PROBLEM: ' + problem)

    if options.guard != 'fence':
        print(f'the checker caught guard {options.guard}: {how_soon(h, violations)}' if violations
              else f'the checker DID NOT CATCH guard {options.guard}')
        good = bool(violations)
    else:
        good = not violations and not problems
    if good and not options.folder:
        shutil.rmtree(folder)
    elif not good:
        print(f'everything is kept in {folder}')
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
