"""How a unit of an outside test suite is judged: plain first, then accelerated, then what differs once more, alone."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import host

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "conformance"
RETRIES = 2

Outcome = collections.namedtuple("Outcome", "state detail", defaults=("",))
OK = Outcome("ok")


class Broken(Exception):
    """The suite cannot be run at all."""


class Tally:
    """The sums of a unit, a judge or all; `outside` are tests that do not pass on TCP here and thus do not count."""

    def __init__(self):
        self.passed = self.failed = self.outside = self.deviating = self.listed_passing = self.connections = 0
        self.tests = {}

    def add(self, other):
        for name in ("passed", "failed", "outside", "deviating", "listed_passing", "connections"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.tests |= other.tests

    def line(self):
        plain = self.passed + self.failed + self.deviating
        text = f"{plain} pass on TCP, {self.passed} of them accelerated, {self.failed} fail"
        if self.deviating:
            text += f", {self.deviating} known deviations"
        if self.listed_passing:
            text += f", {self.listed_passing} listed deviations pass"
        return text + f"; {self.outside} not counted; {self.connections} ends of connections over shared memory"


class World:
    """One way to run a program: on kernel TCP or under NetACC."""

    def __init__(self, accelerated, directory):
        self.accelerated = accelerated
        self.dir = directory
        self.log = directory / "netacc.log"

    def command(self, argv):
        launcher = os.environ.get("NETACC_RUN") or str(ROOT / "build" / "netacc_run")
        return [launcher, *argv] if self.accelerated else list(argv)

    def run(self, argv, limit, cwd=None, env=None):
        """Returns (exit status or None if it took too long, output). Nothing that it started lives on."""
        full = {k: v for k, v in os.environ.items() if not k.startswith("NACC_") and k != "LD_PRELOAD"}
        # At DEBUG the log has a line for each accelerated connection: the proof that the test was about them.
        full.update(LC_ALL="C.UTF-8", NACC_LOG_PATH=str(self.log), NACC_LOG_LEVEL="1", **(env or {}))
        with open(self.dir / "output", "wb") as out:
            process = subprocess.Popen(self.command(argv), cwd=cwd or self.dir, env=full, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                host.kill_tree(process.pid)
                process.wait()
                for pid in host.descendants(os.getpid()):
                    host.kill_tree(pid)
                host.reap()
        return status, (self.dir / "output").read_text(errors="replace")

    def connections(self):
        """How many ends of connections the library reports as accelerated."""
        if not self.log.exists():
            return 0
        with open(self.log, errors="replace") as log:
            return sum(1 for line in log if re.search(r"(connected|accepted).* over shared memory", line))


class Unit:
    """`why(test)`: for what reason a test is known to fail, if it is."""

    def __init__(self, judge, name, why, plain_runs):
        self.judge, self.name, self.why, self.plain_runs = judge, name, why, plain_runs
        self.tally = Tally()
        self.again = {False: [], True: []}

    def once(self, accelerated, only=None):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="nacconf."))
        # A server that gives up root must still reach its files.
        directory.chmod(0o755)
        try:
            world = World(accelerated, directory)
            found = self.judge.run(self.name, world, only)
            self.tally.connections += world.connections()
            return found
        finally:
            if not os.environ.get("NETACC_TEST_KEEP"):
                shutil.rmtree(directory, ignore_errors=True)

    def alone(self, test, accelerated):
        """A test by itself, several times. The first outcome that is not a pass, else a pass.

        Where tests build on each other, by itself means the unit once more.
        """
        for turn in range(RETRIES):
            if not self.judge.chained:
                found = self.once(accelerated, [test])
            else:
                runs = self.again[accelerated]
                if len(runs) <= turn:
                    runs.append(self.once(accelerated))
                found = runs[turn]
            outcome = found.get(test, Outcome("missing"))
            if outcome.state != "ok":
                return outcome
        return OK

    def run(self):
        started = time.monotonic()
        runs = [self.once(False) for _ in range(self.plain_runs)]
        good = [t for t in runs[0] if all(r.get(t, Outcome("missing")).state == "ok" for r in runs)]
        for test in set().union(*runs).difference(good):
            states = [r.get(test, Outcome("missing")) for r in runs]
            self.leave_out(test, "; ".join(f"{o.state} {last_line(o.detail)}".strip() for o in states))
        accelerated = self.once(True)
        notes = []
        for test in good:
            notes += self.settle(test, accelerated.get(test, Outcome("missing")))
        seconds = time.monotonic() - started
        print(f"{'FAIL' if self.tally.failed else 'ok'} {self.judge.name}/{self.name}: {self.tally.line()} "
              f"({seconds:.0f} s)", flush=True)
        if not good:
            self.tally.failed += 1
            notes.append("    nothing passes on TCP: " + "; ".join(
                f"{t} {o.state} {last_line(o.detail)}" for t, o in list(runs[0].items())[:3]))
        for note in notes:
            print(note, flush=True)
        return self.tally

    def leave_out(self, test, why):
        self.tally.outside += 1
        self.tally.tests[test] = f"not counted, on TCP: {why}"

    def settle(self, test, outcome):
        """Count one test that passes on TCP. Returns the lines to show."""
        name = f"{self.judge.name}/{self.name}/{test}"
        why = self.why(test)
        lines = []
        if outcome.state != "ok" and not why:
            retried = self.alone(test, True)
            if retried.state == "ok":
                lines = [f"    retried: {name}: {outcome.state}, then passed {RETRIES} times alone"]
                lines += indent(outcome.detail)
            elif (plain := self.alone(test, False)).state != "ok":
                self.leave_out(test, f"alone {plain.state}")
                return [f"    not counted: {name}: alone on TCP: {plain.state}, alone accelerated: {retried.state}"]
            outcome = retried
        self.tally.tests[test] = "ok" if outcome.state == "ok" else f"deviation: {why}" if why else outcome.state
        if outcome.state == "ok":
            self.tally.passed += 1
            if why:
                self.tally.listed_passing += 1
                lines.append(f"    PASSES, take it off the list if it does so for good: {name}: {why}")
        elif why:
            self.tally.deviating += 1
            lines.append(f"    known deviation: {name}: {outcome.state}: {why}")
        else:
            self.tally.failed += 1
            lines += [f"FAIL {name}: {outcome.state}, also alone, and passes alone on TCP"] + indent(outcome.detail)
        return lines


def last_line(text):
    return text.strip().splitlines()[-1][:200] if text.strip() else ""


def indent(text, most=14):
    return [f"        {line[:240]}" for line in text.strip().splitlines()[-most:] if line.strip()]
