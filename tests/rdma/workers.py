"""workers.py WHAT ROLE ADDRESS PORT: servers of several processes that share one listener, and their clients.

As in remote.py, each end exits with status 0 if everything was as kernel TCP has it.
"""

import os
import select
import signal
import sys

import remote
from remote import data, main, receive


class NeverAccepts:
    """A process at which a connection waits does not accept it: it is killed, stopped, or closes the listener."""

    SIZE = 100_000

    def worker(self, listener, tell, how):
        """Waits until a connection can be accepted, tells so, and does not accept it."""
        select.select([listener], [], [])
        os.write(tell, b"!")
        if how == "closed":
            listener.close()
        signal.pause()

    def server(self, listener):
        # This process waits first, so that it is the one that other hosts find.
        select.select([listener], [], [], 0)
        for how in ("killed", "stopped", "closed"):
            hears, tells = os.pipe()
            if (child := os.fork()) == 0:
                self.worker(listener, tells, how)
            os.close(tells)
            print(how, flush=True)
            assert os.read(hears, 1) == b"!", how
            if how != "closed":
                os.kill(child, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            s, _ = listener.accept()
            assert receive(s, self.SIZE) == data(7, self.SIZE), how
            s.sendall(how.encode())
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def client(self, connect):
        for how in ("killed", "stopped", "closed"):
            sys.stdin.readline()
            s = connect()
            s.sendall(data(7, self.SIZE))
            assert receive(s, len(how)) == how.encode()


class Told(Exception):
    """A signal has requested the process to quit."""


class Workers(remote.Many):
    """Processes that answer questions, one per connection, until they are killed or get a signal to quit."""

    COUNT = 3

    def work(self, listener):
        def quits(*_):
            listener.close()
            raise Told

        signal.signal(signal.SIGTERM, quits)
        try:
            self.answer(listener)
        except Told:
            sys.exit(0)

    def server(self, listener):
        for _ in range(self.COUNT):
            if os.fork() == 0:
                self.work(listener)
        listener.close()
        for _ in range(self.COUNT):
            os.wait()

    def client(self, connect):
        print("open", flush=True)
        for line in sys.stdin:
            with connect() as s:
                print(self.ask(s, int(line)), flush=True)


class Held(Workers):
    """The client keeps its connections. A positive number on its input makes it ask on a new connection, a negative one on all of
    them; it prints how many were answered."""

    def client(self, connect):
        print("open", flush=True)
        kept = []
        for line in sys.stdin:
            seed = int(line)
            if seed > 0:
                kept.append(connect())
                print(self.ask(kept[-1], seed), flush=True)
            else:
                print(sum(self.is_answered(s, -seed) for s in kept), flush=True)

    def is_answered(self, s, seed):
        try:
            return self.ask(s, seed) > 0
        except (ConnectionError, AssertionError):
            return False


if __name__ == "__main__":
    main(globals())
