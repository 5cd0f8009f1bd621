#!/usr/bin/python3
"""Checks the invariants I1 to I8 on a recorded history.

    checker.py FOLDER       a folder that run.py left: history*.jsonl (what the
                            clients saw), oracle.txt (what was committed),
                            samples.jsonl (the view of leases, looked at now and
                            then), server.log (where the audit puts what it
                            could not write in time)

Prints the first violation with the operations it is about, and counts the rest.
Exit status 1 if there is any.

One function per invariant, each a pass over the committed history.  "Commit
order" is the order of commit records in WAL; a position is a transaction's
place in it.
"""

import glob
import json
import re
import sys
from collections import Counter, defaultdict, namedtuple

import history
import oracle as oracles

FLOOR = 0                       # of public.stock.units
REFUSALS = ('LF001', 'LF002', 'LF003', 'LF004')

Violation = namedtuple('Violation', 'invariant position text evidence')


class History:
    """All that is known of one run, indexed for the checks."""

    def __init__(self, operations, oracle, samples=(), log_lines=()):
        self.operations = operations
        self.oracle = oracle
        self.samples = samples
        self.by_marker = {o['marker']: o for o in operations if o.get('marker')}
        self.mints = defaultdict(list)          # resource -> mints in commit order
        self.mint_of = {}                       # token -> mint
        for mint in oracle.mints:
            self.mints[mint.resource].append(mint)
            self.mint_of[mint.token] = mint
        self.logged = Counter(attempts_in_log(log_lines))
        self.lost = Lost(promotion.lost for promotion in oracle.promotions
                         if promotion.mode == 'async')


class Lost:
    """What promotions of asynchronous standbys have cost: committed, maybe
    acknowledged, and gone.  This excuses nothing else."""

    def __init__(self, oracles_of_lost):
        self.writes = defaultdict(list)         # by marker
        self.mint_of = {}
        self.applied = {}                       # by key
        self.rejected = set()
        self.transactions = 0
        for oracle in oracles_of_lost:
            self.transactions += len(oracle.transactions)
            for write in oracle.writes:
                self.writes[write.marker].append(write)
            self.mint_of.update((mint.token, mint) for mint in oracle.mints)
            self.applied.update((applied.key, applied) for applied in oracle.applied)
            self.rejected.update(oracle.rejected)


def attempts_in_log(lines):
    """Audit records that went to the server log."""
    for line in lines:
        match = re.search(r'lease_fence: rejected write not in the audit table[^:]*: (\{.*\})', line)
        if match:
            yield json.loads(match.group(1)).get('application_name')


class Walk:
    """The newest token per resource, while going through the commits in order."""

    def __init__(self, mints):
        self.mints = mints
        self.index = 0
        self.newest = {}

    def to(self, position):
        while self.index < len(self.mints) and self.mints[self.index].position < position:
            mint = self.mints[self.index]
            self.newest[mint.resource] = max(mint.token, self.newest.get(mint.resource, 0))
            self.index += 1
        return self.newest


def tokens_increase(h):
    """I1: tokens strictly increase in commit order, and stay above every floor;
    also above those that a promotion has lost."""
    marks = [(m.position, m.token, m) for m in h.oracle.mints]
    marks += [(promotion.position - 0.5, m.token, m) for promotion in h.oracle.promotions
              for m in promotion.lost.mints]
    marks += [(position, floor, None) for position, floor in h.oracle.epochs]
    highest, of = 0, None
    for position, token, mint in sorted(marks, key=lambda mark: mark[0]):
        if mint is not None and token <= highest:
            yield Violation('I1', position, f'token {token} was minted after {highest}', [of, mint])
        if token > highest:
            highest, of = token, mint


