"""Runs the tests of connections over shared memory, and of TCP's semantics, over RDMA: one process may have both ends, which
the two devices of `world.round_trip` join. The devices' own counters prove that RDMA carried the bytes.
"""

import contextlib
import re

import harness
import world
from harness import check
from matrix import case
from test_verbs import passed

# Emulation makes everything some 10 times slower, and the host may be busy.
PATIENCE = 10
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed", re.M)


class Round:
    """A namespace in which the library takes the far address for another host's."""

    def __init__(self, ctx, near, far):
        self.ctx, self.near, self.far = ctx, near, far
        self.enter = [*world.inside(near.namespace)]
        build = harness.ROOT / "build"
        self.environment = {"T_ADDRESS": far.address, "T_ADDRESS6": far.address6, "T_PATIENCE": PATIENCE,
                            "NETACC_EXPECT": "rdma", "NETACC_SS": build / "netacc_ss"}
        self.launcher = build / "netacc_run"
        self.mark()

    def spawn(self, argv, **environment):
        return self.ctx.spawn([*self.enter, *argv], role="nobody", env={**self.environment, **environment})

    def mark(self):
        self.start = [world.counters(side.device) for side in (self.near, self.far)]

    def carried(self):
        """The number of messages that both devices have sent since `mark`, by their own counters."""
        now = [world.counters(side.device) for side in (self.near, self.far)]
        return [after["rdma_sends"] - before["rdma_sends"] for before, after in zip(self.start, now)]

    def prove(self, messages):
        check(min(self.carried()) >= messages, f"RDMA carried {self.carried()} messages, not {messages} each way")


@contextlib.contextmanager
def round_trip(ctx):
    with world.round_trip(ctx.kind) as (near, far):
        yield Round(ctx, near, far)


def suite(proc, limit):
    """Checks that a test runner reports that all of its tests have passed."""
    text = proc.result(limit, status=None)
    closing = CLOSING.search(text)
    check(closing and int(closing[1]) and not int(closing[2]), text[-6000:] + "\n".join(proc.tail(3)))


@case(limit=580)
def random_calls(ctx):
    """tests/diff: random sequences of socket calls, on a connection over RDMA and on a connection of the kernel."""
    sequences = 3
    # Eight connections share a queue pair, since making one for each would take most of the time here.
    per_qp = 8
    with round_trip(ctx) as here:
        proc = here.spawn([harness.ROOT / "tests" / "diff" / "run", here.launcher, 1], SEQUENCES=sequences,
                          NACC_SOR_CONN_PER_QP=per_qp)
        suite(proc, 560)
        print(f"    {ctx.kind}: messages {here.carried()}", flush=True)
        here.prove(100 * sequences)


@case(limit=300)
def every_call(ctx):
    """Bytes go directly from and to the program's buffers where possible, and otherwise by the ring, always in order."""
    with round_trip(ctx) as here:
        proc = here.spawn([here.launcher, harness.ROOT / "build" / "tests" / "apps" / "every_call"])
        check("ok every_call" in proc.result(280), proc.text())
        print(f"    {ctx.kind}: messages {here.carried()}", flush=True)
        here.prove(40)


def endpoints_of(here, which, tests, per_qp, **environment):
    """Runs those tests of crates/netacc-conformance/tests/rdma, the suite that every transport passes."""
    proc = here.spawn([here.ctx.built("conformance-rdma"), "--test-threads=1", "--ignored", f"{which}::"],
                      NACC_SOR_CONN_PER_QP=per_qp, **environment)
    done = passed(proc.result(280, status=None) + proc.text())
    check(done == tests, f"{done} tests of {which}, not {tests}")


@case(limit=600)
def endpoints(ctx):
    with round_trip(ctx) as here:
        for which, tests, messages in ("rdma_client", 22, 500), ("rdma_server", 12, 250), ("rdma_busy", 3, 100):
            here.mark()
            endpoints_of(here, which, tests, 8)
            print(f"    {ctx.kind} {which}: messages {here.carried()}", flush=True)
            here.prove(messages)


@case(limit=600)
def endpoints_whose_queue_pairs_fail(ctx):
    """The tests make their queue pairs fail themselves, and check that they have failed."""
    for which, tests, base in ("rdma_failed_over", 13, 1), ("rdma_failed_over_on", 1, 1), ("rdma_cut", 1, 0):
        with round_trip(ctx) as here:
            endpoints_of(here, which, tests, 64, T_BREAK=f"rdma link delete {here.near.device}", NACC_TCP_COMPANION=base)
