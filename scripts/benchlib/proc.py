"""Starts, watches and ends processes. Every process that is started here is ended by its pid."""

import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile
import time

START_TIMEOUT = 15.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)
_live = {}


class Failed(Exception):
    """A measured program did not do what it should; the text is for the user."""


def _before_exec(core):
    def prepare():
        # The server dies with the script, even if that is killed.
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if core is not None:
            os.sched_setaffinity(0, {core})

    return prepare


def end_on_signals():
    """Turns the usual signals into an exception, so that every `finally` runs."""

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(number, _frame):
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)  # nothing interrupts the clean-up
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, leave)


def stop_all():
    for child in list(_live.values()):
        child.stop()


def started_here(pid):
    """Whether this is a process that was started here and not yet awaited, and not a descendant of one."""
    return pid in _live


def adopt_orphans():
    """Makes this process the parent of descendants whose own parent ends, so that they can be found."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def cpu_seconds(pid):
    """The CPU time of all threads of a running process, with nanosecond resolution where possible."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Child:
    """A process and its output: stdout is a pipe or a file, stderr is a file."""

    def __init__(self, argv, env=None, *, stdin=False, stdout="pipe", core=None, name=None):
        """`name` is the part of the command that messages show; else that is its beginning."""
        self.shown = name or argv
        self.usage = None
        self._buffer = b""
        self._err = tempfile.TemporaryFile()
        self._out = tempfile.TemporaryFile() if stdout == "file" else None
        # The process has a session of its own, so that Ctrl-C reaches only us and we end it in order.
        self._popen = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=self._out or subprocess.PIPE,
            stderr=self._err,
            start_new_session=True,
            preexec_fn=_before_exec(core),
        )
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        _live[self.pid] = self

    def name(self):
        return " ".join(os.path.basename(part) for part in self.shown[:3])

    def errors(self, lines=4):
        return "\n".join(_text(self._err).strip().splitlines()[-lines:])

    def output(self):
        return _text(self._out)

    def running(self):
        return self.usage is None and not _readable(self._pidfd, 0)

    def wait(self, timeout, tick=None):
        """Waits for the end and returns the exit code, or None after the time-out."""
        deadline = time.monotonic() + timeout
        while self.usage is None:
            left = deadline - time.monotonic()
            if _readable(self._pidfd, min(max(left, 0), 0.25)):
                self._reap()
            elif left <= 0:
                return None
            elif tick:
                tick()
        return self._popen.returncode

    def _reap(self):
        _, status, self.usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        _live.pop(self.pid, None)
        os.close(self._pidfd)

    def stop(self):
        if self.usage is None:
            for number, patience in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
                os.kill(self.pid, number)
                if self.wait(patience) is not None:
                    break
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def send_line(self, line):
        try:
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise self.failure("ended") from None

    def read_line(self, timeout=START_TIMEOUT):
        deadline = time.monotonic() + timeout
        fd = self._popen.stdout.fileno()
        while b"\n" not in self._buffer:
            if not _readable(fd, max(deadline - time.monotonic(), 0)):
                raise self.failure(f"said nothing for {timeout:.0f} s")
            part = os.read(fd, 65536)
            if not part:
                self.wait(5)
                raise self.failure("ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def read_json(self, timeout=START_TIMEOUT):
        line = self.read_line(timeout)
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            raise Failed(f"{self.name()}: unexpected output: {line}") from None

    def failure(self, what):
        return Failed(f"{self.name()} {what}: {self.errors() or 'no message'}")


class Finished:
    """The results of a program that has ended as expected."""

    def __init__(self, child, wall):
        self.output = child.output()
        self.errors = child.errors()
        self.wall = wall
        self.cpu = child.usage.ru_utime + child.usage.ru_stime


def run(argv, env=None, timeout=120.0, tick=None, good=(0,), name=None):
    """Runs a program to its end and returns its output, wall time and CPU time. `good` are the permitted exit statuses."""
    start = time.monotonic()
    child = Child(argv, env, stdout="file", name=name)
    try:
        code = child.wait(timeout, tick)
        if code is None:
            raise child.failure(f"did not end within {timeout:.0f} s")
        if code not in good:
            last = child.errors() or child.output().strip()[-400:] or "no message"
            raise Failed(f"{child.name()} ended with {code}: {last}")
        return Finished(child, time.monotonic() - start)
    finally:
        child.stop()


def _readable(fd, seconds):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _text(file):
    file.seek(0)
    return file.read().decode(errors="replace")
