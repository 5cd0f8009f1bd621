"""What was committed, in commit order: the independent oracle.

A logical decoding slot with PostgreSQL's own test_decoding is made before the
first write and read when all is over.  It delivers exactly the committed
changes, transaction by transaction in the order of their commit records, over
any crash, and shares no code with the extension.

One primary has one slot.  When its standby is promoted, the old primary's slot
is read too: what the standby had is the first part of the history that goes on
with the new primary's slot, the rest is lost, and kept as such.

    changes = parse(lines)          the decoded text, as Transaction objects
    oracle = Oracle(changes)        what the checker asks: mints, writes, ...
"""

import glob
import json
import re
from collections import defaultdict, namedtuple

SLOT = 'chaos_oracle'
PROMOTION = 'PROMOTION '

Transaction = namedtuple('Transaction', 'position xid changes promotion', defaults=(None,))
Change = namedtuple('Change', 'table action old new')

# position: of the transaction in commit order
Mint = namedtuple('Mint', 'position token resource how')
Write = namedtuple('Write', 'position xid row token version marker old_token old_version')
Stock = namedtuple('Stock', 'position xid resource token old new')
Applied = namedtuple('Applied', 'position xid key answer token')
# mode: sync or async; lost: an Oracle of what the new primary does not have
Promotion = namedtuple('Promotion', 'position mode lost')

COLUMN = re.compile(r'''\ ?("(?:[^"]|"")+"|[^\[\s]+)       # name
                        \[((?:[^\[\]]|\[\])+)\]:          # [type], maybe an array
                        ('(?:[^']|'')*'|B'[01]*'|[^\s]+)   # value''', re.VERBOSE)
CHANGE = re.compile(r'^table ((?:"(?:[^"]|"")+"|[^.\s"]+)\.(?:"(?:[^"]|"")+"|[^:\s"]+)): '
                    r'(INSERT|UPDATE|DELETE|TRUNCATE):(.*)$', re.DOTALL)


def value_of(text):
    if text == 'null':
        return None
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return text


def tuple_of(text):
    """One tuple of test_decoding's: ` id[integer]:1 name[text]:'it''s'`."""
    values = {}
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = COLUMN.match(text, position)
        if not match:
            raise ValueError('cannot read a tuple at: ' + text[position:position + 80])
        values[match.group(1).strip('"')] = value_of(match.group(3))
        position = match.end()
    return values


def change_of(line):
    match = CHANGE.match(line)
    if not match:
        raise ValueError('cannot read a change: ' + line[:120])
    table, action, rest = match.groups()
    old, new = None, None
    if action == 'TRUNCATE' or rest.strip() == '(no-tuple-data)':
        pass
    elif ' old-key:' in rest[:9] and ' new-tuple:' in rest:
        # A value may contain the word, but then it stands within quotes: take
        # the first that leaves whole tuples on both sides.
        rest = rest[len(' old-key:'):]
        for cut in re.finditer(r' new-tuple:', rest):
            try:
                old, new = tuple_of(rest[:cut.start()]), tuple_of(rest[cut.end():])
                break
            except ValueError:
                continue
        else:
            raise ValueError('cannot read an update: ' + rest[:120])
    elif action == 'DELETE':
        old = tuple_of(rest)
    else:
        new = tuple_of(rest)
    return Change(table, action, old, new)


def parse(lines):
    """Transactions in commit order.  A line is one row of the slot."""
    transactions = []
    changes = None
    for line in lines:
        if line.startswith(PROMOTION):
            transactions.append(Transaction(len(transactions), None, [],
                                            json.loads(line[len(PROMOTION):])))
        elif line.startswith('BEGIN '):
            changes = []
        elif line.startswith('COMMIT '):
            transactions.append(Transaction(len(transactions), int(line.split()[1]), changes))
            changes = None
        elif line.startswith('table '):
            changes.append(change_of(line))
    return transactions


def integer(value):
    return None if value is None else int(value)


