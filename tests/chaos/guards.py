"""How a row is written under a token: with lease_fence, or as people do by hand.

The hand-written ones are the control: the same holders under the same faults,
and the checker must find what they let through.

    fence   the guard of lease_fence decides
    none    nothing is checked
    stamp   UPDATE ... WHERE fence_token <= token, the published example
    check   SELECT the newest token, compare, UPDATE
    share   the same with FOR SHARE on the newest grant
    split   the check in a transaction of its own, before the one that writes
"""

import json

import psycopg2
import psycopg2.errors


class Refused(Exception):
    """A hand-written guard said no."""


class Fence:
    """Of lease_fence."""

    name = 'fence'
    styles = ('setting', 'present', 'guarded', 'savepoint', 'cursor', 'prepared')

    def begin(self, session, resource, token):
        pass

    def present(self, session, token, style):
        if style == 'present':
            session.execute('SELECT lease_fence.present(%s)', (token,))
        elif style != 'guarded':
            session.execute("SELECT set_config('lease_fence.token', %s, true)", (str(token),))

    def update(self, session, resource, token, row, version, marker, style):
        if style == 'guarded':
            session.execute('SELECT outcome FROM lease_fence.guarded_update(%s, %s, %s, token => %s)',
                            ('item', json.dumps({'resource': resource, 'n': row}),
                             json.dumps({'version': version, 'marker': marker}), token))
        elif style == 'cursor':
            self.update_by_cursor(session, resource, token, row, version, marker)
        else:
            session.execute('UPDATE item SET version = %s, marker = %s WHERE resource = %s AND n = %s',
                            (version, marker, resource, row))


    @staticmethod
    def update_by_cursor(session, resource, token, row, version, marker):
        """The cursor writes the row, and then fails within a savepoint: what it
        wrote stays, and so must its lock."""
        session.execute('DECLARE c CURSOR FOR SELECT CASE k WHEN 1 THEN write_item(%s, %s, %s, %s, %s) '
                        'ELSE 1 / (k - 2) END FROM generate_series(1, 2) k',
                        (resource, row, version, marker, token))
        session.execute('FETCH 1 FROM c')
        session.execute('SAVEPOINT c')
        try:
            session.execute('FETCH 1 FROM c')
        except psycopg2.errors.DivisionByZero:
            session.execute('ROLLBACK TO SAVEPOINT c')
        session.execute('CLOSE c')


class ByHand:
    """The control."""

    styles = ('plain', 'savepoint')

    def __init__(self, name):
        self.name = name

    def begin(self, session, resource, token):
        if self.name == 'split' and token is not None:
            self._compare(session, resource, token, '')

    def present(self, session, token, style):
        pass

    def _compare(self, session, resource, token, locking):
        session.execute('SELECT token FROM lease_fence.grants WHERE resource = %s '
                        'ORDER BY token DESC LIMIT 1 ' + locking, (resource,))
        newest = session.cursor.fetchone()
        if newest is None or newest[0] != token:
            raise Refused()

    def update(self, session, resource, token, row, version, marker, style):
        if self.name == 'check':
            self._compare(session, resource, token, '')
        elif self.name == 'share':
            self._compare(session, resource, token, 'FOR SHARE')
        session.execute('UPDATE item SET version = %s, marker = %s, fence_token = %s '
                        'WHERE resource = %s AND n = %s' +
                        (' AND fence_token <= %s' if self.name == 'stamp' else ''),
                        (version, marker, token, resource, row) +
                        ((token,) if self.name == 'stamp' else ()))
        if session.cursor.rowcount != 1:
            raise Refused()


def by_name(name):
    return Fence() if name == 'fence' else ByHand(name)
