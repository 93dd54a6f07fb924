"""netacc_ss on a host with RDMA devices: what it says of a server that another host talks to."""

import sys

import monitor
from harness import check, equal, need
from host import wait_until
from matrix import case

# A connect that may wait for the way to be found out, and a question after the other.
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
    client = ctx.spawn([sys.executable, "-c", ASKING, ctx.server_end.address, str(port)], role="client")
    wait_until(lambda: carried(server.pid) and carried(client.pid), 60, "both ends show a connection over RDMA")
    for pid, counter in ((server.pid, "accepts_rdma"), (client.pid, "connects_rdma")):
        wait_until(lambda p=pid: carried(p)[0]["bytes_in"] > 0, 60, "bytes")
        shown = monitor.show(pid, "all")
        equal(shown["cnt"][counter], 1, counter)
        check(shown["cnt"]["moved"]["rdma"]["bytes_out"] > 0, f"moved: {shown['cnt']['moved']}")
        equal(carried(pid)[0]["peer_pid"], None, "a process of another host")
        check(shown["mem"]["pinned_bytes"] >= 0 and shown["mem"]["memlock_limit_bytes"] != 0, f"mem: {shown['mem']}")
        check(shown["qp"]["links"], "links")
    client.kill()
