"""Faults, injected one after the other in a random order that the seed decides.

    terminate        pg_terminate_backend of a client's session
    cancel           pg_cancel_backend of a client's session
    client_stop      SIGSTOP of a client process, SIGCONT later
    client_kill      SIGKILL of a client process, which is started again
    backend_stop     SIGSTOP of a client's backend, SIGCONT later
    backend_kill     SIGKILL of a client's backend: PostgreSQL restarts by itself
    worker_term      SIGTERM of the worker of lease_fence
    worker_stop      SIGSTOP of the worker, SIGCONT later
    worker_kill      SIGKILL of the worker: PostgreSQL restarts by itself
    launcher_kill    SIGKILL of the launcher: the same
    pg_immediate     immediate stop of PostgreSQL, and a start
    pg_fast          the same, fast
    pg_kill          SIGKILL of the postmaster, and a start
    promote_sync     the synchronous standby stands still for a while, the primary
                     dies, the standby is promoted: what was acknowledged is there
    promote_async    the same with an asynchronous one: what it had not received is
                     lost, and nothing else
    clock_pg         PostgreSQL's wall clock jumps, up to an hour ahead or a bit back
    clock_redis      Redis' wall clock does
    pooler_kill      SIGKILL of pgbouncer, which is started again
    redis_failover   Redis' replica stands still for a while, Redis is killed, and
                     the replica, which lacks the last locks, becomes the master
    server_moved     ALTER SERVER: the same Redis at another port
    redis_restart    SIGKILL of Redis, which comes back empty
    redis_stop       SIGSTOP of Redis, SIGCONT later
    redis_save       SAVE, which the next redis_old finds
    redis_old        SIGKILL of Redis, which comes back with what was saved then
    link_cut         the connections between the worker and Redis break
    link_down        they break and none can be made, for a while
    link_hold        nothing goes through them for a while, and nothing is lost
    link_replies     the same, for what Redis answers alone
    link_requests    the same, for what the worker asks alone
    link_slow        what goes through them takes longer, for a while
    flushall, script_flush
                     what a DBA of Redis may do at any time
"""

import os
import signal
import threading
import time
from collections import Counter

import psycopg2
import redis

import history

# How often, in proportion; what restarts everything is rare.
WEIGHTS = {'terminate': 10, 'cancel': 12, 'client_stop': 10, 'client_kill': 6, 'backend_stop': 6,
           'worker_term': 4, 'worker_stop': 4, 'redis_restart': 4, 'redis_save': 2, 'redis_old': 2,
           'redis_stop': 4, 'flushall': 4, 'redis_failover': 3, 'server_moved': 2, 'link_requests': 3,
           'script_flush': 3, 'link_cut': 3, 'link_down': 3, 'link_hold': 3, 'link_replies': 3,
           'link_slow': 3, 'backend_kill': 1, 'worker_kill': 1, 'launcher_kill': 1,
           'pg_immediate': 1, 'pg_fast': 1, 'pg_kill': 1, 'promote_sync': 2, 'promote_async': 2,
           'clock_pg': 3, 'clock_redis': 3, 'pooler_kill': 2}

CLIENTS = "backend_type = 'client backend' AND usename = 'app'"
WORKER = "backend_type = 'lease_fence worker'"
LAUNCHER = "backend_type = 'lease_fence launcher'"


class Janitor(threading.Thread):
    """Rolls back prepared transactions that nobody seems to end, as a
    transaction manager would; until then they hold off the next grant."""

    def __init__(self, postgres):
        super().__init__(name='janitor', daemon=True)
        self.postgres = postgres
        self.stop = threading.Event()
        self.ended = 0

    def run(self):
        while not self.stop.wait(1):
            self.sweep('3s')

    def end(self):
        self.stop.set()
        self.join()
        self.sweep('0')

    def sweep(self, older_than):
        try:
            for row in self.postgres.query('SELECT gid FROM pg_prepared_xacts WHERE prepared < '
                                           'clock_timestamp() - %s::interval', (older_than,)):
                self.postgres.query('ROLLBACK PREPARED %s', row)
                self.ended += 1
        except psycopg2.Error:
            pass            # it is away, or its owner was faster


