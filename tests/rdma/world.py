"""The network of the virtual machine, and one test's view of it.

Two namespaces stand for two hosts, `server` and `client`. For each kind of device a veth pair joins them, with a soft
RDMA device on each end. Namespaces and pairs live as long as the machine; a device that a test has removed is made
again for the next one.
"""

import collections
import json
import pathlib
import subprocess

import harness
from harness import check
from host import wait_until

KINDS = ("rxe", "siw")
INFINIBAND = pathlib.Path("/sys/class/infiniband")
BUILT = harness.ROOT / "build" / "tests" / "rdma"
# Both soft devices are slow to emulate; with this size a path MTU of 4096 bytes is possible.
MTU = 9000
PATH_MTU = 4096

# One end of a pair: where a role's programs run, and the device and addresses that they have there.
End = collections.namedtuple("End", "role namespace netdev device address address6")


def end(kind, role):
    number = 1 if role == "server" else 2
    network = 8 + KINDS.index(kind)
    return End(role, role, f"{kind}-{role}", f"{kind}_{role}", f"10.{network}.0.{number}", f"fd00:{network}::{number}")


def command(*argv):
    """Run a command of ours to its end; its output."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    check(done.returncode == 0, f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def inside(namespace):
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


def build():
    """Both namespaces and the pairs between them, once per machine."""
    for role in ("server", "client"):
        command("ip", "netns", "add", role)
        command("ip", "-n", role, "link", "set", "lo", "up")
        # Addresses are usable at once: nobody else could have them.
        command(*inside(role), "sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad")
    for kind in KINDS:
        server, client = end(kind, "server"), end(kind, "client")
        # Interface numbers that differ: a device must not find the right interface by having the same number.
        index = 10 * (1 + KINDS.index(kind))
        command("ip", "link", "add", server.netdev, "index", str(index), "mtu", str(MTU), "netns", "server",
                "type", "veth",
                "peer", "name", client.netdev, "index", str(index + 5), "mtu", str(MTU), "netns", "client")
        for side in (server, client):
            command("ip", "-n", side.namespace, "link", "set", side.netdev, "up")
            command("ip", "-n", side.namespace, "addr", "add", f"{side.address}/24", "dev", side.netdev)
            command("ip", "-n", side.namespace, "addr", "add", f"{side.address6}/64", "dev", side.netdev)
        # Soft-RoCE loses the first packet to an IPv6 neighbour that is not known yet, and RDMA-CM sends it again after
        # a second: by then a connection has gone by TCP.
        for side, other in ((server, client), (client, server)):
            command("ip", "-n", side.namespace, "neigh", "replace", other.address6, "lladdr", hardware_address(other),
                    "dev", side.netdev, "nud", "permanent")


def hardware_address(side):
    return json.loads(command("ip", "-n", side.namespace, "-j", "link", "show", side.netdev))[0]["address"]


def port_file(device, name):
    return INFINIBAND / device / "ports" / "1" / name


def addresses_known(side, kind):
    """RoCE names its ends by the interface's addresses, and learns them a little after the device is made."""
    if kind != "rxe":
        return True
    gids = {path.read_text().strip() for path in port_file(side.device, "gids").iterdir() if path.name.isdigit()}
    last = side.address.rpartition(".")[2]
    wanted = (f":0a08:000{last}", f"fd00:0008:0000:0000:0000:0000:0000:000{last}")
    return all(any(gid.endswith(end) for gid in gids) for end in wanted)


def ensure_device(side, kind):
    if not (INFINIBAND / side.device).exists():
        command(*inside(side.namespace), "rdma", "link", "add", side.device, "type", kind, "netdev", side.netdev)
        # A count read twice within 10 ms would be the same one.
        port_file(side.device, "hw_counters/lifespan").write_text("0")
    wait_until(lambda: port_file(side.device, "state").read_text().startswith("4:"), 20, f"{side.device} is active")
    wait_until(lambda: addresses_known(side, kind), 20, f"{side.device} knows its addresses")


def counters(device):
    """What the device itself has counted: {name: number}."""
    folder = port_file(device, "hw_counters")
    return {path.name: int(path.read_text()) for path in folder.iterdir() if path.name != "lifespan"}


def resources(what):
    """Objects of the RDMA subsystem, as the kernel lists them: cm_id, qp, cq, mr, pd."""
    return json.loads(command("rdma", "-j", "res", "show", what) or "[]")


class Ctx(harness.Ctx):
    """A test of one kind of device. The roles `server` and `client` run on the two hosts."""

    def __init__(self, mode, own_network, seed, directory):
        super().__init__(mode, own_network, seed, directory)
        self.kind = mode
        self.server_end, self.client_end = end(mode, "server"), end(mode, "client")
        self.accelerated = ()
        self.next_port = 7000
        # All kinds, so that a test runs beside the other devices too.
        for kind in KINDS:
            for role in ("server", "client"):
                ensure_device(end(kind, role), kind)
        self.mark()

    def accelerates(self, role):
        return role in self.accelerated

    def enter(self, role):
        # Whoever is not the server is on the other host.
        return inside(end(self.kind, "server" if role == "server" else "client").namespace)

    def ends(self):
        return (self.server_end, self.client_end)

    def port(self):
        """A port that nobody has had since the machine started: each test has a fresh process, but not a fresh host."""
        self.next_port += 1
        return self.next_port

    def built(self, name):
        path = BUILT / name
        check(path.exists(), f"{path} is not built")
        return str(path)

    def await_listener(self, proc, port):
        """Until an RDMA-CM listener has that port."""
        def listening():
            check(proc.running(), f"{proc.name} ended: {' / '.join(proc.tail(4))}")
            return any(r.get("state") == "LISTEN" and r.get("src-addr", "").endswith(f":{port}")
                       for r in resources("cm_id"))
        wait_until(listening, harness.START_LIMIT, f"{proc.name} listens on RDMA port {port}")

    # Proof

    def mark(self):
        """From here on `carried` and `prove` count."""
        super().mark()
        self.start = {side.role: counters(side.device) for side in self.ends()}

    def carried(self, role):
        """What the device on that host has counted since `mark`."""
        now = counters(end(self.kind, role).device)
        return {name: now[name] - before for name, before in self.start[role].items()}

    def prove(self, messages, payload=0, sender="client", receiver=None):
        """RDMA carried at least so many messages with so many bytes from `sender` to the other host, by the count of
        both devices. The library under test is not asked."""
        receiver = receiver or ("server" if sender == "client" else "client")
        out, into = self.carried(sender), self.carried(receiver)
        check(out["rdma_sends"] >= messages, f"{sender} sent {out['rdma_sends']} RDMA messages, not {messages}: {out}")
        check(into["rdma_recvs"] >= messages,
              f"{receiver} received {into['rdma_recvs']} RDMA messages, not {messages}: {into}")
        if self.kind == "siw":
            sent, received = out["sent_bytes"], into["rcvd_bytes"]
        else:
            # rxe counts packets: this is the most that they can have held.
            sent, received = out["sent_pkts"] * PATH_MTU, into["rcvd_pkts"] * PATH_MTU
        check(min(sent, received) >= payload, f"RDMA carried {sent} bytes out and {received} in, not {payload}")
