"""lasting.py WHAT ROLE ADDRESS PORT: conversations that last until the test ends, kills or cuts them.

As in remote.py, each end exits with status 0 if everything was as kernel TCP has it.
"""

import itertools
import os
import select
import signal
import socket
import sys
import threading
import time

from remote import Pieces, Polls, data, main, receive
from handed import fill


def told():
    """Whether standard input has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


class PollsOn(Polls):
    """As Polls, until the client's standard input ends."""

    def rounds(self):
        return itertools.takewhile(lambda _: not told(), itertools.count())


class PiecesOn(Pieces):
    """As Pieces, repeated until the client's standard input ends; before each round the client announces it."""

    def server(self, listener):
        s, _ = listener.accept()
        while s.recv(1):
            self.both_ways(s, 10, 20)

    def client(self, connect):
        s = connect()
        while not told():
            s.sendall(b"+")
            self.both_ways(s, 20, 10)
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""


class Silent:
    """Both ends wait for bytes that do not come, until one of them is killed. The survivor prints what it sees."""

    def wait(self, s):
        print("waiting", flush=True)
        began = time.monotonic()
        try:
            print("end" if s.recv(1) == b"" else "bytes", flush=True)
        except (ConnectionError, TimeoutError) as e:
            print(type(e).__name__, flush=True)
        print(f"after {time.monotonic() - began:.1f} s", file=sys.stderr)

    def server(self, listener):
        s, _ = listener.accept()
        receive(s, 1)
        self.wait(s)

    def client(self, connect):
        s = connect()
        s.sendall(b"!")
        self.wait(s)


class Kept(Silent):
    """As Silent, with keepalive on both ends."""

    def wait(self, s):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
            s.setsockopt(socket.IPPROTO_TCP, name, 1)
        super().wait(s)


class Closed:
    """The connection is closed, and both processes live on."""

    def server(self, listener):
        s, _ = listener.accept()
        receive(s, 1)
        print("waiting", flush=True)
        assert s.recv(1) == b""
        s.close()
        print("closed", flush=True)
        # The server waits again, since other hosts find it only then.
        listener.accept()

    def client(self, connect):
        s = connect()
        s.sendall(b"!")
        print("waiting", flush=True)
        sys.stdin.readline()
        s.close()
        signal.pause()


class HasTalked(Silent):
    """As Silent, after enough messages for everything that belongs to the connection to exist. The client sends the last one."""

    def server(self, listener):
        s, _ = listener.accept()
        for _ in range(500):
            s.sendall(receive(s, 1))
        receive(s, 1)
        self.wait(s)

    def client(self, connect):
        s = connect()
        for _ in range(500):
            s.sendall(b"!")
            receive(s, 1)
        super().client(lambda: s)


class FewCredits:
    """On request the server sends more small messages than there are credits while the client is stopped."""

    def server(self, listener):
        s, _ = listener.accept()
        print("waiting", flush=True)
        sys.stdin.readline()
        for n in range(20):
            s.sendall(b"%9d\n" % n)
        print("full", 200, flush=True)
        signal.pause()

    def client(self, connect):
        s = connect()
        print("waiting", flush=True)
        read_out(s)


def read_out(s):
    got = 0
    try:
        while piece := s.recv(65536):
            got += len(piece)
        print("end", got, flush=True)
    except ConnectionError as e:
        print(type(e).__name__, got, flush=True)


class BreaksOff:
    """The server sends until nothing more is accepted and prints how many bytes it sent; the client reads them when told."""

    def server(self, listener):
        s, _ = listener.accept()
        print("full", fill(s, data(12, 16 << 20)), flush=True)
        signal.pause()

    def client(self, connect):
        s = connect()
        print("waiting", flush=True)
        sys.stdin.readline()
        read_out(s)


