"""Many connections: few of them active, or all of them idle."""

import os
import time

from . import idle, proc
from .case import Case, Metric, Target


class Echo:
    """An echo server and a client that opens connections to it on command."""

    def __init__(self, side, program, cores=(None, None)):
        self.side = side
        self.server = side.start(program, "server", core=cores[0])
        self.client = None
        try:
            told = self.server.read_json()
            self.server_pid = told["pid"]
            self.watch = side.watch(self.server_pid)
            self.client = side.start(program, "client", told["port"], stdin=True, core=cores[1])
            self.client_pid = self.client.pid
        except BaseException:
            self.close()
            raise

    def ask(self, command, timeout=60.0):
        try:
            self.client.send_line(command)
            return self.client.read_json(timeout)
        except proc.Failed as error:
            # The side that broke first knows more.
            raise proc.Failed(f"{command}: {error}\n{self.server.errors()}".strip()) from None

    def cpu(self):
        return proc.cpu_seconds(self.server_pid) + proc.cpu_seconds(self.client_pid)

    def pids(self):
        return (self.server_pid, self.client_pid)

    def proof(self):
        return {"proof": self.watch.result()} if self.watch else {}

    def close(self):
        for child in (self.client, self.server):
            if child:
                child.stop()


class FewActive(Case):
    """One (and ten) active of 1 to 10,000 connections, all in one epoll set on each side.

    Server and client stay on a core each: where the scheduler puts them otherwise
    differs from start to start, and more than the number of connections matters.
    """

    name = "connections"
    title = "echo, one active of 1 to 10,000 connections"
    counts = (1, 100, 1_000, 10_000)
    headline = "rps_1"
    seconds = (1.0, 0.4)
    metrics = (
        *(Metric(f"rps_{n}", f"requests/s, 1 active of {n:,}", "more", 0) for n in counts),
        Metric("rps_10_of_10000", "requests/s, 10 active of 10,000", "more", 0),
        Metric("cpu_us_1", "CPU us/request, 1 of 1", "less", 2),
        Metric("cpu_us_10000", "CPU us/request, 1 of 10,000", "less", 2),
        Metric("open_us", "us to open a connection", "less", 1),
    )
    targets = (Target("rps_10000", "share", 0.8, 0.95, of="rps_1"),)

    def sample(self, side):
        self.note("connections: server and client stay on a core each, where there are two")
        cores = sorted(os.sched_getaffinity(0))
        echo = Echo(side, self.lab.program("manyconn"), (cores[0], cores[-1]))
        values = {metric.key: None for metric in self.metrics}
        try:
            have = 0
            for count in self.counts:
                told = echo.ask(f"open {count - have}")
                have += told["opened"]
                if have < count:
                    self.note(f"{side.title}: {have:,} of {count:,} connections: {told['why']}")
                    break
                values["open_us"] = told["seconds"] / told["opened"] * 1e6
                echo.ask("each 64")
                self.lab.progress.tick()
                rps, cpu = self._active(echo, 1)
                values[f"rps_{count}"] = rps
                values[f"cpu_us_{count}"] = cpu
            else:
                values["rps_10_of_10000"], _ = self._active(echo, 10)
            return {**values, **echo.proof()}
        finally:
            echo.close()

    def _active(self, echo, active):
        before = echo.cpu()
        told = echo.ask(f"run {self.lab.seconds(*self.seconds)} {active}")
        cpu = echo.cpu() - before
        return told["requests"] / told["seconds"], cpu * 1e6 / told["requests"]


class Memory(Case):
    """Memory of both processes per idle connection, at three points of its life."""

    name = "memory"
    title = "memory per idle connection (both processes)"
    count = 1_000
    usual_rounds = 3
    quick_rounds = 1
    headline = "kib_used"
    metrics = (
        Metric("kib_opened", "KiB, opened only", "info", 2),
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
        echo = Echo(side, self.lab.program("manyconn"))
        try:
            # What the first connection sets up once does not count for the others.
            echo.ask("open 1")
            echo.ask("each 65536")
            before, system = idle.settled_pss(echo.pids()), idle.meminfo()
            values = {}
            for key, command in (
                ("kib_opened", f"open {self.count}"),
                ("kib_used", "each 64"),
                ("kib_bulk", "each 65536"),
            ):
                told = echo.ask(command)
                if told.get("opened", self.count) < self.count:
                    raise proc.Failed(f"only {told['opened']} connections: {told['why']}")
                self.lab.progress.tick()
                values[key] = (idle.settled_pss(echo.pids()) - before) / self.count
            now = idle.meminfo()
            values["slab_kib"] = (now["Slab"] - system["Slab"]) / self.count
            values["shmem_kib"] = (now["Shmem"] - system["Shmem"]) / self.count
            return {**values, **echo.proof()}
        finally:
            echo.close()


class Idle(Case):
    """What 1,000 connections cost a server while nobody says anything."""

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
        """Both sides at once: they are idle, so they do not disturb each other."""
        echoes = {}
        try:
            for side in self.lab.sides:
                announce(side)
                echo = echoes[side.name] = Echo(side, self.lab.program("manyconn"))
                told = echo.ask(f"open {self.count}")
                if told["opened"] < self.count:
                    raise proc.Failed(f"only {told['opened']} connections: {told['why']}")
                echo.ask("each 64")
            return self._observe(echoes)
        finally:
            for echo in echoes.values():
                echo.close()

    def _observe(self, echoes):
        pids = [pid for echo in echoes.values() for pid in echo.pids()]
        idle.wait_quiet(pids)
        window = self.lab.seconds(*self.seconds)
        self.note(f"idle: observed for {window:.0f} s")
        before = {pid: idle.activity(pid) for pid in pids}
        end = time.monotonic() + window
        while time.monotonic() < end:
            time.sleep(0.25)  # the measured time itself
            self.lab.progress.tick()
        spent = {pid: idle.activity(pid) - before[pid] for pid in pids}
        return {name: self._values(echo, spent, window) for name, echo in echoes.items()}

    def _values(self, echo, spent, window):
        server, client = (spent[pid] for pid in echo.pids())
        calls = 0
        if server.switches or server.cpu_ns:
            calls, how = idle.count_syscalls(echo.server_pid, window)
            self.note(f"idle {echo.side.title} server: {how}")
        return {
            "syscalls": calls,
            "switches": server.switches,
            "cpu_ms": server.cpu_ns / 1e6,
            "client_switches": client.switches,
            "client_cpu_ms": client.cpu_ns / 1e6,
            **echo.proof(),
        }


ALL = (FewActive, Memory, Idle)
