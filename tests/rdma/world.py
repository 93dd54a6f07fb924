"""The network of the virtual machine, and the environment of one test in it.

Two namespaces stand for two hosts, `server` and `client`. For each kind of device a veth pair joins them, with a soft
RDMA device on each end. Namespaces and pairs live as long as the machine; a device that a test has removed is made
again for the next one.
"""

import collections
import contextlib
import ipaddress
import json
import pathlib
import subprocess

import harness
from harness import check
from host import wait_until

KINDS = ("rxe", "siw")
INFINIBAND = pathlib.Path("/sys/class/infiniband")
BUILT = harness.ROOT / "build" / "tests" / "rdma"
# A large MTU saves packets, since both soft devices are slow; with this one a path MTU of 4096 bytes is possible.
MTU = 9000
PATH_MTU = 4096

# The range of ephemeral ports: for each of them P + 20000 is a port too, and outside this range.
PORTS = "12000 31000"

# One end of a pair: the namespace in which a role's programs run, and the device and addresses that they have there.
End = collections.namedtuple("End", "role namespace netdev device address address6")


def end(kind, role):
    number = 1 if role == "server" else 2
    network = 8 + KINDS.index(kind)
    return End(role, role, f"{kind}-{role}", f"{kind}_{role}", f"10.{network}.0.{number}", f"fd00:{network}::{number}")


def command(*argv):
    """Runs a command to its end and returns its output."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    check(done.returncode == 0, f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def inside(namespace):
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


def add_namespace(name):
    command("ip", "netns", "add", name)
    command("ip", "-n", name, "link", "set", "lo", "up")
    # Addresses must be usable at once; no other host can have them.
    setting(name, "ipv6/conf/default/accept_dad", 0)


def setting(namespace, name, value):
    command(*inside(namespace), "sh", "-c", f"echo {value} >/proc/sys/net/{name}")


def join(server, client, index):
    """Makes a veth pair between two ends; `index` is the number of the first interface."""
    # The numbers of the interfaces differ, so that a device cannot find the right interface by an equal number.
    command("ip", "link", "add", server.netdev, "index", str(index), "mtu", str(MTU), "netns", server.namespace,
            "type", "veth",
            "peer", "name", client.netdev, "index", str(index + 5), "mtu", str(MTU), "netns", client.namespace)
    for side in (server, client):
        command("ip", "-n", side.namespace, "link", "set", side.netdev, "up")
        command("ip", "-n", side.namespace, "addr", "add", f"{side.address}/24", "dev", side.netdev)
        command("ip", "-n", side.namespace, "addr", "add", f"{side.address6}/64", "dev", side.netdev)


def introduce(side, other, address):
    """Enters the other end as a permanent neighbour, so that no end has to ask for its address."""
    command("ip", "-n", side.namespace, "neigh", "replace", address, "lladdr", hardware_address(other),
            "dev", side.netdev, "nud", "permanent")


def build():
    """Makes both namespaces and the pairs between them, once per machine."""
    for role in ("server", "client"):
        add_namespace(role)
    for kind in KINDS:
        server, client = end(kind, "server"), end(kind, "client")
        join(server, client, 10 * (1 + KINDS.index(kind)))
        # Soft-RoCE loses the first packet to an IPv6 neighbour that is not known yet, and RDMA-CM sends it again after
        # a second: by then a connection has gone by TCP.
        for side, other in ((server, client), (client, server)):
            introduce(side, other, other.address6)


@contextlib.contextmanager
def round_trip(kind):
    """Makes two ends in one namespace, so that one process may have both: packets from one to the address of the other leave
    by its own device and arrive at the other's. NetACC takes that address for another host's."""
    name = f"{kind}-round"
    far, near = (End(role, name, f"{kind}-{role}", f"{kind}_{role}", f"10.18.0.{n}", f"fd00:18::{n}")
                 for n, role in ((1, "far"), (2, "near")))
    add_namespace(name)
    try:
        join(far, near, 50)
        setting(name, "ipv4/ip_local_port_range", f'"{PORTS}"')
        for device in ("all", far.netdev, near.netdev):
            setting(name, f"ipv4/conf/{device}/accept_local", 1)
            setting(name, f"ipv4/conf/{device}/rp_filter", 0)
        for family in ("-4", "-6"):
            # Outgoing packets use these routes before the local table, so that they leave the host; arriving ones do not.
            command("ip", family, "-n", name, "rule", "add", "pref", "100", "lookup", "local")
            for table, (side, other) in enumerate(((near, far), (far, near)), 101):
                ours, theirs = ((side.address, other.address) if family == "-4" else (side.address6, other.address6))
                command("ip", family, "-n", name, "route", "add", theirs, "dev", side.netdev, "src", ours, "table", str(table))
                # By the second rule the connection manager finds the interface at which a request arrived.
                for selector in (("iif", "lo"), ("oif", side.netdev)):
                    command("ip", family, "-n", name, "rule", "add", "pref", "50", *selector, "to", theirs,
                            "lookup", str(table))
                introduce(side, other, theirs)
            command("ip", family, "-n", name, "rule", "del", "pref", "0")
        for side in (far, near):
            ensure_device(side, kind)
        yield near, far
    finally:
        for side in (far, near):
            subprocess.run(["rdma", "link", "delete", side.device], capture_output=True, timeout=60)
        command("ip", "netns", "del", name)


def hardware_address(side):
    return json.loads(command("ip", "-n", side.namespace, "-j", "link", "show", side.netdev))[0]["address"]


def port_file(device, name):
    return INFINIBAND / device / "ports" / "1" / name


def addresses_known(side, kind):
    """Whether the device knows its addresses: RoCE's GIDs are those of the interface, and come shortly after the device."""
    if kind != "rxe":
        return True
    gids = {path.read_text().strip() for path in port_file(side.device, "gids").iterdir() if path.name.isdigit()}
    mapped = ipaddress.ip_address(f"::ffff:{side.address}")
    return {mapped.exploded, ipaddress.ip_address(side.address6).exploded} <= gids


