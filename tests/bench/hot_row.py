"""The same row for all of eight clients, under one lease that they share: a job
with a connection pool.

The lease is detached, so its token has to be presented in each transaction:
guarded_update and guarded_decrement take it as an argument, a plain UPDATE is
sent in one pipeline with BEGIN, set_config and COMMIT.  That is compared with
the same pipeline where the setting is another one and the table unguarded.

Trap: the lock of the row, held through the commit, is what the clients wait for;
what a check costs is hidden by it, unless the check itself waits.
"""

import measure
from guarded_row import PRESENT
from stock import LABELS, SETTINGS, STATEMENTS, UPDATE, Stock

TITLE = 'Hot row'

CLIENTS = 8
ROUNDS = 9
SECONDS = 0.5
ROW = '\\set id 0\n'
ALONE = ('plain', 'predicate', 'function', 'update', 'decrement', 'key')
PRESENTED = {'plain': 'bench.token', 'setting': 'bench.token', 'guard': 'lease_fence.token'}


def scripts():
    found = {name: (name, ROW + STATEMENTS[name]) for name in ALONE}
    for name, setting in PRESENTED.items():
        found['presented ' + name] = (name, ROW + '\\startpipeline\nBEGIN;\n' + PRESENT.format(setting=setting) +
                                      UPDATE.format(name=name) + 'COMMIT;\n\\endpipeline\n')
    return found


def table(all_samples, names, labels):
    rows = []
    for name in names:
        rows.append([labels[name]])
        for samples in all_samples:
            rows[-1] += [measure.spread(samples, name), measure.ratio(samples, name, names[0])]
    return measure.table(['', 'unlogged, µs', 'ratio', 'fsync on, µs', 'ratio'], rows)


def run(bench):
    postgres = bench.postgres(fsync='off', **SETTINGS)
    stock = Stock(bench, postgres, 1000, template='{id}')
    stock.lease(0)
    samples = [stock.interleave(bench, scripts(), CLIENTS, ROUNDS, SECONDS)]
    stock.set_logged()
    postgres.set(fsync='on')
    samples.append(stock.interleave(bench, scripts(), CLIENTS, ROUNDS, SECONDS))
    stock.check()
    presented = {
        'presented plain': 'plain `UPDATE`, with a setting of no meaning',
        'presented setting': LABELS['setting'],
        'presented guard': LABELS['guard'] + ', with `lease_fence.token`'}
    return '\n\n'.join([
        f'{CLIENTS} clients take 1 from the stock of one and the same row, each statement a transaction. The row has a'
        ' resource of its own, and the clients share one lease of it: its token is an argument. Microseconds of a'
        f' transaction for each client, and the ratio to plain `UPDATE`, over {ROUNDS} rounds of {SECONDS} s.',
        table(samples, ALONE, LABELS),
        'The same with `BEGIN`, `set_config(…, true)`, `UPDATE` and `COMMIT` in one pipeline.',
        table(samples, list(presented), presented),
        'Aim: ours ≤ 1.05 of plain `UPDATE`.'])
