"""CPython's ways to serve and to ask: each kind of server under every kind of client, contents compared."""

import sys

import host
import releases
from harness import check, equal
from matrix import case

CLIENTS = ("blocking", "timeouts", "selectors", "asyncio")


def echo(ctx, kind, clients=CLIENTS, count=100):
    server = ctx.serve(lambda port: ctx.script("echo_server.py", port, kind))
    ctx.mark()
    for client in clients:
        ctx.run(ctx.script("echo_client.py", server.port, client, count, ctx.random.randrange(1 << 30)))
    ctx.prove(server, accepts=count * len(clients), payload=3000000 * len(clients))


@case()
def blocking(ctx):
    echo(ctx, "blocking")


@case()
def timeouts(ctx):
    echo(ctx, "timeouts", ("timeouts", "asyncio"))


@case()
def select(ctx):
    echo(ctx, "select", ("selectors", "blocking"))


@case()
def poll(ctx):
    echo(ctx, "poll", ("selectors", "blocking"))


@case()
def epoll(ctx):
    echo(ctx, "epoll")


@case()
def asyncio_streams(ctx):
    echo(ctx, "asyncio")


@case()
def uvloop(ctx):
    """Version 0.23.0: libuv's loop, which asks for an io_uring before its first socket."""
    def script(*args):
        return [releases.uvloop_python(), *ctx.script(*args)[1:]]

    server = ctx.serve(lambda port: script("echo_server.py", port, "uvloop"))
    ctx.mark()
    for client in ("uvloop", "asyncio"):
        ctx.run(script("echo_client.py", server.port, client, 100, ctx.random.randrange(1 << 30)))
    ctx.prove(server, accepts=200, payload=6000000)


@case()
def threading_server(ctx):
    echo(ctx, "threading")


@case()
def forking_server(ctx):
    echo(ctx, "forking", ("blocking", "selectors"), 60)


@case()
def prefork(ctx):
    echo(ctx, "prefork")


@case()
def no_server(ctx):
    """A refused port: the same errors from a blocking, a timed and a non-blocking connect."""
    text = ctx.run(ctx.script("calls.py", host.free_port(), "refused"))
    equal(text.split(), ["ConnectionRefusedError"] * 4, "errors of connects to a port without a server")


@case()
def time_limits(ctx):
    """Timeouts of recv, accept and a full send buffer."""
    server = ctx.serve(lambda port: ctx.script("calls.py", port, "silent"))
    ctx.run(ctx.script("calls.py", server.port, "timeouts"))
    ctx.prove(server, accepts=2)


@case(modes=("plain", "server"))
def no_sockets(ctx):
    """A program without sockets sees no descriptor, thread, signal handler or file more than without the library."""
    argv = ctx.script("calls.py", 0, "footprint")
    plain = ctx.run(argv, role=None)
    found = ctx.run(argv, role="server")
    equal(found, plain, "what the program sees of itself")
    check(not ctx.log.exists() or not ctx.log.read_text(), "a log was written for a program without sockets")
    if ctx.mode == "server":
        text = ctx.run([sys.executable, "-c", "print(open('/proc/self/maps').read())"], role="server")
        check("libnetacc" in text, "the library is not in the program")
        check("memfd:netacc" not in text, "shared memory was allocated for a program without sockets")
