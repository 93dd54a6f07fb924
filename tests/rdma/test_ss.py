"""netacc_ss on a host with RDMA devices: what it shows of a server to which another host is connected."""

import os
import re
import subprocess
import sys

import monitor
from harness import ROOT, check, equal, need
from host import wait_until
from matrix import case

# A client with a blocking connect, which may wait until the route is known, and then one question after the other.
ASKING = """
import socket, sys, time
s = socket.socket()
s.connect((sys.argv[1], int(sys.argv[2])))
while True:
    s.sendall(b"PING\\r\\n")
    s.recv(100)
    time.sleep(0.05)
"""


def carried(pid):
    return [s for s in monitor.connections(pid) if s["transport"] == "RDMA"]


def transport_of(pid):
    """The transport of a client's connection; None while it has no connection."""
    try:
        connected = [s["transport"] for s in monitor.sockets(pid) if s["state"] == "ESTAB"]
    except monitor.NoAnswer:
        return None
    return connected[0] if connected else None


def asking(ctx, server, port):
    """A client over RDMA, which is tried again, since on a machine as slow as this the route is not always known in time."""
    for _ in range(5):
        client = ctx.spawn([sys.executable, "-c", ASKING, ctx.server_end.address, str(port)], role="client")
        transport = wait_until(lambda: transport_of(client.pid), 60, "the client is connected")
        if transport == "RDMA":
            wait_until(lambda: carried(server.pid), 60, "the server shows a connection over RDMA")
            return client
        client.kill()
    raise AssertionError("the client stays on TCP")


def queue_pairs(pid):
    return [link for link in monitor.show(pid, "qp")["qp"]["links"] if link["transport"] == "RDMA"]


@case()
def a_server_reached_by_rdma(ctx):
    ctx.accelerated = ("server", "client")
    port = ctx.port()
    server = ctx.spawn([need("redis-server"), "--port", port, "--save", "", "--protected-mode", "no", "--dir", ctx.dir],
                       role="server")
    ctx.await_listener(server, port + 20000)
    listeners = [s for s in monitor.sockets(server.pid) if s["state"] == "LISTEN"]
    check(listeners and all(s["rdma_port"] == port + 20000 for s in listeners), f"RDMA port: {listeners}")
    check(all(s["rendezvous"] for s in listeners), f"rendezvous: {listeners}")
    client = asking(ctx, server, port)
    for pid, counter in ((server.pid, "accepts_rdma"), (client.pid, "connects_rdma")):
        wait_until(lambda p=pid: carried(p)[0]["bytes_in"] > 0, 60, "bytes")
        shown = monitor.show(pid, "all")
        equal(shown["cnt"][counter], 1, counter)
        check(shown["cnt"]["moved"]["rdma"]["bytes_out"] > 0, f"moved: {shown['cnt']['moved']}")
        equal(carried(pid)[0]["peer_pid"], None, "a process of another host")
        check(shown["mem"]["pinned_bytes"] >= 0 and shown["mem"]["memlock_limit_bytes"] != 0, f"mem: {shown['mem']}")
        equal(shown["mem"]["registered_bytes"] > 0, True, "bytes that are registered")
        own_queue_pair(ctx, pid, "server" if pid == server.pid else "client", port)
    client.kill()
    wait_until(lambda: not carried(server.pid), 60, "the server hears of the end")


