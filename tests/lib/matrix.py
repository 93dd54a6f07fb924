"""Registers test cases and runs them, for every suite whose tests are functions of a `Ctx`.

Every case runs in a process of its own: a hang or a crash is one failed test, and all that the test started
can be found and ended, because orphans come back to that process. pytest runs the cases (tests/conftest.py); in the
virtual machine, whose emulated processor would take long to load pytest, `answers` does.
"""

import fnmatch
import json
import os
import pathlib
import select
import shutil
import tempfile
import time
import traceback

import harness
import host

ALL = ("plain", "client", "server", "both")

# The beginning of a line that `answers` writes.
ANSWER = "\x1e"

_cases = []
# Processes of ours that run across cases and must not be ended with one.
kept = set()


class Case:
    def __init__(self, module, function, modes, limit, seldom):
        self.base = f"{module.removeprefix('test_')}.{function.__name__.rstrip('_')}"
        self.function = function
        self.modes = modes
        self.limit = limit
        self.seldom = seldom


def case(modes=None, limit=90, seldom=False):
    """Registers a test, which runs in all modes of its suite if none are named. `seldom` means that it runs only in whole
    runs, and if it is named."""
    def register(function):
        _cases.append(Case(function.__module__, function, modes, limit, seldom))
        return function
    return register


def registered():
    """The cases that were registered since the last call of `taken`."""
    return tuple(_cases)


def taken(modes):
    """Takes the cases that were registered since the last call: [(case, mode, name)]."""
    found = [(c, mode, f"{c.base}[{mode}]") for c in _cases for mode in (modes if c.modes is None else c.modes)]
    _cases.clear()
    return found


def pattern_fits(pattern, name):
    """Whether a shell pattern matches a name. Brackets are no pattern but part of the name."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _body(context, entry, mode, enter, seed, directory):
    """Runs the function in the child, cleans up, and returns what happened."""
    ctx = context(mode, enter(), seed, directory)
    problem = skipped = None
    try:
        entry.function(ctx)
    except harness.Skipped as reason:
        skipped = str(reason)
    except (harness.Failure, TimeoutError, AssertionError) as failure:
        problem = str(failure) or repr(failure)
    except Exception as failure:
        problem = f"{type(failure).__name__}: {failure}\n{traceback.format_exc(limit=-4)}"
    evidence = []
    if problem:
        evidence = [f"running: {host.describe(p)}" for p in host.descendants(os.getpid())] + harness.evidence(directory)
    complaints = ctx.close()
    if complaints and not problem:
        problem, evidence = "; ".join(complaints), harness.evidence(directory)
    elif complaints:
        evidence.extend(complaints)
    return {"problem": problem, "evidence": evidence, "skipped": skipped, "parts": ctx.parts}


def _child(write_end, *args):
    def give_up(*_):
        for left in host.descendants(os.getpid()):
            host.kill_tree(left)
        shutil.rmtree(args[-1], ignore_errors=True)
        os._exit(1)

    os.setsid()
    host.become_subreaper()
    host.follow_parent(give_up)
    try:
        answer = _body(*args)
    except BaseException:
        answer = {"problem": f"the test itself broke: {traceback.format_exc(limit=-4)}", "evidence": []}
    try:
        with os.fdopen(write_end, "w") as pipe:
            json.dump(answer, pipe)
    finally:
        os._exit(0)


def run_one(context, entry, mode, enter, seed):
    """Runs a case and returns {problem, evidence, skipped, parts, processor}. `enter` moves the case's process into its
    network."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nacctest."))
    # Workers that have dropped their privileges must still reach the files.
    directory.chmod(0o755)
    try:
        return _supervise(context, entry, mode, enter, seed, directory)
    finally:
        if not os.environ.get("NETACC_TEST_KEEP"):
            shutil.rmtree(directory, ignore_errors=True)


def _supervise(context, entry, *args):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(write_end, context, entry, *args)
    os.close(write_end)
    text, end, hung = b"", time.monotonic() + entry.limit, None
    try:
        while True:
            ready, _, _ = select.select([read_end], [], [], max(0, end - time.monotonic()))
            if not ready:
                hung = [host.describe(p) for p in host.descendants(pid)]
                break
            part = os.read(read_end, 65536)
            if not part:
                break
            text += part
    except BaseException:
        host.kill_tree(pid)
        raise
    os.close(read_end)
    if hung is not None:
        host.kill_tree(pid)
    _, _, used = os.wait4(pid, 0)
    # Processes that a killed or crashed test left behind are our children now.
    ours = {p for pid in kept for p in host.tree(pid)}
    for left in host.descendants(os.getpid()):
        if left not in ours:
            host.kill_tree(left)
    if not kept:
        host.reap()
    # The processor time of the case and of all processes that it waited for, which does not depend on the machine's load.
    processor = {"processor": used.ru_utime + used.ru_stime}
    if hung is not None:
        return {"problem": f"not done within {entry.limit} s", "evidence": hung + harness.evidence(args[-1])} | processor
    try:
        return json.loads(text) | processor
    except ValueError:
        return {"problem": "the test's process died", "evidence": harness.evidence(args[-1])}


def answers(names, cases, context, enter, seed):
    """Runs these cases in their order, and writes a line with the result of each, which machine.py reads."""
    by_name = {name: (entry, mode) for entry, mode, name in cases}
    host.become_subreaper()
    host.exit_on_signals()
    failed = 0
    for name in names:
        entry, mode = by_name[name]
        answer = run_one(context, entry, mode, enter, seed)
        failed += answer["problem"] is not None
        print(ANSWER + json.dumps(answer | {"name": name}), flush=True)
    return 1 if failed else 0
