"""The cases of scripts/bench that need containers run, and their connections go over to shared memory."""

import json
import subprocess

from benching import ONE, SHORT, cell, run
from harness import ROOT, check, equal
from hosts import need_root
from matrix import case


@case(modes=ONE, limit=240)
def in_containers(ctx):
    """By their own addresses, and by a published port."""
    need_root()
    path = ctx.dir / "bench.json"
    only = [word for name in ("containers-redis-one", "containers-published") for word in ("--only", name)]
    # The figures to reach are for a machine that does nothing else.
    done = subprocess.run([ROOT / "scripts" / "bench", "--quick", "--rounds", "1", *only, "--json", path],
                          env=ctx.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    check("Traceback" not in done.stderr, done.stderr)
    found = json.loads(path.read_text())["cases"]
    equal([one["name"] for one in found], ["containers-redis-one", "containers-published"], "cases")
    for one in found:
        equal(one["proof"]["accelerated"], "yes", f"{one['name']}: {one['proof']['said']}")


@case(modes=ONE, limit=120)
def the_tool(ctx):
    """netacc_bench makes two containers and leaves nothing behind."""
    need_root()
    words = ("client", "--containers", *SHORT, "-w", "round-trip,connect,requests", "-c", "4")
    there = {"TMPDIR": str(ctx.dir)}
    before = set(ctx.dir.iterdir())
    found = run(ctx, *words, "--json", env=there).json()
    for workload in ("round-trip", "requests"):
        both = cell(found, workload, "both")
        equal((both["via"], both["accelerated"]), ("shm", True), workload)
        equal(cell(found, workload, "client")["via"], "tcp", f"{workload}, one end")
    equal(cell(found, "connect", "both")["via"], "tcp", "connections that are too short-lived")
    equal({path.name for path in set(ctx.dir.iterdir()) - before if path.name.startswith("netacc_bench")}, set(), "left behind")
