"""Tables of stock, one for each way to take a unit under a token: what guarded_row
and hot_row have side by side.

    plain       UPDATE, nothing is checked
    empty       the same under a trigger in C that does nothing
    predicate   UPDATE ... WHERE fence_token <= $token AND stock > 0, by hand
    function    that in a PL/pgSQL function, which puts a refusal into a table
    setting     a PL/pgSQL trigger that compares a setting with the row's stamp
    guard       our trigger, as protect() makes it
    update, decrement, key
                guarded_update; guarded_decrement without and with operation_key

All tables have the same columns, index, rows and fill factor; a row belongs to
one of PARTS parts.  guarded_update sets columns and takes nothing away: it sets
another one.
"""

import measure

# The leases that there is room for by default: a worker looks at all of it.
SETTINGS = {'plan_cache_mode': 'force_generic_plan', 'lease_fence.max_leases': '10000'}

PARTS = 4
UNITS = 1_000_000_000

LABELS = {
    'plain': 'plain `UPDATE`',
    'predicate': '`UPDATE … WHERE fence_token <= $token AND stock > 0`',
    'function': 'PL/pgSQL function with audit',
    'setting': 'PL/pgSQL trigger that reads a setting',
    'guard': 'our trigger',
    'update': '`guarded_update`',
    'decrement': '`guarded_decrement`',
    'key': '`guarded_decrement`, `operation_key`',
    'empty': 'empty trigger',
}
UNCHECKED = ('plain', 'empty')
GUARDED = ('guard', 'update', 'decrement', 'key')

# :token is what the client has been granted, also where a rival uses it.
UPDATE = 'UPDATE item_{name} SET stock = stock - 1 WHERE id = :id;\n'
STATEMENTS = {
    'plain': UPDATE.format(name='plain'),
    'predicate': 'UPDATE item_predicate SET stock = stock - 1, fence_token = :token'
                 ' WHERE id = :id AND fence_token <= :token AND stock > 0;\n',
    'function': 'SELECT decrement_item(:id, :token);\n',
    'setting': UPDATE.format(name='setting'),
    'guard': UPDATE.format(name='guard'),
    'update': "SELECT * FROM lease_fence.guarded_update(relation => 'item_update', key => :id,"
              ' changes => :changes, token => :token);\n',
    'decrement': "SELECT * FROM lease_fence.guarded_decrement(relation => 'item_decrement', key => :id,"
                 " column_name => 'stock', token => :token);\n",
    'key': '\\set n :n + 1\n\\set key :run * 10000000000 + :client_id * 100000000 + :n\n'
           "SELECT * FROM lease_fence.guarded_decrement(relation => 'item_key', key => :id, column_name => 'stock',"
           ' token => :token, operation_key => :key);\n',
}
NOT_LEASED = {'leased': 0}
CHANGES = '{"reserved": 5}'

FUNCTION = """
    CREATE TABLE refused (at timestamptz NOT NULL, item bigint NOT NULL, token bigint NOT NULL);
    CREATE FUNCTION decrement_item(item bigint, presented bigint) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE item_function SET stock = stock - 1, fence_token = presented
        WHERE id = item AND fence_token <= presented AND stock > 0;
        IF FOUND THEN
            RETURN true;
        END IF;
        INSERT INTO refused VALUES (clock_timestamp(), item, presented);
        RETURN false;
    END $$"""

SETTING_TRIGGER = """
    CREATE FUNCTION compare_and_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        token bigint := current_setting('bench.token');
    BEGIN
        IF TG_OP <> 'INSERT' AND token < OLD.fence_token THEN
            RAISE EXCEPTION 'token % is superseded by %', token, OLD.fence_token;
        END IF;
        NEW.fence_token := token;
        RETURN NEW;
    END $$"""

TRIGGERS = {'empty': 'empty_trigger', 'setting': 'compare_and_stamp'}


def create_triggers(bench, postgres):
    library = bench.build('empty_trigger', '-shared', '-fPIC')
    postgres.execute(f"CREATE FUNCTION empty_trigger() RETURNS trigger LANGUAGE C AS '{library}', 'empty_trigger'")
    postgres.execute(SETTING_TRIGGER)


