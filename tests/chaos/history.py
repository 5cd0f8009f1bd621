"""What the clients saw: one JSON line per operation.

Every process appends to a file of its own, one write() per line, so that a
process that is killed leaves whole lines behind.  Fields of an operation:

    process   who: one session of one client process, "c3.1#2" (its third
              incarnation after two kills is another process)
    n         number of the operation within the process
    kind      acquire, adopt, import, renew, release, write, decrement
    start,    CLOCK_MONOTONIC, one clock for all processes of this machine
    end
    resource  and
    token     under which it wrote, or which it was granted
    outcome   ok       it happened
              fail     it did not, and never will
              unknown  the connection was lost when it might have happened
    sqlstate  of the error, if any
    marker    unique per write: also stored in the rows that it wrote
    xid       of its transaction, if it got that far
    read      {row: version} as read before writing
    wrote     {row: version} as written
    rejections  names of the attempts which a guard refused; the attempt's name
              was application_name at that time, so the audit has it too
    key, column, amount, answer, remaining
              of a decrement or increment under an operation key

An operation that was under way when its process was killed is not there at all:
whoever checks takes it as unknown.
"""

import json
import os
import time

OK = 'ok'
FAIL = 'fail'
UNKNOWN = 'unknown'


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Operation:
    """One operation under way; the first of ok, fail and unknown records it."""

    def __init__(self, recorder, kind, resource, fields):
        self.recorder = recorder
        self.record = dict(process=recorder.process, n=recorder.next_number(),
                           kind=kind, resource=resource, start=now(), **fields)

    def note(self, **fields):
        self.record.update(fields)
        return self

    def ok(self, **fields):
        self._end(OK, fields)

    def fail(self, sqlstate=None, **fields):
        self._end(FAIL, dict(fields, sqlstate=sqlstate))

    def unknown(self, sqlstate=None, **fields):
        self._end(UNKNOWN, dict(fields, sqlstate=sqlstate))

    def _end(self, outcome, fields):
        if 'outcome' in self.record:
            return
        self.record.update(fields, outcome=outcome, end=now())
        self.recorder.append(self.record)


class Recorder:
    """Writes the operations of one process."""

    def __init__(self, path, process):
        self.process = process
        self.number = 0
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def next_number(self):
        self.number += 1
        return self.number

    def begin(self, kind, resource, **fields):
        return Operation(self, kind, resource, fields)

    def append(self, record):
        os.write(self.file, (json.dumps(record) + '\n').encode())


def read(paths):
    """All operations of these files, by the time they ended."""
    operations = []
    for path in paths:
        with open(path, encoding='utf-8') as lines:
            for line in lines:
                # The last line of a process that was killed may be cut.
                if line.endswith('\n'):
                    operations.append(json.loads(line))
    return sorted(operations, key=lambda operation: operation['end'])
