"""The judges, and how a unit of one becomes a case whose parts are the unit's tests."""

import json

import judging
import suites
from harness import Failure, check
from judge_cpython import CPython
from judge_memcached import Memcached
from judge_redis import Redis
from matrix import case

LIMIT = 2400


def prepare(_modules=()):
    """Fetches and builds what the judges need: the cases have a network of their own, from which nothing can be fetched."""
    for judge in (CPython, Memcached, Redis):
        try:
            judge()
        except judging.Broken as broken:
            raise Failure(f"{judge.name}: {broken}") from None


def judge(ctx, kind, unit, plain_runs):
    title = f"conformance/{kind.name}.{unit}[{ctx.mode}]"
    known = suites.KnownFailures()
    tally = judging.Unit(kind(), unit, lambda test: known.why(f"{title}/{test}"), plain_runs).run()
    place = judging.BUILD / "results" / f"{kind.name}-{unit.replace('/', '-')}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(tally.tests, indent=1, sort_keys=True) + "\n")
    ctx.parts = {test: "" if what == "ok" else what for test, what in tally.tests.items() if not what.startswith("not counted")}
    check(tally.passed or tally.failed or tally.deviating, "nothing passes on TCP")


def register(kind, module):
    """Every unit as a case of that module; every run has those that are done in some minutes, a whole run has all."""
    for unit in dict.fromkeys((*kind.subset, *kind.units)):
        often = unit in kind.subset

        def judged(ctx, unit=unit, often=often):
            judge(ctx, kind, unit, 1 if often else 2)
        judged.__name__, judged.__module__ = unit, module
        case(limit=LIMIT, seldom=not often)(judged)
