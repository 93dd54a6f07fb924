"""netacc_bench as the tests use it."""

import json
import os
import re
import subprocess

from harness import ROOT, check
from host import wait_until

# Which end is accelerated is what the tool itself decides.
ONE = ("plain",)
SHORT = ("-t", "0.03", "-r", "2")


def tool():
    return os.environ.get("NETACC_BENCH") or str(ROOT / "build" / "netacc_bench")


class Answer:
    """What was printed and how it ended."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err
        check("panicked" not in err, err)

    def good(self):
        check(self.status == 0, f"status {self.status}: {self.err}")
        return self

    def json(self):
        return json.loads(self.good().out)

    def failed(self, status, *parts):
        """The program has ended with this status, without output, and with a readable message."""
        said = f"status {self.status}, {self.out!r}, {self.err!r}"
        check(self.status == status and not self.out, said)
        check(self.err.startswith("netacc_bench: ") or status == 2, said)
        for part in parts:
            check(part in self.err, f"{part!r} is not said: {said}")
        return self


def environment(ctx, extra=None):
    none = ctx.dir / "empty.conf"
    none.write_text("[netacc]\n")
    return ctx.environment({"NACC_CONFIG_FILE": none, **(extra or {})})


def run(ctx, *argv, env=None, within=(), command=None, limit=60, **extra):
    """Runs the program to its end, without this machine's configuration files."""
    full = [*map(str, within), command or tool(), *map(str, argv)]
    done = subprocess.run(full, env=environment(ctx, env), cwd=ctx.dir, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=limit, **extra)
    return Answer(done.returncode, done.stdout, done.stderr)


class Server:
    """`netacc_bench server` on free ports."""

    def __init__(self, ctx, *argv, within=(), env=None, address=None, command=None):
        words = ["server", *([] if "-p" in argv else ["-p", "0"]), *(["-B", address] if address else []), *argv]
        self.proc = ctx.spawn([command or tool(), *words], within=within, env=env)
        line = wait_until(self._line, 30, "the server listens")
        found = re.fullmatch(r"netacc_bench: listens on port (\d+) \(data: port (\d+) plain, port (\d+) accelerated\)", line)
        check(found, line)
        self.port, self.plain, self.netacc = map(int, found.groups())

    def _line(self):
        out = self.proc.stdout()
        check(self.proc.running() or out, f"the server ended: {self.proc.text()}")
        return out.partition("\n")[0] if "\n" in out else None

    def heard(self, part):
        """Waits until the server has written a line."""
        wait_until(lambda: part in self.proc.text(), 30, f"the server says {part!r}: {self.proc.text()}")


def cell(results, workload, ends):
    part = next(w for w in results["workloads"] if w["name"] == workload)
    return next(e for e in part["ends"] if e["name"] == ends)
