"""How a figure is made: every variant once, then once more in the opposite order,
and so on; what is reported of a variant is the median of its samples with the
smallest and the greatest, and its ratio to another one as the median of the
ratios within each round, since a machine's speed drifts from round to round.
"""

from statistics import median


class Samples:
    """The samples of some variants, round by round."""

    def __init__(self, names):
        self.of = {name: [] for name in names}

    def median(self, name):
        return median(self.of[name])

    def spread(self, name):
        return min(self.of[name]), max(self.of[name])

    def differences(self, name, base):
        return [a - b for a, b in zip(self.of[name], self.of[base])]

    def ratios(self, name, base):
        return [a / b for a, b in zip(self.of[name], self.of[base])]

    def ratio(self, name, base):
        return median(self.ratios(name, base))


def interleave(variants, rounds):
    """variants: name -> function that measures once and returns one number."""
    samples = Samples(variants)
    for number in range(rounds):
        names = list(variants)
        for name in names if number % 2 == 0 else reversed(names):
            samples.of[name].append(variants[name]())
    return samples


def figure(value):
    """Three digits of it, thousands apart: the rest is noise."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value))))
        return f'{round(value, 3 - digits):,.0f}'.replace(',', ' ')
    if abs(value) >= 100:
        return f'{value:.0f}'
    if abs(value) >= 10:
        return f'{value:.1f}'
    return f'{value:.2f}'


def spread(samples, name, form=figure):
    low, high = samples.spread(name)
    return f'{form(samples.median(name))} [{form(low)}..{form(high)}]'


def ratio(samples, name, base):
    """'1.04 [0.99..1.10]', or a dash for the base itself."""
    if name == base:
        return '1'
    ratios = samples.ratios(name, base)
    return f'**{median(ratios):.2f}** [{min(ratios):.2f}..{max(ratios):.2f}]'


def p95(values):
    return sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]


def table(heads, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ['| ' + ' | '.join(heads) + ' |',
             '|---|' + '---:|' * (len(heads) - 1)]
    lines += ['| ' + ' | '.join(str(cell) for cell in row) + ' |' for row in rows]
    return '\n'.join(lines)