class Oracle:
    """The committed history, table by table."""

    def __init__(self, transactions):
        self.transactions = transactions
        self.mints = []                     # in commit order
        self.ends = {}                      # token -> position of its ended_at
        self.writes = []                    # of public.item
        self.initial = {}                   # row -> version, before any guard
        self.stock = []                     # changes of public.stock
        self.initial_stock = {}
        self.applied = []                   # of lease_fence.operations
        self.rejected = defaultdict(list)   # application_name -> audit rows
        self.epochs = []                    # (position, floor)
        self.promotions = []
        for transaction in transactions:
            self._take(transaction)

    def _take(self, transaction):
        position, xid = transaction.position, transaction.xid
        if transaction.promotion:
            self.promotions.append(Promotion(position, transaction.promotion['mode'],
                                             Oracle(parse(transaction.promotion['lost']))))
            self.epochs += [(position, floor) for floor in transaction.promotion['floors']]
        last = {}
        for change in transaction.changes:
            if change.table == 'lease_fence.grants':
                self._take_grant(position, change)
            elif change.table == 'public.item':
                self._take_item(last, change)
            elif change.table == 'public.stock':
                self._take_stock(position, xid, change)
            elif change.table == 'lease_fence.operations' and change.action == 'INSERT':
                self.applied.append(Applied(position, xid, change.new['key'],
                                            change.new['answer'], integer(change.new['token'])))
            elif change.table == 'lease_fence.rejected_writes' and change.action == 'INSERT':
                self.rejected[change.new['application_name']].append(change.new)
            elif change.table == 'lease_fence.epochs' and change.action == 'INSERT':
                self.epochs.append((position, int(change.new['floor'])))
        # A transaction may have written a row more than once: what counts is
        # the row that it found and the one that it left.
        for row, (old, new) in last.items():
            self.writes.append(Write(position, xid, row, integer(new['fence_token']),
                                     int(new['version']), new['marker'],
                                     integer(old.get('fence_token')), int(old['version'])))

    def _take_grant(self, position, change):
        if change.action == 'INSERT':
            self.mints.append(Mint(position, int(change.new['token']), change.new['resource'],
                                   change.new['coordinator'] + '/' + change.new['scope']))
        if change.new and change.new.get('ended_at') is not None:
            self.ends.setdefault(int(change.new['token']), position)

    def _take_item(self, last, change):
        if change.action == 'INSERT':
            row = (change.new['resource'], int(change.new['n']))
            self.initial[row] = int(change.new['version'])
        elif change.action == 'UPDATE':
            row = (change.new['resource'], int(change.new['n']))
            found = last[row][0] if row in last else change.old
            if found is None or 'version' not in found:
                raise ValueError('public.item needs REPLICA IDENTITY FULL')
            # Adding the guard's column is no write of anybody's.
            if change.new['marker'] is not None:
                last[row] = (found, change.new)

    def _take_stock(self, position, xid, change):
        if change.action == 'INSERT':
            self.initial_stock[change.new['resource']] = int(change.new['units'])
        elif change.action == 'UPDATE':
            self.stock.append(Stock(position, xid, change.new['resource'],
                                    integer(change.new['fence_token']),
                                    int(change.old['units']), int(change.new['units'])))


def create(cursor):
    cursor.execute('SELECT pg_create_logical_replication_slot(%s, %s)', (SLOT, 'test_decoding'))


def consume_with_lsn(cursor):
    """All that was committed since the slot was made: (position in WAL, line)."""
    cursor.execute("SELECT lsn::text, data FROM pg_logical_slot_get_changes(%s, NULL, NULL, "
                   "'include-xids', 'on')", (SLOT,))
    return [(number_of_lsn(lsn), line) for lsn, line in cursor.fetchall()]


def consume(cursor):
    return [line for _, line in consume_with_lsn(cursor)]


def number_of_lsn(text):
    high, low = text.split('/')
    return int(high, 16) << 32 | int(low, 16)


def end_of_history(data):
    """Where in WAL this cluster, just promoted, left the old timeline."""
    with open(max(glob.glob(data + '/pg_wal/*.history')), encoding='utf-8') as file:
        lines = [line for line in file if line.strip() and not line.startswith('#')]
    return number_of_lsn(lines[-1].split()[1])


def cut(rows, mode, switched, floors):
    """The history up to a promotion, which becomes a line of its own; rows are
    of the old primary, and the new one has what ends before switched."""
    kept, lost, transaction = [], [], []
    for lsn, line in rows:
        transaction.append(line)
        if line.startswith('COMMIT '):
            (kept if lsn <= switched else lost).extend(transaction)
            transaction = []
    return kept + [PROMOTION + json.dumps({'mode': mode, 'floors': floors, 'lost': lost})]
