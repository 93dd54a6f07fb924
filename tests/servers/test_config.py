"""Settings that decide which transport a connection gets, seen in netacc_ss and in the data."""

import subprocess

import host
import monitor
from harness import check, equal, need
from host import wait_until
from matrix import case
from redis_server import admin, start

BOTH = ("both",)


def hold(ctx, server, count, env=None):
    """A client process that keeps connections open until it is ended on request."""
    client = ctx.client(ctx.script("redis_client.py", server.port, "idle", count), env=env, stdin=subprocess.PIPE)
    wait_until(lambda: "connected" in client.stdout() or not client.running(), 60, "the connections are there")
    check(client.running(), f"the client failed: {client.tail(3)}")
    return client


def let_go(client):
    client.popen.stdin.write(b"\n")
    client.popen.stdin.close()
    client.result()


def to_server(client, server):
    """The client's sockets towards the server as netacc_ss shows them."""
    found = monitor.connections(client.pid)
    check(found, f"netacc_ss shows no connection of {client.pid}")
    return found


def all_on_tcp(client, server, reason):
    for sock in to_server(client, server):
        equal(sock.get("transport"), "TCP", "transport")
        check(sock.get("reason") not in (None, "", "none"), f"no reason is shown: {sock}")
        check(reason in str(sock.get("reason")), f"reason {sock.get('reason')} instead of {reason}")


@case(modes=BOTH)
def disabled_client(ctx):
    server = start(ctx)
    client = hold(ctx, server, 20, {"NACC_ENABLE_RDMA_DEFAULT": 0})
    all_on_tcp(client, server, "disabled")
    equal(monitor.accepts_shm([server.pid]), 0, "connections over shared memory")
    let_go(client)


@case(modes=BOTH)
def disabled_server(ctx):
    """A server that is switched off offers no rendezvous; accelerated clients reach it by TCP."""
    program = need("redis-server")
    server = ctx.serve(lambda port: [program, "--port", port, "--save", "", "--dir", ctx.dir],
                       env={"NACC_ENABLE_RDMA_DEFAULT": 0})
    with admin(server) as r:
        equal(r.call("PING"), "PONG", "PING")
    check(not host.abstract_names(), f"a rendezvous is open: {host.abstract_names()}")
    client = hold(ctx, server, 5)
    all_on_tcp(client, server, "")
    let_go(client)


@case(modes=BOTH)
def percent_none(ctx):
    server = start(ctx)
    client = hold(ctx, server, 40, {"NACC_CONNECT_RDMA_PERCENT": 0})
    all_on_tcp(client, server, "percent")
    equal(monitor.accepts_shm([server.pid]), 0, "connections over shared memory")
    let_go(client)


@case(modes=BOTH)
def percent_half(ctx):
    """The draw is per connection: of 400, all but never fewer than 120 or more than 280 on either side."""
    server = start(ctx)
    client = hold(ctx, server, 400, {"NACC_CONNECT_RDMA_PERCENT": 50})
    fast = monitor.accepts_shm([server.pid])
    check(120 < fast < 280, f"{fast} of 400 connections over shared memory")
    kinds = [s.get("transport") for s in to_server(client, server)]
    check(kinds.count("SHM") == fast, f"the client shows {kinds.count('SHM')}, the server accepted {fast}")
    for sock in to_server(client, server):
        if sock.get("transport") == "TCP":
            check("percent" in str(sock.get("reason")), f"reason {sock.get('reason')}")
    let_go(client)


@case(modes=BOTH)
def log(ctx):
    """Level and path of the log; a path that cannot be written does not stop the program."""
    server = start(ctx)
    loud, quiet = ctx.dir / "loud.log", ctx.dir / "quiet.log"
    script = ctx.script("redis_client.py", server.port, "multi", 1)
    ctx.run(script, env={"NACC_LOG_LEVEL": 0, "NACC_LOG_PATH": loud})
    check(loud.exists() and loud.stat().st_size > 0, "level 0 writes no log")
    ctx.run(script, env={"NACC_LOG_LEVEL": 5, "NACC_LOG_PATH": quiet})
    text = quiet.read_text() if quiet.exists() else ""
    check(not text, f"level 5 writes {text[:200]}")
    ctx.run(script, env={"NACC_LOG_LEVEL": 0, "NACC_LOG_PATH": ctx.dir / "no" / "such" / "log"})
    ctx.run(script, env={"NACC_LOG_LEVEL": 0, "NACC_LOG_PATH": "/dev/full"})
    ctx.prove(server)


@case(modes=BOTH)
def wrong_environment(ctx):
    """Values out of range in the environment are reported and the default holds."""
    server = start(ctx)
    ctx.run(ctx.script("redis_client.py", server.port, "multi", 1),
            env={"NACC_CONNECT_RDMA_PERCENT": "lots", "NACC_SOR_IO_THREADS": "-3"})
    text = ctx.log.read_text() if ctx.log.exists() else ""
    text += "".join(p.err.read_text(errors="replace") for p in ctx.procs)
    check("NACC_CONNECT_RDMA_PERCENT" in text, "the wrong value is not reported")
    ctx.prove(server)


@case(modes=BOTH)
def tcp_first(ctx):
    """Begins on kernel TCP, is moved to shared memory while data flows, and no byte is lost on the way."""
    server = ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"))
    stop = ctx.dir / "stop"
    client = ctx.client(ctx.script("steady_client.py", server.port, 4, stop), env={"NACC_CONN_TCP_FIRST": 1})

    def promoted():
        check(client.running(), f"the client failed: {client.tail(3)}")
        try:
            kinds = monitor.transports(client.pid)
        except monitor.NoAnswer:
            return False
        return len(kinds) >= 4 and all(k == "SHM" for k in kinds)

    wait_until(promoted, 30, "all connections are promoted")
    equal(monitor.accepts_shm([server.pid]), 0, "connections that began on shared memory")
    lines = len(client.stdout().splitlines())
    if ctx.own_network:
        before = host.loopback_bytes()
        wait_until(lambda: len(client.stdout().splitlines()) > lines + 8 or not client.running(), 30, "data goes on")
        moved = host.loopback_bytes() - before
        check(moved < 2 << 20, f"{moved} bytes still went over kernel TCP")
    stop.touch()
    client.result()


@case(modes=BOTH)
def few_descriptors(ctx):
    """A client at its limit of descriptors: an honest error for the next socket, the others go on."""
    server = start(ctx)
    ctx.run(ctx.script("steady_client.py", server.port, 0, ctx.dir / "unused"))
    with admin(server) as r:
        equal(r.call("PING"), "PONG", "PING")
    ctx.prove(server, accepts=5)
