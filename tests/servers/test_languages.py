"""Small servers and clients in Perl, Ruby and Go; Python's aiohttp, gunicorn, uvicorn and hypercorn."""

import os
import sys

import compiled
import host
import releases
from harness import PROGRAMS, START_LIMIT, check, need
from host import wait_until
from matrix import case

sys.path.append(str(PROGRAMS))
import web_app  # noqa: E402

# The packages of aiohttp and gunicorn belong to Debian's interpreter, whichever one runs us.
PYTHON = "/usr/bin/python3"


def echo(ctx, command, count):
    """The program's own server and client, and each against Python's."""
    server = ctx.serve(lambda port: [*command, "server", port])
    python = ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"))
    ctx.mark()
    ctx.run([*command, "client", server.port, count])
    ctx.run(ctx.script("echo_client.py", server.port, "blocking", 40, ctx.random.randrange(1 << 30)))
    ctx.run(ctx.script("echo_client.py", server.port, "selectors", 40, ctx.random.randrange(1 << 30)))
    ctx.run([*command, "client", python.port, count])
    return server, python


@case()
def perl(ctx):
    server, python = echo(ctx, [need("perl"), PROGRAMS / "echo.pl"], 40)
    ctx.prove(server, accepts=120, payload=3_000_000)
    ctx.prove(python, accepts=40)


@case()
def ruby(ctx):
    server, python = echo(ctx, [need("ruby"), PROGRAMS / "echo.rb"], 40)
    ctx.prove(server, accepts=120, payload=3_000_000)
    ctx.prove(python, accepts=40)


@case(limit=300)
def go(ctx):
    """A static Go program, against itself and against Python."""
    go = need("go")
    env = ctx.environment({"CGO_ENABLED": "0", "GOCACHE": compiled.PLACE / "go-cache", "GO111MODULE": "off",
                           "GOPATH": compiled.PLACE / "go", "GOTELEMETRY": "off"})
    program = compiled.make("echo.go", "echo-go", lambda source, place: [go, "build", "-o", place / "echo-go", source], env)
    server, python = echo(ctx, [program], 40)
    ctx.prove(server, accepts=120)
    ctx.prove(python, accepts=40)


def ask(ctx, server, count=60):
    ctx.run([PYTHON, PROGRAMS / "web_app.py", "client", server.port, count, ctx.random.randrange(1 << 30)])


@case()
def aiohttp(ctx):
    server = ctx.serve(lambda port: [PYTHON, PROGRAMS / "web_app.py", "server", port])
    ctx.mark()
    ask(ctx, server, 120)
    ctx.prove(server, accepts=120, payload=60_000_000)


def gunicorn(ctx, kind, application, workers, *options):
    command = [need("gunicorn"), "--workers", workers, "-k", kind, "--chdir", PROGRAMS, "--backlog", 256,
               "--worker-tmp-dir", ctx.dir, *options]
    server = ctx.serve(lambda port: [*command, "--bind", f"127.0.0.1:{port}", application],
                       env={"PYTHONDONTWRITEBYTECODE": "1"})
    wait_until(lambda: len(host.children(server.pid)) >= workers, START_LIMIT, "the workers are there")
    # Until a worker has loaded the application nobody waits for clients, and all of them may come by TCP.
    ask(ctx, server)
    ask(ctx, server)
    ctx.prove(server, accepts=60)
    return server


@case()
def gunicorn_sync(ctx):
    """A connection per request; a worker that is killed is made anew."""
    server = gunicorn(ctx, "sync", "web_app:wsgi", 3)
    victim = host.children(server.pid)[0]
    os.kill(victim, 9)
    wait_until(lambda: len(host.children(server.pid)) == 3 and victim not in host.children(server.pid), 30, "a new worker")
    ask(ctx, server)


@case()
def gunicorn_threads(ctx):
    gunicorn(ctx, "gthread", "web_app:wsgi", 2, "--threads", 4)


@case()
def gunicorn_aiohttp(ctx):
    gunicorn(ctx, "aiohttp.GunicornWebWorker", "web_app:make", 2)


def asgi(ctx, server, *options):
    """The parent binds, and each of two workers, a program that it executes, listens and accepts."""
    command = [*releases.asgi(server), *options, "web_app:asgi", "--workers", 2]
    bind = {"hypercorn": lambda port: ["--bind", f"127.0.0.1:{port}"]}.get(server, lambda port: ["--port", port])
    server = ctx.serve(lambda port: [*command, *bind(port)],
                       env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(PROGRAMS)})
    ask(ctx, server)
    # The look whether it is there is not accelerated.
    ctx.prove(server, accepts=60)


@case()
def uvicorn(ctx):
    """Version 0.54.0."""
    asgi(ctx, "uvicorn", "--log-level", "warning")


@case()
def hypercorn(ctx):
    """Version 0.18.0."""
    asgi(ctx, "hypercorn")


@case()
def granian(ctx):
    """Version 2.8.9: the sockets are those of a runtime written in Rust, and each worker has the parent's listener."""
    asgi(ctx, "granian", "--interface", "asgi", "--no-ws")


@case()
def uwsgi_threads(ctx):
    """One process: threads with an epoll instance each, which has the one listener; a mutex lets one of them wait at a time."""
    web = [need("uwsgi"), "--plugin", "python3", "--die-on-term", "--chdir", PROGRAMS, "--module", "web_app:wsgi"]
    server = ctx.serve(lambda port: [*web, "--http-socket", f"127.0.0.1:{port}", "--threads", 2])
    # Each client is a process, so that each connect comes by a link of its own.
    for size in range(1000, 1030):
        client = ctx.client([need("curl"), "-s", "-S", "-m", 40, f"http://127.0.0.1:{server.port}/{size}"])
        client.result()
        check(client.out.read_bytes() == web_app.content(size), "another answer than was asked for")
    ctx.prove(server, accepts=30)
