"""The network between the worker and Redis: a TCP proxy that can cut, hold and
delay what goes through it.  The clients with redis-py do not go through it, so
they and the worker can see Redis at different times.
"""

import socket
import threading
import time


class Proxy:
    """Listens on two free ports of 127.0.0.1 and passes on to another one."""

    def __init__(self, target_port):
        self.target_port = target_port
        self.listeners = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
        self.ports = [listener.getsockname()[1] for listener in self.listeners]
        self.gates = {'requests': threading.Event(), 'replies': threading.Event()}
        self.is_up = True
        self.delay = 0
        self.pairs = set()
        self.lock = threading.Lock()
        for gate in self.gates.values():
            gate.set()

    def start(self):
        for listener in self.listeners:
            threading.Thread(target=self._accept, args=(listener,), name='proxy', daemon=True).start()

    @property
    def port(self):
        return self.ports[0]

    def other_port(self):
        self.ports.reverse()
        return self.ports[0]

    # ---- faults ----

    def cut(self):
        """All connections break; what was under way is lost."""
        with self.lock:
            pairs, self.pairs = self.pairs, set()
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def down(self):
        """And new ones break at once, until up."""
        self.is_up = False
        self.cut()

    def up(self):
        self.is_up = True

    def hold(self, *directions):
        """Nothing arrives any more in these directions; until release."""
        for direction in directions:
            self.gates[direction].clear()

    def release(self):
        for gate in self.gates.values():
            gate.set()

    # ---- passing on ----

    def _accept(self, listener):
        while True:
            near, _ = listener.accept()
            try:
                if not self.is_up:
                    raise OSError('the link is down')
                far = socket.create_connection(('127.0.0.1', self.target_port), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self.lock:
                self.pairs.add((near, far))
            for source, sink, direction in ((near, far, 'requests'), (far, near, 'replies')):
                threading.Thread(target=self._pass_on, args=(source, sink, direction),
                                 daemon=True).start()

    def _pass_on(self, source, sink, direction):
        try:
            while True:
                data = source.recv(65536)
                self.gates[direction].wait()
                if not data:
                    break
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
