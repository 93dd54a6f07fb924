"""handed.py WHAT ROLE ADDRESS PORT: conversations with which another process, or another program, goes on.

As in remote.py, each end exits with status 0 if everything was as kernel TCP has it.
"""

import contextlib
import ctypes
import hashlib
import os
import select
import socket
import subprocess
import sys
import threading

from remote import data, main, receive


def fill(s, bytes_):
    """Sends until no more bytes are accepted; returns how many were sent."""
    s.setblocking(False)
    sent = 0
    while sent < len(bytes_) and select.select([], [s], [], 1)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += s.send(bytes_[sent:sent + 65536])
    s.setblocking(True)
    return sent


class ExecutesFull:
    """The connection is full in both directions when another program goes on with it."""

    TOTAL = 16 << 20

    def server(self, listener):
        s, _ = listener.accept()
        control, _ = listener.accept()
        sent = fill(s, data(8, self.TOTAL))
        script = f"read go; head -c {self.TOTAL} <&{s.fileno()} | md5sum"
        child = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[s.fileno()])
        s.close()
        control.sendall(f"{sent}\n".encode())
        assert control.recv(1) == b"f"
        said = child.communicate(b"go\n")[0].split()[0].decode()
        assert said == hashlib.md5(data(7, self.TOTAL)).hexdigest(), "other bytes"

    def client(self, connect):
        s, control = connect(), connect()
        there = int(control.makefile().readline())
        mine = data(7, self.TOTAL)
        sent = fill(s, mine)
        assert 0 < sent < self.TOTAL, sent
        control.sendall(b"f")
        s.sendall(mine[sent:])
        assert receive(s, there) == data(8, self.TOTAL)[:there], "other bytes"
        assert s.recv(1) == b""


class PassesFull:
    """The connection is full of unread bytes when it is passed to another process, which here is the same one."""

    TOTAL = 4 << 20

    def server(self, listener):
        s, _ = listener.accept()
        control, _ = listener.accept()
        sent = int(control.makefile().readline())
        give, take = socket.socketpair()
        socket.send_fds(give, [b"x"], [s.fileno()])
        s.close()
        with socket.socket(fileno=socket.recv_fds(take, 1, 1)[1][0]) as s:
            assert receive(s, sent) == data(7, self.TOTAL)[:sent], "other bytes"
            assert s.recv(1) == b""

    def client(self, connect):
        s, control = connect(), connect()
        sent = fill(s, data(7, self.TOTAL))
        assert 0 < sent < self.TOTAL, sent
        s.shutdown(socket.SHUT_WR)
        control.sendall(f"{sent}\n".encode())
        assert control.recv(1) == b""


def talk(s, mine, theirs):
    """Sends small messages each way, enough to show which transport carries them."""
    for n in range(20):
        s.sendall(mine % n)
        assert receive(s, len(theirs % n)) == theirs % n


def echoed(s, size=4 << 20):
    """Checks that all sent bytes come back, and then the end."""
    sender = threading.Thread(target=lambda: (s.sendall(data(9, size)), s.shutdown(socket.SHUT_WR)))
    sender.start()
    assert receive(s, size) == data(9, size), "other bytes"
    sender.join()
    assert s.recv(1) == b""


def become_cat(s):
    os.dup2(s.fileno(), 0)
    os.dup2(s.fileno(), 1)
    os.execvp("cat", ["cat"])


class ServerBecomesAnother:
    """Another program runs in the same process and goes on with the connection."""

    def server(self, listener):
        s, _ = listener.accept()
        talk(s, b"server%2d", b"client%2d")
        become_cat(s)

    def client(self, connect):
        s = connect()
        talk(s, b"client%2d", b"server%2d")
        echoed(s)


class ClientBecomesAnother:
    """The client executes another program, which gets one of two connections; the other one ends after all bytes that were
    written to it."""

    def server(self, listener):
        s, _ = listener.accept()
        other, _ = listener.accept()
        talk(s, b"server%2d", b"client%2d")
        s.sendall(b"!")
        assert receive(other, 100_000) == data(10, 100_000), "other bytes"
        assert other.recv(1) == b""
        echoed(s)

    def client(self, connect):
        s, other = connect(), connect()
        talk(s, b"client%2d", b"server%2d")
        receive(s, 1)
        other.sendall(data(10, 100_000))
        become_cat(s)


