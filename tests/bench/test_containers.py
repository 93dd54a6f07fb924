"""The cases of scripts/bench that need containers run, and their connections go over to shared memory."""

import json
import subprocess

from benching import ONE
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
