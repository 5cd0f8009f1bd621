#!/usr/bin/python3
"""The checker's own test: for each invariant histories that it must refuse, and
good ones that it must accept.  Made by hand, as lines of test_decoding, so that
the reading of them is tested too.

Prints TAP.
"""

import io
import json
import sys
import unittest

import checker
import history
import oracle

R = 'pg:0'


class Story:
    """A history, told one commit and one operation at a time."""

    def __init__(self):
        self.lines = []
        self.operations = []
        self.samples = []
        self.log = []
        self.xid = 700
        self.clock = 0
        self.transaction(*(self.item_insert(n) for n in (1, 2)),
                         f"table public.stock: INSERT: resource[text]:'{R}' units[bigint]:10")

    # ---- the committed side ----

    def transaction(self, *changes):
        self.xid += 1
        self.lines += [f'BEGIN {self.xid}', *changes, f'COMMIT {self.xid}']
        return self.xid

    @staticmethod
    def item_insert(n):
        return f"table public.item: INSERT: resource[text]:'{R}' n[integer]:{n} version[bigint]:0 marker[text]:null"

    @staticmethod
    def item(n, old, new, token, old_token=0, marker='m'):
        return (f"table public.item: UPDATE: old-key: resource[text]:'{R}' n[integer]:{n} "
                f"version[bigint]:{old} fence_token[bigint]:{old_token} "
                f"new-tuple: resource[text]:'{R}' n[integer]:{n} version[bigint]:{new} "
                f"marker[text]:'{marker}' fence_token[bigint]:{token}")

    @staticmethod
    def stock(old, new, token):
        return (f"table public.stock: UPDATE: old-key: resource[text]:'{R}' units[bigint]:{old} "
                f"new-tuple: resource[text]:'{R}' units[bigint]:{new} fence_token[bigint]:{token}")

    @staticmethod
    def applied(key, remaining, token=100):
        return (f"table lease_fence.operations: INSERT: key[text]:'{key}' answer[jsonb]:"
                f"'{{\"outcome\": \"applied\", \"remaining\": {remaining}}}' token[bigint]:{token}")

    def mint(self, token, resource=R):
        self.transaction(f"table lease_fence.grants: INSERT: token[bigint]:{token} "
                         f"resource[text]:'{resource}' holder[bytea]:'\\x00' "
                         "coordinator[text]:'embedded' scope[text]:'detached' ended_at[timestamp "
                         "with time zone]:null")
        return self

    def end(self, token, resource=R):
        self.transaction(f"table lease_fence.grants: UPDATE: token[bigint]:{token} "
                         f"resource[text]:'{resource}' coordinator[text]:'embedded' "
                         "scope[text]:'detached' ended_at[timestamp with time zone]:"
                         "'2026-01-01 00:00:00+00'")

    def epoch(self, floor):
        self.transaction(f'table lease_fence.epochs: INSERT: id[bigint]:2 floor[bigint]:{floor}')

    def promote(self, mode, floor, kept):
        """The standby has the first lines of the history, up to kept."""
        kept, lost = self.lines[:kept], self.lines[kept:]
        self.lines = kept + [oracle.PROMOTION + json.dumps(
            {'mode': mode, 'floors': [0, floor], 'lost': lost})]

    def rejected(self, attempt, resource=R):
        self.transaction("table lease_fence.rejected_writes: INSERT: id[bigint]:1 "
                         f"action[text]:'rejected' resource[text]:'{resource}' "
                         f"application_name[text]:'{attempt}'")

    # ---- the clients' side ----

    def operation(self, kind, outcome=history.OK, process='a', start=None, **fields):
        self.clock += 1
        self.operations.append(dict(process=process, n=len(self.operations) + 1, kind=kind,
                                    resource=R, start=start or self.clock - 0.5, end=self.clock,
                                    outcome=outcome, **fields))

    def granted(self, token, process='a'):
        self.mint(token)
        self.operation('acquire', token=token, process=process)

    def write(self, token, n, read, marker, old_token=0, **fields):
        """A good one: what was read, plus 1, committed and acknowledged."""
        self.transaction(self.item(n, read[n], read[n] + 1, token, old_token, marker))
        self.operation('write', token=token, marker=marker, read={str(k): v for k, v in read.items()},
                       wrote={str(n): read[n] + 1}, **fields)

    def decrement(self, key, answer, remaining, amount=3, token=100, **fields):
        self.operation('decrement', key=key, marker=key, answer=answer, remaining=remaining,
                       amount=amount, token=token, **fields)

    # ---- the verdict ----

    def violations(self):
        return checker.check(checker.History(self.operations,
                                             oracle.Oracle(oracle.parse(self.lines)),
                                             self.samples, self.log))

    def found(self):
        return {violation.invariant for violation in self.violations()}


