"""Connections that go to kernel TCP while more is unread than one of its sockets takes: no byte is lost, and nobody waits for the reader."""

import contextlib
import pathlib
import subprocess

from harness import Skipped, check
from host import wait_until
from matrix import case
from operators import ctl, ctl_any, real, state


@contextlib.contextmanager
def sockets_that_take(ctx, size):
    """The kernel's sockets take no more than so many bytes, as in a container with little memory."""
    if not ctx.own_network:
        raise Skipped("the sizes of sockets are to be changed in a network of its own")
    paths = [pathlib.Path("/proc/sys/net/ipv4") / name for name in ("tcp_wmem", "tcp_rmem")]
    before = [path.read_text() for path in paths]
    try:
        for path in paths:
            path.write_text(f"4096 {min(16384, size)} {size}")
        yield
    finally:
        for path, value in zip(paths, before):
            path.write_text(value)


class Stream:
    """A program that reads as it is told, and one that sends to it as fast as it can."""

    def __init__(self, ctx, total):
        self.total, self.had = total, 0
        self.reader = ctx.client(ctx.script("unread.py"), stdin=subprocess.PIPE, readable=True)
        wait_until(lambda: self.reader.text().strip(), 30, "the reader listens")
        self.writer = ctx.client(ctx.script("unread.py", self.reader.text().split()[0], total), readable=True)

    def tell(self, line):
        self.reader.popen.stdin.write(f"{line}\n".encode())
        self.reader.popen.stdin.flush()

    def wait_until_had(self, number):
        there = f"had {number}\n"
        wait_until(lambda: there in self.reader.text() or not self.reader.running(), 30, f"{number} bytes are read")
        check(there in self.reader.text(), f"the reader ended: {self.reader.tail(3)}")

    def read(self, number):
        self.had += number
        check(self.had < self.total, "all is read too early")
        self.tell(f"read {number}")
        self.wait_until_had(self.had)

    def end(self, line):
        self.tell(line)
        self.wait_until_had(self.total)
        self.writer.result()
        self.reader.popen.stdin.close()
        self.reader.result()


@case(modes=("both",))
def off_and_on(ctx):
    """The stream is just coming back from the kernel, and most of it still waits there, when it is to go there again."""
    with sockets_that_take(ctx, 1 << 18):
        stream = Stream(ctx, 64 << 20)
        pid = real(stream.reader)
        stream.read(1 << 20)
        for _ in range(5):
            ctl_any("off", pid)
            stream.read(2 << 20)
            ctl_any("on", pid)
            while state(pid)["connections"]["shm"] == 0:
                stream.read(20_000)
        stream.end("end")


@case(modes=("both",))
def handed_on(ctx):
    """A program that is executed inherits the connection."""
    with sockets_that_take(ctx, 1 << 15):
        stream = Stream(ctx, 4 << 20)
        stream.read(10_000)
        stream.end("execute")


@case(modes=("both",))
def handed_on_late(ctx):
    """The writer has gone to the kernel before, and its bytes in shared memory come first."""
    with sockets_that_take(ctx, 1 << 15):
        stream = Stream(ctx, 4 << 20)
        stream.read(10_000)
        ctl("off", real(stream.writer))
        stream.end("execute")
