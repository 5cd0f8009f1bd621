"""Stale writes, refused: how many a second, with a durable record of each.

Every client has a token that a newer grant has superseded, and goes on writing
under it; what it is answered counts only if it is the error, after the record of
it has been committed.  Beside it: a committed INSERT of such a record, what
people do by hand, and refusals without any record.

Traps: pgbench ends a client at its first error, so the client is one of our own,
with libpq and prepared statements; without fsync there would be nothing to
compare, so it is on.
"""

import subprocess

import measure
from stock import SETTINGS

TITLE = 'Rejections'

ROUNDS = 9
SECONDS = 0.5
CLIENTS = (1, 8)

TABLES = """
    CREATE TABLE item (id bigint PRIMARY KEY, stock int NOT NULL, fence_token bigint NOT NULL DEFAULT 0);
    CREATE TABLE item_by_hand (LIKE item INCLUDING ALL);
    INSERT INTO item SELECT id, 1000 FROM generate_series(0, 99) id;
    INSERT INTO item_by_hand SELECT id, 1000, 2 FROM generate_series(0, 99) id;
    SELECT lease_fence.protect(relation => 'item', resource => 'item:{id}');
    CREATE SEQUENCE record_id;
    CREATE TABLE record (LIKE lease_fence.rejected_writes INCLUDING ALL);
    CREATE FUNCTION decrement_item(item bigint, presented bigint) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE item_by_hand SET stock = stock - 1, fence_token = presented
        WHERE id = item AND fence_token <= presented AND stock > 0;
        IF FOUND THEN
            RETURN true;
        END IF;
        INSERT INTO record (id, at, action, reason, relation, operation, key, presented_token, role, application_name,
                            pid, rows)
        VALUES (nextval('record_id'), clock_timestamp(), 'rejected', 'superseded', 'item_by_hand', 'UPDATE', item,
                presented, current_user, current_setting('application_name'), pg_backend_pid(), 1);
        RETURN false;
    END $$;
    CREATE FUNCTION compare() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('bench.token')::bigint < OLD.fence_token THEN
            RAISE EXCEPTION USING ERRCODE = 'LF001', MESSAGE = format('token %s is superseded by %s',
                current_setting('bench.token'), OLD.fence_token);
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER compare BEFORE UPDATE ON item_by_hand FOR EACH ROW EXECUTE FUNCTION compare()"""

INSERT = """
    INSERT INTO record (id, at, action, reason, relation, operation, key, resource, presented_token, current_token,
                        presented_holder, current_holder, role, application_name, client, pid, statement, rows)
    VALUES (nextval('record_id'), clock_timestamp(), 'rejected', 'superseded', 'public.item', 'UPDATE',
            '{"id": ' || $1 || '}', 'item:' || $1, $2, $2 + 1, 'pg:5:28806:3047d5582e659', 'pg:5:28806:3047d5582e659',
            current_user, current_setting('application_name'), 'local', pg_backend_pid(),
            'UPDATE item SET stock = stock - 1 WHERE id = $1', 1)"""

# Its session presents the first token for ever; the second one is a newer grant.
SUPERSEDED = ("SELECT token FROM lease_fence.acquire(resource => 'item:' || $1, ttl => '10ms', scope => 'session')",
              "SELECT token FROM lease_fence.acquire(resource => 'item:' || $1, ttl => '10ms', scope => 'detached')")

# name -> label, SQLSTATE, statement, what each client does before, where its records are
WAYS = {
    'insert': ('committed `INSERT` of such a record', '00000', INSERT, (), 'record'),
    'trigger': ('`UPDATE` refused by our trigger', 'LF001', 'UPDATE item SET stock = stock - 1 WHERE id = $1',
                SUPERSEDED, 'lease_fence.rejected_writes'),
    'decrement': ('`guarded_decrement` refused', 'LF001',
                  "SELECT * FROM lease_fence.guarded_decrement(relation => 'item', key => ($1::bigint)::text,"
                  " column_name => 'stock', token => $2)", SUPERSEDED, 'lease_fence.rejected_writes'),
    'function': ('PL/pgSQL function that inserts a record and returns false', '00000',
                 'SELECT decrement_item($1, 1)', (), 'record'),
    'bare trigger': ('without a record: PL/pgSQL trigger that raises an error', 'LF001',
                     'UPDATE item_by_hand SET stock = stock - 1 WHERE id = $1',
                     ("SELECT set_config('bench.token', '1', false)",), None),
    'bare predicate': ('without a record: `WHERE fence_token <= $token` finds nothing', '00000',
                       'UPDATE item_by_hand SET stock = stock - 1 WHERE id = $1 AND fence_token <= 1', (), None),
}


class Writers:
    def __init__(self, bench):
        self.postgres = bench.postgres(**SETTINGS)
        self.program = bench.build('statements', '-lpq', '-pthread')
        self.seconds = 0.05 if bench.quick else SECONDS
        self.refused = 0
        self.postgres.execute(TABLES)

    def microseconds(self, name, clients):
        """Of a statement, per client; each has left its record, once."""
        _, state, statement, before, table = WAYS[name]
        records = self.records(table)
        run = subprocess.run([self.program, f'host={self.postgres.host} port=5432 user=postgres dbname=postgres',
                              str(clients), str(self.seconds), state, statement, *before],
                             capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(f'{name}: {run.stderr}')
        executions, seconds = run.stdout.split()
        found = self.records(table) - records
        if found != (int(executions) if table else 0):
            raise AssertionError(f'{name}: {executions} statements, {found} records')
        if state != '00000':
            self.refused += found
        return 1e6 * clients * float(seconds) / int(executions)

    def records(self, table):
        return self.postgres.value(f'SELECT count(*) FROM {table}') if table else 0

    def check(self):
        """No write got through."""
        written = self.postgres.value('SELECT count(*) FROM (TABLE item UNION ALL TABLE item_by_hand) t'
                                      ' WHERE stock <> 1000')
        if written:
            raise AssertionError(f'{written} rows were written under a superseded token')


def per_second(samples, name, clients):
    low, high = samples.spread(name)
    rates = (1e6 * clients / value for value in (samples.median(name), high, low))
    return '{} [{}..{}]'.format(*(measure.figure(rate) for rate in rates))


def run(bench):
    writers = Writers(bench)
    rounds = 1 if bench.quick else ROUNDS
    results = []
    for clients in CLIENTS:
        results.append(measure.interleave(
            {name: lambda name=name, clients=clients: writers.microseconds(name, clients) for name in WAYS}, rounds))
    writers.check()
    rows = []
    for name, (label, *_) in WAYS.items():
        rows.append([label])
        for clients, samples in zip(CLIENTS, results):
            rows[-1] += [per_second(samples, name, clients), measure.ratio(samples, name, 'insert')]
    return '\n\n'.join([
        'Each client writes under a token that is superseded, over and over, each time in a transaction of its own, and'
        ' is refused. Logged tables, fsync and synchronous_commit on; libpq, prepared statements;'
        f' {rounds} rounds of {writers.seconds} s. The ratio is that of times, so 1.11 is 0.9 of the rate.',
        measure.table(['', '1 client: a second', 'time', '8 clients: a second', 'time'], rows),
        f'None lost: after each run there was one record for each refused statement, {writers.refused} in all.'
        ' Aim: refused and recorded at ≥ 0.9 of the rate of the `INSERT`, a time ratio ≤ 1.11.'])