class FailsToExecute:
    """The program to execute does not exist, so the client goes on, with both connections."""

    def server(self, listener):
        kept = [listener.accept()[0] for _ in range(2)]
        for s in kept:
            talk(s, b"server%2d", b"client%2d")
        kept[0].set_inheritable(True)
        for call in (self.execv, self.execl, self.execv):
            call()
            for s in kept:
                talk(s, b"server%2d", b"client%2d")
        for s in kept:
            s.close()

    def execv(self):
        with contextlib.suppress(FileNotFoundError):
            os.execv("/nowhere/at/all", ["nobody"])

    def execl(self):
        """Tries execl(3), which does not return to the library if it fails."""
        assert ctypes.CDLL(None).execl(b"/nowhere/at/all", b"nobody", None) == -1

    def client(self, connect):
        kept = [connect() for _ in range(2)]
        for _ in range(4):
            for s in kept:
                talk(s, b"client%2d", b"server%2d")
        for s in kept:
            assert s.recv(1) == b""


class ExitsUnread:
    """A process that ends with unread bytes resets the connection, as in tcp(7)."""

    def server(self, listener):
        s, _ = listener.accept()
        talk(s, b"server%2d", b"client%2d")
        while len(s.recv(10_000, socket.MSG_PEEK)) < 10_000:
            pass
        os._exit(0)

    def client(self, connect):
        s = connect()
        talk(s, b"client%2d", b"server%2d")
        s.sendall(data(10, 10_000))
        try:
            assert False, s.recv(1)
        except ConnectionResetError:
            pass


class QuickExits:
    """The bytes that were written before quick_exit(3), and by the functions that it calls, arrive, and then the ends."""

    def server(self, listener):
        (s, _), (small, _) = listener.accept(), listener.accept()
        for c in (s, small):
            talk(c, b"server%2d", b"client%2d")
        libc = ctypes.CDLL(None)
        last = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: small.sendall(b"last words"))
        # This is what at_quick_exit(3), which is linked into each C program, calls.
        assert libc["__cxa_at_quick_exit"](last, None, None) == 0
        s.sendall(data(11, 200_000))
        libc.quick_exit(0)

    def client(self, connect):
        s, small = connect(), connect()
        for c in (s, small):
            talk(c, b"client%2d", b"server%2d")
        assert receive(small, 10) == b"last words", "other bytes"
        assert small.recv(1) == b""
        assert receive(s, 200_000) == data(11, 200_000), "other bytes"
        assert s.recv(1) == b""


class BecomesDaemon:
    """A process with a connection calls daemon(3), so the parent, which carries the connection, ends."""

    def server(self, listener):
        s, _ = listener.accept()
        talk(s, b"server%2d", b"client%2d")
        assert ctypes.CDLL(None).daemon(0, 0) == 0 and os.getsid(0) == os.getpid() and os.getcwd() == "/"
        while piece := s.recv(65536):
            s.sendall(piece)

    def client(self, connect):
        s = connect()
        talk(s, b"client%2d", b"server%2d")
        echoed(s)


class LeavesToChild:
    """The process that has accepted, or connected, ends; a child goes on with the connection."""

    def leave(self, s, how):
        talk(s, b"parent%2d", b"remote%2d")
        parent = os.getpid()
        if os.fork() != 0:
            how(0)
        while os.getppid() == parent:
            os.sched_yield()
        while piece := s.recv(65536):
            s.sendall(piece)
        os._exit(0)

    def stay(self, s):
        talk(s, b"remote%2d", b"parent%2d")
        echoed(s)

    def server(self, listener):
        self.leave(listener.accept()[0], sys.exit)

    def client(self, connect):
        self.stay(connect())


class ClientLeavesToChild(LeavesToChild):
    def server(self, listener):
        self.stay(listener.accept()[0])

    def client(self, connect):
        self.leave(connect(), os._exit)


if __name__ == "__main__":
    main(globals())
