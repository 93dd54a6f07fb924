"""The suites of tests/: where each finds its modules, in which environment its cases run, and what it needs before them.

A suite is a folder of `test_*.py`, whose functions are registered by `matrix.case`. Each folder has helper modules of its own,
whose names may occur in several suites, so a suite's modules can be imported only while it is loaded or run.
"""

import collections
import contextlib
import functools
import importlib
import os
import pathlib
import resource
import sys
import traceback

import harness
import host
import machine
import matrix
import programs

TESTS = pathlib.Path(__file__).resolve().parents[1]
ONE = ("both",)


def enter_network_of_servers():
    """Enters a network of its own, and raises the limit of descriptors for a crowd of clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    return host.enter_own_network()


class Suite:
    """A folder of test modules. `modes` are those in which a case runs that names none. `also` are folders whose helpers the
    suite uses. `enter` moves a case's process into its network and returns whether that is its own. `prepare` is a function
    `module.function` that is called once before the first case. `together` means that the suite's cases run one after the
    other; those of other suites may run beside them."""

    # Seconds beyond a case's limit, which its own supervisor enforces, after which it is given up from outside.
    patience = 30

    def __init__(self, name, what, modes=matrix.ALL, also=(), enter=host.enter_own_network, prepare=None, together=True):
        self.name, self.what, self.modes, self.enter, self.prepare, self.together = name, what, modes, enter, prepare, together
        self.folder = TESTS / name
        self.path = [str(self.folder), *(str(TESTS / other) for other in also)]
        self.modules = {}
        self.prepared = None
        # The files that could not be loaded: {stem: why}.
        self.broken = {}
        # The items of the run, in their order.
        self.chosen = []

    @contextlib.contextmanager
    def names(self):
        """A context in which the suite's modules can be imported, and in which no other module has one of their names."""
        sys.path[:0] = self.path
        sys.modules.update(self.modules)
        before = set(sys.modules) - set(self.modules)
        try:
            yield
        finally:
            for entry in self.path:
                sys.path.remove(entry)
            for name in set(sys.modules) - before:
                file = getattr(sys.modules[name], "__file__", None) or ""
                if any(file.startswith(f"{folder}/") for folder in self.path):
                    self.modules[name] = sys.modules.pop(name)

    def has(self, path):
        return path.match("test_*.py")

    @functools.cached_property
    def cases(self):
        """The cases of each file, {stem: [(case, mode, name)]}, in the order of the source."""
        found = collections.defaultdict(list)
        with self.names():
            for path in sorted(self.folder.glob("test_*.py")):
                try:
                    importlib.import_module(path.stem)
                except Exception:
                    self.broken[path.stem] = traceback.format_exc(limit=-4)
            for entry, mode, name in matrix.taken(self.modes):
                found[entry.function.__module__].append((entry, mode, name))
        return found

    def group(self, entry):
        return self.name if self.together else None

    def turn(self, items, chance):
        """Those of the items that belong to a run that is not whole."""
        return [item for item in items if not item.entry.seldom]

    def be_prepared(self):
        """Calls `prepare` once, with the names of the modules whose cases were chosen, and raises its exception each time."""
        if self.prepare and self.prepared is None:
            module, function = self.prepare.split(".")
            chosen = {item.path.stem for item in self.chosen}
            with self.names():
                try:
                    getattr(importlib.import_module(module), function)(chosen)
                    self.prepared = True
                except Exception as problem:
                    self.prepared = harness.Failure(f"the suite cannot be prepared: {problem}")
        if isinstance(self.prepared, Exception):
            raise self.prepared

    def run(self, item, seed):
        with self.names():
            return matrix.run_one(harness.Ctx, item.entry, item.mode, self.enter, seed)

    def end(self):
        """Cleans up at the end of the run."""


class Programs(Suite):
    """The suite of the C programs. Of those that an operator disturbs each run has a part, which the seed chooses."""

    part = 0.5

    def has(self, path):
        return path.suffix == ".c"

    @functools.cached_property
    def cases(self):
        def cases(name):
            modes = [mode for mode in self.modes if programs.runs(name, mode)]
            return [(programs.Program(name), mode, f"{name}[{mode}]") for mode in modes]
        return {name: cases(name) for name in programs.names()}

    def turn(self, items, chance):
        rest = [item for item in items if item.mode not in programs.OPERATED]
        operated = [item for item in items if item not in rest and programs.is_steady(item.entry.base, item.mode)]
        return rest + chance.sample(operated, round(len(operated) * self.part))

    def run(self, item, seed):
        return matrix.run_one(programs.World, item.entry, item.mode, self.enter, seed)


