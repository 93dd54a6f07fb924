"""nginx: workers forked from a master that listens, files by sendfile, reloads, a dying worker, a proxy."""

import collections
import hashlib
import os
import re
import signal

import host
from harness import check, equal, need
from host import wait_until
from matrix import case

MB = 1 << 20
SIZES = (0, 1, 100, 4095, 4096, 65536, 262145, MB, 5 * MB + 3, 20 * MB)

CONF = """
daemon off;
pid {dir}/nginx.{port}.pid;
error_log {dir}/nginx.{port}.error.log notice;
worker_processes {workers};
{user}
events {{ worker_connections 1024; {events} }}
http {{
    log_format who '$pid $status $request_length $connection';
    access_log {dir}/nginx.{port}.access.log who;
    client_body_temp_path {dir}/body.{port};
    proxy_temp_path {dir}/proxy.{port};
    fastcgi_temp_path {dir}/fastcgi.{port};
    uwsgi_temp_path {dir}/uwsgi.{port};
    scgi_temp_path {dir}/scgi.{port};
    client_max_body_size 100m;
    default_type application/octet-stream;
    sendfile {sendfile};
    {upstream}
    server {{
        listen 127.0.0.1:{port} backlog=2048{listen};
        root {dir}/www;
        {server}
    }}
}}
"""


def files(ctx):
    www = ctx.dir / "www"
    www.mkdir(exist_ok=True)
    sums = {}
    for size in SIZES:
        data = ctx.bytes(size)
        (www / f"f{size}").write_bytes(data)
        sums[f"f{size}"] = hashlib.sha256(data).hexdigest()
    return sums


def start(ctx, workers=1, sendfile="on", events="", server="", upstream="", user=None, role="server", listen="",
          **spawn):
    program = need("nginx")
    if user is None:
        user = "root" if os.getuid() == 0 else ""
    conf = {}

    def argv(port):
        text = CONF.format(dir=ctx.dir, port=port, workers=workers, sendfile=sendfile, events=events,
                           server=server, upstream=upstream, listen=listen, user=f"user {user};" if user else "")
        conf["path"] = ctx.file(f"nginx.{port}.conf", text.encode())
        return [program, "-p", ctx.dir, "-c", conf["path"], "-e", ctx.dir / f"nginx.{port}.error.log"]

    nginx = ctx.serve(argv, role=role, **spawn)
    wait_until(lambda: len(host.children(nginx.pid)) >= workers, 30, f"{workers} workers run")
    return nginx


def curl(ctx, *args, role="client"):
    return ctx.run([need("curl"), "-sS", "--fail", "--max-time", "60", *args], role)


def compare(ctx, nginx, sums, *options, role="client"):
    """All files by one curl, so that a connection is used again unless the options forbid it."""
    args, into = [], ctx.dir / "got"
    into.mkdir(exist_ok=True)
    for name in sums:
        args += ["-o", into / name, f"http://127.0.0.1:{nginx.port}/{name}"]
    curl(ctx, *options, *args, role=role)
    for name, wanted in sums.items():
        path = into / name
        # curl makes no file for an empty body.
        data = path.read_bytes() if path.exists() else b""
        equal(hashlib.sha256(data).hexdigest(), wanted, f"sha256 of {name}")
        path.unlink(missing_ok=True)


def wrk(ctx, nginx, name, seconds=1, options=(), **spawn):
    return ctx.client([need("wrk"), "-t2", "-c50", f"-d{seconds}s", *options, f"http://127.0.0.1:{nginx.port}/{name}"], **spawn)


def wrk_fine(proc):
    text = proc.result()
    check("Socket errors" not in text and "Non-2xx" not in text, f"wrk reports {text.strip().splitlines()[-4:]}")
    found = re.search(r"(\d+) requests in", text)
    check(found and int(found[1]) > 100, f"wrk made no requests: {text}")
    return int(found[1])


def served_by(ctx, nginx):
    """Processes that appear in the access log."""
    path = ctx.dir / f"nginx.{nginx.port}.access.log"
    with open(path) as f:
        return {line.split(" ", 1)[0] for line in f}


def no_crash(ctx, nginx):
    text = (ctx.dir / f"nginx.{nginx.port}.error.log").read_text(errors="replace")
    bad = [line for line in text.splitlines()
           if re.search(r"\[(alert|crit|emerg)\]", line) and "exited on signal 9" not in line]
    check(not bad, f"nginx complains: {bad[:3]}")


