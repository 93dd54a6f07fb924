"""remote.py WHAT ROLE ADDRESS PORT: one end of a conversation between two hosts.

Each end exits with status 0 if everything was as kernel TCP has it, and otherwise with a traceback.
"""

import hashlib
import os
import random
import selectors
import signal
import socket
import sys
import threading

SIZE = 3 << 20


def data(seed, size=SIZE):
    return random.Random(seed).randbytes(size)


def receive(s, size):
    got = bytearray()
    while len(got) < size:
        piece = s.recv(min(65536, size - len(got)))
        assert piece, f"the end after {len(got)} of {size} bytes"
        got += piece
    return bytes(got)


def both_ways(s, seed_out, seed_in):
    sender = threading.Thread(target=s.sendall, args=(data(seed_out),))
    sender.start()
    assert hashlib.sha256(receive(s, SIZE)).digest() == hashlib.sha256(data(seed_in)).digest(), "other bytes"
    sender.join()


class Bulk:
    """Both ends send at once, over two connections."""

    def server(self, listener):
        threads = [threading.Thread(target=self.one, args=(listener.accept()[0],)) for _ in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]

    def one(self, s):
        both_ways(s, 1, 2)
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""

    def client(self, connect):
        threads = [threading.Thread(target=self.two, args=(connect(),)) for _ in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]

    def two(self, s):
        both_ways(s, 2, 1)
        assert s.recv(1) == b""


class Pieces(Bulk):
    """As Bulk, in small pieces over one connection, and with some more pieces afterwards."""

    def both_ways(self, s, seed_out, seed_in):
        block = data(seed_out)
        sender = threading.Thread(target=lambda: [s.sendall(block[at:at + 4096]) for at in range(0, SIZE, 4096)])
        sender.start()
        got = receive(s, SIZE)
        assert hashlib.sha256(got).digest() == hashlib.sha256(data(seed_in)).digest(), "other bytes"
        sender.join()

    def server(self, listener):
        s, _ = listener.accept()
        for turn in range(3):
            self.both_ways(s, 10 + turn, 20 + turn)
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""

    def client(self, connect):
        s = connect()
        for turn in range(3):
            self.both_ways(s, 20 + turn, 10 + turn)
        assert s.recv(1) == b""


class Names:
    """Both ends call each other by the same addresses; ports are distinct."""

    def server(self, listener):
        for _ in range(5):
            s, peer = listener.accept()
            assert s.getpeername() == peer, (s.getpeername(), peer)
            # At a listener of both families a client of IPv4 has a mapped address.
            said = f"{peer[0]} {peer[1]} {s.getsockname()[0]} {s.getsockname()[1]}\n".replace("::ffff:", "")
            s.sendall(said.encode())
            receive(s, 1)

    def client(self, connect):
        seen = set()
        kept = [connect() for _ in range(5)]
        for s in kept:
            mine, theirs = s.getsockname(), s.getpeername()
            said = s.makefile().readline().split()
            assert said == [mine[0], str(mine[1]), theirs[0], str(theirs[1])], (said, mine, theirs)
            seen.add(mine[1])
            s.sendall(b"!")
        assert len(seen) == 5, seen


class HalfClose:
    """The answer comes after the end of the question, and then the end of the answer."""

    def server(self, listener):
        s, _ = listener.accept()
        question = bytearray()
        while piece := s.recv(65536):
            question += piece
        assert bytes(question) == data(3)
        s.sendall(hashlib.sha256(question).digest())
        s.close()

    def client(self, connect):
        s = connect()
        s.sendall(data(3))
        s.shutdown(socket.SHUT_WR)
        assert receive(s, 32) == hashlib.sha256(data(3)).digest()
        assert s.recv(1) == b""


class Exits:
    """All bytes that a process has written arrive, although it ends at once."""

    def server(self, listener):
        for how in (sys.exit, os._exit):
            s, _ = listener.accept()
            if (child := os.fork()) == 0:
                listener.close()
                s.sendall(data(4, 200_000))
                how(0)
            s.close()
            assert os.waitpid(child, 0)[1] == 0
        s, _ = listener.accept()
        s.sendall(data(4, 200_000))

    def client(self, connect):
        for _ in range(3):
            s = connect()
            assert receive(s, 200_000) == data(4, 200_000)
            assert s.recv(1) == b""


