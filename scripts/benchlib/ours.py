"""The workloads of netacc_bench, of which one run measures both sides in turn and prints every round as JSON."""

import json
import os
import re
import time

from . import proc, sides
from .case import Case

ENDS = {"tcp": "plain", "netacc": "both"}


def tool():
    path = os.environ.get("NETACC_BENCH") or os.path.join(sides.BUILD, "netacc_bench")
    if not os.access(path, os.X_OK):
        raise proc.Failed(f"{path} does not exist: run make first")
    return path


def measure(lab, workload, rounds, seconds, *options):
    """Runs netacc_bench and returns {side: [values of a round]} in the order of the rounds; those of NetACC have a `proof`."""
    argv = [tool(), "client", "-J", "--no-icmp", "-w", workload, "-e", ",".join(ENDS.values()), "-r", rounds, "-t", seconds]
    done = proc.run([*map(str, argv), *map(str, options)], lab.sides[0].env, 600, lab.progress.tick, good=(0, 1))
    try:
        cells = {cell["name"]: cell for cell in json.loads(done.output)["workloads"][0]["ends"]}
    except (json.JSONDecodeError, LookupError):
        raise proc.Failed(done.errors or f"netacc_bench: unexpected output: {done.output[-200:]}") from None
    return {side: _rounds(side, cells[ends]) for side, ends in ENDS.items()}


def _rounds(side, cell):
    if cell["error"]:
        raise proc.Failed(cell["error"])
    found = []
    for values in cell["rounds"]:
        paths = values.pop("connections")
        if values.pop("counts"):
            found.append({**values, "proof": paths} if side == "netacc" else values)
    return found


class Ours(Case):
    """A case that one run of netacc_bench measures, all rounds of it."""

    workload = ""
    steps_per_round = 0
    beginning = "both sides in turn"
    seconds = (1.0, 0.4)

    def options(self):
        return ()

    def values(self, found):
        """The metrics of a round, from the values that netacc_bench prints."""
        raise NotImplementedError

    def measured(self):
        """Measures all rounds and returns {side: [values of a round]}."""
        rounds, seconds = self.rounds(self.lab.settings), self.lab.seconds(*self.seconds)
        found = measure(self.lab, self.workload, rounds, seconds, *self.options())
        return {side: [self._with_proof(one) for one in rounds] for side, rounds in found.items()}

    def _with_proof(self, found):
        proof = {"proof": found["proof"]} if "proof" in found else {}
        return {**self.values(found), **proof}

    def round(self, index, announce):
        if index == 0:
            self.all = self.measured()
        return {side: rounds[index] for side, rounds in self.all.items()}


class Held:
    """Idle connections of netacc_bench on one side, whose processes are measured from outside."""

    SECONDS = 120  # longer than any measurement takes

    def __init__(self, side, count, size):
        self.side = side
        self.client = None
        self.server = proc.Child([tool(), "server", "-p", "0", "-B", "127.0.0.1"], side.env, stdin=True)
        try:
            told = self.server.read_line()
            ports = re.search(r"listens on port (\d+) ", told)
            if not ports:
                raise proc.Failed(f"netacc_bench: unexpected output: {told}")
            self.server_pid = next(pid for pid in _children(self.server.pid) if _accelerated(pid) == (side.name == "netacc"))
            self.watch = side.watch(self.server_pid)
            argv = [tool(), "client", "127.0.0.1", "-p", ports[1], "-w", "requests", "-c", "0", "--idle", count, "--request",
                    size, "--reply", size, "-e", ENDS[side.name], "-t", self.SECONDS, "-r", "1"]  # fmt: skip
            self.client = proc.Child([*map(str, argv)], side.env, stdout="file")
            self.client_pid = self._await(count)
        except BaseException:
            self.close()
            raise

    def _await(self, count):
        """Waits until all connections are made, and returns the client's measuring process."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for pid in _children(self.client.pid):
                if _sockets(pid) >= count:
                    return pid
            if self.client.wait(0.05) is not None:
                raise proc.Failed(f"{self.client.failure('ended')} {self.client.output()[-300:]}")
        raise self.client.failure(f"has not opened {count} connections in a minute")

    def pids(self):
        return (self.server_pid, self.client_pid)

    def proof(self):
        return {"proof": self.watch.result()} if self.watch else {}

    def close(self):
        for child in (self.client, self.server):
            if child:
                child.stop()


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [int(child) for child in children.read().split()]


def _accelerated(pid):
    with open(f"/proc/{pid}/environ", "rb") as environ:
        return any(word.startswith(b"LD_PRELOAD=") and b"netacc" in word for word in environ.read().split(b"\0"))


def _sockets(pid):
    count = 0
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            count += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    except FileNotFoundError:
        pass  # A descriptor was closed, or the process has ended; it is checked again.
    return count
