"""The kernel's sockmap redirection as a further side: BPF programs redirect what the programs of a cgroup send to each other."""

import os
import shutil

from . import proc, sides

SOURCES = os.path.join(sides.ROOT, "benches", "sockmap")
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def _own_cgroup():
    """The folder of the cgroup that this process is in."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        top = next((fields[1] for fields in map(str.split, mounts) if fields[2] == "cgroup2"), None)
    if top is None:
        # A mount of our own would be of the same hierarchy, and set its options anew for the whole machine.
        raise proc.Failed("no cgroup2 is mounted")
    with open("/proc/self/cgroup", encoding="utf-8") as cgroups:
        own = next((line.strip()[len("0::") :] for line in cgroups if line.startswith("0::")), "")
    return top + own if os.path.exists(f"{top}{own}/cgroup.procs") else top


def _loader():
    """The path of the loader, built if need be."""
    if shutil.which("make") is None:
        raise proc.Failed("make is not installed")
    out = os.path.join(sides.BUILD, "bench")
    proc.run(["make", "-s", "-C", SOURCES, f"OUT={out}"])
    return os.path.join(out, "sockmap")


class Sockmap(sides.Side):
    """Exists as long as the loader runs, and raises proc.Failed with the reason where this machine does not have it."""

    def __init__(self):
        self.cgroup = os.path.join(_own_cgroup(), f"netacc-bench-{os.getpid()}")
        super().__init__("sockmap", "sockmap", ["sh", "-c", JOIN, self.cgroup])
        self.loader = proc.Child([_loader(), self.cgroup], stdin=True)
        try:
            self.loader.read_line()
            self.run("true")
        except proc.Failed as error:
            self.close()
            raise proc.Failed(self.loader.errors().removeprefix("sockmap: ") or str(error)) from None

    def counts(self):
        self.loader.send_line("")
        return [int(word) for word in self.loader.read_line().split()]

    def watch(self, pid):
        return Watch(self)

    def close(self):
        self.loader.stop()


class Watch:
    """Counts the messages that are redirected and those that TCP carries between two readings."""

    def __init__(self, side):
        self.side = side
        self.before = side.counts()

    def result(self):
        counted = [after - before for before, after in zip(self.before, self.side.counts(), strict=True)]
        return dict(zip(("redirected", "bytes", "tcp"), counted, strict=True))
