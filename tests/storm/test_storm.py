"""Minutes of everything at once, of which every run has some seconds, other ones each time."""

import pathlib
import sys

from harness import Skipped, check
from matrix import case

RUN = pathlib.Path(__file__).with_name("run")
BURSTS = RUN.with_name("bursts")


@case(limit=240)
def storm(ctx):
    proc = ctx.spawn([sys.executable, RUN, "--seconds", 20, "--seed", ctx.random.randrange(1 << 32)])
    code = proc.wait(230)
    text = proc.text()
    print(text, flush=True)
    if text.startswith("skipped storm: "):
        raise Skipped(text.splitlines()[0].partition(": ")[2])
    check(code == 0, "; ".join(line for line in text.splitlines() if line.startswith("FAIL")) or f"exit status {code}")


@case(limit=600, seldom=True)
def bursts_go_round(ctx):
    """The memory of windows follows what is in flight; `bursts` without arguments takes an hour for it, with 10,000 connections."""
    proc = ctx.spawn([sys.executable, BURSTS, "--seconds", 60, "--cycle", 20, "--connections", 2000, "--every", 2,
                      "--samples", ctx.dir / "samples"])
    code = proc.wait(580)
    print(proc.text(), flush=True)
    check(code == 0, "; ".join(line for line in proc.text().splitlines() if line.startswith("FAIL")) or f"exit status {code}")
