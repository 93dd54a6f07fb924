"""HAProxy before nginx, for bytes and for HTTP. Modes: "server" accelerates nginx, "client" HAProxy and wrk."""

import signal
import socket
import time

import host
import monitor
from harness import START_LIMIT, check, equal, need
from host import wait_until
from matrix import case
from test_nginx import MB, compare, files, no_crash, wrk, wrk_fine
from test_nginx import start as nginx

CONF = """
global
    log stderr local0 warning
    nbthread {threads}
    maxconn 2000
defaults
    mode {mode}
    log global
    timeout connect 20s
    timeout client 60s
    timeout server 60s
    {options}
frontend front
    bind 127.0.0.1:{port}
    default_backend behind
backend behind
    server nginx 127.0.0.1:{behind} {server}
"""


def start(ctx, behind, mode, threads=2, options="", server="", master=False):
    program = need("haproxy")

    def argv(port):
        text = CONF.format(mode=mode, port=port, behind=behind.port, threads=threads, options=options, server=server)
        path = ctx.file(f"haproxy.{port}.cfg", text.encode())
        return [program, "-W" if master else "-db", "-f", path]

    return ctx.serve(argv, role="client")


def through(ctx, mode, **how):
    sums = files(ctx)
    behind = nginx(ctx, 2)
    front = start(ctx, behind, mode, **how)
    ctx.mark()
    compare(ctx, front, sums)
    compare(ctx, front, sums, "--parallel", "-H", "Connection: close")
    ctx.prove(behind, payload=100 * MB)
    wrk_fine(wrk(ctx, front, "f4096"))
    wrk_fine(wrk(ctx, front, "f0", 1, ["-H", "Connection: close"]))
    no_crash(ctx, behind)
    check(front.running(), f"haproxy ended: {front.tail(3)}")
    if ctx.mode == "both":
        # HAProxy's listeners have SO_REUSEPORT.
        found = monitor.accepts_shm(host.tree(front.pid))
        check(found, "HAProxy accepted nothing over shared memory")


@case()
def tcp(ctx):
    through(ctx, "tcp")


@case()
def tcp_splice(ctx):
    """By splice(2) through a pipe where the kernel's TCP would do without copies."""
    through(ctx, "tcp", threads=1, options="option splice-request\n    option splice-response")


@case()
def http(ctx):
    """Connections to nginx are kept and shared by all clients."""
    through(ctx, "http", options="option http-keep-alive\n    http-reuse always")


@case(modes=("plain", "both"))
def http_checked(ctx):
    """A server behind that is checked several times a second, ends, and comes back on its port."""
    sums = files(ctx)
    behind = nginx(ctx, 1)
    front = start(ctx, behind, "http", options="retries 0", server="check inter 100ms fastinter 50ms rise 1 fall 1")
    compare(ctx, front, sums)
    behind.end()

    def status():
        return ctx.run([need("curl"), "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:{front.port}/f1"])

    wait_until(lambda: status() == "503", 30, "haproxy sees that nginx is gone")
    again = ctx.spawn(behind.argv, "server")
    again.port = behind.port
    wait_until(lambda: listening(again.port), START_LIMIT, "nginx listens again")
    # "No rendezvous there" is believed for 50 ms; a connection made by TCP in that time would be used for all requests.
    known = time.monotonic() + 0.2
    wait_until(lambda: time.monotonic() > known, 30, "what haproxy knows of the old nginx is forgotten")
    wait_until(lambda: status() == "200", START_LIMIT, "haproxy sees that nginx is back")
    compare(ctx, front, sums)
    ctx.prove(again)


def listening(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def reloading(front, old):
    """Asks for a reload, and again every ten seconds: the master drops the signal while it still reloads."""
    asked = [0.0]

    def renewed():
        now = set(host.children(front.pid))
        if now and not old & now:
            return True
        if not now - old and time.monotonic() - asked[0] > 10:
            asked[0] = time.monotonic()
            front.signal(signal.SIGUSR2)
        return False

    return renewed


@case(modes=("plain", "client", "both"))
def reload(ctx):
    """SIGUSR2 under load: a new process takes over, the old one ends what it has."""
    sums = files(ctx)
    behind = nginx(ctx, 2)
    front = start(ctx, behind, "http", master=True)
    wait_until(lambda: host.children(front.pid), START_LIMIT, "the worker is there")
    getter = ctx.client(ctx.script("http_client.py", front.port, "again", "/f65536", sums["f65536"]))
    for _ in range(2):
        old = set(host.children(front.pid))
        lines = len(getter.stdout())
        wait_until(lambda: len(getter.stdout()) > lines or not getter.running(), 30, "requests go on")
        renewed = reloading(front, old)
        wait_until(renewed, 60, "a new worker alone")
    lines = len(getter.stdout())
    wait_until(lambda: len(getter.stdout()) > lines or not getter.running(), 30, "requests go on")
    check(getter.running(), f"the client failed: {getter.tail(4)}")
    getter.signal(signal.SIGINT)
    getter.result()
    compare(ctx, front, sums)
    equal(len(host.children(front.pid)), 1, "workers of haproxy")