class Full:
    """The client sends more bytes than are accepted at once, to a server that reads them when told."""

    MORE = 1 << 20

    def server(self, listener):
        s, _ = listener.accept()
        print("waiting", flush=True)
        sys.stdin.readline()
        read_out(s)

    def client(self, connect):
        s = connect()
        print("waiting", flush=True)
        print("full", fill(s, data(12, 16 << 20)), flush=True)
        try:
            s.sendall(bytes(self.MORE))
            print("sent", flush=True)
        except (ConnectionError, TimeoutError) as e:
            print(type(e).__name__, flush=True)


class Talks(Silent):
    """Both ends exchange questions and answers until nothing arrives any more."""

    def talk(self, s, first):
        # Without a limit TCP would retry for longer than a test can wait.
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)
        print("waiting", flush=True)
        began = time.monotonic()
        try:
            if first:
                s.sendall(bytes(100))
            while got := s.recv(100):
                s.sendall(got)
            print("end", flush=True)
        except (ConnectionError, TimeoutError) as e:
            print(type(e).__name__, flush=True)
        except OSError as e:
            print(e.strerror, flush=True)
        print(f"after {time.monotonic() - began:.1f} s", file=sys.stderr)

    def server(self, listener):
        self.talk(listener.accept()[0], False)

    def client(self, connect):
        self.talk(connect(), True)


class Orphans:
    """The process that accepted a connection is killed, and its child, which waits on the connection, sees the end."""

    def server(self, listener):
        s, _ = listener.accept()
        if os.fork() == 0:
            Silent().wait(s)
            os._exit(0)
        s.close()
        signal.pause()

    def client(self, connect):
        connect().recv(1)


class Endless:
    """Both ends send at once, and compare every byte, until the client's standard input ends; they print the byte counts."""

    BLOCK = 1_000_003

    def send(self, s, seed, stop):
        block = data(seed, self.BLOCK)
        while not stop.is_set():
            s.sendall(block)
        s.shutdown(socket.SHUT_WR)

    def receive(self, s, seed):
        block = memoryview(data(seed, self.BLOCK) * 2)
        size = 0
        while piece := s.recv(65536):
            at = size % self.BLOCK
            assert piece == block[at:at + len(piece)], f"other bytes from {size} on"
            size += len(piece)
        return size

    def server(self, listener):
        s, _ = listener.accept()
        stop = threading.Event()
        sender = threading.Thread(target=self.send, args=(s, 11, stop))
        sender.start()
        self.receive(s, 12)
        stop.set()
        sender.join()

    def client(self, connect):
        s = connect()
        stop = threading.Event()
        threads = [threading.Thread(target=self.send, args=(s, 12, stop)),
                   threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True)]
        [t.start() for t in threads]
        print("received", self.receive(s, 11), flush=True)
        threads[0].join()


class Accepting:
    """Lines of the client's standard input go to the server and back. The server goes on accepting in blocking calls, and
    prints what each further client sends."""

    def accept_others(self, listener):
        while True:
            self.greet(listener.accept()[0])

    def greet(self, s):
        # An ordinary client sends bytes; any other connection must not be visible.
        print("another", s.recv(100).decode(), flush=True)
        s.close()

    def server(self, listener):
        s, _ = listener.accept()
        threading.Thread(target=self.accept_others, args=(listener,), daemon=True).start()
        while piece := s.recv(1000):
            s.sendall(piece)

    def client(self, connect):
        s = connect()
        s.sendall(b"!")
        receive(s, 1)
        print("waiting", flush=True)
        for line in sys.stdin:
            s.sendall(line.encode())
            print("back:", receive(s, len(line)).decode(), end="", flush=True)


class AcceptingByIPv4(Accepting):
    """As Accepting, while the program also listens for IPv6 at the same port, to which no client connects."""

    def server(self, listener):
        port = listener.getsockname()[1]
        with socket.create_server(("::", port), family=socket.AF_INET6):
            super().server(listener)


class AcceptingByEpoll(Accepting):
    """As Accepting, by epoll."""

    def accept_others(self, listener):
        listener.setblocking(False)
        epoll = select.epoll()
        epoll.register(listener.fileno(), select.EPOLLIN)
        while True:
            epoll.poll()
            try:
                s, _ = listener.accept()
            except BlockingIOError:
                continue
            s.setblocking(True)
            self.greet(s)


