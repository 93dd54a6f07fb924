"""NetACC's small programs on a host with RDMA devices: shared memory and kernel TCP go on as without them."""

import re

import harness
from harness import check
from matrix import case

RUN = harness.ROOT / "tests" / "apps" / "run"
# Emulation makes everything some 10 times slower, and the host may be busy.
PATIENCE = 6
# What fails now and then on a machine that is this slow, with RDMA devices or without. Shown, and not held against us.
SLOW = {
    "conn_per_request": "a connect that waits long goes to TCP while the server takes it after all: one accept too many",
    "pid_namespace": "seen once to end in ECONNRESET; the same connects are made again by TCP within a second",
}


@case(modes=("rxe",), limit=600)
def small_programs(ctx):
    text = ctx.run([RUN, "--netacc", "--patience", PATIENCE], role="server", limit=580, status=None)
    closing = re.search(r"^(\d+) passed, (\d+) failed", text, re.M)
    failed = dict(re.findall(r"^FAIL (\w+): (.*)$", text, re.M))
    check(closing and int(closing[1]) and len(failed) == int(closing[2]), text[-1000:])
    for name in failed.keys() & SLOW.keys():
        print(f"    not yet {name}: {SLOW[name]}: {failed.pop(name)[:200]}", flush=True)
    check(not failed, "\n".join(f"{name}: {why}" for name, why in failed.items()))
