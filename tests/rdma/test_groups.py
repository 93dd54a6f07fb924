"""Control groups of version 2, whose memory controller other systems of today may have given to version 1."""

import contextlib
import pathlib
import subprocess

import harness
from harness import check, equal
from matrix import case

SCRIPT = str(harness.ROOT / "tests" / "rdma" / "slow_readers.py")
MIB = 1 << 20
# What the process may have for its windows is this part of the smallest limit.
PART = 8
CONNECTIONS = 500
# What a drained connection may keep.
AT_REST = 16 << 10


@contextlib.contextmanager
def control_group(**limits):
    """A group with these limits in its memory controller."""
    root = pathlib.Path("/sys/fs/cgroup")
    subprocess.run(["mount", "-t", "cgroup2", "none", root], check=True)
    group = root / "slow_readers"
    try:
        (root / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        for name, value in limits.items():
            (group / f"memory.{name}").write_text(str(value))
        yield group
    finally:
        if group.exists():
            group.rmdir()
        (root / "cgroup.subtree_control").write_text("-memory")
        subprocess.run(["umount", root], check=True)


def run(ctx, **limits):
    """Runs the program in a group with these limits, and returns its lines as {stage: [number, ...]}."""
    with control_group(**limits) as group:
        enter = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
        argv = ["sh", "-c", enter, group, harness.launcher(), "python3", SCRIPT, CONNECTIONS, group]
        out = ctx.run([str(word) for word in argv], limit=400)
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
        equal(events["oom_kill"], "0", f"processes that were killed with {limits}")
        return {line.split()[0]: [int(word) for word in line.split()[1:]] for line in out.splitlines()}


@case(modes=("rxe",), limit=900, seldom=True)
def slow_readers_within_limits(ctx):
    """500 connections that are filled before anything is read: the windows are within the budget, and come back."""
    ctx.accelerated = ()
    for limits in ({"max": 64 * MIB}, {"max": 500 * MIB, "high": 120 * MIB}):
        stages = run(ctx, **limits)
        budget = min(limits.values()) // PART
        shared, unread = stages["filled"]
        print(f"{limits}: {stages}", flush=True)
        check(shared < budget + 8 * MIB, f"with {limits} {shared >> 10} KiB are shared while {unread >> 10} are unread")
        check(unread > budget // 2, f"with {limits} {unread >> 10} KiB were taken")
        check(stages["rest"][0] < AT_REST * CONNECTIONS, f"with {limits} {stages['rest'][0] >> 10} KiB stay")
        check(stages["closed"][0] < 2 * MIB, f"with {limits} {stages['closed'][0] >> 10} KiB stay after all is closed")
