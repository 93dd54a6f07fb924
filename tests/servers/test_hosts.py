"""Several hosts in one machine, and containers of one host: which reach each other, and by which transport."""

from contextlib import contextmanager

import host
from harness import PROGRAMS, Skipped, check, equal, need
from host import wait_until
from hosts import Client, Host, Server, cable, need_root, possible, reaches
from matrix import case

MODES = ("plain", "both")
PORT = 7000


@contextmanager
def talking(*peers):
    """Peers end with the block; one in a PID namespace does not get SIGTERM."""
    yield peers
    for peer in peers:
        peer.end()


def expect(ctx, client, transport, reason):
    if ctx.mode == "both":
        equal(client.path(), (transport, reason), "the connection's path")


def joined(ctx):
    """Two hosts with a cable between them."""
    need_root()
    a, b = Host(ctx), Host(ctx)
    cable(a, b, "cable", "10.77.0.1/24", "10.77.0.2/24")
    return a, b


@case(modes=MODES)
def between_two_hosts(ctx):
    """An address that is not ours goes by TCP, and both ends say why."""
    a, b = joined(ctx)
    server = Server(ctx, "far", "0.0.0.0", PORT, within=b.within)
    client = Client(ctx, within=a.within)
    with talking(client, server):
        reaches(client, "10.77.0.2", PORT, "far", size=3_000_000)
        expect(ctx, client, "TCP", "other-host")
        if ctx.mode == "both":
            count = server.page("cnt")
            equal((count["accepts_tcp"], count["accepts_shm"]), (1, 0), "accepts by TCP and over shared memory")
        # The same server, reached from its own host under the same address.
        with talking(Client(ctx, within=b.within)) as (near,):
            reaches(near, "10.77.0.2", PORT, "far")
            expect(ctx, near, "SHM", None)


@case(modes=MODES)
def one_address_in_two_hosts(ctx):
    """The same addresses and port in two network namespaces are two servers; in a third there is no listener."""
    need_root()
    hosts = [Host(ctx) for _ in range(3)]
    addresses = ("127.0.0.1", "10.9.9.9", "::1")
    for one in hosts:
        one.ip("address", "add", "10.9.9.9/32", "dev", "lo")
    servers = [Server(ctx, f"{n}-{a}", a, PORT, within=one.within)
               for n, one in enumerate(hosts[:2]) for a in addresses]
    clients = [Client(ctx, within=one.within) for one in hosts]
    with talking(*clients, *servers):
        for a in addresses:
            for _ in range(3):
                for n, client in enumerate(clients[:2]):
                    reaches(client, a, PORT, f"{n}-{a}", size=1000)
                    expect(ctx, client, "SHM", None)
            equal(clients[2].ask(a, PORT), {"error": "Connection refused"}, f"{a} where nobody listens")


SHM = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
# How a container differs from its host, apart from the network: the flags of unshare(1), and a /dev/shm of its own.
CONTAINERS = {
    "mounts": (["--mount"], SHM),
    "ipc, uts, cgroup": (["--ipc", "--uts", "--cgroup"], []),
    "time": (["--time", "--fork", "--kill-child"], []),
    "pid": (["--pid", "--fork", "--kill-child", "--mount-proc"], []),
    "all": (["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child", "--mount-proc"], SHM),
    "user": (["--user", "--map-root-user"], []),
    "user and all": (["--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork",
                      "--kill-child", "--mount-proc"], SHM),
}


def container(flags, start):
    return [need("unshare"), *flags, *start]


@case(modes=MODES)
def containers_of_one_network(ctx):
    """A pod, or docker's --network container: as long as the network is one, it is one host."""
    need_root()
    ways = {name: container(*how) for name, how in CONTAINERS.items() if possible(*container(*how), "true")}
    check({"mounts", "pid", "all"} <= set(ways), f"containers that can be made here: {list(ways)}")
    outside = Server(ctx, "outside", "127.0.0.1", PORT)
    with talking(Client(ctx), outside) as (client, _):
        for n, (name, way) in enumerate(ways.items()):
            inside = Server(ctx, name, "127.0.0.1", PORT + 1 + n, within=way)
            # A sibling, not the same container: with process numbers of its own, which are the same ones.
            with talking(Client(ctx, within=way), inside) as (other, _):
                for asking, asked, port in ((client, name, PORT + 1 + n), (other, name, PORT + 1 + n),
                                            (other, "outside", PORT)):
                    reaches(asking, "127.0.0.1", port, asked)
                    expect(ctx, asking, "SHM", None)


