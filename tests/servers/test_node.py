"""Node.js: libuv's loop (epoll, closes by syscall(2)), keep-alive, threads, children, a cluster. Deno, which runs the same programs."""

import os
import pathlib
import time

import host
import monitor
import releases
from harness import check, need
from host import wait_until
from matrix import case


def start(ctx, kind, children=0, node=None):
    """`node`: the command of an interpreter."""
    node = node or [need("node")]
    server = ctx.serve(lambda port: [*node, *ctx.script("node_server.js", port, kind)[1:]])
    wait_until(lambda: len(host.children(server.pid)) >= children, 30, "the workers are there")
    return server


def client(ctx, server, requests, *options, role="client", node=None):
    ctx.run([*(node or [need("node")]), *ctx.script("node_client.js", server.port, requests, *options)[1:]], role)


def quiet(server):
    """No connection is left when the clients are gone, though the server runs on."""
    def ended():
        try:
            return not monitor.connections(server.pid)
        except monitor.NoAnswer:
            return True
    wait_until(ended, 30, "the server has closed its connections")


@case()
def single(ctx):
    server = start(ctx, "single")
    ctx.mark()
    client(ctx, server, 240)
    ctx.prove(server, accepts=90, payload=40_000_000)
    quiet(server)


def processor_time(pid):
    """Seconds that a process has had."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def release(ctx, node):
    server = start(ctx, "single", node=node)
    ctx.mark()
    client(ctx, server, 240, node=node)
    ctx.prove(server, accepts=90, payload=40_000_000)
    quiet(server)
    before = processor_time(server.pid)
    time.sleep(1)
    used = processor_time(server.pid) - before
    check(used < 0.5, f"the server had {used:.2f} s of a second with nothing to do")


@case()
def node_22(ctx):
    """Version 22.20.0. libuv asks for an io_uring before its first socket, and would add its sockets to epoll by that."""
    release(ctx, [releases.node(22)])


@case()
def node_24(ctx):
    """Version 24.19.0."""
    release(ctx, [releases.node(24)])


@case()
def deno(ctx):
    """Version 2.9.8: the event loop of tokio."""
    release(ctx, [releases.deno(), "run", "-A", "--unstable-detect-cjs"])


@case()
def threads(ctx):
    server = start(ctx, "threads")
    client(ctx, server, 120)
    ctx.prove(server, accepts=60)
    quiet(server)


@case()
def children(ctx):
    """Children are made while connections are open; they have none of them."""
    server = start(ctx, "child")
    client(ctx, server, 24)
    ctx.prove(server, accepts=40)
    quiet(server)


@case()
def cluster(ctx):
    """The primary accepts and passes each connection to a worker."""
    server = start(ctx, "cluster", 3)
    client(ctx, server, 60)
    ctx.prove(server)


@case()
def shared_listener(ctx):
    """The primary passes a bound socket to the workers, which listen and accept: that stays on TCP."""
    server = start(ctx, "shared", 3)
    client(ctx, server, 60)


@case(modes=("both",))
def killed(ctx):
    """A server that is killed under load ends its clients' requests with an error, not with a hang."""
    server = start(ctx, "single")
    running = ctx.client([need("node"), *ctx.script("node_client.js", server.port, 100000)[1:]])
    wait_until(lambda: monitor.accepts_shm([server.pid]) >= 8 or not running.running(), 30, "load runs")
    server.kill()
    check(running.wait(30) == 1 and "wrong" in running.text(), f"the client ended with {running.tail(3)}")