class AcceptingByPoll(Accepting):
    """As Accepting, by poll(2) and a blocking accept(2): poll must not report a connection that accept does not return."""

    def accept_others(self, listener):
        poll = select.poll()
        poll.register(listener.fileno(), select.POLLIN)
        while True:
            poll.poll()
            print("seen", flush=True)
            self.greet(listener.accept()[0])


class AcceptingAfterStalls(Accepting):
    """As Accepting, but a connection that ends before it has sent a byte may be accepted, and does not count."""

    def greet(self, s):
        try:
            super().greet(s)
        except ConnectionResetError:
            print("empty", flush=True)


class AcceptingElsewhere(Accepting):
    """A child accepts all connections except the first, which the parent serves."""

    def server(self, listener):
        hears, tells = os.pipe()
        if (child := os.fork()) == 0:
            os.close(tells)
            os.read(hears, 1)
            self.accept_others(listener)
        try:
            s, _ = listener.accept()
            os.write(tells, b"!")
            self.serve(s)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def serve(self, s):
        while piece := s.recv(1000):
            s.sendall(piece)


class AcceptingInAChildToCome(AcceptingElsewhere):
    """As AcceptingElsewhere, with a child that is forked when the server's standard input ends."""

    def server(self, listener):
        s, _ = listener.accept()
        child = []

        def fork_at_the_end():
            sys.stdin.read()
            if (pid := os.fork()) == 0:
                s.close()
                self.accept_others(listener)
            child.append(pid)
            print("forked", flush=True)

        threading.Thread(target=fork_at_the_end, daemon=True).start()
        try:
            self.serve(s)
        finally:
            for pid in child:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


class Piecemeal:
    """The client sends small pieces, each of which is answered before the next one, until one end has ended."""

    BLOCK = 997

    def server(self, listener):
        s, _ = listener.accept()
        try:
            while got := s.recv(4096):
                s.sendall(got)
        except ConnectionError:
            pass

    def client(self, connect):
        s = connect()
        block = data(30, self.BLOCK)
        print("open", flush=True)
        try:
            while True:
                s.sendall(block)
                got = receive(s, self.BLOCK)
                assert got == block, "other bytes"
        except (ConnectionError, AssertionError) as e:
            assert "other" not in str(e), e
        print("ended", flush=True)


class Crowd:
    """The client makes more connects than the listener has room for before the server accepts the first; all are answered."""

    COUNT, BACKLOG = 24, 4

    def server(self, listener):
        listener.listen(self.BACKLOG)
        s, _ = listener.accept()
        receive(s, 1)
        for _ in range(self.COUNT):
            other, _ = listener.accept()
            other.sendall(receive(other, 1))
            other.close()
        s.sendall(b"!")

    def client(self, connect):
        first = connect()
        socks = [socket.socket(first.family) for _ in range(self.COUNT)]
        for s in socks:
            s.setblocking(False)
            s.connect_ex(first.getpeername())
        poll = select.poll()
        for s in socks:
            poll.register(s, select.POLLOUT)
        # These connects have a place in the listener's queue.
        while poll.poll(300):
            for fd, events in poll.poll(0):
                assert events == select.POLLOUT, events
                poll.modify(fd, 0)
        first.sendall(b"!")
        for s in socks:
            s.setblocking(True)
        for s in socks:
            s.sendall(b"x")
            assert receive(s, 1) == b"x"
        assert receive(first, 1) == b"!"


class Owned(Piecemeal):
    """The client sends five bytes, which are answered, and after the end of its standard input three further pieces."""

    def client(self, connect):
        s = connect()
        s.sendall(b"12345")
        assert receive(s, 5) == b"12345"
        print(s.getsockname()[1], flush=True)
        sys.stdin.read()
        for part in (b"67", b"890", b"abc"):
            s.sendall(part)
            assert receive(s, len(part)) == part
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""


if __name__ == "__main__":
    main(globals())