@case(modes=("both",))
def process_numbers(ctx):
    """netacc_ss names a peer by the number that it has where the process is, or not at all."""
    need_root()
    own = container(*CONTAINERS["pid"])
    if not possible(*own, "true"):
        raise Skipped("no PID namespace can be made")
    outside, inside = Server(ctx, "outside", "127.0.0.1", PORT), Server(ctx, "inside", "127.0.0.1", PORT + 1, within=own)
    beside, within = Client(ctx), Client(ctx, within=own)

    def named(client):
        return [s["peer_pid"] for s in client.page("sock")]

    with talking(beside, within, outside, inside):
        for client, port, server, number in (
                (beside, PORT, "outside", outside.proc.pid), (within, PORT, "outside", None),
                (beside, PORT + 1, "inside", host.children(inside.proc.pid)[0]), (within, PORT + 1, "inside", None)):
            reaches(client, "127.0.0.1", port, server)
            equal(named(client), [number], f"the process number of {server}")
            expect(ctx, client, "SHM", None)


def mapped(ctx, users, groups=None):
    """The command that runs another one in a new user namespace whose users, and groups, are mapped as these lines say."""
    holder = ctx.spawn([need("unshare"), "--user", "sleep", "infinity"])
    wait_until(lambda: open(f"/proc/{holder.pid}/comm").read() == "sleep\n", 30, "a user namespace")
    for kind, lines in (("uid_map", users), ("gid_map", groups or users)):
        with open(f"/proc/{holder.pid}/{kind}", "w") as f:
            f.write(lines)
    return [need("nsenter"), f"--user=/proc/{holder.pid}/ns/user"]


@case(modes=MODES)
def users_of_a_container(ctx):
    """Root inside is not root outside. A user that cannot be distinguished from others there is served by TCP."""
    need_root()
    if not possible(need("unshare"), "--user", "true"):
        raise Skipped("no user namespace can be made")
    script = ctx.file("host_peer.py", (PROGRAMS / "host_peer.py").read_bytes())
    ctx.log.touch()
    for path in (script, ctx.log):
        path.chmod(0o666)
    everybody = {"readable": True, "script": script}
    remapped = mapped(ctx, "0 100000 65536")
    unmapped = [need("unshare"), "--user"]
    outside = Server(ctx, "outside", "127.0.0.1", PORT)
    with talking(outside):
        for n, way in enumerate((remapped, unmapped)):
            inside = Server(ctx, "inside", "127.0.0.1", PORT + 1 + n, within=way, **everybody)
            with talking(Client(ctx), Client(ctx, within=way, **everybody), inside) as (beside, within, _):
                reaches(within, "127.0.0.1", PORT, "outside")
                expect(ctx, within, "TCP", "peer-uid")
                reaches(beside, "127.0.0.1", PORT + 1 + n, "inside")
                expect(ctx, beside, "SHM", None)
                reaches(within, "127.0.0.1", PORT + 1 + n, "inside")
                # Without a user map its own number is the one that stands for every unmapped user.
                expect(ctx, within, *(("SHM", None) if way is remapped else ("TCP", "peer-uid")))


@case(modes=MODES)
def an_address_goes_and_comes(ctx):
    """The error of TCP for an address that was removed from an interface comes within a bounded time."""
    a, b = joined(ctx)
    a.ip("address", "add", "10.78.0.1/32", "dev", "cable")
    b.ip("route", "add", "10.78.0.1/32", "dev", "cable")
    here, there = (Server(ctx, name, "0.0.0.0", PORT, within=h.within) for name, h in (("here", a), ("there", b)))
    client = Client(ctx, within=a.within)
    with talking(client, here, there):
        reaches(client, "10.78.0.1", PORT, "here")
        expect(ctx, client, "SHM", None)
        # From here on the address is the other host's.
        a.ip("address", "del", "10.78.0.1/32", "dev", "cable")
        b.ip("route", "del", "10.78.0.1/32", "dev", "cable")
        b.ip("address", "add", "10.78.0.1/32", "dev", "cable")
        a.ip("route", "add", "10.78.0.1/32", "dev", "cable")
        wait_until(lambda: client.ask("10.78.0.1", PORT, limit=5).get("name") == "there", 20, "the address's new host")
        expect(ctx, client, "TCP", "other-host")
        for _ in range(20):
            reaches(client, "10.78.0.1", PORT, "there", size=100)
        # The address moves back.
        b.ip("address", "del", "10.78.0.1/32", "dev", "cable")
        a.ip("route", "del", "10.78.0.1/32", "dev", "cable")
        a.ip("address", "add", "10.78.0.1/32", "dev", "cable")
        wait_until(lambda: client.ask("10.78.0.1", PORT, limit=5).get("name") == "here", 20, "the address is here again")
        expect(ctx, client, "SHM", None)