class Nemesis(threading.Thread):
    """Injects faults until it is told to stop; then mends what it broke."""

    def __init__(self, postgres, redis_server, link, pooler, pool, random, faults, every, log):
        super().__init__(name='nemesis', daemon=True)
        self.postgres = postgres
        self.redis = redis_server
        self.link = link
        self.pooler = pooler
        self.pool = pool
        self.random = random
        self.faults = faults
        self.every = every
        self.log = log
        self.done = Counter()
        self.errors = []
        self.stop = threading.Event()
        self.stopped = []           # functions that continue what stands still

    # ---- the plan ----

    def schedule(self, seconds):
        """(when, fault): the faults with a count evenly spread, the others at
        random by their weights."""
        plan = []
        for name, count in self.faults.items():
            if count:
                plan += [(seconds * (i + 0.5) / count, name) for i in range(count)]
        names = [name for name, count in self.faults.items() if not count]
        when = 1.0
        while names and when < seconds:
            plan.append((when, self.random.choices(names, [WEIGHTS[n] for n in names])[0]))
            when += self.random.expovariate(1 / self.every)
        return sorted(plan)

    def begin(self, seconds):
        self.plan = self.schedule(seconds)
        self.start()

    def run(self):
        start = time.monotonic()
        for when, name in self.plan:
            if self.stop.wait(max(0, start + when - time.monotonic())):
                break
            # Everything may be away for a moment, by an earlier fault.
            try:
                what = getattr(self, name)()
                self.done[name] += 1
                self.note(name, what)
            except (psycopg2.Error, redis.RedisError, ProcessLookupError) as problem:
                self.note(name, f'not now: {type(problem).__name__}')
            except Exception as problem:        # a fault that cannot be mended ends the run
                self.errors.append(f'{name}: {problem!r}')
                return
        self.mend()

    def note(self, name, what):
        self.log.write(f'{history.now():.3f} {name} {what if what is not None else ""}\n')
        self.log.flush()

    def finish(self):
        """Faults off: everything runs again when this returns."""
        self.stop.set()
        self.join(90)
        self.mend()

    def mend(self):
        while self.stopped:
            self.stopped.pop()()

    def for_a_while(self, halt, resume, longest):
        """halt, and resume after up to longest seconds, by a timer of its own:
        other faults happen meanwhile."""
        halt()
        once = threading.Lock()

        def resume_once():
            if once.acquire(blocking=False):
                try:
                    resume()
                except ProcessLookupError:
                    pass

        seconds = self.random.uniform(0.3, longest)
        self.stopped.append(resume_once)
        timer = threading.Timer(seconds, resume_once)
        timer.daemon = True
        timer.start()
        return f'{seconds:.1f} s'

    # ---- victims ----

    def pid_where(self, condition):
        pids = [row[0] for row in self.postgres.query(
            f'SELECT pid FROM pg_stat_activity WHERE {condition} ORDER BY pid')]
        if not pids:
            raise ProcessLookupError
        return self.random.choice(pids)

    def pause_process(self, pid, longest):
        return f'pid {pid} ' + self.for_a_while(lambda: os.kill(pid, signal.SIGSTOP),
                                                lambda: os.kill(pid, signal.SIGCONT), longest)

    def kill_and_wait(self, condition):
        pid = self.pid_where(condition)
        os.kill(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGCONT)
        # It answers until the postmaster has seen the death.
        time.sleep(0.2)
        self.postgres.wait_up()
        return f'pid {pid}'

    # ---- faults ----

    def terminate(self):
        pid = self.pid_where(CLIENTS)
        self.postgres.query('SELECT pg_terminate_backend(%s)', (pid,))
        return f'pid {pid}'

    def cancel(self):
        pid = self.pid_where(CLIENTS + " AND state = 'active'")
        self.postgres.query('SELECT pg_cancel_backend(%s)', (pid,))
        return f'pid {pid}'

    def client_stop(self):
        client = self.random.choice(self.pool)
        process = client.process
        return client.name + ' ' + self.for_a_while(
            lambda: process.send_signal(signal.SIGSTOP),
            lambda: process.send_signal(signal.SIGCONT), 4)

    def client_kill(self):
        client = self.random.choice(self.pool)
        client.kill()
        client.start()
        return client.name

    def backend_stop(self):
        return self.pause_process(self.pid_where(CLIENTS), 3)

    def backend_kill(self):
        return self.kill_and_wait(CLIENTS)

    def worker_term(self):
        pid = self.pid_where(WORKER)
        os.kill(pid, signal.SIGTERM)
        return f'pid {pid}'

    def worker_stop(self):
        return self.pause_process(self.pid_where(WORKER), 4)

    def worker_kill(self):
        return self.kill_and_wait(WORKER)

    def launcher_kill(self):
        return self.kill_and_wait(LAUNCHER)

    def pg_immediate(self):
        return self.restart('immediate')

    def pg_fast(self):
        return self.restart('fast')

    def restart(self, mode):
        self.mend()                 # a stopped backend would hold the stop up
        self.postgres.stop(mode)
        self.postgres.start()
        self.postgres.wait_up()

    def pg_kill(self):
        self.mend()
        self.postgres.kill()
        self.postgres.start()
        self.postgres.wait_up()

    def promote_sync(self):
        return self.promote('sync')

    def promote_async(self):
        return self.promote('async')

    def promote(self, mode):
        self.mend()
        self.postgres.wait_up()
        if mode == 'async':
            self.postgres.set_synchronous(False)
        receiver = self.postgres.standby_receiver()
        os.kill(receiver, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.2, 1.5))
        self.postgres.promote(mode, receiver)
        self.postgres.make_standby()
        return f'to primary {self.postgres.number}'

    def clock_pg(self):
        return self.move(self.postgres.clock)

    def clock_redis(self):
        return self.move(self.redis.clock)

    def move(self, clock):
        """For good, and not far back: what ends at a time of day lives on until
        then, be it a timeout of PostgreSQL's or a lock in Redis."""
        jump = self.random.choice((3600, 60, -1, -3))
        clock.set(clock.seconds + jump)
        return f'{jump} s'

    def pooler_kill(self):
        self.pooler.kill()
        self.pooler.start()

    def redis_failover(self):
        def switch(port):
            self.link.target_port = port
            self.link.cut()

        self.mend()
        self.redis.fail_over(self.random.uniform(0, 1.5), switch, self.random.random() < 0.5)
        return f'to port {self.redis.port}'

    def server_moved(self):
        port = self.link.other_port()
        self.postgres.query(f"ALTER SERVER locks OPTIONS (SET port '{port}')")
        return f'port {port}'

    def redis_restart(self):
        self.redis.restart_empty()

    def redis_save(self):
        self.redis.save()

    def redis_old(self):
        self.redis.restart_old()

    def redis_stop(self):
        process = self.redis.process
        return self.for_a_while(lambda: process.send_signal(signal.SIGSTOP),
                                lambda: process.send_signal(signal.SIGCONT), 3)

    def link_cut(self):
        self.link.cut()

    def link_down(self):
        return self.for_a_while(self.link.down, self.link.up, 4)

    def link_hold(self):
        return self.for_a_while(lambda: self.link.hold('requests', 'replies'), self.link.release, 4)

    def link_replies(self):
        return self.for_a_while(lambda: self.link.hold('replies'), self.link.release, 4)

    def link_requests(self):
        return self.for_a_while(lambda: self.link.hold('requests'), self.link.release, 4)

    def link_slow(self):
        def delay(seconds):
            self.link.delay = seconds

        delay_by = self.random.uniform(0.02, 0.3)
        return f'{delay_by:.2f} s for ' + \
            self.for_a_while(lambda: delay(delay_by), lambda: delay(0), 5)

    def flushall(self):
        self.redis.client().flushall()

    def script_flush(self):
        self.redis.client().script_flush()
