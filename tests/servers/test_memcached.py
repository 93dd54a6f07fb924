"""memcached: four threads that hand connections to each other, each with an event loop of its own."""

import os

import host
from harness import check, need
from host import wait_until
from matrix import case

MB = 1 << 20


def start(ctx, *more, **spawn):
    program = need("memcached")
    user = ["-u", "root"] if os.getuid() == 0 else []
    return ctx.serve(lambda port: [program, "-p", port, "-l", "127.0.0.1", "-U", 0, "-t", 4, "-m", 256,
                                   "-I", "8m", "-c", 4096, *user, *more], **spawn)


def script(ctx, server, *args):
    return ctx.script("memcached_client.py", server.port, *args)


@case()
def values(ctx):
    server = start(ctx)
    ctx.mark()
    ctx.run(script(ctx, server, "values", ctx.random.randrange(1 << 30)))
    ctx.prove(server, payload=20 * MB)


@case()
def many_connections(ctx):
    server = start(ctx)
    ctx.run(script(ctx, server, "many", ctx.random.randrange(1 << 30), 400))
    ctx.prove(server, accepts=400)
    wait_until(lambda: not host.links(server.pid), 30, "shared memory of ended clients is given back")


def most_resident(pid):
    """The most memory that the process has had at once, in bytes."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM:"))


@case()
def locked(ctx):
    """With -k all memory is locked when it is mapped (mlockall(2)): the program's own, and not that of connections."""
    server = start(ctx, "-k")
    before = most_resident(server.pid)
    ctx.run(script(ctx, server, "many", ctx.random.randrange(1 << 30), 100))
    ctx.prove(server, accepts=100)
    more = most_resident(server.pid) - before
    check(more < 128 * MB, f"100 connections have made {more >> 20} MiB resident")


@case()
def killed(ctx):
    server = start(ctx)
    client = ctx.client(script(ctx, server, "blocked"))
    wait_until(lambda: "connected" in client.stdout() or not client.running(), 30, "the clients are connected")
    ctx.prove(server, accepts=8)
    server.kill()
    client.result()


@case(modes=("both",))
def client_killed(ctx):
    server = start(ctx)
    for _ in range(4):
        client = ctx.client(script(ctx, server, "blocked"))
        wait_until(lambda: "connected" in client.stdout() or not client.running(), 30, "the clients are connected")
        client.kill()
    ctx.prove(server, accepts=32)
    wait_until(lambda: not host.links(server.pid), 30, "shared memory of dead clients is given back")
    ctx.run(script(ctx, server, "values", 1))
