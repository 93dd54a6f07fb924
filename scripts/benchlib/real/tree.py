"""The processes of a server: it and its descendants."""

import os
import select
import signal
import time

from .. import proc, sides


def _children(pid):
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                found += map(int, children.read().split())
    except OSError:
        pass  # The process or one of its threads has ended.
    return found


def members(roots):
    """The pids of these processes and of all their descendants."""
    found, ahead = [], list(roots)
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += _children(pid)
    return found


def _cpu_of_one(pid):
    """The CPU seconds of a process and of those of its children that have ended."""
    try:
        own = proc.cpu_seconds(pid)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except (OSError, IndexError):
        return 0.0
    return own + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(roots):
    """The CPU seconds of all processes of a server, also of those that have ended."""
    return sum(map(_cpu_of_one, members(roots)))


class Watch:
    """Counts the connections that all processes of a server accept by each transport between two readings."""

    def __init__(self, ss, roots):
        self.ss = ss
        self.roots = roots
        self.before, self.reason = self._read()

    def _read(self):
        found = {pid: sides.Watch(self.ss, pid) for pid in members(self.roots)}
        counts = {pid: watch.before for pid, watch in found.items() if watch.before is not None}
        reason = next((watch.reason for watch in found.values() if watch.before is None), "the server has ended")
        return counts, None if counts else reason

    def result(self):
        after, reason = self._read()
        if self.reason or reason:
            return {"unknown": self.reason or reason}
        seen = {"shm": 0, "tcp": 0}
        for pid, counts in after.items():
            grown = sides.accepted(self.before.get(pid, {}), counts)
            seen = {path: seen[path] + grown[path] for path in seen}
        return seen


def stop(child):
    """Ends a server, and then those of its descendants that have not ended with it."""
    held = []
    for pid in members([child.pid])[1:] if child.running() else ():
        try:
            held.append(os.pidfd_open(pid))
        except ProcessLookupError:
            pass  # It has ended meanwhile.
    child.stop()
    deadline = time.monotonic() + 3
    for fd in held:
        if not _ended(fd, deadline - time.monotonic()):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            _ended(fd, 10)
        os.close(fd)


def end_orphans():
    """Ends the processes whose parent ended before them, in a crash for example."""
    for pid in _children(os.getpid()):
        if not proc.started_here(pid):
            # A child that nobody has waited for keeps its number.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _ended(fd, seconds):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))