def add_trigger(cursor, table, name):
    if name in TRIGGERS:
        cursor.execute(f'CREATE TRIGGER before_row BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW'
                       f' EXECUTE FUNCTION {TRIGGERS[name]}()')


class Stock:
    """The tables, and how many units the runs have taken from each."""

    def __init__(self, bench, postgres, rows, template):
        self.postgres = postgres
        self.taken = dict.fromkeys(LABELS, 0)
        self.runs = 0
        self.leased = {}
        postgres.execute(FUNCTION)
        create_triggers(bench, postgres)
        for name in LABELS:
            self._create(name, rows, template)

    def _create(self, name, rows, template):
        table = 'item_' + name
        self.postgres.execute(f"""
            CREATE UNLOGGED TABLE {table} (id bigint PRIMARY KEY, part int NOT NULL, stock int NOT NULL,
                reserved int NOT NULL, fence_token bigint NOT NULL DEFAULT 0, name text NOT NULL,
                price numeric NOT NULL)
            WITH (fillfactor = 60)""")
        self.postgres.execute(f"""
            INSERT INTO {table} SELECT id, id % {PARTS}, {UNITS}, 0, 0, 'item ' || id, 9.99
            FROM generate_series(0, {rows} - 1) id""")
        add_trigger(self.postgres, table, name)
        if name in GUARDED:
            self.postgres.execute('SELECT lease_fence.protect(relation => %s, resource => %s)',
                                  (table, name + ':' + template))
        self.postgres.execute(f'VACUUM ANALYZE {table}')

    def lease(self, part):
        """For all clients together, of the whole run, instead of one for each."""
        for name in LABELS:
            token = self.postgres.value("SELECT token FROM lease_fence.acquire(resource => %s, ttl => '1 hour',"
                                        " scope => 'detached')", (f'{name}:{part}',))
            self.leased[name] = {'leased': 1, 'token': token}

    def set_logged(self):
        for name in LABELS:
            self.postgres.execute(f'ALTER TABLE item_{name} SET LOGGED')
            self.postgres.execute(f'VACUUM ANALYZE item_{name}')

    def interleave(self, bench, scripts, clients, rounds, seconds, statements=1, **variables):
        """Microseconds until each of the clients has one more statement done.
        scripts: name -> table, script of so many statements.  The first run of
        each is not counted: it says how many transactions make so many seconds."""
        variants = {}
        for name, (table, script) in scripts.items():
            def run(transactions, table=table, script=script):
                return self._run(table, script, clients, transactions, statements, variables)
            many = 4 if bench.quick else round(seconds / run(max(4, 500 // clients // statements)))
            variants[name] = lambda run=run, many=many: 1e6 * run(many) / statements
        return measure.interleave(variants, 1 if bench.quick else rounds)

    def _run(self, table, script, clients, transactions, statements, variables):
        self.runs += 1
        per_second = self.postgres.pgbench(script, clients, transactions=transactions, run=self.runs, n=0,
                                           changes=CHANGES, **variables, **self.leased.get(table, NOT_LEASED))
        self.taken[table] += self.postgres.processed * statements
        return clients / per_second

    def check(self):
        """One row written and one unit less for each statement; each row that was
        written is stamped."""
        for name, taken in self.taken.items():
            written = self.postgres.value('SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = %s',
                                          ('item_' + name,))
            units, wrong_stamps = self.postgres.execute(f"""
                SELECT sum({UNITS} - stock),
                       count(*) FILTER (WHERE (stock < {UNITS} OR reserved > 0) <> (fence_token > 0))
                FROM item_{name}""")[0]
            if name in UNCHECKED:
                wrong_stamps = 0
            if name == 'update':
                units = written
            if (written, units, wrong_stamps) != (taken, taken, 0):
                raise AssertionError(f'{name}: {taken} statements, {written} rows written, {units} units taken,'
                                     f' {wrong_stamps} rows with another stamp than they should have')
        for table, expected in (('refused', 0), ('lease_fence.rejected_writes', 0),
                                ('lease_fence.operations', self.taken['key'])):
            found = self.postgres.value(f'SELECT count(*) FROM {table}')
            if found != expected:
                raise AssertionError(f'{table}: {found} rows instead of {expected}')
