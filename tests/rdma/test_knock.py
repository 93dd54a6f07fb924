"""What a client asks before anything is loaded: whether a server can be reached by RDMA at all."""

import pathlib
import re

import harness
import world
from harness import check
from host import wait_until
from matrix import case
from test_faults import delete

SCRIPT = str(harness.ROOT / "tests" / "rdma" / "knocks.py")


def begin(ctx, what, port, role, accelerated=(), **spawn):
    ctx.accelerated = accelerated
    proc = ctx.spawn(["python3", SCRIPT, what, ctx.server_end.address, port], role=role, **spawn)
    wait_until(lambda: "ready" in proc.stdout() or not proc.running(), 60, f"{what} is ready")
    check(proc.running(), proc.text())
    return proc


def connect(ctx, port, way="recv"):
    """Whether the client loaded the libraries."""
    ctx.accelerated = ("client",)
    return ctx.run(["python3", SCRIPT, "client", ctx.server_end.address, port], role="client", env={"WAY": way}).strip()


@case()
def a_plain_server(ctx):
    """Who is refused has loaded nothing, and goes by TCP."""
    port = ctx.port()
    server = begin(ctx, "plain", port, "server")
    said = connect(ctx, port)
    check(said == "not loaded, 1 thread", f"the client of a plain server: {said}")
    server.kill()


@case(limit=300)
def a_device_that_comes_later(ctx):
    """A service is found by RDMA when its host gets a device: it had none when it was started, or another one, or lost it."""
    own = {(ctx.server_end, ctx.kind)}
    every = {(world.end(kind, role), kind) for kind in world.KINDS for role in ("server", "client")}

    def take(ends):
        for side, _ in ends:
            ctx.run(delete(side), role="server")

    def is_heard(port):
        """After a client has come; messages prove nothing, since a question whether somebody listens is some, too."""
        connect(ctx, port)
        listeners = [r.get("src-addr", "") for r in world.resources("cm_id") if r.get("state") == "LISTEN"]
        return any(name.endswith(f":{port + 20000}") for name in listeners)

    for ends, when in ((own, "before"), (every, "before"), (own, "later")):
        port = ctx.port()
        if when == "before":
            take(ends)
        server = begin(ctx, "plain", port, "server", accelerated=("server",))
        if when == "later":
            ctx.await_listener(server, port + 20000)
            take(ends)
        # It waits, and clients come by TCP.
        connect(ctx, port)
        for side, kind in ends:
            world.ensure_device(side, kind)
        wait_until(lambda port=port: is_heard(port), 60, f"{len(ends)} devices gone {when}: RDMA after all")
        server.kill()


@case(limit=150)
def nobody_answers(ctx):
    """Silence is no refusal: another program has the port of the questions, and RDMA is used all the same."""
    port = ctx.port()
    deaf = begin(ctx, "deaf", port, "server", stdin=None)
    server = begin(ctx, "plain", port, "server", accelerated=("server",))
    ctx.await_listener(server, port + 20000)
    for _ in range(4):
        ctx.mark()
        said = connect(ctx, port)
        if ctx.carried("client")["rdma_sends"]:
            break
    check(said == "loaded", said)
    ctx.prove(1)
    server.kill()
    deaf.kill()


@case(limit=300)
def an_answer_and_no_queue_pair(ctx):
    """Somebody answers, but the connection manager refuses, or the other host has no device any more: TCP."""
    port = ctx.port()
    door, server = begin(ctx, "door", port, "server"), begin(ctx, "plain", port, "server")
    asked = 0
    for how in ("refused", "silent"):
        if how == "silent":
            ctx.run(delete(ctx.server_end), role="server")
        for way, length in (("recv", 11), ("poll", 11), ("full", 2_000_001), ("close", 11)):
            asked += 1
            said = connect(ctx, port, way)
            check(said == "loaded", f"{how}, {way}: {said}")
            wait_until(lambda: door.stdout().count("asked") >= asked, 20, "the client has asked")
            wait_until(lambda: server.stdout().count("got") >= asked, 20, f"{how}, {way}: the server has the line")
            check(server.stdout().split()[-1] == str(length), f"{how}, {way}: the server got {server.stdout().split()[-1]}")
    door.kill()
    server.kill()


@case()
def only_questions_are_answered(ctx):
    version = re.search(r"const NUMBER: u16 = (\d+);",
                        (pathlib.Path(harness.ROOT) / "crates/netacc-wire/src/lib.rs").read_text())[1]
    port = ctx.port()
    server = begin(ctx, "plain", port, "server", accelerated=("server",))
    ctx.await_listener(server, port + 20000)
    said = ctx.run(["python3", SCRIPT, "garbage", ctx.server_end.address, port], role="plain", env={"VERSION": version})
    check("answered 2" in said, said)
    check(connect(ctx, port) == "loaded", "the server is still reached by RDMA")
    server.kill()