def good():
    """Two grants, writes under both, a refused write, a decrement asked twice."""
    story = Story()
    story.granted(100, 'a')
    story.write(100, 1, {1: 0, 2: 0}, 'a/1')
    story.transaction(story.stock(10, 7, 100), story.applied('k', 7))
    story.decrement('k', 'applied', 7)
    story.end(100)
    story.granted(101, 'b')
    story.write(101, 1, {1: 1, 2: 0}, 'b/1', old_token=100, process='b')
    story.rejected('a/2.1')
    story.operation('write', history.FAIL, token=100, marker='a/2', wrote={}, sqlstate='LF001',
                    rejections=['a/2.1'])
    story.decrement('k', 'replayed', 7, token=101)
    story.write(101, 2, {1: 2, 2: 0}, 'b/2', process='b')
    story.samples.append({'at': 1, 'leases': [[R, 101, 'live'], ['pg:1', 90, 'lapsed']]})
    return story


def promoted(mode, floor=5000):
    """Somebody is granted 102, writes and is refused, decrements; all of that is
    lost in a promotion, after which the next one is granted 5001."""
    story = good()
    kept = len(story.lines)
    story.end(101)
    story.granted(102, 'c')
    story.write(102, 1, {1: 2, 2: 1}, 'c/1', old_token=101, process='c')
    story.rejected('b/9.1')
    story.operation('write', history.FAIL, token=101, process='b', marker='b/9', wrote={},
                    sqlstate='LF001', rejections=['b/9.1'])
    story.transaction(story.stock(7, 4, 102), story.applied('k9', 4, 102))
    story.decrement('k9', 'applied', 4, token=102)
    story.promote(mode, floor, kept)
    story.granted(5001, 'd')
    story.write(5001, 1, {1: 2, 2: 1}, 'd/1', old_token=101, process='d')
    return story


class Good(unittest.TestCase):
    """Must be accepted."""

    def accepts(self, story):
        self.assertEqual(story.violations(), [])

    def test_two_holders_in_turn(self):
        self.accepts(good())

    def test_unknown_that_was_committed(self):
        story = good()
        story.transaction(story.item(1, 2, 3, 101, 101, 'b/3'))
        story.operation('write', history.UNKNOWN, process='b', token=101, marker='b/3',
                        read={'1': 2, '2': 1}, wrote={'1': 3})
        self.accepts(story)

    def test_unknown_that_was_not(self):
        story = good()
        story.operation('write', history.UNKNOWN, process='b', token=101, marker='b/3',
                        read={'1': 2, '2': 1}, wrote={'1': 3})
        self.accepts(story)

    def test_committed_by_a_client_that_was_killed(self):
        story = good()
        story.transaction(story.item(1, 2, 3, 101, 101, 'b/3'))
        self.accepts(story)

    def test_audit_row_that_no_client_saw(self):
        story = good()
        story.rejected('z/1.1')
        self.accepts(story)

    def test_rejection_in_the_server_log(self):
        story = good()
        story.operation('write', history.FAIL, token=100, marker='a/9', wrote={}, sqlstate='LF001',
                        rejections=['a/9.1'])
        story.log.append('2026 LOG:  lease_fence: rejected write not in the audit table in time: '
                         '{"id": 5, "action": "rejected", "application_name": "a/9.1"}\n')
        self.accepts(story)

    def test_row_written_twice_in_one_transaction(self):
        story = good()
        story.transaction(story.item(1, 2, 3, 101, 101, 'b/3'), story.item(1, 3, 3, 101, 101, 'b/3'))
        self.accepts(story)

    def test_promotion_of_an_asynchronous_standby(self):
        self.accepts(promoted('async'))

    def test_promotion_of_a_synchronous_standby(self):
        story = good()
        story.promote('sync', 5000, len(story.lines))
        story.granted(5001, 'd')
        story.write(5001, 1, {1: 2, 2: 1}, 'd/1', old_token=101, process='d')
        self.accepts(story)

    def test_promotion_that_loses_what_nobody_knew(self):
        story = good()
        kept = len(story.lines)
        story.mint(102)
        story.transaction(story.item(1, 2, 3, 102, 101, 'c/1'))
        story.operation('write', history.UNKNOWN, process='c', token=102, marker='c/1',
                        read={'1': 2, '2': 1}, wrote={'1': 3})
        story.promote('sync', 5000, kept)
        self.accepts(story)

    def test_quotes_and_words_within_values(self):
        story = good()
        story.transaction("table public.\"odd: name\": INSERT: \"a b\"[text]:'it''s new-tuple: [x]:' "
                          "c[character varying]:'' d[integer[]]:'{1,2}' e[boolean]:true")
        self.accepts(story)


