#!/usr/bin/python3
"""Sells units of item 1001, under a lock that redis-py takes in Redis.

    quickstart.py SELLER UNITS REDIS_SOCKET POSTGRESQL_CONNECTION

Exits with 0 if it sold them, with 1 if its write was refused.
"""
import sys

import psycopg2
import redis

seller, units, redis_socket, connection = sys.argv[1:]


def say(text):
    print(f"{seller}: {text}", flush=True)


def sell(locks, database):
    # The lock, as redis-py takes it: for 2 seconds, under a random value of its own.
    lock = locks.lock("stock:1001", timeout=2)
    lock.acquire()
    say(f"Redis gave me the lock of {lock.name}, as {lock.local.token.decode()}")

    with database, database.cursor() as sql:  # one transaction
        # The database checks that Redis says so too, and fences by a token from now on.
        sql.execute("SELECT token FROM lease_fence.adopt(resource => %s, holder => %s)",
                    (lock.name, lock.local.token))
        say(f"PostgreSQL adopted it under token {sql.fetchone()[0]}")

        # What the write depends on is read after that.
        sql.execute("SELECT units FROM stock WHERE id = 1001")
        left = sql.fetchone()[0] - int(units)
        say(f"I read {left + int(units)}, and am going to write {left}")

        sys.stdin.readline()  # ... thinks, until whoever plays the story says go on

        sql.execute("UPDATE stock SET units = %s WHERE id = 1001", (left,))
        say(f"I wrote {left}")

    lock.release()
    say("I gave the lock back")


try:
    sell(redis.Redis(unix_socket_path=redis_socket), psycopg2.connect(connection))
except psycopg2.Error as error:
    say(f"SQLSTATE {error.pgcode}: {error}".rstrip())
    sys.exit(1)
