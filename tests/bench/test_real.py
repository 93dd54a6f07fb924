"""The cases of scripts/bench with real servers run, are accelerated and leave nothing behind, and say what is worse than TCP."""

import json
import os
import signal
import subprocess
import sys

import host
from benching import ONE
from harness import ROOT, check, equal
from host import wait_until
from hosts import need_root
from matrix import case

sys.path.append(str(ROOT / "scripts"))

from benchlib import real, runner  # noqa: E402

FEW = ("real-postgres-connect-8-other", "real-mariadb-point-1-same", "real-prefork-8-same", "real-php-4-other",
       "real-oneshot-same")


def start(ctx, *words):
    """scripts/bench with one short round, whose temporary folder is one of the case."""
    (ctx.dir / "tmp").mkdir()
    command = [ROOT / "scripts" / "bench", "--quick", "--rounds", "1", "--json", ctx.dir / "bench.json", *words]
    return subprocess.Popen(command, env={**ctx.environment(), "TMPDIR": str(ctx.dir / "tmp")}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(ctx, names, limit):
    """The rows of a run, which were measured on each side. How good the figures are is for a machine that does nothing else."""
    bench = start(ctx, *(word for name in names for word in ("--only", name)))
    out, err = bench.communicate(timeout=limit)
    check("Traceback" not in err, err)
    equal(os.listdir(ctx.dir / "tmp"), [], "files left behind")
    check(all(len(line) <= 80 for line in out.partition("\n---")[2].partition("\n* ")[0].splitlines()), f"too wide: {out}")
    rows = json.loads((ctx.dir / "bench.json").read_text())["cases"]
    for row in rows:
        equal((row["error"], row["skipped"]), (None, None), row["name"])
        if row["proof"]:
            equal(row["proof"]["accelerated"], "yes", f"{row['name']}: {row['proof']['said']}")
        metrics = row["metrics"]
        for side in ("tcp", "netacc", *(("unix",) if "unix" in metrics["rps"] else ())):
            figures = {key: metric[side]["median"] for key, metric in metrics.items()}
            check(0 < figures["p99_ms"] <= figures["longest_ms"] and figures["rps"] > 0, f"{row['name']}, {side}: {figures}")
            check(figures["server_us"] > 0 and figures["client_us"] > 0, f"CPU time: {row['name']}, {side}: {figures}")
    return rows


@case(modes=ONE, limit=200)
def a_few(ctx):
    need_root()
    rows = run(ctx, FEW, 180)
    equal([row["name"] for row in rows if "unix" in row["metrics"]["rps"]], [FEW[0], FEW[1], FEW[3]], "rows with UNIX sockets")


@case(modes=ONE, limit=1800, seldom=True)
def all_of_them(ctx):
    need_root()
    equal(len(run(ctx, ["real"], 1700)), len(real.all_cases()), "rows")


@case(modes=ONE, limit=120)
def interrupted(ctx):
    """Ctrl-C in the middle of a measurement ends the server, its workers and its client."""
    need_root()
    bench = start(ctx, "--only", "real-postgres-tpcb-8-other")
    for line in bench.stdout:
        if "round 1/1" in line:
            break
    wait_until(lambda: any(" -T 1 " in host.describe(pid) for pid in host.children(bench.pid)), 30, "pgbench runs")
    bench.send_signal(signal.SIGINT)
    _, err = bench.communicate(timeout=60)
    equal(bench.returncode, 128 + signal.SIGINT, f"status: {err}")
    check("everything started here is ended" in err, err)
    equal(os.listdir(ctx.dir / "tmp"), [], "files left behind")


def outcome(tcp, netacc, longest=(5, 5)):
    """What a row of these rates has come to."""
    found = runner.Outcome(real.all_cases()[0])
    for number, (one, other) in enumerate(zip(tcp, netacc, strict=True)):
        for name, rate, most in (("tcp", one, longest[0]), ("netacc", other, longest[1])):
            found.raw.append({"round": number + 1, "side": name, "values": {"rps": rate, "longest_ms": most}})
    return found


@case(modes=ONE)
def what_is_found(ctx):
    """Slower than TCP, and not only by chance; a request that takes long."""
    for tcp, netacc, longest, wanted in (
            ((100, 110, 90), (100, 111, 90), (5, 5), []),
            ((100, 110, 90), (50, 60, 55), (5, 5), [("slower than TCP: 0.550x", True)]),
            ((100, 120, 80), (99, 90, 95), (5, 5), [("slower than TCP: 0.950x, within the spread of the rounds", False)]),
            # Less than the spread, but in each round.
            ((100, 120, 80), (95, 110, 75), (5, 5), [("slower than TCP: 0.950x", True)]),
            ((100,), (200,), (5, 49), []),
            ((100,), (200,), (5, 51), [("longest request: 51 ms, TCP's 5.0 ms", True)]),
            # A thread that loses its processor waits a millisecond on any side.
            ((100,), (200,), (0.1, 9), []),
    ):
        found = outcome(tcp, netacc, longest)
        equal(list(found.case.findings(found)), wanted, f"{tcp} and {netacc}, {longest}")
