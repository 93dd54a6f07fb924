"""The probe by which a client asks, before it loads any library, whether a server is reachable by RDMA."""

import pathlib
import re

import harness
import world
from harness import check
from host import wait_until
from matrix import case
from test_faults import delete

SCRIPT = str(harness.ROOT / "tests" / "rdma" / "probes.py")
# The ways in which a connection is handed on right after it was made.
HANDED = ("fork", "exec", "spawn", "pass")


def begin(ctx, what, port, role, accelerated=(), **spawn):
    ctx.accelerated = accelerated
    proc = ctx.spawn(["python3", SCRIPT, what, ctx.server_end.address, port], role=role, **spawn)
    wait_until(lambda: "ready" in proc.stdout() or not proc.running(), 60, f"{what} is ready")
    check(proc.running(), proc.text())
    return proc


def connect(ctx, port, way="recv"):
    """Runs a client that connects, and returns whether it loaded the libraries."""
    ctx.accelerated = ("client",)
    return ctx.run(["python3", SCRIPT, "client", ctx.server_end.address, port], role="client", env={"WAY": way}).strip()


@case()
def a_plain_server(ctx):
    """A client that is refused has loaded no library, and uses TCP."""
    port = ctx.port()
    server = begin(ctx, "plain", port, "server")
    said = connect(ctx, port)
    check(said == "not loaded, 1 thread", f"the client of a plain server: {said}")
    server.kill()


@case(limit=300)
def a_device_that_comes_later(ctx):
    """A service is found by RDMA when its host gets a device after the start: it had none, had another one, or lost it."""
    own = {(ctx.server_end, ctx.kind)}
    every = {(world.end(kind, role), kind) for kind in world.KINDS for role in ("server", "client")}

    def take(ends):
        for side, _ in ends:
            ctx.run(delete(side), role="server")

    def is_heard(port):
        """Whether RDMA carries a further client. A client must have come before; single messages prove nothing, since a
        probe of the listener causes some too."""
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
        # The listener waits for devices, and clients come by TCP.
        connect(ctx, port)
        for side, kind in ends:
            world.ensure_device(side, kind)
        wait_until(lambda port=port: is_heard(port), 60, f"{len(ends)} devices gone {when}: RDMA after all")
        server.kill()


@case(limit=150)
def nobody_answers(ctx):
    """If another program has the port of the probes and does not answer, RDMA is used nevertheless."""
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
    """If a probe is answered but the connection manager refuses, or the other host has no device any more, TCP is used."""
    port = ctx.port()
    door, server = begin(ctx, "door", port, "server"), begin(ctx, "plain", port, "server")
    asked = 0
    for how in ("refused", "silent"):
        if how == "silent":
            ctx.run(delete(ctx.server_end), role="server")
        for way, length in (*((way, 11) for way in ("recv", "poll", "close", *HANDED)), ("full", 2_000_001)):
            asked += 1
            said = connect(ctx, port, way)
            # A client that does not wait may check before the libraries are loaded.
            check(way == "close" or said == ("went on" if way in HANDED else "loaded"), f"{how}, {way}: {said}")
            wait_until(lambda: door.stdout().count("asked") >= asked, 20, "the client has asked")
            wait_until(lambda: server.stdout().count("got") >= asked, 20, f"{how}, {way}: the server has the line")
            check(server.stdout().split()[-1] == str(length), f"{how}, {way}: the server got {server.stdout().split()[-1]}")
        # The connection falls back although the program does not call the library again.
        asked += 1
        ctx.accelerated = ("client",)
        argv = ["python3", SCRIPT, "client", ctx.server_end.address, port]
        client = ctx.spawn(argv, role="client", env={"WAY": "asleep"})
        wait_until(lambda: server.stdout().count("got") >= asked, 20, f"{how}: the server has the line of a client that sleeps")
        client.kill()
    door.kill()
    server.kill()


@case(limit=150)
def handed_on_at_once(ctx):
    """A connection that is handed to another process before its queue pair exists works there, and all bytes arrive."""
    port = ctx.port()
    server = begin(ctx, "plain", port, "server", accelerated=("server",))
    ctx.await_listener(server, port + 20000)
    for n, way in enumerate(HANDED * 3):
        said = connect(ctx, port, way)
        check(said == "went on", f"{way}: {said}")
        wait_until(lambda n=n: server.stdout().count("got 11") > n, 20, f"{way}: the server has the line")
    server.kill()


@case()
def an_answer_and_nobody_behind_it(ctx):
    """A host that answers probes without a server is believed once: later connects wait and get the result of TCP."""
    port = ctx.port()
    doors = [begin(ctx, "door", at, "server") for at in (port, port + 1)]
    ctx.accelerated = ("client",)
    said = ctx.run(["python3", SCRIPT, "twice", ctx.server_end.address, port], role="client").split()
    check(said == ["ECONNRESET", "ECONNREFUSED"], f"two connects to doors without a house: {said}")
    for door in doors:
        door.kill()


@case()
def a_constructor_that_connects(ctx):
    """A constructor may connect, although the thread that loads the libraries waits for the dynamic linker, which waits for the
    constructor, which waits for an answer."""
    port = ctx.port()
    server = begin(ctx, "plain", port, "server", accelerated=("server",))
    ctx.await_listener(server, port + 20000)
    ctx.accelerated = ("client",)
    for _ in range(2):
        said = ctx.run(["python3", SCRIPT, "library", ctx.server_end.address, port], role="client").strip()
        check(said == "loaded", said)
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