def no_stale_write(h):
    """I2: nothing is committed under t once a newer grant of the resource is."""
    walk = Walk(h.oracle.mints)
    stamped = [(w.position, w.row[0], w.token, w) for w in h.oracle.writes]
    stamped += [(s.position, s.resource, s.token, s) for s in h.oracle.stock]
    for position, resource, token, write in sorted(stamped, key=lambda item: item[0]):
        newest = walk.to(position).get(resource, 0)
        mint = h.mint_of.get(token)
        if token is None or token < newest:
            yield Violation('I2', position, f'a write of {resource} under token {token} was '
                            f'committed after the mint of {newest}',
                            [h.mint_of.get(newest), write, operation_of(h, write)])
        elif mint is None or mint.resource != resource or mint.position >= position:
            yield Violation('I2', position, f'a write of {resource} under token {token}, which had '
                            'not been minted for it', [mint, write, operation_of(h, write)])


def promotion_fences(h):
    """I2 over a promotion: no token from before writes after it, since a newer
    one may be among what was lost."""
    stamped = h.oracle.writes + h.oracle.stock
    for promotion in h.oracle.promotions:
        for write in stamped:
            mint = h.mint_of.get(write.token)
            if write.position > promotion.position and mint and mint.position < promotion.position:
                yield Violation('I2', write.position, f'token {write.token} is from before a '
                                'promotion and wrote after it',
                                [mint, promotion._replace(lost=None), write, operation_of(h, write)])


def no_late_start(h):
    """I2 as clients see it: who begins to write under t after somebody was
    given a newer token of the resource does not succeed."""
    for resource, operations in by_resource(h.operations).items():
        given = 0
        grant = None
        events = [(o['end'], 0, o) for o in operations
                  if o['kind'] in ('acquire', 'adopt', 'import') and o['outcome'] == history.OK]
        events += [(o['start'], 1, o) for o in operations
                   if o['kind'] in ('write', 'decrement') and o['outcome'] == history.OK
                   and o.get('answer') != 'replayed']
        for _, is_write, operation in sorted(events, key=lambda event: event[:2]):
            token = operation.get('token') or 0
            if not is_write:
                if token > given:
                    given, grant = token, operation
            elif token < given:
                yield Violation('I2', None, f'a write of {resource} that began after token {given} '
                                f'was granted succeeded under {token}', [grant, operation])


def stamps_never_fall(h):
    """I3: the token in a row never decreases."""
    last = {}
    for write in h.oracle.writes:
        before = last.get(write.row)
        if before is not None and (write.token or 0) < (before.token or 0):
            yield Violation('I3', write.position, f'the stamp of row {write.row} fell from '
                            f'{before.token} to {write.token}',
                            [before, write, operation_of(h, write)])
        last[write.row] = write


def stock_adds_up(h):
    """I4: never below the floor; initial = left + what was applied; and what
    clients were told is what was committed."""
    left = dict(h.oracle.initial_stock)
    keys = {applied.xid: applied for applied in h.oracle.applied}
    by_key = {o['key']: o for o in h.operations if o.get('key')}
    for change in h.oracle.stock:
        applied = keys.get(change.xid)
        operation = by_key.get(applied.key) if applied else None
        if change.new < FLOOR:
            yield Violation('I4', change.position, f'{change.resource} fell to {change.new}',
                            [change, operation])
        if change.old != left.get(change.resource):
            yield Violation('I4', change.position, f'{change.resource} had '
                            f'{left.get(change.resource)} left, and a change began at {change.old}',
                            [change, operation])
        if operation is not None and change.old - change.new != operation['amount']:
            yield Violation('I4', change.position, f'{change.resource} changed by '
                            f'{change.new - change.old}, asked was {-operation["amount"]}',
                            [change, operation])
        left[change.resource] = change.new