def ensure_device(side, kind):
    if not (INFINIBAND / side.device).exists():
        command(*inside(side.namespace), "rdma", "link", "add", side.device, "type", kind, "netdev", side.netdev)
        # Otherwise a count that is read twice within 10 ms would come from a cache.
        port_file(side.device, "hw_counters/lifespan").write_text("0")
    wait_until(lambda: port_file(side.device, "state").read_text().startswith("4:"), 20, f"{side.device} is active")
    wait_until(lambda: addresses_known(side, kind), 20, f"{side.device} knows its addresses")


def counters(device):
    """The device's own counters: {name: number}."""
    folder = port_file(device, "hw_counters")
    return {path.name: int(path.read_text()) for path in folder.iterdir() if path.name != "lifespan"}


def resources(what):
    """The objects of the RDMA subsystem that the kernel lists; `what` is cm_id, qp, cq, mr or pd."""
    return json.loads(command("rdma", "-j", "res", "show", what) or "[]")


class Ctx(harness.Ctx):
    """The environment of a test with one kind of device. The roles `server` and `client` run on the two hosts."""

    def __init__(self, mode, own_network, seed, directory):
        super().__init__(mode, own_network, seed, directory)
        self.kind = mode
        self.server_end, self.client_end = end(mode, "server"), end(mode, "client")
        self.accelerated = ()
        self.next_port = 7000
        # All kinds of devices exist, so that a test runs beside the others too.
        for kind in KINDS:
            for role in ("server", "client"):
                ensure_device(end(kind, role), kind)
        self.mark()

    def environment(self, extra=None):
        # A connect that must not block gives up after 50 ms by default, which is too short on a machine as slow as this.
        return super().environment({"NACC_CONNECT_RDMA_MS": 1500, **(extra or {})})

    def accelerates(self, role):
        return role in self.accelerated

    def enter(self, role):
        # Every role except the server is on the other host.
        return inside(end(self.kind, "server" if role == "server" else "client").namespace)

    def ends(self):
        return (self.server_end, self.client_end)

    def port(self):
        """A port that was not used since the machine started, since a test has a new process but no new host."""
        self.next_port += 1
        return self.next_port

    def built(self, name):
        path = BUILT / name
        check(path.exists(), f"{path} is not built")
        return str(path)

    def await_listener(self, proc, port):
        """Waits until an RDMA-CM listener has that port."""
        def listening():
            check(proc.running(), f"{proc.name} ended: {' / '.join(proc.tail(4))}")
            return any(r.get("state") == "LISTEN" and r.get("src-addr", "").endswith(f":{port}")
                       for r in resources("cm_id"))
        wait_until(listening, harness.START_LIMIT, f"{proc.name} listens on RDMA port {port}")

    # Proof

    def mark(self):
        """Begins to count for `carried` and `prove`."""
        super().mark()
        self.start = {side.role: counters(side.device) for side in self.ends()}

    def carried(self, role):
        """The counters of the device on that host since `mark`."""
        now = counters(end(self.kind, role).device)
        return {name: now[name] - before for name, before in self.start[role].items()}

    def prove(self, messages, payload=0, sender="client", receiver=None):
        """Checks that RDMA carried at least `messages` messages with `payload` bytes from `sender` to the other host, by the
        counters of both devices. The library under test is not involved."""
        receiver = receiver or ("server" if sender == "client" else "client")
        out, into = self.carried(sender), self.carried(receiver)
        check(out["rdma_sends"] >= messages, f"{sender} sent {out['rdma_sends']} RDMA messages, not {messages}: {out}")
        check(into["rdma_recvs"] >= messages,
              f"{receiver} received {into['rdma_recvs']} RDMA messages, not {messages}: {into}")
        if "sent_bytes" in out:
            sent, received = out["sent_bytes"], into["rcvd_bytes"]
        else:
            # rxe counts packets, so this is the most that they can have held.
            sent, received = out["sent_pkts"] * PATH_MTU, into["rcvd_pkts"] * PATH_MTU
        check(min(sent, received) >= payload, f"RDMA carried {sent} bytes out and {received} in, not {payload}")
