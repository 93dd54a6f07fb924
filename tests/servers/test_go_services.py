"""Services and clients that are written in Go, by the libraries and in the releases that people use: NATS, gRPC, go-redis, pgx.
Both are static programs. What each client gets is compared with what it sent."""

import platform
import subprocess

import compiled
import redis_server
import releases
import test_postgres
from harness import PROGRAMS, Failure, Skipped, check
from matrix import case

# Seconds, for a build on an empty cache.
BUILDS = 500
COUNT = 60


def services(ctx):
    """The program, built of `services/` and of modules in fixed versions."""
    if platform.machine() != "x86_64":
        raise Skipped("Go programs are followed on x86-64 only")
    folder, product = PROGRAMS / "services", compiled.PLACE / "services"
    newest = max(part.stat().st_mtime for part in folder.iterdir())
    if not product.exists() or product.stat().st_mtime < newest:
        compiled.PLACE.mkdir(parents=True, exist_ok=True)
        env = ctx.environment({"CGO_ENABLED": 0, "GOCACHE": compiled.PLACE / "go-cache", "GOMODCACHE": releases.go_modules(),
                               "GOPROXY": "off", "GOTELEMETRY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-modcacherw"})
        done = subprocess.run([releases.go(27), "build", "-o", product, "."], cwd=folder, env=env, capture_output=True, text=True,
                              timeout=BUILDS - 60, check=False)
        if done.returncode:
            raise Failure(f"services is not built: {done.stderr.strip()[-600:]}")
        product.touch()
    return product


def ask(ctx, *what):
    said = ctx.run([services(ctx), *what], limit=120)
    check(said == "fine\n", f"the client says {said!r}")


@case(limit=BUILDS)
def nats(ctx):
    """Requests that a third program answers, and a stream that the server stores."""
    program, folder = services(ctx), ctx.dir / "store"
    server = ctx.serve(lambda port: [program, "nats-server", f"127.0.0.1:{port}", folder])
    ctx.mark()
    ask(ctx, "nats", f"127.0.0.1:{server.port}", COUNT)
    ctx.prove(server, accepts=13)


@case(limit=BUILDS)
def grpc(ctx):
    """Calls and streams; every other stream is cancelled."""
    program = services(ctx)
    server = ctx.serve(lambda port: [program, "grpc-server", f"127.0.0.1:{port}"])
    ctx.mark()
    ask(ctx, "grpc", f"127.0.0.1:{server.port}", COUNT)
    ctx.prove(server, accepts=12)


@case(limit=BUILDS)
def go_redis(ctx):
    server = redis_server.start(ctx)
    ctx.mark()
    ask(ctx, "redis", f"127.0.0.1:{server.port}", COUNT)
    ctx.prove(server, accepts=2)


@case(limit=BUILDS)
def pgx(ctx):
    """PostgreSQL, which runs as another user here; some statements are cancelled over a connection of their own."""
    server = test_postgres.start(ctx)
    url = f"postgres://tester@127.0.0.1:{server.port}/postgres?sslmode=disable"
    ask(ctx, "postgres", url, COUNT)
