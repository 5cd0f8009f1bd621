#!/usr/bin/python3
"""The Lock of kazoo, a client of ZooKeeper in Python: a queue of nodes, each
caller waits for the one before it."""

from kazoo.client import KazooClient

import callers


def open_caller(info, number):
    client = KazooClient(hosts=info)
    client.start()
    held = []

    def lock(name):
        held.append(client.Lock('/locks/' + name, str(number)))
        if not held[0].acquire():
            raise RuntimeError('not locked')

    def unlock():
        held.pop().release()

    return lock, unlock


if __name__ == '__main__':
    callers.run(open_caller)
