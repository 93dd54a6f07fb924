"""The commands scripts/demo and scripts/bench."""

import argparse
import os
import sys
import tempfile
import time

from . import (
    conn_cases,
    container_cases,
    http_cases,
    pingpong_cases,
    proc,
    real,
    redis_cases,
    report,
    runner,
    show,
    sides,
    startup_cases,
    stream_cases,
)
from .case import Lab, Settings


def _redis():
    return [case() for case in redis_cases.ALL]


def _everything():
    streams = [case() for case in stream_cases.ALL]
    others = [case() for case in (*http_cases.ALL, *conn_cases.ALL, *startup_cases.ALL, *container_cases.ALL)]
    return [*_redis(), *streams, *pingpong_cases.all_cases(), *others, *real.all_cases()]


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a first impression")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds per case and side")
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="only cases whose name begins so (repeatable)"
    )
    parser.add_argument("--list", action="store_true", help="name the cases, also those that only --only runs, and end")
    return parser


def _chosen(parser, cases, only):
    if not only:
        return [case for case in cases if not case.seldom]
    for prefix in only:
        if not any(case.name.startswith(prefix) for case in cases):
            parser.error(f"--only {prefix}: there is no such case; --list names them")
    exact = {case.name for case in cases} & set(only)
    prefixes = [prefix for prefix in only if prefix not in exact]
    return [c for c in cases if c.name in exact or any(c.name.startswith(p) for p in prefixes)]


def _measure(cases, settings, after_each):
    progress = show.Progress()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="netacc-bench-") as scratch:
        lab = Lab(scratch, settings, progress)
        progress.total = sum(runner.steps(case, lab) for case in cases)
        try:
            for case in cases:
                outcomes.append(runner.run_case(case, lab))
                after_each(outcomes)
        finally:
            lab.close()
            proc.stop_all()
            progress.clear()
    return outcomes


def _command(parser, arguments, cases, table, ratio, other, json_path=None):
    """`ratio` explains that word of the table; `other` is the name of the further side, for the cases that have it."""
    if arguments.list:
        width = max(len(case.name) for case in cases)
        for case in cases:
            print(f"{case.name:{width}} {case.title}")
        return 0
    chosen = _chosen(parser, cases, arguments.only)
    others = (other,) if any(other in case.others for case in chosen) else ()
    settings = Settings(arguments.quick, arguments.rounds, others)
    started, facts = time.time(), report.machine()
    print(report.machine_line(facts), flush=True)

    def after_each(outcomes):
        if json_path:
            report.write_json(json_path, facts, started, outcomes)

    outcomes = _measure(chosen, settings, after_each)
    seconds = int(time.time() - started)
    print(f"\n{table(outcomes)}\n")
    show.note(
        f"medians of interleaved rounds, measured in {seconds // 60} min {seconds % 60} s;"
        " spread: half the way from the lowest to the highest round;"
        f" ratio: how many times better {ratio}"
    )
    good = report.footer(outcomes)
    if json_path:
        show.note(f"every round is in {_short(json_path)}")
    return 0 if good else 1


def _short(path):
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _guarded(command):
    proc.end_on_signals()
    try:
        return command()
    except proc.Failed as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        return 1
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            print("interrupted; everything started here is ended", file=sys.stderr)
        raise
    finally:
        proc.stop_all()


def demo():
    parser = _arguments("redis, unmodified, on kernel TCP, on a UNIX socket and under NetACC in turn.")
    arguments = parser.parse_args()
    return _guarded(lambda: _command(parser, arguments, _redis(), report.demo_table, "NetACC is", "unix"))


def _bench_tables(outcomes):
    """The real servers have a table of their own, since they have other columns."""
    servers = [outcome for outcome in outcomes if isinstance(outcome.case, real.Real)]
    others = [outcome for outcome in outcomes if outcome not in servers]
    tables = [make(found) for make, found in ((report.bench_table, others), (real.table, servers)) if found]
    return "\n\n".join(tables)


def bench():
    parser = _arguments("Measures kernel TCP and NetACC in turn and compares with the figures to reach.")
    default = os.path.join(sides.BUILD, "bench.json")
    parser.add_argument("--json", default=default, metavar="FILE", help="where every round goes (%(default)s)")
    arguments = parser.parse_args()
    path = os.path.abspath(arguments.json)
    return _guarded(lambda: _command(parser, arguments, _everything(), _bench_tables, "than TCP", "sockmap", path))
