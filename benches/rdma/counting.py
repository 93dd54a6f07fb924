"""What processes did between two looks: verbs calls, completion events, system calls, and the processor's time."""

import collections
import os
import pathlib
import re
import shutil
import struct
import time

import world

TRACING = pathlib.Path("/sys/kernel/tracing")
VERBS = pathlib.Path("/run/count-verbs")
# The counters of count_verbs.c, in its order.
CALLS = ("sends", "receives", "polls", "empty_polls", "arms", "completions")
LIBRARY = "libibverbs.so.1"
SYSTEM = pathlib.Path("/usr/lib/x86_64-linux-gnu")
# The kernel's probes do not see files below an overlay, so a process that is counted uses a copy in memory.
COPIES = pathlib.Path("/run/count-libraries")


def begin():
    VERBS.mkdir(exist_ok=True)
    if not (TRACING / "events").exists():
        world.command("mount", "-t", "tracefs", "tracefs", str(TRACING))
    COPIES.mkdir(exist_ok=True)
    shutil.copy(SYSTEM / LIBRARY, COPIES / LIBRARY)
    # Each event of a completion channel is acknowledged once.
    (TRACING / "uprobe_events").write_text(f"p:netacc/cq_event {COPIES / LIBRARY}:{_file_offset('ibv_ack_cq_events'):#x}\n")


def _file_offset(symbol):
    address = int(re.search(rf"^(\w+) T {symbol}@@", world.command("nm", "-D", str(COPIES / LIBRARY)), re.M)[1], 16)
    for line in world.command("readelf", "-lW", str(COPIES / LIBRARY)).splitlines():
        word = line.split()
        if word and word[0] == "LOAD":
            offset, start, size = int(word[1], 16), int(word[2], 16), int(word[4], 16)
            if start <= address < start + size:
                return address - start + offset
    raise ValueError(f"{symbol} is in no segment of {LIBRARY}")


def verbs(pid):
    path = VERBS / str(pid)
    return dict(zip(CALLS, struct.unpack(f"{len(CALLS)}Q", path.read_bytes()))) if path.exists() else dict.fromkeys(CALLS, 0)


class Tally:
    """A count in the kernel per thread, from now on."""

    def __init__(self, event, keys):
        self.folder = TRACING / "events" / event
        self.trigger = f"hist:keys={keys}:size=4096"
        (self.folder / "trigger").write_text(self.trigger)

    def read(self):
        """[({key: text}, count)]"""
        lines = (self.folder / "hist").read_text().splitlines()
        found = []
        for line in lines:
            entry = re.match(r"\{ (.*) \} hitcount:\s+(\d+)", line)
            if entry:
                keys = dict(part.split(":", 1) for part in entry[1].split(", "))
                found.append(({k.strip(): v.strip() for k, v in keys.items()}, int(entry[2])))
        return found

    def end(self):
        (self.folder / "trigger").write_text("!" + self.trigger)


class Watch:
    """Counts for some processes from `begin` on; all of their threads must still be there at `end`."""

    def __init__(self, pids):
        self.before = {pid: verbs(pid) for pid in pids}
        self.calls = Tally("raw_syscalls/sys_enter", "common_pid,id.syscall")
        self.events = Tally("netacc/cq_event", "common_pid")

    def end(self):
        calls, events = self.calls.read(), self.events.read()
        self.calls.end()
        self.events.end()
        found = {}
        for pid, before in self.before.items():
            threads = set(os.listdir(f"/proc/{pid}/task"))
            by_name = collections.Counter()
            for keys, count in calls:
                if keys["common_pid"] in threads:
                    by_name[keys["id"].split("[")[0].removeprefix("sys_").strip()] += count
            now = verbs(pid)
            found[pid] = {name: now[name] - before[name] for name in CALLS} | {
                "events": sum(n for keys, n in events if keys["common_pid"] in threads),
                "system_calls": by_name.total(), "by_name": dict(by_name)}
        return found


def idle_seconds():
    """Idle seconds of the machine's processors since it started: all other time is work, whatever it is charged to."""
    with open("/proc/stat") as stat:
        fields = stat.readline().split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def now():
    return time.monotonic()
