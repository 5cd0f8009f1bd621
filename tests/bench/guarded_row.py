"""One row by its key: what a checked write costs over an unchecked one.

Three comparisons, of pgbench with prepared statements:

- each statement is a transaction.  A client takes the lease of its part of the
  rows for its session, once, and its token is then presented in all of its
  transactions.  Clients of the rivals take such a lease as well and use its
  token as theirs: each run begins with the same work.
- fifty statements in one pipeline, which is one transaction: without round trips
  and commits, what is left is the statement.  An empty trigger in C is there for
  what PostgreSQL asks of any row trigger.
- the token is presented in each transaction, as behind a pooler: in one pipeline
  with the write, or by a round trip of its own, beside the same transaction that
  sets another setting and writes to the unguarded table.

Traps: a run is short, so plans are generic from the start, which those of a long
session come to anyway; each run has a new token, so that rows are really stamped
and not found stamped already.
"""

import measure
from stock import LABELS, PARTS, SETTINGS, STATEMENTS, UPDATE, Stock

TITLE = 'Guarded row'

ROWS = 100_000
ROUNDS = 7                      # rather many short ones: the machine's speed drifts
SECONDS = 0.5
PIPELINED = 50

# In a client's first transaction, in which pgbench also prepares the rest.
LEASE = r"""\if :leased = 0
SELECT token FROM lease_fence.acquire(resource => '{name}:' || :client_id, scope => 'session') \gset
SELECT set_config('bench.token', :token, false);
\set leased 1
\endif
"""
PRESENT = "SELECT set_config('{setting}', :token, true);\n"

# name -> table, pipelined, setting, label
PRESENTED = {
    'alone': ('plain', False, None, 'plain `UPDATE`, alone'),
    'pipeline': ('plain', True, 'bench.token', 'one pipeline: `BEGIN`, another setting, plain `UPDATE`, `COMMIT`'),
    'pipeline, rival': ('setting', True, 'bench.token', '… that setting, PL/pgSQL trigger'),
    'pipeline, ours': ('guard', True, 'lease_fence.token', '… `lease_fence.token`, our trigger'),
    'trips': ('plain', False, 'bench.token', 'four round trips: `BEGIN`, another setting, plain `UPDATE`, `COMMIT`'),
    'trips, ours': ('guard', False, 'lease_fence.token', '… `lease_fence.token`, our trigger'),
}


class Runs:
    """Of pgbench, on the tables of stock."""

    def __init__(self, bench, stock, rows):
        self.bench = bench
        self.stock = stock
        self.pick = f'\\set id {PARTS} * random(0, {rows // PARTS - 1}) + :client_id\n'

    def single(self, clients):
        scripts = {name: (name, LEASE.format(name=name) + self.pick + statement)
                   for name, statement in STATEMENTS.items()}
        return self.stock.interleave(self.bench, scripts, clients, ROUNDS, SECONDS)

    def pipelined(self):
        def script(name, statement):
            return LEASE.format(name=name) + \
                '\\startpipeline\n' + PIPELINED * (self.pick + statement) + '\\endpipeline\n'
        scripts = {name: (name, script(name, statement)) for name, statement in STATEMENTS.items()}
        scripts['empty'] = ('empty', script('empty', UPDATE.format(name='empty')))
        return self.stock.interleave(self.bench, scripts, 1, ROUNDS, 2 * SECONDS, PIPELINED)

    def presented(self):
        scripts = {}
        for name, (table, pipelined, setting, _) in PRESENTED.items():
            script = UPDATE.format(name=table)
            if setting:
                script = 'BEGIN;\n' + PRESENT.format(setting=setting) + script + 'COMMIT;\n'
            if pipelined:
                script = '\\startpipeline\n' + script + '\\endpipeline\n'
            scripts[name] = (table, LEASE.format(name=table) + self.pick + script)
        return self.stock.interleave(self.bench, scripts, 1, ROUNDS, SECONDS)


def row_of_settings(name, all_samples):
    return [LABELS[name]] + [
        measure.spread(samples, name) + ' µs' if name == 'plain' else measure.ratio(samples, name, 'plain')
        for samples in all_samples]


def run(bench):
    rows = 2000 if bench.quick else ROWS
    postgres = bench.postgres(fsync='off', **SETTINGS)
    stock = Stock(bench, postgres, rows, template='{part}')
    runs = Runs(bench, stock, rows)

    pipelined = runs.pipelined()
    presented = runs.presented()
    single = [runs.single(1), runs.single(PARTS)]
    stock.set_logged()
    single += [runs.single(1), runs.single(PARTS)]
    postgres.set(fsync='on')
    single += [runs.single(1), runs.single(PARTS)]
    stock.check()

    return '\n\n'.join([
        f'One statement, one transaction: takes 1 from the stock of one of {rows} rows by its primary key'
        ' (`guarded_update` sets a column). pgbench with prepared statements over a unix socket; each client has the'
        ' lease of its part of the rows for its session. Time of a transaction for plain `UPDATE`, for the others the'
        f' ratio to it within each of {ROUNDS} rounds of {SECONDS} s. fsync on is with synchronous_commit on.',
        measure.table(['', 'unlogged, 1 client', 'unlogged, 4', 'fsync off, 1', 'fsync off, 4', 'fsync on, 1',
                       'fsync on, 4'],
                      [row_of_settings(name, single) for name in STATEMENTS]),
        f'The same statements, {PIPELINED} in one pipeline and one transaction; unlogged, 1 client,'
        f' {2 * SECONDS:.0f} s a round. The empty trigger is in C and returns the row.',
        measure.table(['', 'µs a statement', 'ratio'],
                      [[LABELS[name], measure.spread(pipelined, name), measure.ratio(pipelined, name, 'plain')]
                       for name in ('plain', 'predicate', 'function', 'empty', 'setting', 'guard', 'update',
                                    'decrement', 'key')]),
        'The token presented in each transaction, by `SELECT set_config(…, true)`; unlogged, 1 client. The last column'
        ' is the ratio to the same transaction with a setting of no meaning and no guard.',
        measure.table(['', 'µs a transaction', 'ratio to `UPDATE` alone', 'ratio to the same, unguarded'],
                      [[label, measure.spread(presented, name), measure.ratio(presented, name, 'alone'),
                        measure.ratio(presented, name, name.split(',')[0])]
                       for name, (_, _, _, label) in PRESENTED.items()]),
        'Aim: our trigger ≤ 1.05 of plain `UPDATE`, pipelined ≤ 1.10; `guarded_decrement` ≤ 1.10, pipelined ≤ 1.35, and'
        ' below the PL/pgSQL function; any of ours with fsync on ≤ 1.03.'])