def outcomes_hold(h):
    """I4, of rows: what was acknowledged is committed, what failed is not, and
    what was committed is what was asked for."""
    committed = defaultdict(list)
    for write in h.oracle.writes:
        committed[write.marker].append(write)
    for operation in h.operations:
        if operation['kind'] != 'write':
            continue
        writes = committed.get(operation['marker'], [])
        lost = h.lost.writes.get(operation['marker'], [])
        if operation['outcome'] == history.OK and len(writes or lost) != len(operation['wrote']):
            yield Violation('I4', None, 'an acknowledged write is not committed, or not as a whole',
                            [operation] + writes)
        if operation['outcome'] == history.FAIL and writes + lost:
            yield Violation('I4', (writes + lost)[0].position, 'a write that failed is committed',
                            [operation] + writes + lost)
        if len({write.xid for write in writes}) > 1:
            yield Violation('I4', writes[0].position, 'one write was committed twice',
                            [operation] + writes)


def rejections_are_audited(h):
    """I5: each rejection that a client saw is in the audit exactly once (or in
    the server log, if the table could not be had in time); none is there twice."""
    for attempt, rows in h.oracle.rejected.items():
        rows = [row for row in rows if row['action'] == 'rejected']
        if len(rows) > 1 and attempt:
            yield Violation('I5', None, f'{len(rows)} audit rows of one attempt', rows)
    for operation in h.operations:
        for attempt in operation.get('rejections', ()):
            rows = [row for row in h.oracle.rejected.get(attempt, ())
                    if row['action'] == 'rejected']
            if not rows and not h.logged[attempt] and attempt not in h.lost.rejected:
                yield Violation('I5', None, f'the rejection of {attempt} is not in the audit',
                                [operation])
            for row in rows:
                if operation['resource'] != row['resource'] and row['resource'] is not None:
                    yield Violation('I5', None, f'the audit row of {attempt} is of another '
                                    'resource', [operation, row])


def keys_apply_once(h):
    """I6: an operation key is applied at most once, with one effect, and who
    asks again gets that answer."""
    first = {}
    effects = Counter(change.xid for change in h.oracle.stock)
    for applied in h.oracle.applied:
        if applied.key in first:
            yield Violation('I6', applied.position, f'key {applied.key} was applied twice',
                            [first[applied.key], applied])
        first.setdefault(applied.key, applied)
    for applied in h.oracle.applied:
        if effects[applied.xid] != 1:
            yield Violation('I6', applied.position, f'key {applied.key} had {effects[applied.xid]} '
                            'effects', [applied])
    for operation in h.operations:
        if operation['kind'] != 'decrement':
            continue
        applied = first.get(operation['key']) or h.lost.applied.get(operation['key'])
        answer = operation.get('answer')
        if operation['outcome'] == history.OK and answer in ('applied', 'replayed'):
            if applied is None:
                yield Violation('I6', None, f'key {operation["key"]} was answered {answer}, and '
                                'nothing is committed', [operation])
            elif number_in(applied.answer) != operation['remaining']:
                yield Violation('I6', applied.position, f'key {operation["key"]} was answered '
                                f'{operation["remaining"]}, first {applied.answer}',
                                [applied, operation])


def one_holder(h):
    """I7: at most one grant of a resource is current, and no token is given to
    two of them."""
    given = {}
    for operation in h.operations:
        if operation['kind'] in ('acquire', 'adopt', 'import') and operation['outcome'] == history.OK:
            before = given.setdefault(operation['token'], operation)
            if before['process'] != operation['process'] or before['resource'] != operation['resource']:
                yield Violation('I7', None, f'token {operation["token"]} was granted twice',
                                [before, operation])
            mint = h.mint_of.get(operation['token']) or h.lost.mint_of.get(operation['token'])
            if mint is None or mint.resource != operation['resource']:
                yield Violation('I7', None, f'token {operation["token"]} was granted, and is not '
                                'minted', [operation, mint])
    for resource, mints in h.mints.items():
        for older, newer in zip(mints, mints[1:]):
            if h.oracle.ends.get(older.token, older.position) > newer.position:
                yield Violation('I7', newer.position, f'token {newer.token} of {resource} was '
                                f'minted before {older.token} had ended', [older, newer])
    for sample in h.samples:
        live = defaultdict(list)
        for resource, token, state in sample['leases']:
            if state == 'live':
                live[resource].append(token)
        for resource, tokens in live.items():
            if len(tokens) > 1:
                yield Violation('I7', None, f'{resource} has two live leases: {tokens}', [sample])


