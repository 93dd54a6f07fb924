"""What pytest collects here: the cases that `matrix.case` registers in tests/*/test_*.py, once per mode, and the C programs of
tests/apps. How one is run, alone in its process and with all that it started ended, is tests/lib/matrix.py's; which suites there
are is tests/lib/suites.py's. tests/run calls this.
"""

import collections
import itertools
import json
import os
import pathlib
import random
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))

import host  # noqa: E402
import matrix  # noqa: E402
import suites  # noqa: E402
from harness import ROOT, Failure, Skipped  # noqa: E402
from suites import SUITES, TESTS  # noqa: E402

LOGS = ROOT / "build" / "test-logs"


def pytest_addoption(parser):
    group = parser.getgroup("netacc")
    group.addoption("--seed", type=int, help="of what the cases draw by lot, and of those that take turns")
    group.addoption("--pick", action="append", default=[], metavar="PATTERN",
                    help="only these: SUITE, or MODULE, CASE, CASE[MODE] with SUITE/ before it or without; or a pattern of them")
    group.addoption("--mode", action="append", default=[], help="only these modes")
    group.addoption("--list", action="store_true", help="name the tests and end")
    group.addoption("--whole", action="store_true", help="also what is not in every run")


def pytest_configure(config):
    if config.option.seed is None:
        config.option.seed = int.from_bytes(os.urandom(3), "big")
    host.become_subreaper()
    config.known = suites.KnownFailures()
    config.pluginmanager.register(Report(config), "netacc-report")


def pytest_report_header(config):
    return f"seed {config.option.seed}"


# Collection


class CaseFailed(Exception):
    pass


class CaseItem(pytest.Item):
    """A case in one mode."""

    def __init__(self, *, suite, entry, mode, title, **more):
        super().__init__(**more)
        self.suite, self.entry, self.mode, self.case, self.title = suite, entry, mode, title, f"{suite.name}/{title}"
        # A case keeps its limit in a process of its own, and what it started is ended then; this is for what that does not end.
        self.add_marker(pytest.mark.timeout(entry.limit + suite.patience, func_only=True))
        if group := suite.group(entry):
            self.add_marker(pytest.mark.xdist_group(group))

    def setup(self):
        self.suite.be_prepared()

    def runtest(self):
        answer = self.suite.run(self, self.config.option.seed)
        self.user_properties.append(("processor", f"{answer.get('processor', 0):.2f}"))
        parts = answer.get("parts") or {}
        known = self.config.known
        wrong = {part: why for part, why in parts.items() if why and not known.why(f"{self.title}/{part}")}
        if parts:
            counts = {"passed": sum(not why for why in parts.values()), "failed": len(wrong)}
            self.user_properties.append(("parts", json.dumps(counts)))
        if answer["problem"] is not None:
            raise CaseFailed("\n".join([answer["problem"], *answer["evidence"]]))
        if wrong:
            raise CaseFailed("\n".join(f"{part}: {why}" for part, why in wrong.items()))
        if answer.get("skipped"):
            pytest.skip(answer["skipped"])

    def repr_failure(self, info, style=None):
        if isinstance(info.value, (CaseFailed, Failure)):
            return str(info.value)
        return super().repr_failure(info, style)

    def reportinfo(self):
        return self.path, None, self.title


class Lost(CaseItem):
    """Fails for what could not be collected, so that it is not passed over."""

    def __init__(self, *, why, **more):
        self.why = why
        super().__init__(entry=LOST, mode=None, **more)

    def setup(self):
        pass

    def runtest(self):
        raise CaseFailed(self.why)


LOST = matrix.Case("lost", lambda ctx: None, None, 90, False)


class CaseFile(pytest.File):
    def collect(self):
        suite = SUITES[self.path.parent.name]
        if why := suite.broken.get(self.path.stem) if suite.cases is not None else None:
            yield Lost.from_parent(self, name="module", suite=suite, title=self.path.stem.removeprefix("test_"), why=why)
        for entry, mode, title in suite.cases.get(self.path.stem, ()):
            function, mode_part = title.split(".", 1)[-1].split("[", 1)
            yield CaseItem.from_parent(self, name=f"{function}[{mode_part}", suite=suite, entry=entry, mode=mode, title=title)


# What is wrong before there is a suite.
COLLECTION = suites.Suite("collection", "what is named and not there", together=False)


def pytest_collect_file(file_path, parent):
    suite = SUITES.get(file_path.parent.name) if file_path.parent.parent == TESTS else None
    if suite and suite.has(file_path):
        return CaseFile.from_parent(parent, path=file_path)
    return None


def fits(pattern, item):
    if pattern in SUITES:
        return item.suite.name == pattern
    base = item.case.partition("[")[0]
    names = {item.case, base, base.partition(".")[0]}
    names |= {item.suite.name, *(f"{item.suite.name}/{name}" for name in names)}
    return pattern in names or any(matrix.pattern_fits(pattern, name) for name in names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session, config, items):
    option = config.option
    order = list(SUITES)
    items.sort(key=lambda item: order.index(item.suite.name))
    # A folder, a file or a test named by its path is meant as much as a name.
    named = option.pick or any("::" in argument for argument in config.args)
    wanted = [item for item in items if not option.pick or any(fits(pattern, item) for pattern in option.pick)]
    wanted = [item for item in wanted if not option.mode or item.mode in option.mode]
    lost = [f"no test fits {pattern}" for pattern in option.pick if not any(fits(pattern, item) for item in items)]
    if config.args == ["tests"] and not option.pick and not option.mode:
        lost += [f"there is no test of {name}" for name in SUITES if not any(item.suite.name == name for item in wanted)]
    if not option.whole:
        by_name = {item for item in wanted if named and any(p not in SUITES and fits(p, item) for p in option.pick or ["*"])}
        for suite in SUITES.values():
            of_suite = [item for item in wanted if item.suite is suite]
            kept = by_name.union(suite.turn(of_suite, random.Random(option.seed)))
            kept |= {item for item in of_suite if isinstance(item, Lost)}
            wanted = [item for item in wanted if item.suite is not suite or item in kept]
    wanted += [Lost.from_parent(session, name=why, suite=COLLECTION, title=why, why=why) for why in lost]
    left = set(wanted)
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = wanted
    for suite in SUITES.values():
        suite.chosen = [item for item in wanted if item.suite is suite]
        for item in suite.chosen:
            if why := config.known.why(item.title):
                item.add_marker(pytest.mark.xfail(reason=why, strict=False))