class Stops:
    """A connection from which no process reads does not delay another one."""

    def server(self, listener):
        idle, _ = listener.accept()
        busy, _ = listener.accept()
        for _ in range(300):
            busy.sendall(receive(busy, 64))
        assert receive(idle, SIZE) == data(5)

    def client(self, connect):
        idle, busy = connect(), connect()
        sender = threading.Thread(target=idle.sendall, args=(data(5),))
        sender.start()
        for n in range(300):
            busy.sendall(bytes([n % 256]) * 64)
            assert receive(busy, 64) == bytes([n % 256]) * 64
        sender.join()


class Forks:
    """A server forks a process per connection, and the parent goes on."""

    def server(self, listener):
        children = []
        for n in range(4):
            s, _ = listener.accept()
            if (child := os.fork()) == 0:
                listener.close()
                both_ways(s, 1, 2)
                s.shutdown(socket.SHUT_WR)
                assert s.recv(1) == b""
                os._exit(0)
            s.close()
            children.append(child)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0

    def client(self, connect):
        for _ in range(4):
            s = connect()
            both_ways(s, 2, 1)
            assert s.recv(1) == b""
            s.close()


class Again:
    """All bytes that a client has written arrive, although it has closed and has made its next connection already."""

    COUNT = 5
    # More bytes than the ring holds, so that some wait beside it, but few enough to be sent before the server reads.
    SIZE = 400_000

    def server(self, listener):
        unread = None
        for n in range(self.COUNT + 1):
            s, _ = listener.accept()
            s.shutdown(socket.SHUT_WR)
            if unread:
                assert receive(unread, self.SIZE) == data(n - 1, self.SIZE)
                assert unread.recv(1) == b""
            unread = s

    def client(self, connect):
        for n in range(self.COUNT + 1):
            with connect() as s:
                # The server does not read the last connection.
                s.sendall(data(n, self.SIZE) if n < self.COUNT else b"")
                assert s.recv(1) == b""


class Executes:
    """Another program goes on with the connection, as under inetd."""

    def server(self, listener):
        s, _ = listener.accept()
        if (child := os.fork()) == 0:
            os.dup2(s.fileno(), 0)
            os.dup2(s.fileno(), 1)
            os.execvp("sh", ["sh", "-c", "while read line; do echo you said $line; done"])
        s.close()
        assert os.waitpid(child, 0)[1] == 0

    def client(self, connect):
        s = connect()
        f = s.makefile()
        for n in range(5):
            s.sendall(f"{n}\n".encode())
            assert f.readline() == f"you said {n}\n"
        s.shutdown(socket.SHUT_WR)
        assert f.readline() == ""


class Backlog:
    """The client makes more connects at once than fit into the listener's backlog: they wait, as with TCP."""

    COUNT = 12

    def server(self, listener):
        listener.listen(2)
        control, _ = listener.accept()
        assert control.recv(1) == b"g"
        for _ in range(self.COUNT):
            with listener.accept()[0] as s:
                s.sendall(s.recv(100).upper())

    def client(self, connect):
        control = connect()
        socks = [socket.socket(control.family) for _ in range(self.COUNT)]
        for s in socks:
            s.setblocking(False)
            s.connect_ex(control.getpeername())
        control.sendall(b"g")
        for s in socks:
            s.setblocking(True)
            s.sendall(b"a")
        for s in socks:
            assert receive(s, 1) == b"A"
            assert s.recv(1) == b""


class Polls:
    """A server without blocking calls, which waits for readiness, gives many small answers."""

    def server(self, listener):
        listener.setblocking(False)
        waiting = selectors.DefaultSelector()
        waiting.register(listener, selectors.EVENT_READ)
        ended = 0
        while ended < 8:
            for key, _ in waiting.select():
                if key.fileobj is listener:
                    s, _ = listener.accept()
                    s.setblocking(False)
                    waiting.register(s, selectors.EVENT_READ)
                elif got := key.fileobj.recv(4096):
                    key.fileobj.send(got.upper())
                else:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()
                    ended += 1

    def client(self, connect):
        socks = [connect() for _ in range(8)]
        for n in self.rounds():
            for s in socks:
                s.sendall(b"a%d" % n)
            for s in socks:
                want = b"A%d" % n
                assert receive(s, len(want)) == want

    def rounds(self):
        return range(40)


