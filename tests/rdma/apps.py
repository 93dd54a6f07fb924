#!/usr/bin/env python3
"""Runs small programs accelerated, two at a time, and prints the result of each: apps.py PATIENCE NAME..."""

import concurrent.futures
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import harness  # noqa: E402
import programs  # noqa: E402

PATIENCE = int(sys.argv[1])


def one(name):
    started = time.monotonic()
    try:
        programs.run(name, "netacc", PATIENCE)
        return f"ok {name} ({time.monotonic() - started:.1f} s)"
    except harness.Skipped as why:
        return f"skipped {name}: {why}"
    except harness.Failure as failure:
        return f"FAIL {name}: {failure}"


with concurrent.futures.ThreadPoolExecutor(2) as both:
    for line in both.map(one, sys.argv[2:]):
        print(line, flush=True)
print("done", flush=True)