def static(ctx, workers, sendfile):
    sums = files(ctx)
    nginx = start(ctx, workers, sendfile)
    ctx.mark()
    compare(ctx, nginx, sums)
    compare(ctx, nginx, sums, "-H", "Connection: close")
    compare(ctx, nginx, sums, "--http1.0")
    compare(ctx, nginx, sums, "--parallel", "--parallel-immediate")
    ctx.prove(nginx, accepts=3, payload=100 * MB)
    if ctx.mode == "both":
        compare(ctx, nginx, sums, role=None)
    part = curl(ctx, "-r", "1000-1999", "-o", ctx.dir / "part", f"http://127.0.0.1:{nginx.port}/f{MB}")
    equal((ctx.dir / "part").read_bytes(), (ctx.dir / "www" / f"f{MB}").read_bytes()[1000:2000], f"a range {part}")
    no_crash(ctx, nginx)


@case()
def static_1_sendfile(ctx):
    static(ctx, 1, "on")


@case()
def static_4_copy(ctx):
    static(ctx, 4, "off")


@case()
def small_buffer(ctx):
    """SO_SNDBUF of the listener: a worker that waits edge-triggered for room gets the event, however slowly a client reads."""
    sums = files(ctx)
    nginx = start(ctx, sendfile="off", listen=" sndbuf=32k")
    ctx.mark()
    compare(ctx, nginx, sums)
    compare(ctx, nginx, {f"f{5 * MB + 3}": sums[f"f{5 * MB + 3}"]}, "--limit-rate", "8M")
    ctx.prove(nginx, accepts=2, payload=30 * MB)
    no_crash(ctx, nginx)


@case(modes=("plain", "both"))
def static_4_sendfile(ctx):
    static(ctx, 4, "on")


@case(modes=("plain", "both"))
def other_user(ctx):
    """Workers that gave up their rights are strangers to the client's user, and serve it all the same."""
    sums = files(ctx)
    nginx = start(ctx, 2, user="nobody nogroup" if os.getuid() == 0 else None)
    compare(ctx, nginx, sums)
    wrk_fine(wrk(ctx, nginx, "f4096"))
    ctx.prove(nginx)
    no_crash(ctx, nginx)


@case()
def load(ctx):
    files(ctx)
    nginx = start(ctx, 4)
    ctx.mark()
    count = wrk_fine(wrk(ctx, nginx, "f4096", 2))
    ctx.prove(nginx, accepts=50, payload=count * 4096)
    wrk_fine(wrk(ctx, nginx, "f262145"))
    wrk_fine(wrk(ctx, nginx, "f0", 1, ["-H", "Connection: close"]))
    no_crash(ctx, nginx)


@case(limit=150)
def all_workers(ctx):
    """Every worker gets connections when there are many of them at once."""
    files(ctx)
    nginx = start(ctx, 4)
    for _ in range(20):
        wrk_fine(wrk(ctx, nginx, f"f{MB}", 1, ["-H", "Connection: close"]))
        if len(served_by(ctx, nginx)) == 4:
            break
    equal(len(served_by(ctx, nginx)), 4, "workers that served")
    ctx.prove(nginx, accepts=100)
    no_crash(ctx, nginx)


def shares(ctx, nginx):
    """How many connections each worker had, most first."""
    with open(ctx.dir / f"nginx.{nginx.port}.access.log") as f:
        lines = {tuple(line.split()[::3]) for line in f}
    return collections.Counter(pid for pid, _ in lines).most_common()