class Many:
    """Connections that are open at the same time, until the client's standard input ends. On each the server says which of its
    processes accepted it."""

    COUNT = 40

    def server(self, listener):
        self.answer(listener, self.COUNT)

    def answer(self, listener, count=None):
        """Answers `count` connections, waiting for readiness; without a number, until the process is ended."""
        listener.setblocking(False)
        waiting = selectors.DefaultSelector()
        waiting.register(listener, selectors.EVENT_READ)
        ended = 0
        while count is None or ended < count:
            for key, _ in waiting.select():
                if key.fileobj is listener:
                    try:
                        s, _ = listener.accept()
                    except BlockingIOError:
                        continue  # Another process was quicker.
                    waiting.register(s, selectors.EVENT_READ)
                elif self.question(key.fileobj):
                    continue
                else:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()
                    ended += 1

    def question(self, s):
        try:
            head = s.recv(4)
        except ConnectionError:
            return False  # The connection was a stranger's, which may be reset.
        if not head:
            return False
        head += receive(s, 4 - len(head))
        question = receive(s, int.from_bytes(head, "big"))
        s.sendall(b"%-8d" % os.getpid() + hashlib.sha256(question).digest())
        return True

    def ask(self, s, seed):
        question = data(seed, 1 + seed * 997 % 20000)
        s.sendall(len(question).to_bytes(4, "big") + question)
        answer = receive(s, 40)
        assert answer[8:] == hashlib.sha256(question).digest(), f"another answer to {seed}"
        return int(answer[:8])

    def client(self, connect):
        socks = [connect() for _ in range(self.COUNT)]
        workers = set()
        for turn in range(2):
            for n, s in enumerate(socks):
                workers.add(self.ask(s, turn * 100 + n))
        print("open", len(workers), flush=True)
        sys.stdin.read()
        for n, s in enumerate(socks):
            self.ask(s, 300 + n)


class More(Many):
    """As Many, with more connections than one link has room for."""

    COUNT = 560


class Bursts(Many):
    """On one connection the client sends a little, then a lot at each line of its standard input, then a little at its end."""

    COUNT = 1

    def client(self, connect):
        s = connect()
        self.ask(s, 1)
        print("open", flush=True)
        question = data(2)
        for _ in sys.stdin:
            s.sendall(len(question).to_bytes(4, "big") + question)
            assert receive(s, 40)[8:] == hashlib.sha256(question).digest(), "another answer"
            print("moved", flush=True)
        self.ask(s, 3)


class Leaves(Many):
    """A few connections are closed at the first line of the client's standard input; the client stays until that ends."""

    COUNT = 8

    def server(self, listener):
        self.answer(listener)

    def client(self, connect):
        socks = [connect() for _ in range(self.COUNT)]
        for n, s in enumerate(socks):
            self.ask(s, n)
        print("open", flush=True)
        sys.stdin.readline()
        for s in socks:
            s.close()
        sys.stdin.read()


class Prefork(Many):
    """Several processes that were forked after listen() wait on one listener, and one of them is killed meanwhile."""

    COUNT = 12

    def server(self, listener):
        children = []
        for _ in range(3):
            if (child := os.fork()) == 0:
                self.answer(listener)
            children.append(child)
        # The test ends the parent by this signal when the client has ended.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            signal.pause()
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def main(cases):
    what, role, address, port = sys.argv[1:]
    case = cases[what]()
    signal.alarm(int(os.environ.get("FAR_LIMIT", "75")))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if role == "server":
        listener = socket.create_server((address, int(port)), family=family, dualstack_ipv6=address == "::")
        print("ready", flush=True)
        case.server(listener)
    else:
        case.client(lambda: socket.create_connection((address, int(port))))


if __name__ == "__main__":
    main(globals())
