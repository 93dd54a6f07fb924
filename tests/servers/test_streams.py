"""iperf3 and sockperf: long streams in every direction, and ping-pong.

iperf3 -F (from and to a file) compares nothing: after a write that took only a part it sends other bytes than the
file's, on plain TCP too. Contents of long streams are compared with curl, nginx, redis and Python.
"""

import json
import re
import socket

from harness import check, equal, need
from matrix import case

MB = 1 << 20

def in_flight():
    """The receiving side ends its count when the control connection says so; what is still in the buffers of a
    stream is not counted then. This much may be there, by the kernel's own limits."""
    total = 0
    for name in ("tcp_rmem", "tcp_wmem"):
        with open(f"/proc/sys/net/ipv4/{name}") as f:
            total += int(f.read().split()[2])
    return total


def iperf_server(ctx, *options):
    program = need("iperf3")
    return ctx.serve(lambda port: [program, "-s", "-B", "127.0.0.1", "-p", port, "--forceflush", *options])


def iperf(ctx, server, *options):
    text = ctx.run([need("iperf3"), "-c", "127.0.0.1", "-p", server.port, "-J", *options])
    answer = json.loads(text)
    check("error" not in answer, f"iperf3: {answer.get('error')}")
    return answer["end"]


def totals(end, streams, suffix=""):
    sent, received = end[f"sum_sent{suffix}"]["bytes"], end[f"sum_received{suffix}"]["bytes"]
    check(sent > 0 and received > 0, f"{sent} bytes sent, {received} received")
    check(received <= sent, f"more received ({received}) than sent ({sent})")
    check(sent - received <= in_flight() * streams, f"{sent} bytes sent, only {received} received")
    return received


@case()
def iperf_directions(ctx):
    server = iperf_server(ctx)
    ctx.mark()
    total = totals(iperf(ctx, server, "-t", 1), 1)
    total += totals(iperf(ctx, server, "-t", 1, "-R"), 1)
    end = iperf(ctx, server, "-t", 1, "-P", 4)
    equal(len(end["streams"]), 4, "streams")
    for stream in end["streams"]:
        check(stream["receiver"]["bytes"] > 0, "a stream carried nothing")
    total += totals(end, 4)
    end = iperf(ctx, server, "-t", 1, "--bidir")
    total += totals(end, 1) + totals(end, 1, "_bidir_reverse")
    # Four tests, each with a control connection and its streams.
    ctx.prove(server, accepts=4 + 8, payload=total)


@case()
def iperf_amount(ctx):
    """A fixed number of bytes; nothing goes missing, with small and large writes."""
    server = iperf_server(ctx)
    for length, amount in ((100, 2 * MB), (128 * 1024, 200 * MB), (MB, 200 * MB)):
        end = iperf(ctx, server, "-n", amount, "-l", length)
        check(end["sum_sent"]["bytes"] >= amount, f"sent {end['sum_sent']['bytes']} of {amount}")
        totals(end, 1)
    ctx.prove(server, accepts=6)


# Unpaced, sockperf numbers its messages up to a limit made for a network and ends with "_seqN > m_maxSequenceNo"
# when more than that fit into the time asked for.
PACED = ("--mps", 100_000)


def sockperf(ctx, kind, size, seconds, *options):
    program = need("sockperf")
    server = ctx.serve(lambda port: [program, "server", "--tcp", "-i", "127.0.0.1", "-p", port])
    text = ctx.run([program, kind, "--tcp", "-i", "127.0.0.1", "-p", server.port, "-t", seconds, "-m", size, *options])
    found = re.search(r"\[Valid Duration\].*SentMessages=(\d+); ReceivedMessages=(\d+)", text)
    check(found and int(found[1]) > 100, f"no valid results: {text.strip().splitlines()[-5:]}")
    equal(found[1], found[2], "messages sent and received")
    check("# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0" in text,
          f"messages are lost or disordered: {text.strip().splitlines()[-5:]}")
    ctx.prove(server)
    server.end()


@case()
def sockperf_ping_pong(ctx):
    for size in (64, 65000) if ctx.mode == "both" else (64,):
        sockperf(ctx, "ping-pong", size, 1, *PACED, "--data-integrity")


@case()
def sockperf_waits(ctx):
    """The same over many sockets with select, poll and epoll, on both ends."""
    program = need("sockperf")
    for kind in ("s", "p", "e") if ctx.mode == "both" else ("p",):
        probes = [socket.socket() for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in probes]
        for probe in probes:
            probe.close()
        feed = ctx.file(f"feed.{kind}", "".join(f"T:127.0.0.1:{p}\n" for p in ports).encode())
        server = ctx.serve(lambda port: [program, "server", "-f", feed, "-F", kind], port=ports[-1])
        text = ctx.run([program, "ping-pong", "-f", feed, "-F", kind, "-t", 1, "-m", 100, *PACED, "--timeout=-1"])
        found = re.search(r"\[Valid Duration\].*SentMessages=(\d+); ReceivedMessages=(\d+)", text)
        check(found and int(found[1]) > 100 and found[1] == found[2],
              f"{kind}: no valid results: {text.strip().splitlines()[-5:]}")
        ctx.prove(server, accepts=3)
        server.end()
