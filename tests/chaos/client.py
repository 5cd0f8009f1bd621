"""One client process: several holders, a thread each, until SIGTERM.

    client.py CONFIG NAME INCARNATION KIND...

It is stopped, continued and killed as a whole; a killed one is started again as
the next incarnation, which knows nothing of the tokens of the one before.
"""

import json
import random
import signal
import sys
import threading

import guards
import history
import holders


def main():
    config_path, name, incarnation = sys.argv[1:4]
    with open(config_path, encoding='utf-8') as file:
        config = json.load(file)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    threads = []
    for number, kind in enumerate(sys.argv[4:]):
        process = f'{name}.{number}#{incarnation}'
        recorder = history.Recorder(f'{config["folder"]}/history-{name}.jsonl', process)
        holder = holders.KINDS[kind](config, recorder, random.Random(f'{config["seed"]} {process}'),
                                     stop, guards.by_name(config['guard']))
        threads.append(threading.Thread(target=holder.run, name=process))
    for thread in threads:
        thread.start()
    while not stop.wait(0.5):
        if not any(thread.is_alive() for thread in threads):
            sys.exit('all holders of this process have died')
    for thread in threads:
        thread.join()


if __name__ == '__main__':
    main()
