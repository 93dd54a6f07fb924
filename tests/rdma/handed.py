"""handed.py WHAT ROLE ADDRESS PORT: conversations that are full when another process, or another program, goes on with them.

As far.py: each end ends with status 0 if everything was as kernel TCP has it.
"""

import contextlib
import hashlib
import select
import socket
import subprocess

from far import data, main, receive


def fill(s, bytes_):
    """Sends until nobody takes any more; how many were sent."""
    s.setblocking(False)
    sent = 0
    while sent < len(bytes_) and select.select([], [s], [], 1)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += s.send(bytes_[sent:sent + 65536])
    s.setblocking(True)
    return sent


class ExecutesFull:
    """Full in both directions when another program goes on with it, whose half goes first."""

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
    """As many bytes wait to be read as there is room for when another process, here the same, is handed the connection."""

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


if __name__ == "__main__":
    main(globals())
