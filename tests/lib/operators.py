"""netacc_ctl as an operator calls it."""

import json
import os
import pathlib
import subprocess

import host
import monitor
from harness import Failure


def ctl(*args, status=0):
    """What netacc_ctl prints, which has to end with this status."""
    program = pathlib.Path(monitor.command()).with_name("netacc_ctl")
    done = subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=60)
    if done.returncode != status:
        raise Failure(f"netacc_ctl {args} ended with {done.returncode}: {done.stderr.strip()[:300]}")
    return done.stdout if status == 0 else done.stderr


def state(pid):
    [one] = json.loads(ctl("status", pid, "--json"))
    return one


def real(process):
    """The process of the program itself, which the launcher has become or started."""
    return [pid for pid in host.tree(process.pid) if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "netacc_run"][-1]


def ctl_any(*args, out=False):
    program = pathlib.Path(monitor.command()).with_name("netacc_ctl")
    done = subprocess.run([str(program), *map(str, args), "-w", "0"], capture_output=True, text=True, timeout=60)
    return done.stdout if out else done.stderr
