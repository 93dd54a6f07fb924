"""NetACC's small programs on a host with RDMA devices: shared memory and kernel TCP go on as without them."""

import re

import harness
from harness import check
from matrix import case

RUN = harness.ROOT / "tests" / "apps" / "run"
# Emulation makes everything some 10 times slower, and the host may be busy.
PATIENCE = 6


@case(modes=("rxe",), limit=600)
def small_programs(ctx):
    text = ctx.run([RUN, "--netacc", "--patience", PATIENCE], role="server", limit=580, status=None)
    passed, failed = map(int, re.search(r"^(\d+) passed, (\d+) failed", text, re.M).groups())
    check(passed and not failed, "\n".join(re.findall(r"^FAIL .*$", text, re.M)) or text[-1000:])
