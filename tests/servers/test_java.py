"""Java: blocking sockets (with their own way to wake a reader on close), NIO selectors, HttpServer and HttpClient; Netty with its own
libraries for epoll and io_uring."""

import ctypes
import errno
import platform

import compiled
import releases
from harness import Skipped, check, need
from matrix import case

# A short run: no time for compilers and collectors that pay off later.
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")

# The number of the system call, which is the same on every machine.
IO_URING_SETUP = 425


def java(*args, name="JavaEcho"):
    classes = compiled.make(f"{name}.java", f"{name}.class",
                            lambda source, place: [need("javac"), "-nowarn", "-d", place, source])
    return [need("java"), *OPTIONS, "-cp", classes.parent, name, *args]


def run(ctx, kind, clients, count, accepts):
    server = ctx.serve(lambda port: java("server", port, kind))
    ctx.mark()
    for client in clients:
        text = ctx.run(java("client", server.port, client, count, ctx.random.randrange(1 << 30)))
        check("fine" in text, f"the client says {text[-300:]}")
    ctx.prove(server, accepts=accepts, payload=count * 90000 * 2 * len(clients))


@case(limit=300)
def blocking(ctx):
    run(ctx, "blocking", ("blocking", "nio"), 60, 120)


@case(limit=300)
def nio(ctx):
    run(ctx, "nio", ("nio", "blocking"), 60, 120)


@case(limit=300)
def http(ctx):
    run(ctx, "http", ("http",), 80, 1)


@case(limit=300)
def close(ctx):
    """A close puts another file under the number and sends one signal to each thread that sleeps there."""
    server = ctx.serve(lambda port: java("server", port, "blocking"))
    ctx.mark()
    text = ctx.run(java(server.port, 15, name="JavaClose"))
    check("fine" in text, f"the client says {text[-300:]}")
    ctx.prove(server, accepts=30)


def netty(ctx, transport):
    """Version 4.2.18 of Netty. Each message that a client sends comes back and is compared."""
    if platform.machine() != "x86_64":
        raise Skipped("Netty's own libraries are fetched for x86-64 only")
    jars = releases.netty()
    classes = compiled.make("netty/NettyEcho.java", "NettyEcho.class",
                            lambda source, place: [need("javac"), "-nowarn", "-cp", f"{jars}/*", "-d", place, source])
    command = [need("java"), *OPTIONS, "-cp", f"{classes.parent}:{jars}/*", "NettyEcho", transport]
    server = ctx.serve(lambda port: [*command, "server", port])
    ctx.mark()
    text = ctx.run([*command, "client", server.port, 20])
    check("fine" in text, f"the client says {text[-300:]}")
    return server


@case(limit=300)
def netty_nio(ctx):
    ctx.prove(netty(ctx, "nio"), accepts=20, payload=50_000_000)


@case(limit=300)
def netty_epoll(ctx):
    """Edge-triggered, by calls of a library that Java loads."""
    ctx.prove(netty(ctx, "epoll"), accepts=20, payload=50_000_000)


@case(limit=300)
def netty_io_uring(ctx):
    """Such sockets are the kernel's, and meet those of the other end."""
    ctypes.CDLL(None, use_errno=True).syscall(IO_URING_SETUP, 0, None)
    if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
        raise Skipped("io_uring is switched off here")
    netty(ctx, "io_uring")
