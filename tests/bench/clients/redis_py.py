#!/usr/bin/python3
"""redis-py's Lock as it comes: it asks again every 0.1 s; or so often as a sixth argument says."""

import sys

import redis

import callers


def open_caller(info, number):
    client = redis.Redis(host=info.split(':')[0], port=int(info.split(':')[1]))
    options = {'sleep': float(sys.argv[6])} if len(sys.argv) > 6 else {}
    held = []

    def lock(name):
        held.append(client.lock('redis-py:' + name, timeout=30, **options))
        if not held[0].acquire():
            raise RuntimeError('not locked')

    def unlock():
        held.pop().release()

    return lock, unlock


if __name__ == '__main__':
    callers.run(open_caller)
