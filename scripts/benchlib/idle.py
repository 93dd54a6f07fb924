"""Observes a process that should do nothing, without waking it."""

import os
import re
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass

from . import proc

ATTACH_SECONDS = 1.0


@dataclass
class Activity:
    switches: int
    cpu_ns: int

    def __sub__(self, other):
        return Activity(self.switches - other.switches, self.cpu_ns - other.cpu_ns)


def activity(pid):
    """The context switches and the CPU time of all threads. A thread that was never
    scheduled and used no CPU time cannot have made a system call."""
    switches = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as status:
            switches += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status.read())))
    return Activity(switches, round(proc.cpu_seconds(pid) * 1e9))


def wait_quiet(pids, quiet=1.0, patience=15.0):
    """Waits until the processes have done nothing for `quiet` seconds, but at most `patience` seconds."""
    deadline = time.monotonic() + patience
    last, since = None, time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < quiet:
        now = [activity(pid) for pid in pids]
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.1)


def pss_kib(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
            total += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return total


def settled_pss(pids, quiet=1.0, patience=8.0):
    """The memory after it has stopped changing, since an idle connection may return pages later."""
    deadline = time.monotonic() + patience
    last, since = pss_kib(pids), time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < quiet:
        time.sleep(0.1)
        now = pss_kib(pids)
        if now != last:
            last, since = now, time.monotonic()
    return last


def meminfo():
    with open("/proc/meminfo", encoding="ascii") as info:
        return {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in info)}


def count_syscalls(pid, window):
    """The system calls in the window, by strace or as a lower bound, and which of the two it is.

    Attaching interrupts each waiting thread once, so the first second does not count.
    """
    if shutil.which("strace") is None:
        return _lower_bound(pid, window, "strace is not installed")
    with tempfile.NamedTemporaryFile("r") as log:
        start = time.time()
        argv = ["strace", "-f", "-qq", "-ttt", "-o", log.name, "-p", str(pid)]
        strace = proc.Child(argv, stdout="file")
        try:
            ended = strace.wait(ATTACH_SECONDS + window)
            if ended is None:
                os.kill(strace.pid, signal.SIGINT)
                strace.wait(10)
        finally:
            strace.stop()
        if ended:
            return _lower_bound(pid, window, strace.errors(1))
        return _count(log.read(), start + ATTACH_SECONDS, window)


def _count(log, begin, window):
    names = {}
    for line in log.splitlines():
        found = re.match(r"(?:\d+\s+)?(\d+\.\d+) (\w+)\(", line)
        if found and begin <= float(found[1]) < begin + window:
            names[found[2]] = names.get(found[2], 0) + 1
    often = ", ".join(f"{name} {n}" for name, n in sorted(names.items(), key=lambda x: -x[1])[:5])
    return sum(names.values()), f"strace saw {often or 'no system call'} in {window:.0f} s"


def _lower_bound(pid, window, why):
    before = activity(pid)
    time.sleep(window)  # the measured time itself
    return (activity(pid) - before).switches, f"at least one system call each time it ran ({why})"
