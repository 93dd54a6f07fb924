"""Random sequences of socket calls, on the connections under test and on the kernel's: what differs is an error."""

import pathlib
import random

import harness
from harness import check
from matrix import case

RUN = pathlib.Path(__file__).with_name("run")
GROUPS = ("data", "shut", "conn", "poll", "epoll", "dup", "opts", "err", "block", "mixed")


def play(ctx, group, launcher, seed):
    proc = ctx.spawn([RUN, launcher, seed], env={"DIFF_GROUPS": group})
    proc.wait(290)
    print(proc.stdout(), flush=True)
    check(proc.stdout().endswith("1 passed, 0 failed\n"), proc.text()[-3000:] or "it says nothing")


def register(group):
    def sequences(ctx):
        kind, _, seed = ctx.mode.partition("-")
        play(ctx, group, "" if kind == "plain" else harness.launcher(), seed)

    def at_random(ctx):
        """What no fixed seed finds, for a person to look into."""
        play(ctx, group, harness.launcher(), random.SystemRandom().randrange(1 << 24))

    sequences.__name__, at_random.__name__ = group, f"{group}_at_random"
    # The kernel against itself says that the comparison is right.
    case(modes=("plain-1", "netacc-1", "netacc-2", "netacc-3"), limit=300)(sequences)
    case(modes=("both",), limit=300, seldom=True)(at_random)


for name in GROUPS:
    register(name)
