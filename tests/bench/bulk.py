"""A million guarded rows under one lease: what the guard costs each row.

UPDATE, COPY and MERGE into unlogged tables that are alike: without a trigger, and
under an empty one in C, one in PL/pgSQL that compares and stamps, and ours, whose
resource is the same for the whole table or comes from a column of the row.

Traps: each round has a new token, or rows would be found stamped already and not
be copied; UPDATE and MERGE find half of each page empty, as VACUUM left it, and
so write each row onto its own page; COPY without triggers inserts many rows at
once, which PostgreSQL does with no BEFORE trigger at all: hence the comparison
with the empty one.
"""

import time
from statistics import median

import measure
import stock

TITLE = 'Bulk'

ROWS = 1_000_000
ROUNDS = 5

LABELS = {
    'plain': 'no trigger',
    'empty': 'empty trigger in C',
    'setting': 'PL/pgSQL trigger that reads a setting',
    'guard': 'our trigger, one resource for the table',
    'column': 'our trigger, the resource from a column',
}
RESOURCES = {'guard': 'guard', 'column': 'column:{part}'}
COLUMNS = '(id bigint PRIMARY KEY, part int NOT NULL, stock int NOT NULL, fence_token bigint NOT NULL DEFAULT 0)'
STATEMENTS = {
    'UPDATE': 'UPDATE bulk_{name} SET stock = stock - 1',
    'COPY': "COPY copied_{name} (id, part, stock) FROM '{file}'",
    'MERGE': 'MERGE INTO bulk_{name} t USING orders o ON t.id = o.id'
             ' WHEN MATCHED THEN UPDATE SET stock = t.stock - o.units'
             ' WHEN NOT MATCHED THEN INSERT (id, part, stock) VALUES (o.id, 7, 0)',
}


class Tables:
    def __init__(self, bench):
        self.rows = 20_000 if bench.quick else ROWS
        self.postgres = bench.postgres(fsync='off', shared_buffers='2GB', work_mem='512MB', **stock.SETTINGS)
        self.file = self.postgres.host + '/rows.copy'
        self.session = self.postgres.connect().cursor()
        self.token = None
        self.taken = dict.fromkeys(LABELS, 0)
        stock.create_triggers(bench, self.postgres)
        self.session.execute('CREATE UNLOGGED TABLE orders AS'
                             f' SELECT id, 1 AS units FROM generate_series(1, {self.rows}) id')
        self.session.execute('VACUUM ANALYZE orders')
        self.session.execute(f"COPY (SELECT id, 7, 1000 FROM generate_series(1, {self.rows}) id) TO '{self.file}'")
        for name in LABELS:
            self._create(name)

    def _create(self, name):
        for table, fill in (('bulk_' + name, 48), ('copied_' + name, 100)):
            self.session.execute(f'CREATE UNLOGGED TABLE {table} {COLUMNS} WITH (fillfactor = {fill})')
            if table == 'bulk_' + name:
                self.session.execute(f"COPY {table} (id, part, stock) FROM '{self.file}'")
            stock.add_trigger(self.session, table, name)
            if name in RESOURCES:
                self.session.execute('SELECT lease_fence.protect(relation => %s, resource => %s)',
                                     (table, RESOURCES[name]))
        self.session.execute(f'VACUUM ANALYZE bulk_{name}')

    def seconds(self, name, statement):
        self._lease(RESOURCES.get(name, name).format(part=7))
        start = time.perf_counter()
        self.session.execute(STATEMENTS[statement].format(name=name, file=self.file))
        seconds = time.perf_counter() - start
        self._check(name, statement)
        return seconds

    def _lease(self, resource):
        """A new one each time, for all ways."""
        if self.token is not None:
            self.session.execute('SELECT lease_fence.release(%s)', (self.token,))
        self.session.execute("SELECT token FROM lease_fence.acquire(resource => %s, scope => 'session')", (resource,))
        self.token = self.session.fetchone()[0]
        self.session.execute("SELECT set_config('bench.token', %s, false)", (str(self.token),))

    def _check(self, name, statement):
        """That all rows are there, each written once and stamped; then room for
        the next round."""
        table = f'copied_{name}' if statement == 'COPY' else f'bulk_{name}'
        self.taken[name] += statement != 'COPY'
        units = 1000 if statement == 'COPY' else 1000 - self.taken[name]
        token = 0 if name in stock.UNCHECKED else self.token
        self.session.execute(f'SELECT count(*), count(*) FILTER (WHERE stock = %s AND fence_token = %s) FROM {table}',
                             (units, token))
        found = self.session.fetchone()
        if found != (self.rows, self.rows):
            raise AssertionError(f'{statement} of {table}: {found} of {self.rows} rows')
        if statement == 'COPY':
            self.session.execute("BEGIN; SET LOCAL lease_fence.bypass = 'room for the next round';"
                                 f' TRUNCATE {table}; COMMIT')
        else:
            self.session.execute(f'VACUUM {table}')


def measured(tables, statement, rounds):
    """Nanoseconds a row."""
    for name in LABELS:
        tables.seconds(name, statement)
    return measure.interleave({name: lambda name=name: 1e9 * tables.seconds(name, statement) / tables.rows
                               for name in LABELS}, rounds)


def over(samples, name, base):
    if name == base or name == 'plain':
        return ''
    differences = samples.differences(name, base)
    return f'{median(differences):+.0f} [{min(differences):+.0f}..{max(differences):+.0f}]'


def extra(samples, name):
    """Of what the PL/pgSQL trigger takes in addition, how much does this one take?"""
    if name == 'plain':
        return ''
    parts = zip(samples.differences(name, 'plain'), samples.differences('setting', 'plain'))
    return f'{median(ours / theirs for ours, theirs in parts):.2f}'


def run(bench):
    tables = Tables(bench)
    rounds = 1 if bench.quick else ROUNDS
    parts = [f'One statement writes {tables.rows} narrow rows (four columns of 24 bytes together) of an unlogged table'
             f' under one lease; nanoseconds a row, median of {rounds} rounds, and what that is over no trigger and over'
             ' an empty one. The last column is the part of what the PL/pgSQL trigger adds to a row.']
    for statement in STATEMENTS:
        samples = measured(tables, statement, rounds)
        parts.append(measure.table(
            [f'`{statement}`', 'ns a row', 'over no trigger', 'over the empty trigger',
             'of the PL/pgSQL trigger’s extra'],
            [[label, measure.spread(samples, name), over(samples, name, 'plain'), over(samples, name, 'empty'),
              extra(samples, name)] for name, label in LABELS.items()]))
    parts.append('Aim: our trigger ≤ 100 ns a row over the empty one, and ≤ 0.3 of the PL/pgSQL trigger’s extra.')
    return '\n\n'.join(parts)
