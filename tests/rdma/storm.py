#!/usr/bin/env python3
"""The storm of ../storm between two hosts: storm.py --kind rxe|siw [--seconds N] [--seed N] [...], in the virtual machine.

Servers are on one host and clients on the other, and each passes connections to processes of its own host. The devices' own
counters say what was carried over queue pairs. Besides the failures that ../storm excuses, those of killed processes in
docs/RDMA.md are excused: a connection ends with the process that carries it, which is the one that connected or
accepted, or, if several accept from one listener, the one of them that listens for RDMA.
"""

import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib"), str(HERE.parent / "storm")]
sys.dont_write_bytecode = True

import monitor  # noqa: E402
import rig  # noqa: E402
import world  # noqa: E402

ROLES = {"serve": "server", "call": "client"}
PORT = 9000


class Between(rig.Storm):
    SLOW, PATIENCE, CALM = 5, 30000, 24
    TRANSPORT = "rdma"
    LOG = pathlib.Path("/run/job/storm.netacc.log")

    def __init__(self, options):
        super().__init__(options)
        self.ends = {role: world.end(options.kind, role) for role in ROLES.values()}
        self.boxes = {"server": self.box, "client": self.new_box()}
        self.words[rig.CARRIED] = 1
        self.started = {role: self.sent(role) for role in self.ends}
        self.longest = 0

    def box_of(self, role):
        return self.boxes[ROLES[role]]

    def within(self, role):
        return world.inside(self.ends[ROLES[role]].namespace)

    def settings(self, role):
        return [*super().settings(role), "-p", str(self.random.choice(self.options.per_qp))]

    def place(self):
        return self.ends["server"].address, PORT

    def names(self):
        found = []
        for end in self.ends.values():
            text = world.command(*world.inside(end.namespace), "cat", "/proc/self/net/unix")
            found += [line.split()[-1] for line in text.splitlines() if "@netacc" in line]
        return found

    def sent(self, role):
        return world.counters(self.ends[role].device)["rdma_sends"]

    def carried(self):
        """The number of RDMA messages that each host's device has sent."""
        return {role: self.sent(role) - before for role, before in self.started.items()}

    def more(self):
        if self.random.random() >= self.options.removals:
            return
        # A stopped process would delay the removal.
        self.go_on()
        role = self.random.choice(sorted(self.ends))
        end = self.ends[role]
        before = self.carried()[role]
        began = time.monotonic()
        world.command(*world.inside(end.namespace), "rdma", "link", "delete", end.device)
        self.longest = max(self.longest, time.monotonic() - began)
        world.ensure_device(end, self.options.kind)
        self.started[role] = self.sent(role) - before
        self.counts["removal"] += 1

    def has_forgotten(self, pid):
        """Whether no connection of the process is left. The link between its engine and the program stays, without one."""
        try:
            return not monitor.connections(pid)
        except monitor.NoAnswer:
            return True  # The process has never had a connection.

    def wanted(self):
        """The required counts. In a short storm all processes that counted may have been killed; the devices count as well."""
        return []

    def proof(self):
        super().proof()
        carried = self.carried()
        print("RDMA messages: " + ", ".join(f"{n} by the {role}" for role, n in carried.items()), flush=True)
        if self.longest:
            print(f"the longest removal took {self.longest:.1f} s")
        # Connections of processes that are killed early, or that begin meanwhile, go by TCP, and may be the majority.
        if min(carried.values()) < self.CALM // 2:
            self.problems.append(f"RDMA carried only {carried}")

    def nothing_left(self):
        super().nothing_left()
        for what in ("qp", "cq", "mr", "pd", "cm_id"):
            # The kernel's own objects have no process number.
            self.until(f"no {what} is left", lambda what=what: not [r for r in world.resources(what) if r.get("pid")], 30)
            if left := [r for r in world.resources(what) if r.get("pid")]:
                self.problems.append(f"{len(left)} {what} are left: {left[:3]}")


def main():
    parser = rig.parser(__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=world.KINDS, default="rxe")
    parser.add_argument("--per-qp", type=int, action="append", help="connections that share a queue pair; of several, any")
    parser.add_argument("--removals", type=float, default=0, help="share of blows that remove a device")
    options = parser.parse_args()
    options.per_qp = options.per_qp or [1, 8, 64]
    if not os.path.exists("/run/netns/server"):
        world.build()
    for role in ROLES.values():
        world.ensure_device(world.end(options.kind, role), options.kind)
    return rig.main(Between(options))


if __name__ == "__main__":
    sys.exit(main())
