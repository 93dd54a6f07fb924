"""What the child of a forking server calls that has its connection alone."""

import collections
import re

from harness import ROOT, check, launcher, need
from matrix import case

ROUNDS = 100

# The calls of one round trip: the sleep, the peer's waker (by a byte on the liveness socket, if the
# peer has made it after the fork), and once in a while the bytes that woke the child. A few more are made when the child was
# woken for nothing.
# Its sleep is made in steps that double from a millisecond on, of which a traced round trip may take several.
ALLOWED = {"epoll_pwait": 6, "write": 1, "sendto": 1, "recvmsg": 1 / 16}
SPARE = 10
# The child's own statistics page, which is mapped once and moved to the place of its parent's.
AT_FIRST = {"mmap": 1, "mremap": 1}


@case(limit=120)
def child_alone(ctx):
    trace = ctx.dir / "trace"
    ctx.spawn([need("strace"), "-f", "-o", trace, launcher(), ROOT / "build/tests/budget/forked", str(ROUNDS)]).result(100)
    counted, at_first = collections.Counter(), collections.defaultdict(collections.Counter)
    between, begun = set(), set()
    for line in trace.read_text(errors="replace").splitlines():
        if not (found := re.match(r"(\d+) +(\w+)\(", line)):
            continue
        pid, call = found.groups()
        if call == "getppid":
            between ^= {pid}
            begun.add(pid)
        elif pid in between:
            counted[call] += 1
        elif pid not in begun and call in ("mmap", "mremap", "munmap"):
            at_first[pid][call] += 1
    check(counted["epoll_pwait"] + counted["epoll_wait"] > 0, f"nothing was counted: {counted}")
    over = {call: n for call, n in counted.items() if n > ALLOWED.get(call, 0) * ROUNDS + SPARE * (call in ALLOWED)}
    check(not over, f"in {ROUNDS} round trips: {dict(counted)}")
    check([dict(at_first[pid]) for pid in begun] == [AT_FIRST], f"memory of the child: {[at_first[pid] for pid in begun]}")
