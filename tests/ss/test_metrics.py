"""OpenMetrics: the text, the scrape target, and what the manual page says of it."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor

import redis_server
import monitor
from harness import ROOT, check, equal
from host import wait_until
from matrix import case
from openmetrics import Wrong, parse, pick
from seeing import ONE, begin, run


def scrape(text):
    try:
        return parse(text)
    except Wrong as wrong:
        check(False, str(wrong))


@case(modes=("both",))
def metrics_of_a_server(ctx):
    server = redis_server.start(ctx)
    ctx.run(["redis-benchmark", "-p", server.port, "-c", 3, "-n", 2000, "-t", "set", "-q"])
    found = scrape(run(ctx, "--openmetrics", "-p", server.pid).out)
    shown = monitor.show(server.pid, "cnt,mem,qp")
    one = {"pid": server.pid, "program": "redis-server"}
    equal(pick(found, "netacc_accepts", transport="shm", **one), [shown["cnt"]["accepts_shm"]], "accepts")
    moved = shown["cnt"]["moved"]["shm"]
    equal(pick(found, "netacc_received_bytes", transport="shm", **one), [moved["bytes_in"]], "bytes of closed sockets")
    check(moved["bytes_in"] > 2000 * 30, f"2000 SETs have more than {moved}")
    equal(pick(found, "netacc_links_opened", **one), [shown["qp"]["links_opened"]], "links")
    check(pick(found, "netacc_memory_resident_bytes", area="stats", **one)[0] >= 4096, "memory")
    equal(pick(found, "netacc_pinned_bytes", **one), [0], "pinned")
    check("netacc_socket" not in found, "sockets one by one only when asked for")
    every = scrape(run(ctx, "--openmetrics", "-s", "all").out)
    check(pick(every, "netacc_setting", key="NACC_LOG_LEVEL", **one) == [1], "settings")
    for name in found:
        check(name in every, f"{name} is not in all")


@case(modes=("both",))
def names_are_documented(ctx):
    """Every metric stands in the manual page."""
    server = redis_server.start(ctx)
    with redis_server.admin(server) as admin:
        admin.call("PING")
        client = ctx.client(["redis-benchmark", "-p", server.port, "-c", 2, "-n", 100000000, "-t", "set", "-q"])
        wait_until(lambda: "SHM" in monitor.transports(server.pid), 30, "accelerated connections")
        text = run(ctx, "--openmetrics", "-s", "all").out
        client.kill()
    found = scrape(text)
    page = (ROOT / "man" / "netacc_ss.1").read_text().replace("\\-", "-")
    documented = set(re.findall(r"\bnetacc_[a-z_]+\b", page.partition(".SH OPENMETRICS")[2].partition("\n.SH ")[0]))
    for name in found:
        check(name in documented, f"{name} is not in the manual page")
    # What this server has no occasion for; a page that has everything is read by the tests of the crate.
    rare = {"netacc_promotions", "netacc_demotions", "netacc_rule_decisions", "netacc_listeners_on_tcp"}
    rdma = {name for name in documented if name.startswith(("netacc_queue_pair", "netacc_device_"))}
    gone = documented - set(found) - rare - rdma - {"netacc_ss"}
    check(not gone, f"the manual page promises {gone}")


def target(ctx, *more):
    server = begin(ctx, "--serve", "127.0.0.1:0", *more)
    wait_until(lambda: "/metrics" in server.text() or not server.running(), 30, "it serves")
    where = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", server.text())
    check(where, server.text())
    server.port = int(where[1])
    return server


def dial(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def ask(server, request):
    """(status, headers, body) of the answer; the connection must end with it."""
    with dial(server) as s:
        s.sendall(request)
        text = b""
        while part := s.recv(65536):
            text += part
    head, _, body = text.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
    if not request.startswith(b"HEAD"):
        equal(len(body), int(headers["content-length"]), "length of the body")
    return int(first.split()[1]), headers, body.decode()


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n"


@case(modes=ONE)
def requests_good_and_bad(ctx):
    server = target(ctx)
    status, headers, body = ask(server, GET)
    equal((status, headers["content-type"]), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"), "GET")
    check("netacc_processes" in scrape(body), body[:200])
    status, headers, body = ask(server, GET.replace(b"GET", b"HEAD"))
    equal((status, body), (200, ""), "HEAD")
    for request, wanted in (
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404), (b"GET /metrics2 HTTP/1.0\r\n\r\n", 404),
            (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405),
            (b"GET /metrics HTTP/1.1\r\n\r\n", 400), (b"GET /metrics HTTP/3.0\r\nHost: x\r\n\r\n", 400),
            (b"hello\r\n\r\n", 400), (b"\0\xff\xfe\r\n\r\n", 400), (b"GET /metrics HTTP/1.0\r\nnonsense\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
            (b"GET /" + b"a" * 20000, 431), (b"GET /metrics HTTP/1.0\r\n" + b"A: b\r\n" * 5000 + b"\r\n", 431)):
        status, headers, body = ask(server, request)
        equal(status, wanted, f"status for {request[:60]}")
        check(body.strip(), "nothing is said")
        if status == 405:
            equal(headers["allow"], "GET, HEAD", "what is allowed")
    # A request in pieces, and one that ends early.
    with dial(server) as s:
        for byte in GET:
            s.sendall(bytes([byte]))
        check(s.recv(100).startswith(b"HTTP/1.1 200 "), "a request byte by byte")
    with dial(server) as s:
        s.sendall(GET[:20])
        s.shutdown(socket.SHUT_WR)
        check(s.recv(100).startswith(b"HTTP/1.1 400 "), "a request that ends early")
    check(server.running(), "it runs on")


@case(modes=ONE)
def silent_clients_block_nobody(ctx):
    """More of them than there are places; each scrape is answered all the same."""
    server = target(ctx)
    silent = [dial(server) for _ in range(150)]
    for s in silent[::2]:
        s.sendall(b"GET /metr")
    for _ in range(5):
        equal(ask(server, GET)[0], 200, "status")
    # One that does not read what it asked for.
    lazy = [dial(server) for _ in range(20)]
    for s in lazy:
        s.sendall(GET)
    equal(ask(server, GET)[0], 200, "status")
    # Those that are silent are sent away in the end.
    newest = silent[-1]
    newest.settimeout(45)
    check(newest.recv(1000)[:12] in (b"", b"HTTP/1.1 408"), "a silent client's end")
    for s in silent + lazy:
        s.close()


@case(modes=ONE)
def many_at_once_are_answered(ctx):
    """As many as there are places, each followed by another as soon as it has its answer."""
    server = target(ctx)
    with ThreadPoolExecutor(60) as pool:
        statuses = list(pool.map(lambda _: ask(server, GET)[0], range(400)))
    equal([status for status in statuses if status != 200], [], "answers other than 200")


@case(modes=("both",))
def a_target_of_one_process(ctx):
    server = redis_server.start(ctx)
    watched = target(ctx, "-p", server.pid, "-s", "cnt,sock")
    with redis_server.admin(server) as admin:
        admin.call("PING")
        first = scrape(ask(watched, GET)[2])
        equal(pick(first, "netacc_process", program="redis-server", pid=server.pid), [1], "the process")
        check(pick(first, "netacc_socket", transport="tcp", reason="plain-client") == [1], "its plain client")
        ctx.run(["redis-benchmark", "-p", server.port, "-c", 1, "-n", 100, "-t", "get", "-q"])
        second = scrape(ask(watched, GET)[2])
    for name, (kind, _, samples) in first.items():
        if kind == "counter" and not name.startswith("netacc_socket"):
            for labels, value in samples.items():
                check(second[name][2][labels] >= value, f"{name} {labels} fell")
    server.kill()
    gone = scrape(ask(watched, GET)[2])
    equal((list(gone), pick(gone, "netacc_processes")), (["netacc_processes", "netacc_processes_unreadable"], [0]),
          "metrics of a process that has ended")


@case(modes=ONE)
def addresses_that_cannot_be_used(ctx):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = run(ctx, "--serve", f"127.0.0.1:{port}")
        equal((answer.status, answer.out), (1, ""), "a port that is taken")
        check(f"127.0.0.1:{port}" in answer.err and "in use" in answer.err, answer.err)
    for wrong in ("nowhere", "127.0.0.1", "127.0.0.1:99999", ":", ":+80", "no-such-name.invalid:80"):
        equal(run(ctx, "--serve", wrong).status, 2, f"status for {wrong}")
