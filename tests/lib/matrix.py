"""The register of test cases and the loop that runs them, for every suite whose tests are functions of a `Ctx`.

Every case runs in a process of its own: a hang or a crash is one failed test, and all that the test started
can be found and ended, because orphans come back to that process.
"""

import collections
import fnmatch
import importlib
import json
import os
import pathlib
import random
import select
import shutil
import sys
import tempfile
import time
import traceback

import harness
import host

ALL = ("plain", "client", "server", "both")

# `context` makes a test's world, `enter` the network of the whole run (False: it is shared with others), `known` is
# the file with what is known not to work, `core` chooses the names that a run of the core has.
Suite = collections.namedtuple("Suite", "what modes context enter known core", defaults=(None,))
SERVERS = Suite("Run real programs plain and accelerated and compare contents.", ALL, harness.Ctx,
                host.enter_own_network, harness.ROOT / "tests" / "servers" / "not-yet")

_cases = []


class Case:
    def __init__(self, module, function, modes, limit):
        self.base = f"{module.removeprefix('test_')}.{function.__name__.rstrip('_')}"
        self.function = function
        self.modes = modes
        self.limit = limit


def case(modes=None, limit=90):
    """A test; it runs in all modes of its suite if none are named."""
    def register(function):
        _cases.append(Case(function.__module__, function, modes, limit))
        return function
    return register


def not_yet(path):
    """Tests of what is known and written down as not working: {name of the test: why}."""
    found = {}
    for line in path.read_text().splitlines():
        name, separator, why = line.partition(": ")
        if separator and not line.startswith("#"):
            found[name] = why
    return found


def load(names, modes):
    for name in names:
        importlib.import_module(name)
    return [(c, mode, f"{c.base}[{mode}]") for c in _cases for mode in c.modes or modes]


def chosen(entries, patterns, modes):
    def fits(name):
        base = name.partition("[")[0]
        return not patterns or any(
            p in (name, base, base.partition(".")[0]) or fnmatch.fnmatchcase(base, p) for p in patterns)
    return [e for e in entries if fits(e[2]) and (not modes or e[1] in modes)]


def _body(context, entry, mode, own_network, seed, directory):
    """In the child: run the function, clean up, say what happened."""
    ctx = context(mode, own_network, seed, directory)
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
    return {"problem": problem, "evidence": evidence, "skipped": skipped}


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


def run_one(context, entry, mode, own_network, seed):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nacctest."))
    # Workers that gave up their rights must still reach the files.
    directory.chmod(0o755)
    try:
        return _supervise(context, entry, mode, own_network, seed, directory)
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
    os.waitpid(pid, 0)
    # What a killed or crashed test left behind was handed to us.
    for left in host.descendants(os.getpid()):
        host.kill_tree(left)
    host.reap()
    if hung is not None:
        return {"problem": f"not done within {entry.limit} s", "evidence": hung + harness.evidence(args[-1])}
    try:
        return json.loads(text)
    except ValueError:
        return {"problem": "the test's process died", "evidence": harness.evidence(args[-1])}


def main(argv, names, suite=SERVERS):
    import argparse
    parser = argparse.ArgumentParser(description=suite.what)
    parser.add_argument("pattern", nargs="*", help="module, case, case[mode] or a shell pattern of cases")
    parser.add_argument("--list", action="store_true", help="name the tests and end")
    if suite.core:
        parser.add_argument("--core", action="store_true", help="leave out what need not be in every run")
    parser.add_argument("--mode", action="append", choices=suite.modes, help="only these modes")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="all of them so many times, for what shows now and then")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args(argv)
    entries = chosen(load(names, suite.modes), options.pattern, options.mode)
    if suite.core and options.core:
        wanted = suite.core([name for _, _, name in entries], random.Random(options.seed))
        entries = [e for e in entries if e[2] in wanted]
    if options.list:
        print("\n".join(name for _, _, name in entries))
        return 0
    host.become_subreaper()
    host.exit_on_signals()
    own_network = suite.enter()
    print(f"seed {options.seed}, {'own' if own_network else 'shared'} network namespace, {len(entries)} tests", flush=True)
    passed = failed = expected = skipped = 0
    known = not_yet(suite.known)
    for entry, mode, name in entries * options.rounds:
        started = time.monotonic()
        answer = run_one(suite.context, entry, mode, own_network, options.seed)
        seconds = time.monotonic() - started
        if name in known and not options.pattern:
            # Neither passed nor failed, but not unnoticed either: a line that is out of date is seen.
            expected += 1
            print(f"not yet {name}: {known[name]}" + ("" if answer["problem"] else " (passed this time)"), flush=True)
        elif answer["problem"] is None and answer.get("skipped"):
            skipped += 1
            print(f"skipped {name}: {answer['skipped']}", flush=True)
        elif answer["problem"] is None:
            passed += 1
            print(f"ok {name} ({seconds:.1f} s)", flush=True)
        else:
            failed += 1
            first, *more = answer["problem"].splitlines() or [""]
            print(f"FAIL {name}: {first}", flush=True)
            for line in more + answer["evidence"]:
                print(f"    {line}", flush=True)
    if not entries:
        print("no test fits", file=sys.stderr)
        failed = 1
    if expected:
        print(f"{expected} not yet supported, listed in {suite.known.relative_to(harness.ROOT)}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0