class Bad(unittest.TestCase):
    """Must be refused, for the right reason."""

    def refuses(self, story, invariant):
        self.assertIn(invariant, story.found())
        out = io.StringIO()
        checker.report(story.violations(), out)
        self.assertIn('VIOLATION of', out.getvalue())

    def test_i1_token_below_an_earlier_one(self):
        self.refuses(good().mint(99), 'I1')

    def test_i1_token_twice(self):
        self.refuses(good().mint(101, 'pg:1'), 'I1')

    def test_i1_token_at_the_floor_of_a_new_epoch(self):
        story = good()
        story.epoch(5000)
        self.refuses(story.mint(5000), 'I1')

    def test_i1_token_at_the_floor_of_a_promotion(self):
        self.refuses(promoted('async').mint(5000, 'pg:1'), 'I1')

    def test_i1_token_that_a_promotion_has_lost_is_minted_again(self):
        story = good()
        kept = len(story.lines)
        story.mint(102)
        story.promote('async', 0, kept)
        self.refuses(story.mint(102), 'I1')

    def test_i1_token_below_one_that_a_promotion_has_lost(self):
        story = good()
        kept = len(story.lines)
        story.mint(107)
        story.promote('sync', 101, kept)
        self.refuses(story.mint(105), 'I1')

    def test_i2_token_from_before_a_promotion(self):
        story = good()
        story.promote('async', 5000, len(story.lines))
        story.write(101, 1, {1: 2, 2: 1}, 'b/3', old_token=101, process='b')
        self.assertEqual(story.found(), {'I2'})

    def test_i2_token_of_another_resource_from_before_a_promotion(self):
        story = good()
        story.mint(102, 'pg:1')
        story.promote('sync', 5000, len(story.lines))
        story.transaction(story.stock(7, 6, 101), story.applied('k2', 6))
        self.refuses(story, 'I2')

    def test_i4_synchronous_standby_lacks_what_was_acknowledged(self):
        self.refuses(promoted('sync'), 'I4')

    def test_i4_acknowledged_and_in_neither_history(self):
        story = promoted('async')
        story.operation('write', process='c', token=102, marker='c/8', read={'1': 2, '2': 1},
                        wrote={'1': 3})
        self.refuses(story, 'I4')

    def test_i4_failed_and_committed_in_what_is_lost(self):
        story = promoted('async')
        story.operation('write', history.FAIL, process='c', token=102, marker='c/1',
                        read={'1': 2, '2': 1}, wrote={'1': 3})
        self.refuses(story, 'I4')

    def test_i5_synchronous_standby_lacks_a_rejection(self):
        self.refuses(promoted('sync'), 'I5')

    def test_i6_synchronous_standby_lacks_an_answer(self):
        self.refuses(promoted('sync'), 'I6')

    def test_i7_synchronous_standby_lacks_a_grant(self):
        self.refuses(promoted('sync'), 'I7')

    def test_i2_commit_after_the_next_mint(self):
        story = good()
        story.transaction(story.item(2, 1, 2, 100, 101, 'a/3'))
        self.refuses(story, 'I2')

    def test_i2_row_that_the_successor_has_not_touched(self):
        story = Story()
        story.granted(100)
        story.granted(101, 'b')
        story.write(100, 2, {1: 0, 2: 0}, 'a/1')
        self.assertEqual(story.found(), {'I2'})

    def test_i2_stock_under_an_old_token(self):
        story = good()
        story.transaction(story.stock(7, 6, 100), story.applied('k2', 6))
        self.refuses(story, 'I2')

    def test_i2_token_never_minted(self):
        story = good()
        story.write(555, 2, {1: 2, 2: 1}, 'x/1', old_token=101)
        self.refuses(story, 'I2')

    def test_i2_token_of_another_resource(self):
        story = good()
        story.mint(102, 'pg:1')
        story.write(102, 2, {1: 2, 2: 1}, 'x/1', old_token=101)
        self.refuses(story, 'I2')

    def test_i2_write_before_its_mint(self):
        story = Story()
        story.write(100, 1, {1: 0, 2: 0}, 'a/1')
        story.mint(100)
        self.refuses(story, 'I2')

    def test_i2_write_without_a_token(self):
        story = good()
        story.write(0, 2, {1: 2, 2: 1}, 'x/1', old_token=101)
        self.refuses(story, 'I2')

    def test_i2_begun_after_somebody_else_had_the_lease(self):
        story = good()
        story.operation('write', token=100, marker='a/7', read={}, wrote={})
        self.refuses(story, 'I2')

    def test_i3_stamp_falls(self):
        story = good()
        story.transaction(story.item(1, 2, 3, 100, 101, 'a/3'))
        self.refuses(story, 'I3')

    def test_i4_below_the_floor(self):
        story = good()
        story.transaction(story.stock(7, -1, 101), story.applied('k2', -1))
        story.decrement('k2', 'applied', -1, amount=8, token=101)
        self.refuses(story, 'I4')

    def test_i4_a_decrement_is_lost(self):
        story = good()
        story.transaction(story.stock(10, 9, 101), story.applied('k2', 9))
        self.refuses(story, 'I4')

    def test_i4_more_than_asked(self):
        story = good()
        story.transaction(story.stock(7, 3, 101), story.applied('k2', 3))
        story.decrement('k2', 'applied', 3, amount=1, token=101)
        self.refuses(story, 'I4')

    def test_i4_acknowledged_and_not_committed(self):
        story = good()
        story.operation('write', process='b', token=101, marker='b/8', read={'1': 2, '2': 1},
                        wrote={'1': 3})
        self.refuses(story, 'I4')

    def test_i4_failed_and_committed(self):
        story = good()
        story.transaction(story.item(1, 2, 3, 101, 101, 'b/8'))
        story.operation('write', history.FAIL, process='b', token=101, marker='b/8',
                        read={'1': 2, '2': 1}, wrote={'1': 3})
        self.refuses(story, 'I4')

    def test_i4_half_of_a_write(self):
        story = good()
        story.transaction(story.item(1, 2, 3, 101, 101, 'b/8'))
        story.operation('write', process='b', token=101, marker='b/8', read={'1': 2, '2': 1},
                        wrote={'1': 3, '2': 2})
        self.refuses(story, 'I4')

    def test_i5_rejection_without_audit(self):
        story = good()
        story.operation('write', history.FAIL, token=100, marker='a/9', wrote={}, sqlstate='LF001',
                        rejections=['a/9.1'])
        self.refuses(story, 'I5')

    def test_i5_rejection_audited_twice(self):
        story = good()
        story.rejected('a/2.1')
        self.refuses(story, 'I5')

    def test_i5_audited_for_another_resource(self):
        story = good()
        story.rejected('a/9.1', 'pg:7')
        story.operation('write', history.FAIL, token=100, marker='a/9', wrote={}, sqlstate='LF001',
                        rejections=['a/9.1'])
        self.refuses(story, 'I5')

    def test_i6_applied_twice(self):
        story = good()
        story.transaction(story.stock(7, 4, 101), story.applied('k', 4))
        self.refuses(story, 'I6')

    def test_i6_another_answer(self):
        story = good()
        story.decrement('k', 'replayed', 6)
        self.refuses(story, 'I6')

    def test_i6_answered_and_not_committed(self):
        story = good()
        story.decrement('k3', 'applied', 4)
        self.refuses(story, 'I6')

    def test_i6_key_without_its_effect(self):
        story = good()
        story.transaction(story.applied('k4', 4))
        self.refuses(story, 'I6')

    def test_i7_one_token_for_two(self):
        story = good()
        story.operation('acquire', process='c', token=101)
        self.refuses(story, 'I7')

    def test_i7_granted_and_not_minted(self):
        story = good()
        story.operation('acquire', process='c', token=777)
        self.refuses(story, 'I7')

    def test_i7_older_ends_after_the_mint(self):
        story = good()
        story.mint(102)
        story.end(101)
        self.refuses(story, 'I7')

    def test_i7_two_live_leases(self):
        story = good()
        story.samples.append({'at': 2, 'leases': [[R, 100, 'live'], [R, 101, 'live']]})
        self.refuses(story, 'I7')

    def test_i8_update_lost(self):
        story = good()
        # It read version 1, found 2, and wrote 2: an update in between is gone.
        story.transaction(story.item(1, 2, 2, 101, 101, 'b/3'))
        self.refuses(story, 'I8')

    def test_i8_version_skipped(self):
        story = good()
        story.transaction(story.item(1, 2, 4, 101, 101, 'b/3'))
        self.refuses(story, 'I8')

    def test_i8_other_row_read_too_early(self):
        story = good()
        story.write(101, 2, {1: 1, 2: 1}, 'b/3', old_token=101, process='b')
        self.assertEqual(story.found(), {'I8'})


class Tap(unittest.TextTestResult):
    """Results as TAP, for prove."""

    number = 0

    def line(self, ok, test):
        Tap.number += 1
        print(('ok' if ok else 'not ok') + f' {Tap.number} - {test.id().split(".", 1)[1]}', flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.line(True, test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line(False, test)

    def addError(self, test, err):
        super().addError(test, err)
        self.line(False, test)


if __name__ == '__main__':
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    print(f'1..{suite.countTestCases()}')
    result = unittest.TextTestRunner(sys.stderr, verbosity=0, resultclass=Tap).run(suite)
    sys.exit(0 if result.wasSuccessful() else 1)
