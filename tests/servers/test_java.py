"""Java: blocking sockets (with their own way to wake a reader on close), NIO selectors, HttpServer and HttpClient."""

import compiled
from harness import check, need
from matrix import case

# A short run: no time for compilers and collectors that pay off later.
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


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
