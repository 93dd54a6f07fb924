"""Everything at once between two hosts: storm.py in this folder describes it, and which failures are excused."""

import pathlib

import harness
from harness import check
from matrix import case

SCRIPT = str(pathlib.Path(__file__).with_name("storm.py"))
SECONDS = {"rxe": 10, "siw": 6}


@case(limit=150)
def storm(ctx):
    check((harness.ROOT / "build" / "tests" / "storm" / "storm").exists(), "tests/storm is not built")
    seed = ctx.random.randrange(1 << 32)
    options = ["--kind", ctx.kind, "--seconds", SECONDS[ctx.kind], "--seed", seed, "--tcp-first", 0.25]
    proc = ctx.spawn(["python3", SCRIPT, *options], role="nobody")
    code = proc.wait(140)
    print("".join(f"    {line}\n" for line in proc.stdout().splitlines()), end="", flush=True)
    # The failures come first, since a summary shows one line.
    wrong = "; ".join(line for line in proc.stdout().splitlines() if line.startswith("FAIL")) or f"exit status {code}"
    check(code == 0, f"seed {seed}: {wrong}\n{proc.text()[-6000:]}")
