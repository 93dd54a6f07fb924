"""Programs on two hosts, joined by RDMA: what they say arrives, and the devices' own counters show by which way."""

import json

import harness
from harness import check, need
from host import wait_until
from matrix import case


def cli(ctx, port, *words):
    return ctx.run([need("redis-cli"), "-h", ctx.server_end.address, "-p", port, *words])


def redis(ctx, accelerated):
    ctx.accelerated = accelerated
    port = ctx.port()
    argv = [need("redis-server"), "--port", port, "--save", "", "--protected-mode", "no", "--dir", ctx.dir]
    server = ctx.spawn(argv, role="server")
    wait_until(lambda: "ready to accept" in server.stdout().lower() or not server.running(), 60, "redis is ready")
    check(server.running(), server.text())
    return server, port


@case()
def redis_cli(ctx):
    """A few commands over one connection each."""
    server, port = redis(ctx, ("server", "client"))
    for n in range(3):
        check(cli(ctx, port, "set", f"key{n}", "x" * 3000 * n).strip() == "OK", "set")
        check(cli(ctx, port, "get", f"key{n}").strip() == "x" * 3000 * n, "get")
    ctx.prove(10, 3000)
    check(server.running(), server.text())


def benchmark(ctx, port, *options, **run):
    text = ctx.run([need("redis-benchmark"), "-h", ctx.server_end.address, "-p", port, "-q", "-d", "512", *options], **run)
    check("requests per second" in text, text)
    return text


@case(limit=240)
def redis_benchmark(ctx):
    """Many clients, and a connection per request."""
    server, port = redis(ctx, ("server", "client"))
    ctx.mark()
    print("    " + benchmark(ctx, port, "-t", "set,get", "-n", 4000, "-c", 20, limit=100).strip().replace("\r", "\n")[-200:])
    ctx.prove(4000, 4000 * 512)
    ctx.mark()
    benchmark(ctx, port, "-t", "set", "-n", 300, "-c", 5, "-k", 0, limit=100)
    ctx.prove(600, 300 * 512)
    check(server.running(), server.text())