def own_queue_pair(ctx, pid, side, port):
    [link] = queue_pairs(pid)
    end = ctx.server_end if side == "server" else ctx.client_end
    other = ctx.client_end if side == "server" else ctx.server_end
    equal((link["side"], link["connections"], link["ever"]), (side, 1, 1), "connections of the queue pair")
    # The socket refers to the queue pair that is listed.
    equal([s["link"] for s in carried(pid)], [link["link"]], "the queue pair of the socket")
    check(link["bytes_in"] > 0 and link["bytes_out"] > 0, f"bytes of its sockets: {link}")
    pair = link["queue_pair"]
    equal(pair["device"], end.device, "the device")
    host, _, their_port = pair["peer"].rpartition(":")
    equal(host, other.address, "the other host")
    if side == "client":
        equal(int(their_port), port + 20000, "the port for RDMA")
        equal(link["capacity"], 1, "room for connections")
    check(0 <= pair["credits"] <= pair["receives"] and pair["receives"] > 0, f"credits: {pair}")
    check(pair["sends_posted"] >= pair["sends_completed"] >= 0 and pair["received"] > 0, f"work requests: {pair}")
    before = pair["received"]
    wait_until(lambda: queue_pairs(pid)[0]["queue_pair"]["received"] > before, 60, "messages are counted")
    wait_until(lambda: queue_pairs(pid)[0]["queue_pair"]["sends_completed"] > 0, 60, "completions are counted")
    devices = monitor.show(pid, "qp")["qp"]["devices"]
    equal([d["device"] for d in devices], [end.device], "devices")
    text = subprocess.run([monitor.command(), "-p", str(pid), "-s", "qp,sock,mem"], capture_output=True, text=True).stdout
    check(pair["peer"] in text and "Credits" in text, text)
    metrics = subprocess.run([monitor.command(), "-p", str(pid), "--openmetrics"], capture_output=True, text=True).stdout
    for name in ("netacc_queue_pair_credits{", "netacc_queue_pair_posted_sends_total{", "netacc_registered_bytes{"):
        check(name in metrics, f"no {name} in {metrics[:2000]}")


# A client that for each line of its input connects, asks, closes, and prints that it has closed.
STAYING = """
import socket, sys
for line in sys.stdin:
    s = socket.socket()
    s.connect((sys.argv[1], int(sys.argv[2])))
    s.sendall(b"PING\\r\\n")
    s.recv(100)
    s.close()
    sys.stdout.write("closed\\n")
    sys.stdout.flush()
"""


@case()
def an_idle_queue_pair_tells_when_it_ends(ctx):
    ctx.accelerated = ("server", "client")
    port = ctx.port()
    server = ctx.spawn([need("redis-server"), "--port", port, "--save", "", "--protected-mode", "no", "--dir", ctx.dir],
                       role="server")
    ctx.await_listener(server, port + 20000)
    read_end, write_end = os.pipe()
    client = ctx.spawn([sys.executable, "-c", STAYING, ctx.server_end.address, str(port)], role="client", stdin=read_end)
    # The first connect may come before the route is known.
    for turn in range(1, 6):
        os.write(write_end, b"\n")
        wait_until(lambda: client.stdout().count("closed") == turn, 60, "the client closes")
        if monitor.show(client.pid)["cnt"]["connects_rdma"]:
            break
    wait_until(lambda: [q["connections"] for q in queue_pairs(client.pid)] == [0], 60, "the queue pair is idle")
    [idle] = queue_pairs(client.pid)
    # NACC_EMPTY_QP_EXPIRE_MS is a minute.
    check(idle["idle_seconds"] >= 0 and 0 < idle["expires_seconds"] <= 60, f"idle: {idle}")
    equal(idle["ever"], 1, "connections that it had")
    wait_until(lambda: queue_pairs(client.pid)[0]["expires_seconds"] < idle["expires_seconds"], 60, "time goes by")
    metrics = subprocess.run([monitor.command(), "-p", str(client.pid), "--openmetrics"], capture_output=True,
                             text=True).stdout
    found = set(re.findall(r"^# TYPE (netacc_queue_pair\w*)", metrics, re.M))
    page = (ROOT / "man" / "netacc_ss.1").read_text()
    equal(found, set(re.findall(r"^(netacc_queue_pair\w*)\|", page, re.M)), "what the manual page promises of queue pairs")
    os.close(write_end)
    client.result()
    # The entry disappears from the server's page together with the queue pair.
    wait_until(lambda: not queue_pairs(server.pid), 60, "the server's end of it goes")
    equal(monitor.show(server.pid, "qp")["qp"]["links_lost"], 0, "queue pairs that were lost")
