"""Daemons that are written in Go: Caddy, Prometheus and docker-registry as Debian has built them, with Go 1.19 and cgo, and etcd, static
and of the newest release. What each client gets is compared with what it sent."""

import json

import host
import monitor
from harness import check, need
from matrix import case
from test_go_services import BUILDS, ask, services

MB = 1 << 20
COUNT = 40
SIZES = (0, 1, 4097, 300_000, 3 * MB + 1)


def kept(ctx, name):
    folder = ctx.dir / name
    folder.mkdir()
    return {"HOME": folder, "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}, folder


def of_server(ctx, behind):
    """Checks the connection of a server to the one behind it, which are accelerated together."""
    if ctx.mode in ("both", "server"):
        check(monitor.accepts_shm([behind.pid]) >= 1, "the server's own connection is not over shared memory")


@case(limit=BUILDS)
def caddy(ctx):
    """Files, which it sends itself, and what it gets from a server behind it."""
    program = services(ctx)
    origin = ctx.serve(lambda port: [program, "origin", f"127.0.0.1:{port}"])
    env, folder = kept(ctx, "caddy")
    files = folder / "files"
    files.mkdir()
    for size in SIZES:
        (files / f"f{size}").write_bytes(ctx.bytes(size))

    def argv(port):
        routes = [
            {"match": [{"path": ["/files/*"]}], "handle": [{"handler": "file_server", "root": str(folder)}]},
            {"handle": [{"handler": "reverse_proxy", "upstreams": [{"dial": f"127.0.0.1:{origin.port}"}]}]},
        ]
        server = {"listen": [f"tcp/127.0.0.1:{port}"], "routes": routes, "automatic_https": {"disable": True}}
        conf = {"admin": {"disabled": True}, "logging": {"logs": {"default": {"level": "ERROR"}}}, "apps": {"http": {"servers": {"s": server}}}}
        return [need("caddy"), "run", "--config", ctx.file("caddy.json", json.dumps(conf).encode())]

    server = ctx.serve(argv, env=env)
    ctx.mark()
    ask(ctx, "web", f"127.0.0.1:{server.port}", files, COUNT)
    ctx.prove(server, accepts=8, payload=20 * MB)
    of_server(ctx, origin)


@case(limit=BUILDS)
def etcd(ctx):
    """Keys that are put, read, changed by transactions, deleted and watched."""
    program, folder = services(ctx), ctx.dir / "etcd"
    server = ctx.serve(lambda port: [program, "etcd", f"127.0.0.1:{port}", f"127.0.0.1:{host.free_port()}", folder])
    ctx.mark()
    ask(ctx, "keys", f"127.0.0.1:{server.port}", COUNT)
    ctx.prove(server, accepts=8)


@case(limit=BUILDS)
def prometheus(ctx):
    """It fetches what an exporter has, and is asked for it."""
    program = services(ctx)
    exporter = ctx.serve(lambda port: [program, "exporter", f"127.0.0.1:{port}"])
    env, folder = kept(ctx, "prometheus")
    job = {"job_name": "exporter", "scrape_interval": "100ms", "scrape_timeout": "100ms",
           "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}
    conf = ctx.file("prometheus.json", json.dumps({"scrape_configs": [job]}).encode())
    server = ctx.serve(lambda port: [need("prometheus"), f"--config.file={conf}", f"--storage.tsdb.path={folder}", "--log.level=error",
                                     f"--web.listen-address=127.0.0.1:{port}"], env=env)
    ask(ctx, "metrics", f"127.0.0.1:{server.port}", COUNT // 4)
    ctx.prove(server, accepts=2)
    of_server(ctx, exporter)


@case(limit=BUILDS)
def docker_registry(ctx):
    """Images are pushed in pieces, and pulled."""
    env, folder = kept(ctx, "registry")

    def argv(port):
        conf = {"version": "0.1", "log": {"level": "error", "accesslog": {"disabled": True}}, "http": {"addr": f"127.0.0.1:{port}", "secret": "s"},
                "storage": {"filesystem": {"rootdirectory": str(folder)}}}
        return [need("docker-registry"), "serve", ctx.file("registry.json", json.dumps(conf).encode())]

    server = ctx.serve(argv, env=env)
    ctx.mark()
    ask(ctx, "images", f"127.0.0.1:{server.port}", COUNT // 8)
    ctx.prove(server, accepts=8)