@case(modes=MODES)
def bound_to_a_device(ctx):
    """The kernel counts a connection within a host as coming by the device that has its address: each listener bound to
    a device has the clients that it has by TCP."""
    a, b = joined(ctx)
    on_cable = Server(ctx, "cable", "0.0.0.0", PORT, "device=cable", within=a.within)
    on_lo = Server(ctx, "lo", "0.0.0.0", PORT, "device=lo", within=a.within)
    near, far = Client(ctx, within=a.within), Client(ctx, within=b.within)
    with talking(near, far, on_cable, on_lo):
        reaches(far, "10.77.0.1", PORT, "cable")
        for address, name in (("10.77.0.1", "cable"), ("127.0.0.1", "lo")):
            reaches(near, address, PORT, name)
            expect(ctx, near, "TCP", "peer-plain")
            reaches(near, address, PORT, name, options=[f"device={name}"])
            expect(ctx, near, "TCP", "packet-option")


@case(modes=MODES)
def marks_and_transparent_sockets(ctx):
    """A mark or IP_TRANSPARENT is for rules about packets, so the socket is the kernel's."""
    need_root()
    one = Host(ctx)
    plain = Server(ctx, "plain", "127.0.0.1", PORT, within=one.within)
    marked = Server(ctx, "marked", "127.0.0.1", PORT + 1, "mark=9", within=one.within)
    spread = Server(ctx, "transparent", "127.0.0.1", PORT + 2, "transparent=1", within=one.within)
    client = Client(ctx, within=one.within)
    with talking(client, plain, marked, spread):
        for options in (["mark=3"], ["transparent=1"]):
            reaches(client, "127.0.0.1", PORT, "plain", options=options)
            expect(ctx, client, "TCP", "packet-option")
        for n, name in enumerate(("marked", "transparent")):
            reaches(client, "127.0.0.1", PORT + 1 + n, name)
            expect(ctx, client, "TCP", "peer-plain")
        reaches(client, "127.0.0.1", PORT, "plain", options=["mark=0"])
        expect(ctx, client, "SHM", None)


RULES = {
    "reject in": "add rule inet t in tcp dport 7000 reject with tcp reset",
    "reject out": "add rule inet t out tcp dport 7000 reject with tcp reset",
    "drop in": "add rule inet t in tcp dport 7000 drop",
    "elsewhere": "add rule inet t nat tcp dport 7000 redirect to :7001",
}


@case(modes=MODES)
def packet_rules(ctx):
    """Rules of nftables on loopback: TCP obeys, and so does a connection that begins on TCP (-T). Shared memory does not
    see them: there is no packet. This is what docs/COMPATIBILITY.md says; here it is held to it."""
    need_root()
    one = Host(ctx)
    if not possible(*one.within, need("nft"), "add", "table", "inet", "t"):
        raise Skipped("the kernel has no nf_tables")
    servers = [Server(ctx, name, "127.0.0.1", PORT + n, within=one.within) for n, name in enumerate(("first", "second"))]
    client = Client(ctx, within=one.within)
    careful = Client(ctx, within=one.within, env={"NACC_CONN_TCP_FIRST": 1})
    with talking(client, careful, *servers):
        for chain in ("in { type filter hook input priority 0; }", "out { type filter hook output priority 0; }",
                      "nat { type nat hook output priority -100; }"):
            one.nft(f"add chain inet t {chain}")
        for name, rule in RULES.items():
            one.nft(rule)
            # What the rule says, and what becomes of it over shared memory.
            obeyed = {"name": "second", "whole": True} if name == "elsewhere" else {"error": (
                "Connection refused" if name.startswith("reject") else "TimeoutError")}
            for asking in (careful, *([client] if ctx.mode == "plain" else [])):
                words = asking.ask("127.0.0.1", PORT, size=1000, limit=2)
                equal({k: words.get(k) for k in obeyed}, obeyed, f"{name}: by TCP")
            if ctx.mode == "both":
                reaches(client, "127.0.0.1", PORT, "first")
                expect(ctx, client, "SHM", None)
            for chain in ("in", "out", "nat"):
                one.nft(f"flush chain inet t {chain}")
        reaches(careful, "127.0.0.1", PORT, "first")
