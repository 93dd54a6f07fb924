"""netacc_ss as these tests use it, and the terminals and pages that they make for it."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import monitor
from harness import check, equal

# Nothing here is about which end is accelerated; a test that starts an accelerated server says so by its role.
ONE = ("server",)
# Time limit (s), which only turns a hang into a failure.
LIMIT = 60

MAGIC = b"NACCSTAT"
LAYOUT = 2
PAGE_SIZE = 4096 + 8192 + 128 * 1024 + 256 * 65536


class Answer:
    """What was printed and how it ended."""

    def __init__(self, done):
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        check("panicked" not in self.err, self.err)

    def json(self):
        equal(self.status, 0, f"status ({self.err})")
        return json.loads(self.out)


def run(ctx, *argv, **extra):
    return Answer(subprocess.run([monitor.command(), *map(str, argv)], env=ctx.environment(), cwd=ctx.dir,
                                 stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, **extra))


def begin(ctx, *argv, **extra):
    """One that runs on; it ends with the test."""
    return ctx.spawn([monitor.command(), *map(str, argv)], role="tool", **extra)


def head(version=LAYOUT, size=PAGE_SIZE, pid=None, library=b"9.8.7"):
    """The beginning of a page, as docs/internals/tools.md promises it for all versions, and the sizes of this one."""
    page = bytearray(256)
    page[0:8] = MAGIC
    struct.pack_into("=IIQ", page, 8, version, os.getpid() if pid is None else pid, size)
    struct.pack_into("=II", page, 32, 65536, 256)
    page[56:60] = b"fake"
    page[120:120 + len(library)] = library
    struct.pack_into("=I", page, 52, 1024)
    struct.pack_into("=I", page, 152, 128)
    return bytes(page)


class Page:
    """A page that this process holds, with any content: netacc_ss finds it by the name of the memfd."""

    def __init__(self, content, size):
        self.fd = os.memfd_create("netacc-stats", os.MFD_CLOEXEC)
        os.write(self.fd, content)
        os.ftruncate(self.fd, size)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


class Terminal:
    """A program on a terminal of its own: netacc_ss, or the one that is named."""

    def __init__(self, ctx, columns, rows, *argv, program=None, **env):
        command = str(program or monitor.command())
        environment = ctx.environment({"TERM": "xterm", **env})
        go, tell = os.pipe()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # The size is set here as well, for the child's first look at it.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.read(go, 1)
            os.execve(command, [command, *map(str, argv)], environment)
        # Before the program can have touched it: a terminal that was just made.
        self.usual = self.modes()
        os.write(tell, b"!")
        os.close(go)
        os.close(tell)
        self.text, self.status = "", None

    def modes(self):
        return termios.tcgetattr(self.master)

    def type(self, keys):
        os.write(self.master, keys)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def step(self):
        """What comes within a moment; false at the end."""
        if not select.select([self.master], [], [], 0.1)[0]:
            return True
        try:
            part = os.read(self.master, 65536)
        except OSError:
            return False  # The terminal's last user is gone.
        self.text += part.decode()
        return bool(part)

    def until(self, condition, what):
        """Reads until the condition holds for the last picture."""
        end = time.monotonic() + LIMIT
        while not condition(self.picture()):
            check(self.step(), f"it ended before {what}: {self.text[-500:]!r}")
            check(time.monotonic() < end, f"{what} does not come: {self.text[-1500:]!r}")

    def picture(self):
        """The last whole screen, as lines."""
        # Each begins and ends where the cursor goes home.
        screens = [screen for screen in self.text.split("\x1b[H")[1:-1] if screen]
        whole = screens[-1] if screens else ""
        return [strip(line) for line in re.split(r"\r*\n", whole)]

    def end(self):
        """Reads to the end; the exit status, or minus the signal."""
        stop = time.monotonic() + LIMIT
        while self.step():
            check(time.monotonic() < stop, f"it does not end: {self.text[-500:]!r}")
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        check("panicked" not in self.text, self.text[-2000:])
        return self.status

    def close(self):
        os.close(self.master)
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def strip(text):
    """Without escape sequences."""

    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
