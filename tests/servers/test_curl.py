"""curl with Python's http.server: downloads, uploads by length and in chunks, Expect: 100-continue."""

import hashlib

from harness import check, equal, need
from matrix import case

MB = 1 << 20
SIZES = (0, 1, 4096, 65537, MB, 9 * MB + 1)


def start(ctx):
    www = ctx.dir / "www"
    www.mkdir()
    return www, ctx.serve(lambda port: ctx.script("http_server.py", port, www))


def curl(ctx, *args):
    return ctx.run([need("curl"), "-sS", "--fail", "--max-time", "60", *args])


@case()
def downloads(ctx):
    www, server = start(ctx)
    ctx.mark()
    for size in SIZES:
        data = ctx.bytes(size)
        (www / "file").write_bytes(data)
        for options in ((), ("--http1.0",), ("-H", "Connection: close")):
            got = ctx.dir / "got"
            curl(ctx, *options, "-o", got, f"http://127.0.0.1:{server.port}/file")
            check((got.read_bytes() if got.exists() else b"") == data, f"{size} bytes differ with {options}")
            got.unlink(missing_ok=True)
    ctx.prove(server, accepts=3 * len(SIZES), payload=3 * sum(SIZES))


@case()
def uploads(ctx):
    www, server = start(ctx)
    ctx.mark()
    for size in SIZES:
        data = ctx.bytes(size)
        path = ctx.file("data", data)
        wanted = hashlib.sha256(data).hexdigest()
        url = f"http://127.0.0.1:{server.port}/up"
        ways = [("-T", path), ("-X", "POST", "--data-binary", f"@{path}"), ("-T", path, "-H", "Expect: 100-continue")]
        if size:
            # curl itself never ends an empty body in chunks.
            ways.append(("-T", path, "-H", "Transfer-Encoding: chunked"))
        for options in ways:
            equal(curl(ctx, *options, url), wanted, f"sha256 the server saw of {size} bytes with {options[2:]}")
            check((www / "up").read_bytes() == data, f"{size} stored bytes differ")
    ctx.prove(server, accepts=4 * len(SIZES) - 1, payload=4 * sum(SIZES))


@case()
def many_at_once(ctx):
    www, server = start(ctx)
    args, sums = [], {}
    for n in range(60):
        data = ctx.bytes(ctx.random.randrange(300000))
        (www / f"f{n}").write_bytes(data)
        sums[f"f{n}"] = data
        args += ["-o", ctx.dir / f"got{n}", f"http://127.0.0.1:{server.port}/f{n}"]
    curl(ctx, "--parallel", "--parallel-immediate", "--parallel-max", "30", *args)
    for n in range(60):
        path = ctx.dir / f"got{n}"
        check((path.read_bytes() if path.exists() else b"") == sums[f"f{n}"], f"file {n} differs")
    ctx.prove(server, accepts=10)