def pytest_collection_finish(session):
    if session.config.option.list:
        print(*(item.title for item in session.items), sep="\n", flush=True)
        session.items.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    # What a case says of itself as `Skipped` outside of its own process.
    if call.excinfo is not None and isinstance(call.excinfo.value, Skipped):
        call.excinfo = pytest.ExceptionInfo.from_exc_info(_skip(str(call.excinfo.value)))


def _skip(reason):
    try:
        pytest.skip(reason)
    except BaseException:
        return sys.exc_info()


def pytest_sessionfinish(session):
    for suite in SUITES.values():
        suite.end()


# Report

WORDS = ("passed", "failed", "skipped", "known")

class Report:
    """Counts, a log for each suite, what has failed as it fails, and how long everything took."""

    def __init__(self, config):
        self.config = config
        self.active = not hasattr(config, "workerinput") and not config.option.list
        self.counts = collections.defaultdict(collections.Counter)
        self.seconds = collections.defaultdict(float)
        self.processor = {}
        self.logs = set()
        # Lines that say which cases have failed and why, for the end of the report.
        self.failures = []
        self.begun = time.monotonic()
        if self.active:
            LOGS.mkdir(parents=True, exist_ok=True)

    def title(self, report):
        return report.location[2]

    def pytest_runtest_logreport(self, report):
        if not self.active:
            return
        title = self.title(report)
        suite = title.partition("/")[0]
        self.seconds[title] += report.duration
        if report.when != "call" and report.passed:
            return
        counts = self.counts[suite]
        properties = dict(report.user_properties)
        parts = json.loads(properties["parts"]) if "parts" in properties else None
        self.processor[title] = float(properties.get("processor", 0))
        known = hasattr(report, "wasxfail")
        if known:
            counts["known"] += 1
        elif report.skipped:
            counts["skipped"] += 1
        elif parts:
            counts.update(parts)
            if report.failed and not parts["failed"]:
                counts["failed"] += 1
        else:
            counts["passed" if report.passed else "failed"] += 1
        word = "not yet" if known else "skipped" if report.skipped else "FAIL" if report.failed else "ok"
        self.write(suite, title, word, report)

    def write(self, suite, title, word, report):
        said = report.longreprtext if report.failed else getattr(report, "wasxfail", "") or (
            report.longrepr[2] if report.skipped else "")
        # The output of an earlier run is removed when the suite writes its first line.
        with open(LOGS / f"{suite}.log", "w" if suite not in self.logs else "a", errors="replace") as log:
            self.logs.add(suite)
            print(f"{word} {title} ({self.seconds[title]:.1f} s)" + (f": {said}" if said else ""), file=log)
            for _, text in report.sections:
                log.writelines(f"    {line}\n" for line in text.splitlines())
        if word == "FAIL":
            # Which of xdist's workers it was says nothing.
            lines = [line for line in said.splitlines() if not line.startswith("[gw")]
            # Of a traceback, what was raised stands at the end.
            first, *more = [line for line in lines if line.startswith("E  ")] + lines if len(lines) > 40 else lines or [""]
            print(f"\nFAIL {title}: {first[:400]}", *(f"    {line[:300]}" for line in more[:40]), sep="\n", flush=True)
            # Of what a case found, its parts come first, and the output of its programs last.
            parts = itertools.takewhile(lambda line: not line.startswith("  "), more[:20])
            self.failures += [f"FAIL {title}: {first[:1000]}", *(f"    {line[:300]}" for line in parts)]

    def pytest_terminal_summary(self, terminalreporter):
        if not self.active:
            return
        write = terminalreporter.write_line
        slow = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        (LOGS / "durations").write_text("seconds, of the processor, case\n" + "".join(
            f"{seconds:8.2f} {self.processor.get(title, 0):8.2f} {title}\n" for title, seconds in slow))
        write("the longest (all of them: build/test-logs/durations):")
        for title, seconds in slow[:15]:
            write(f"{seconds:8.1f} s  {self.processor.get(title, 0):6.1f} s of processor  {title}")
        write(f"{'suite':16}{'passed':>8}{'failed':>8}{'skipped':>8}{'not yet':>8}{'seconds':>9}{'processor':>10}")
        for name in ("collection", *SUITES):
            counts = self.counts.get(name)
            if counts:
                seconds, processor = (sum(s for title, s in of.items() if title.startswith(f"{name}/"))
                                      for of in (self.seconds, self.processor))
                write(f"{name:16}" + "".join(f"{counts[k]:8}" for k in WORDS) + f"{seconds:9.0f}{processor:10.0f}")
        (LOGS / "counts.json").write_text(json.dumps({name: dict(counts) for name, counts in self.counts.items()}))
        for line in self.failures:
            write(line)
        write(f"seed {self.config.option.seed}, {time.monotonic() - self.begun:.0f} s")
