"""The sides of every comparison, and the proof that those which should be accelerated really are."""

import json
import os
import shutil

from . import proc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("NETACC_BUILD") or os.path.join(ROOT, "build")


def _tool(variable, name):
    return os.environ.get(variable) or os.path.join(BUILD, name)


class Side:
    """How a program is started on this side."""

    unix = False  # whether its connections are those of a UNIX socket

    def __init__(self, name, title, prefix):
        self.name = name
        self.title = title
        self.prefix = prefix
        self.env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}

    def command(self, *argv):
        program = shutil.which(argv[0])
        if program is None:
            raise proc.Failed(f"{argv[0]} is not installed (scripts/deps bench installs it)")
        return [*self.prefix, program, *_words(argv[1:])]

    def run(self, *argv, timeout=120.0, tick=None):
        return proc.run(self.command(*argv), self.env, timeout, tick, name=_words(argv))

    def start(self, *argv, **options):
        return proc.Child(self.command(*argv), self.env, name=_words(argv), **options)

    def watch(self, pid):
        return None

    def library(self):
        return None

    def close(self):
        pass


def _words(argv):
    return [str(word) for word in argv]


def serving(side, pid, work):
    """Calls `work()` and returns its result, the server's CPU seconds meanwhile, and the observation of the watch as `proof`."""
    watch = side.watch(pid)
    before = proc.cpu_seconds(pid)
    done = work()
    cpu = proc.cpu_seconds(pid) - before
    return done, cpu, {"proof": watch.result()} if watch else {}


class Plain(Side):
    def __init__(self):
        super().__init__("tcp", "TCP", [])


class UnixSocket(Side):
    """UNIX sockets, which a program on one host can use instead of TCP if it is written or configured for them."""

    unix = True

    def __init__(self):
        super().__init__("unix", "UNIX socket", [])


class Accelerated(Side):
    def __init__(self):
        launcher = _tool("NETACC_RUN", "netacc_run")
        if not os.access(launcher, os.X_OK):
            raise proc.Failed(f"{launcher} does not exist: run make first")
        super().__init__("netacc", "NetACC", [launcher])
        self.ss = _tool("NETACC_SS", "netacc_ss")

    def watch(self, pid):
        return Watch(self.ss, pid)

    def library(self):
        path = _tool("NETACC_LIB", "libnetacc-preload.so")
        if not os.path.exists(path):
            raise proc.Failed(f"{path} does not exist: run make first")
        return path


def _find(value, key):
    """The object that has the key, wherever it is in the document."""
    if isinstance(value, dict) and key in value:
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for found in (_find(part, key) for part in inner) if found), None)


class Watch:
    """Counts the connections that a server accepts by each transport between two readings."""

    def __init__(self, ss, pid):
        self.ss = ss
        self.pid = pid
        self.before, self.reason = self._read()

    def _read(self):
        try:
            done = proc.run([self.ss, "-p", str(self.pid), "-s", "cnt", "--json"], timeout=10)
            return _find(json.loads(done.output), "accepts_shm"), None
        except OSError as error:
            return None, f"{self.ss}: {error.strerror}"
        except (proc.Failed, json.JSONDecodeError) as error:
            return None, f"netacc_ss: {error}"

    def result(self):
        after, reason = self._read()
        if self.before is None or after is None:
            why = self.reason or reason or "netacc_ss shows no counter named accepts_shm"
            return {"unknown": why}
        return accepted(self.before, after)


def accepted(before, after):
    """The connections by each transport between two readings of netacc_ss' counters."""
    shm, tcp, over = (after.get(name, 0) - before.get(name, 0) for name in ("accepts_shm", "accepts_tcp", "promotions"))
    return {"shm": shm + over, "tcp": tcp - over}


class Proof:
    """Collects the observations of the watches on one side over all measured rounds of a case. `short_lived` is the number of
    connections of a round that end too soon to leave TCP."""

    # For each side that has a watch: what it counts, the path that should be taken, and how a sentence says so.
    KINDS = {
        "netacc": ("connections", "shm", "over shared memory"),
        "sockmap": ("messages", "redirected", "redirected"),
    }

    def __init__(self, side, short_lived=0):
        self.unit, self.path, self.words = self.KINDS[side]
        self.short_lived = short_lived
        self.fast = 0
        self.tcp = 0
        self.rounds = 0
        self.rounds_without = 0
        self.unknown = None

    def add(self, seen):
        self.rounds += 1
        if "unknown" in seen:
            self.unknown = seen["unknown"]
            return
        self.fast += seen[self.path]
        self.tcp += seen["tcp"]
        self.rounds_without += seen[self.path] == 0

    def verdict(self):
        """Whether everything was accelerated: yes, no or unknown."""
        if self.rounds == 0 or self.unknown:
            return "unknown"
        mostly = self.fast > 0.99 * (self.fast + max(0, self.tcp - self.short_lived * self.rounds))
        return "yes" if mostly and not self.rounds_without else "no"

    def sentence(self):
        if self.rounds == 0:
            return "no accelerated round was measured"
        if self.unknown:
            return f"could not be verified: {self.unknown}"
        return f"{self.fast:,.0f} of {self.fast + self.tcp:,.0f} {self.unit} {self.words}"

    def as_json(self):
        return {
            "accelerated": self.verdict(),
            f"{self.unit}_{self.path}": self.fast,
            f"{self.unit}_tcp": self.tcp,
            "said": self.sentence(),
        }
