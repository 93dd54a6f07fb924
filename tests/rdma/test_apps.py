"""NetACC's small programs on a host with RDMA devices: shared memory and kernel TCP work as they do without devices."""

import pathlib
import re

import programs
from harness import check
from matrix import case

RUN = pathlib.Path(__file__).with_name("apps.py")
# Emulation makes everything some 10 times slower, and the host may be busy.
PATIENCE = 6
# A fifth of the programs runs, chosen at random; without devices all of them run elsewhere, in three modes.
SHARE = 5
# This program takes two minutes there, since it forks some thousand times.
LONG = {"fork_descriptors"}


@case(modes=("rxe",), limit=600)
def small_programs(ctx):
    names = sorted(set(programs.names()) - LONG)
    names = ctx.random.sample(names, len(names) // SHARE)
    text = ctx.run(["python3", RUN, PATIENCE, *names], role="server", limit=580)
    said = re.findall(r"^(ok|skipped|FAIL) (\w+)(?:: (.*)| .*)$", text, re.M)
    check(sorted(name for _, name, _ in said) == sorted(names), f"not said of all of {names}: {text[-1000:]}")
    ctx.parts = {name: why for word, name, why in said if word != "skipped"}
    slow = [(float(seconds), name) for name, seconds in re.findall(r"^ok (\w+) \((.*) s\)$", text, re.M)]
    print(f"    {len(names)} programs; the longest: {sorted(slow)[-4:]}", flush=True)