class Musl(Suite):
    """The suite of programs of musl. Of the small programs each run has a part, which the seed chooses."""

    part = 0.25

    def turn(self, items, chance):
        rest = [item for item in super().turn(items, chance) if not item.case.startswith("apps.")]
        small = [item for item in items if item.case.startswith("apps.")]
        return rest + chance.sample(small, round(len(small) * self.part))

    def run(self, item, seed):
        context = programs.World if item.case.startswith("apps.") else harness.Ctx
        with self.names():
            return matrix.run_one(context, item.entry, item.mode, self.enter, seed)


class Rdma(Suite):
    """The suite that runs in the virtual machine, which is booted for the first case and ends with the last."""

    patience = machine.PATIENCE + 30
    vm = None

    def turn(self, items, chance):
        with self.names():
            core = importlib.import_module("core")
        taken = core.core([item.case for item in items], chance)
        return [item for item in items if item.case in taken]

    def run(self, item, seed):
        if not self.vm:
            names = [chosen.case for chosen in self.chosen]
            self.vm = machine.Machine([str(seed), *names], machine.PATIENCE + sum(i.entry.limit for i in self.chosen))
        answer = self.vm.answer(item.case, item.entry.limit)
        if item is self.chosen[-1]:
            self.judge(answer)
        return answer

    def judge(self, answer):
        """Makes the last case fail if the machine's kernel complained or the machine did not end as it should."""
        status, complaints = self.vm.end()
        self.vm = None
        if status not in (0, 1) or complaints:
            answer["problem"] = "; ".join([answer["problem"] or "", f"the machine: exit status {status}", *complaints])

    def end(self):
        if self.vm:
            self.vm.kill()
            self.vm = None


class Fabric(Suite):
    """The cases of RDMA on the devices of a library. Its modules are those of tests/rdma, which one file registers, and its own."""

    @functools.cached_property
    def cases(self):
        found = collections.defaultdict(list)
        for module, cases in super().cases.items():
            found[module if (self.folder / f"{module}.py").exists() else "test_fabric"] += cases
        return found

    def run(self, item, seed):
        with self.names():
            fabric = importlib.import_module("fabric")
            return matrix.run_one(fabric.Ctx, item.entry, item.mode, fabric.enter, seed)


def shared():
    """Stays in the network that we are in."""
    return False


# The suites begin in this order, the longest first.
SUITES = {suite.name: suite for suite in (
    Rdma("rdma", "RDMA, in a virtual machine", modes=("rxe", "siw")),
    Fabric("fabric", "RDMA, with queue pairs over TCP in place of a device", modes=("fabric",), also=("rdma",), together=False),
    Suite("packages", "packages and archives, installed, used and removed in clean systems", also=("servers",),
          prepare="made.prepare"),
    Suite("conformance", "tests of CPython, memcached and redis: what passes on TCP passes accelerated", modes=ONE,
          prepare="judges.prepare"),
    Suite("servers", "real programs", enter=enter_network_of_servers),
    Musl("musl", "programs of musl: small ones, pairs with glibc, real ones", also=("servers", "conformance"),
         enter=enter_network_of_servers, prepare="made.prepare", together=False),
    Suite("storm", "fork, exec, kill, demote and promote at once", modes=ONE, enter=shared),
    Suite("security", "peers of another user that do not keep to the rules", also=("servers",)),
    Suite("check", "netacc_check: recorded hosts, programs, peers"),
    Suite("ss", "netacc_ss: pages of every kind, terminals, metrics", also=("servers",)),
    Suite("bench", "netacc_bench: the matrix, two hosts, strangers"),
    Suite("symbols", "what the library exports and needs, and that it loads anywhere", modes=ONE, enter=shared),
    Suite("layers", "which part of the library knows which, and how large its objects are", modes=ONE, enter=shared),
    Suite("budget", "instructions that the library adds to calls that are not accelerated", modes=ONE),
    Suite("diff", "random sequences of calls, accelerated against kernel", together=False),
    Programs("apps", "small programs on kernel TCP, accelerated, promoted while they run, with an operator who never rests",
             modes=programs.MODES + tuple(programs.OPERATED), enter=shared, together=False),
)}


class KnownFailures:
    """The file of known failures, whose lines are `PATTERN: why`. A shell pattern matches SUITE/CASE[MODE] or
    SUITE/CASE[MODE]/PART."""

    def __init__(self, path=TESTS / "known-failures"):
        self.lines = []
        for line in path.read_text().splitlines():
            pattern, separator, why = line.partition(": ")
            if separator and not line.startswith("#"):
                self.lines.append((pattern, why))

    def why(self, name):
        # The brackets of a name are part of it, and not of a shell pattern.
        return next((why for pattern, why in self.lines if matrix.pattern_fits(pattern, name)), None)
