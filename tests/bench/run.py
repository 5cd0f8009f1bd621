#!/usr/bin/python3
"""Runs benchmarks and writes their tables into a Markdown file.

    run.py --folder F --report docs/benchmarks.md [--quick] [NAME...]

--folder   for the servers' data, on a disk whose fsync is to be measured
--report   each benchmark replaces the text between its two marks there, the
           machine and its versions those between the marks of machine; none:
           everything is only printed
--quick    a moment of each, to see that it works: its figures mean nothing,
           and are not written
--list     the names

A benchmark is a module in this folder with TITLE and run(bench), which returns
Markdown.
"""

import argparse
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time

import servers

BENCHMARKS = ('guarded_row', 'hot_row', 'bulk', 'acquire', 'decrement', 'take_over', 'renewals', 'rejections', 'many')


class Bench:
    """What a benchmark gets: how long it may take, and servers that are stopped
    after it."""

    def __init__(self, folder, quick):
        self.folder = folder
        self.quick = quick
        self.rounds = 1 if quick else 9
        self.seconds = 1
        self.running = []
        self.number = 0

    def postgres(self, **settings):
        self.number += 1
        self.running.append(servers.Postgres(self.folder, f'p{self.number}', **settings))
        return self.running[-1]

    def redis(self, *options):
        self.running.append(servers.Redis(self.folder, *options))
        return self.running[-1]

    def build(self, name, *options):
        """The program made of clients/NAME.c, or NAME.so with -shared."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'clients', name + '.c')
        program = f'{self.folder}/{name}' + ('.so' if '-shared' in options else '')
        folders = [first_line('pg_config', '--' + which) for which in ('includedir', 'includedir-server', 'libdir')]
        subprocess.run(['gcc', '-O2', '-Wall', '-Werror', '-I' + folders[0], '-I' + folders[1], '-L' + folders[2],
                        '-o', program, source, *options], check=True)
        return program

    def start(self, process):
        """Any other server: something with stop()."""
        self.running.append(process)
        return process

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def stop(self):
        while self.running:
            server = self.running.pop()
            server.stop()
            if isinstance(server, servers.Postgres):
                shutil.rmtree(server.host, ignore_errors=True)


def first_line(*words):
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()[0].strip()
    except (OSError, IndexError):
        return None


def processor():
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        found = re.search(r'^model name\s*:\s*(.*)$', file.read(), re.MULTILINE)
    return found.group(1) if found else platform.processor()


def machine(bench):
    """What the figures were taken on, and what a commit costs there."""
    with open('/proc/meminfo', encoding='utf-8') as file:
        memory = int(re.search(r'MemTotal:\s*(\d+)', file.read()).group(1)) / 2**20
    with open('/etc/os-release', encoding='utf-8') as file:
        system = re.search(r'^PRETTY_NAME="?([^"\n]*)', file.read(), re.MULTILINE).group(1)
    versions = [first_line('postgres', '--version'), first_line('redis-server', '--version'),
                'Node ' + (first_line('node', '--version') or 'none'), 'Python ' + platform.python_version()]
    lines = [f'- {time.strftime("%Y-%m-%d", time.gmtime())}, {os.cpu_count()} processors ({processor()}), {memory:.0f} GiB,'
             f' {system}, Linux {platform.release().split("-")[0]}',
             '- ' + ', '.join(version for version in versions if version),
             f'- One fdatasync of 8 kB: {1e6 * fdatasync_seconds(bench.folder):.0f} µs (median of 200)']
    return '\n'.join(lines)


def fdatasync_seconds(folder):
    path = folder + '/fdatasync'
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    times = []
    for number in range(200):
        os.pwrite(file, b'x' * 8192, 8192 * (number % 16))
        start = time.perf_counter()
        os.fdatasync(file)
        times.append(time.perf_counter() - start)
    os.close(file)
    os.unlink(path)
    return sorted(times)[100]


def put(report, name, text):
    """Replaces what is between the marks of that name."""
    with open(report, encoding='utf-8') as file:
        old = file.read()
    begin, end = f'<!-- {name} -->\n', f'<!-- end of {name} -->\n'
    before, found, rest = old.partition(begin)
    after = rest.partition(end)[2]
    if not found or end not in rest:
        raise SystemExit(f'{report} has no marks of {name}')
    with open(report, 'w', encoding='utf-8') as file:
        file.write(before + begin + text + '\n' + end + after)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--folder')
    parser.add_argument('--report')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--list', action='store_true')
    parser.add_argument('names', nargs='*')
    options = parser.parse_args()
    if options.list:
        print('\n'.join(BENCHMARKS))
        return
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f'there is no benchmark {name}: ' + ', '.join(BENCHMARKS))
    os.makedirs(options.folder, exist_ok=True)
    bench = Bench(options.folder, options.quick)
    report = None if options.quick else options.report
    text = machine(bench)
    print(text, flush=True)
    if report:
        put(report, 'machine', text)
    for name in options.names or BENCHMARKS:
        module = importlib.import_module(name)
        started = time.monotonic()
        try:
            text = module.run(bench)
        finally:
            bench.stop()
        print(f'\n## {module.TITLE}\n\n{text}\n\nbenchmark {name}: done in {time.monotonic() - started:.0f} s', flush=True)
        if report:
            put(report, name, text)


if __name__ == '__main__':
    main()
