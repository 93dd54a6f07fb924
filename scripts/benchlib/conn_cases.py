"""Cases with many connections, of which few are active or all are idle."""

import os
import time

from . import idle, proc
from .case import Case, Metric, Target
from .ours import Held, Ours

SIZE = 64


class FewActive(Ours):
    """One or ten active connections of up to 10,000, all in one epoll set on each side.

    Server and client each stay on one core. Otherwise the scheduler places them
    differently at each start, which matters more than the number of connections.
    """

    name = "connections"
    title = "echo, one active of 1 to 10,000 connections"
    workload = "requests"
    counts = (1, 100, 1_000, 10_000)
    headline = "rps_1"
    metrics = (
        *(Metric(f"rps_{n}", f"requests/s, 1 active of {n:,}", "more", 0) for n in counts),
        Metric("rps_10_of_10000", "requests/s, 10 active of 10,000", "more", 0),
        Metric("cpu_us_1", "CPU us/request, 1 of 1", "less", 2),
        Metric("cpu_us_10000", "CPU us/request, 1 of 10,000", "less", 2),
        Metric("open_us", "us to open a connection", "less", 1),
    )
    targets = (Target("rps_10000", "share", 0.8, 0.95, of="rps_1"),)

    def measured(self):
        self.note("connections: server and client stay on a core each, where there are two")
        rounds = self.rounds(self.lab.settings)
        found = {side.name: [dict.fromkeys(m.key for m in self.metrics) for _ in range(rounds)] for side in self.lab.sides}
        for active, count in (*((1, count) for count in self.counts), (10, 10_000)):
            self.active, self.count = active, count
            try:
                part = super().measured()
            except proc.Failed as error:
                self.note(f"{active} active of {count:,} connections: {error}")
                break
            for side, values in part.items():
                for whole, more in zip(found[side], values, strict=True):
                    _merge(whole, more)
        return found

    def options(self):
        cores = sorted(os.sched_getaffinity(0))
        return ("-c", self.active, "--idle", self.count - self.active, "--request", SIZE, "--reply", SIZE,
                "--server-cpu", cores[0], "--cpu", cores[-1])  # fmt: skip

    def values(self, found):
        if self.active > 1:
            return {"rps_10_of_10000": found["per_second"]}
        return {
            f"rps_{self.count}": found["per_second"],
            f"cpu_us_{self.count}": found["cpu_us"],
            "open_us": found["open_us"],
        }


def _merge(whole, more):
    """Adds the counts of connections of another run."""
    proof = more.pop("proof", None)
    if proof:
        so_far = whole.get("proof", {})
        whole["proof"] = {key: count + so_far.get(key, 0) for key, count in proof.items()}
    whole.update(more)


class Memory(Case):
    """The memory of both processes per idle connection, after a small and after a large message."""

    name = "memory"
    title = "memory per idle connection (both processes)"
    count = 1_000
    usual_rounds = 3
    quick_rounds = 1
    headline = "kib_used"
    metrics = (
        Metric("kib_used", "KiB, after a 64-byte message", "info", 2),
        Metric("kib_bulk", "KiB, after a 64 KiB message", "info", 2),
        Metric("slab_kib", "kernel slab KiB, machine-wide", "info", 2),
        Metric("shmem_kib", "Shmem KiB, machine-wide", "info", 2),
    )
    targets = (Target("kib_used", "most", 16, 4, "KiB"),)

    def prepare(self):
        self.note(
            "memory: the processes' own (Pss). A TCP socket's buffers belong to the kernel and are not in it;"
            " slab and Shmem are of the whole machine and show the order of magnitude only"
        )

    def sample(self, side):
        values, proof = {}, {}
        for key, size in (("kib_used", SIZE), ("kib_bulk", 65536)):
            # Memory that the first connection sets up once does not count for the others.
            before, system, _ = self._look(side, 1, size)
            after, now, proof = self._look(side, 1 + self.count, size)
            values[key] = (after - before) / self.count
            values["slab_kib"] = (now["Slab"] - system["Slab"]) / self.count
            values["shmem_kib"] = (now["Shmem"] - system["Shmem"]) / self.count
        return {**values, **proof}

    def _look(self, side, count, size):
        held = Held(side, count, size)
        try:
            self.lab.progress.tick()
            return idle.settled_pss(held.pids()), idle.meminfo(), held.proof()
        finally:
            held.close()


class Idle(Case):
    """The cost of 1,000 idle connections at a server."""

    name = "idle"
    title = "server with 1,000 idle connections"
    count = 1_000
    usual_rounds = 1
    quick_rounds = 1
    seconds = (10.0, 3.0)
    metrics = (
        Metric("syscalls", "system calls of the server", "info", 0),
        Metric("switches", "times the server ran", "info", 0),
        Metric("cpu_ms", "CPU ms of the server", "info", 3),
        Metric("client_switches", "times the client ran", "info", 0),
        Metric("client_cpu_ms", "CPU ms of the client", "info", 3),
    )
    targets = (Target("syscalls", "most", 0),)

    def rounds(self, settings):
        return 1

    def round(self, index, announce):
        """Measures both sides at once, since idle processes do not disturb each other."""
        pairs = {}
        try:
            for side in self.lab.sides:
                announce(side)
                pairs[side.name] = Held(side, self.count, SIZE)
            return self._observe(pairs)
        finally:
            for pair in pairs.values():
                pair.close()

    def _observe(self, pairs):
        pids = [pid for pair in pairs.values() for pid in pair.pids()]
        idle.wait_quiet(pids)
        window = self.lab.seconds(*self.seconds)
        self.note(f"idle: observed for {window:.0f} s")
        before = {pid: idle.activity(pid) for pid in pids}
        end = time.monotonic() + window
        while time.monotonic() < end:
            time.sleep(0.25)  # the measured time itself
            self.lab.progress.tick()
        spent = {pid: idle.activity(pid) - before[pid] for pid in pids}
        return {name: self._values(pair, spent, window) for name, pair in pairs.items()}

    def _values(self, pair, spent, window):
        server, client = (spent[pid] for pid in pair.pids())
        calls = 0
        if server.switches or server.cpu_ns:
            calls, how = idle.count_syscalls(pair.server_pid, window)
            self.note(f"idle {pair.side.title} server: {how}")
        return {
            "syscalls": calls,
            "switches": server.switches,
            "cpu_ms": server.cpu_ns / 1e6,
            "client_switches": client.switches,
            "client_cpu_ms": client.cpu_ns / 1e6,
            **pair.proof(),
        }


ALL = (FewActive, Memory, Idle)
