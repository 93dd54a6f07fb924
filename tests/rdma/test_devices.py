"""Tests the devices themselves with rdma-core's own programs: a failure here is not NetACC's."""

import json
import re

import harness
import world
from harness import Failure, check, equal, need
from host import wait_until
from matrix import case


@case()
def active(ctx):
    for side in ctx.ends():
        text = ctx.run([need("ibv_devinfo"), "-d", side.device], role=side.role)
        check(re.search(r"state:\s+PORT_ACTIVE", text), f"{side.device}: {text}")
        check(re.search(rf"active_mtu:\s+{world.PATH_MTU}\b", text) or ctx.kind != "rxe", f"{side.device}: {text}")


@case()
def netacc_check_sees_them(ctx):
    """netacc_check finds device, state and interface in sysfs alone."""
    for side in ctx.ends():
        # sysfs shows the network namespace of the process that mounted it.
        look = ["unshare", "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh",
                harness.ROOT / "build" / "netacc_check", "--json", "--fail-on", "fail", "-i", side.netdev]

        def port():
            found = json.loads(ctx.run(look, role=side.role))["findings"]
            lines = [f for f in found if f["check"] == "rdma"]
            check(len(lines) == 1, f"{side.netdev}: {found}")
            return lines[0]
        said = port()
        check(said["level"] == "ok" and f"{side.device} port 1: ACTIVE" in said["text"], said)


@case()
def rping(ctx):
    """The program uses the connection manager, SEND, RDMA READ and RDMA WRITE, and compares the contents."""
    for family in ("address", "address6"):
        address, port = getattr(ctx.server_end, family), ctx.port()
        ctx.mark()
        server = ctx.spawn([need("rping"), "-s", "-a", address, "-p", port, "-C", 20, "-V"], role="server")
        ctx.await_listener(server, port)
        ctx.run([need("rping"), "-c", "-a", address, "-p", port, "-C", 20, "-V"])
        server.result()
        # In each round the client sends the address of its buffer twice.
        ctx.prove(40)


@case(modes=("rxe",))
def rc_pingpong(ctx):
    """Queue pairs work without the connection manager, which iWARP does not support."""
    def gid(side):
        tail = "".join(f"{int(part):02x}" for part in side.address.split("."))
        for path in world.port_file(side.device, "gids").iterdir():
            if path.read_text().strip().replace(":", "").endswith(f"ffff{tail}"):
                return path.name
        raise Failure(f"{side.device} has no GID for {side.address}")

    port = ctx.port()
    common = ["-p", port, "-n", 200, "-s", 4096, "-c"]
    program = need("ibv_rc_pingpong")
    server = ctx.spawn([program, "-d", ctx.server_end.device, "-g", gid(ctx.server_end), *common], role="server")
    wait_until(lambda: f":{port} " in world.command(*ctx.enter("server"), "ss", "-Hltn"), 30, "the server listens")
    ctx.run([program, "-d", ctx.client_end.device, "-g", gid(ctx.client_end), *common, ctx.server_end.address])
    server.result()
    for sender in ("client", "server"):
        ctx.prove(200, 200 * 4096, sender)


@case()
def counters_tell_rdma_from_tcp(ctx):
    """The proof can fail: bytes over TCP on the same wire do not count."""
    size = 1 << 20
    script = ctx.file("tcp.py", b"""
import socket, sys
if sys.argv[1] == "server":
    with socket.create_server((sys.argv[2], 0)) as s:
        print(s.getsockname()[1], flush=True)
        c, _ = s.accept()
        n = 0
        while data := c.recv(65536):
            n += len(data)
        print(n)
else:
    with socket.create_connection((sys.argv[2], int(sys.argv[3]))) as c:
        c.sendall(bytes(1 << 20))
""")
    address = ctx.server_end.address
    server = ctx.spawn(["python3", script, "server", address], role="server")
    wait_until(lambda: "\n" in server.stdout() or not server.running(), 30, "the server's port")
    ctx.run(["python3", script, "client", address, server.stdout().strip()])
    equal(server.result().split()[1], str(size), "bytes over TCP")
    for role in ("server", "client"):
        counted = ctx.carried(role)
        equal(sum(counted.values()), 0, f"{role}'s counts {counted}")
    try:
        ctx.prove(1)
    except Failure:
        return
    raise Failure("a proof without a single RDMA message")
