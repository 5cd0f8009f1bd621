#!/usr/bin/python3
"""redis-py's Lock as it comes: it asks again every 0.1 s; or so often as a sixth
argument says.  The argument adopt: the work is done under a token for the lock."""

import sys

import redis

import callers

OPTION = sys.argv[6] if len(sys.argv) > 6 else ''
ADOPT = OPTION == 'adopt'


def open_caller(info, _number):
    client = redis.Redis(host=info.split(':')[0], port=int(info.split(':')[1]))
    options = {'sleep': float(OPTION)} if OPTION and not ADOPT else {}
    held = []

    def lock(name):
        held.append(client.lock(('r:' if ADOPT else '') + name, timeout=30, **options))
        if not held[0].acquire():
            raise RuntimeError('not locked')
        return held[0].name, held[0].local.token

    def unlock():
        held.pop().release()

    return lock, unlock


if __name__ == '__main__':
    callers.run(open_caller, callers.AdoptingWork if ADOPT else callers.Work)