@case(limit=150)
def reuseport(ctx):
    """A listener per worker: each has its share, also of short connections; a killed worker's comes back, and a reload
    leaves nobody out."""
    sums = files(ctx)
    nginx = start(ctx, 4, listen=" reuseport")
    ctx.mark()
    compare(ctx, nginx, sums)
    compare(ctx, nginx, sums, "--parallel", "-H", "Connection: close")
    ctx.prove(nginx, payload=100 * MB)
    wrk_fine(wrk(ctx, nginx, "f0", 2, ["-H", "Connection: close"]))
    had = shares(ctx, nginx)
    equal(len(had), 4, "workers that served")
    check(had[3][1] * 3 > had[0][1], f"one worker had much more than another: {had}")
    victim = int(had[0][0])
    running = wrk(ctx, nginx, "f4096", 2, ["-H", "Connection: close"])
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(host.children(nginx.pid)) == 4 and victim not in host.children(nginx.pid), 30, "a new worker")
    running.result()
    old = set(host.children(nginx.pid))
    nginx.signal(signal.SIGHUP)
    wait_until(lambda: len(host.children(nginx.pid)) == 4 and not old & set(host.children(nginx.pid)), 60, "a reload")
    before = served_by(ctx, nginx)
    compare(ctx, nginx, sums)
    wrk_fine(wrk(ctx, nginx, "f4096", 1, ["-H", "Connection: close"]))
    equal(len(served_by(ctx, nginx) - before), 4, "new workers that served")
    ctx.prove(nginx, accepts=100)
    no_crash(ctx, nginx)


@case()
def worker_killed(ctx):
    """kill -9 of a worker: its clients see the end, a new worker serves, nobody hangs."""
    sums = files(ctx)
    nginx = start(ctx, 4)
    running = wrk(ctx, nginx, "f4096", 2)
    wait_until(lambda: len(served_by(ctx, nginx)) >= 1, 30, "load runs")
    before = host.children(nginx.pid)
    victim = int(sorted(served_by(ctx, nginx))[0])
    check(victim in before, f"{victim} is a worker")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(host.children(nginx.pid)) == 4 and victim not in host.children(nginx.pid), 30, "a new worker")
    running.result()
    compare(ctx, nginx, sums)
    wrk_fine(wrk(ctx, nginx, "f4096", 1, ["-H", "Connection: close"]))
    ctx.prove(nginx)
    no_crash(ctx, nginx)


@case()
def reload(ctx):
    """SIGHUP under load: old workers finish what they have, new ones serve, no connection is lost."""
    sums = files(ctx)
    nginx = start(ctx, 2)
    wanted = sums["f65536"]
    getter = ctx.client(ctx.script("http_client.py", nginx.port, "again", "/f65536", wanted))
    generations = set()
    for _ in range(3):
        old = set(host.children(nginx.pid))
        lines = len(getter.stdout())
        wait_until(lambda: len(getter.stdout()) > lines or not getter.running(), 30, "requests go on")
        nginx.signal(signal.SIGHUP)
        wait_until(lambda: len(host.children(nginx.pid)) == 2 and not old & set(host.children(nginx.pid)), 60,
                   "the old workers are gone and the new ones are there")
        generations |= old
    check(getter.running(), f"the client failed: {getter.tail(4)}")
    getter.signal(signal.SIGINT)
    getter.result()
    compare(ctx, nginx, sums)
    equal(len(generations), 6, "workers in three generations")
    ctx.prove(nginx)
    no_crash(ctx, nginx)


@case()
def proxy(ctx):
    """nginx before nginx. Modes: "server" accelerates the one behind, "client" the one in front (and curl)."""
    sums = files(ctx)
    uploads = ctx.dir / "www" / "up"
    uploads.mkdir()
    behind = start(ctx, 2, server="dav_methods PUT; client_body_buffer_size 16k;")
    for buffering in ("on", "off"):
        front = start(ctx, 2, role="client",
                      upstream=f"upstream behind {{ server 127.0.0.1:{behind.port}; keepalive 8; }}",
                      server="location / { proxy_pass http://behind; proxy_http_version 1.1; "
                             f"proxy_set_header Connection \"\"; proxy_buffering {buffering}; "
                             f"proxy_request_buffering {buffering}; }}")
        ctx.mark()
        compare(ctx, front, sums)
        compare(ctx, front, sums, "--parallel")
        for size in (1, 65536, 7 * MB):
            data = ctx.file("upload", ctx.bytes(size))
            curl(ctx, "-T", data, f"http://127.0.0.1:{front.port}/up/u{size}")
            check((uploads / f"u{size}").read_bytes() == data.read_bytes(), f"upload of {size} bytes differs")
        if buffering == "on":
            ctx.prove(behind, payload=100 * MB)
        wrk_fine(wrk(ctx, front, "f4096"))
        front.end()
        no_crash(ctx, front)
    no_crash(ctx, behind)