def nothing_is_lost(h):
    """I8: a write under t comes from a snapshot that includes what was committed
    under earlier grants.  Each client writes the version that it read, plus 1;
    so a version repeated or skipped is a lost update, and all rows of the
    resource must be as it had read them."""
    version = dict(h.oracle.initial)
    for position, writes in grouped_by_position(h.oracle.writes):
        operation = h.by_marker.get(writes[0].marker)
        read = (operation or {}).get('read') or {}
        for write in writes:
            before = version.get(write.row)
            if write.old_version != before:
                yield Violation('I8', position, f'row {write.row} had version {before} and was '
                                f'found at {write.old_version}', [write, operation])
            elif write.version != before + 1:
                yield Violation('I8', position, f'an update of row {write.row} is lost: version '
                                f'{write.version} follows {before}', [write, operation])
        resource = writes[0].row[0]
        for number, seen in read.items():
            if seen != version.get((resource, int(number))):
                yield Violation('I8', position, f'{resource} was written from a snapshot that had '
                                f'version {seen} of row {number}, committed was '
                                f'{version.get((resource, int(number)))}', [operation] + writes)
        for write in writes:
            version[write.row] = write.version


CHECKS = (tokens_increase, no_stale_write, promotion_fences, no_late_start, stamps_never_fall, stock_adds_up,
          outcomes_hold, rejections_are_audited, keys_apply_once, one_holder, nothing_is_lost)


# ---- helpers ----

def operation_of(h, write):
    """The client's side of a committed write."""
    return h.by_marker.get(getattr(write, 'marker', None))


def by_resource(operations):
    groups = defaultdict(list)
    for operation in operations:
        groups[operation['resource']].append(operation)
    return groups


def grouped_by_position(writes):
    """Writes of one transaction and one resource together, in commit order."""
    groups = {}
    for write in writes:
        groups.setdefault((write.position, write.row[0]), []).append(write)
    for (position, _), group in groups.items():
        yield position, group


def number_in(answer):
    """The remaining number in operations.answer, which is JSON."""
    value = json.loads(answer)
    while isinstance(value, dict):
        value = value.get('remaining', value.get('answer'))
    return None if value is None else int(value)


def check(h):
    """All violations, the earliest commits first."""
    violations = [violation for function in CHECKS for violation in function(h)]
    return sorted(violations, key=lambda v: (v.position is None, v.position or 0))


def load(folder):
    def lines(pattern):
        for path in sorted(glob.glob(f'{folder}/{pattern}')):
            with open(path, encoding='utf-8', errors='replace') as file:
                yield from file

    with open(f'{folder}/oracle.txt', encoding='utf-8') as file:
        decoded = [json.loads(line) for line in file]
    return History(history.read(glob.glob(f'{folder}/history*.jsonl')),
                   oracles.Oracle(oracles.parse(decoded)),
                   [json.loads(line) for line in lines('samples.jsonl')],
                   lines('server.log'))


def report(violations, out=sys.stdout):
    if not violations:
        print('no violation of I1 to I8', file=out)
        return
    first = violations[0]
    print(f'VIOLATION of {first.invariant}: {first.text}', file=out)
    for item in first.evidence:
        if item is not None:
            print(f'    {item}', file=out)
    counts = Counter(violation.invariant for violation in violations)
    print('in all: ' + ', '.join(f'{name} {counts[name]}' for name in sorted(counts)), file=out)


def main():
    violations = check(load(sys.argv[1]))
    report(violations)
    return 1 if violations else 0


if __name__ == '__main__':
    sys.exit(main())
