"""Callers that lock and unlock as fast as they can, each a process: threads of
Python would wait for one another.

A client is a program that gives run() a function open(info, number), which makes
the connections of one caller and returns lock(name) and unlock(); what lock returns
is handed on to the work.  Its command line and its answer are those of callers.c:

    program CONNECT-INFO CALLERS SECONDS own|one|items DATABASE
"""

import json
import multiprocessing
import os
import random
import sys
import time

import psycopg2

ITEMS = 100
WARM_UP = 0.2


class Work:
    """Takes one off an item's stock, by statements that are prepared once."""

    table = 'plain_item'

    def __init__(self, database):
        self.connection = psycopg2.connect(database)
        self.connection.autocommit = True
        self.sql = self.connection.cursor()
        self.sql.execute(f'PREPARE read AS SELECT stock FROM {self.table} WHERE id = $1')
        self.sql.execute(f'PREPARE write AS UPDATE {self.table} SET stock = stock - 1 WHERE id = $1 AND stock > 0')

    def do(self, item, _lock):
        self.sql.execute('EXECUTE read (%s)', (item,))
        self.sql.fetchone()
        self.sql.execute('EXECUTE write (%s)', (item,))
        if self.sql.rowcount != 1:
            raise RuntimeError('nothing was written')


class AdoptingWork(Work):
    """The same to a protected table, under a token for the lock."""

    table = 'r_item'

    def __init__(self, database):
        super().__init__(database)
        self.sql.execute('PREPARE adopt AS SELECT token FROM lease_fence.adopt(resource => $1, holder => $2::bytea)')

    def do(self, item, lock):
        self.sql.execute('BEGIN')
        self.sql.execute('EXECUTE adopt (%s, %s)', lock)
        super().do(item, lock)
        self.sql.execute('COMMIT')


class Shared:
    """What the processes tell one another, without locks: each has places of its own."""

    def __init__(self, callers):
        self.ready = multiprocessing.RawArray('b', callers)
        self.done = multiprocessing.RawArray('q', callers)
        self.violations = multiprocessing.RawArray('q', callers)
        self.counting = multiprocessing.RawValue('b', 0)
        self.stopping = multiprocessing.RawValue('b', 0)
        self.holder = multiprocessing.RawValue('q', -1)


def call(open_caller, work_class, info, number, mode, database, shared, answer):
    lock, unlock = open_caller(info, number)
    work = work_class(database) if mode == 'items' else None
    chance = random.Random()

    def job(name):
        item = chance.randint(1, ITEMS)
        held = lock(f'item:{item}' if work else name)
        shared.holder.value = number
        if work:
            work.do(item, held)
        if mode == 'one' and name == 'one' and shared.holder.value != number:
            shared.violations[number] += 1
        unlock()
        shared.done[number] += 1

    name = f'own:{number}'
    job(name)
    if mode == 'one':
        name = 'one'
    shared.ready[number] = 1
    latencies = []
    while not shared.stopping.value:
        start = time.perf_counter()
        job(name)
        if shared.counting.value:
            latencies.append(round(1e6 * (time.perf_counter() - start)))
    answer.send(latencies)
    answer.close()
    sys.stdout.flush()
    os._exit(0)         # no library's farewells: they take seconds, and nobody counts them


def run(open_caller, work_class=Work):
    info, callers, seconds, mode, database = sys.argv[1:6]
    callers = int(callers)
    shared = Shared(callers)
    context = multiprocessing.get_context('fork')
    processes, answers = [], []
    for number in range(callers):
        receive, send = context.Pipe(duplex=False)
        processes.append(context.Process(
            target=call, args=(open_caller, work_class, info, number, mode, database, shared, send)))
        processes[-1].start()
        send.close()
        answers.append(receive)
    try:
        while sum(shared.ready) < callers:
            if not all(process.is_alive() for process in processes):
                raise SystemExit('a caller ended')
            time.sleep(0.002)
        time.sleep(WARM_UP)
        shared.counting.value = 1
        start, before = time.perf_counter(), list(shared.done)
        time.sleep(float(seconds))
        end, counted = time.perf_counter(), [b - a for a, b in zip(before, shared.done)]
        shared.counting.value = 0
        shared.stopping.value = 1
        latencies = sorted(latency for answer in answers for latency in answer.recv()) or [0]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    print(json.dumps({'rate': sum(counted) / (end - start), 'served': sum(jobs > 0 for jobs in counted),
                      'p50': latencies[len(latencies) // 2], 'p99': latencies[len(latencies) * 99 // 100],
                      'jobs': sum(shared.done), 'violations': sum(shared.violations)}))
