"""A packet filter in front of the server lets in only what DEPLOY.md says: P and P + 20000.

The companion connection of a queue pair comes to P as well, and no program sees it.
"""

import contextlib
import os
import signal

import monitor
import world
from harness import check, equal
from host import wait_until
from matrix import case
from test_faults import LIMIT, delete, pair_by_rdma

# RoCE has a port of its own.
ROCE = 4791


class Filter:
    """The rules of a packet filter in the server's namespace."""

    def __init__(self, ctx):
        self.inside = world.inside(ctx.server_end.namespace)

    def allow(self, port, question=True):
        """Allows everything that a server at that port needs; `question` says whether probes are allowed too."""
        self.clear()
        rules = "".join(f"add rule inet doc in {rule}\n" for rule in (
            f"tcp dport {port} accept", f"tcp dport {port + 20000} accept",
            f"udp dport {port + 20000} {'accept' if question else 'drop'}", f"udp dport {ROCE} accept", "tcp flags & (syn | ack) == syn drop", "meta l4proto udp drop"))
        world.command(*self.inside, "nft", "add table inet doc\n"
                      "add chain inet doc in { type filter hook input priority 0; policy accept; }\n" + rules)

    def close(self, port):
        """Blocks that port until it is allowed again."""
        world.command(*self.inside, "nft", f"insert rule inet doc in tcp dport {port} drop")

    def clear(self):
        world.command(*self.inside, "nft", "add table inet doc\ndelete table inet doc")


@contextlib.contextmanager
def filtered(ctx, what, closed=False, **how):
    """A server and a client that talk by RDMA, the port, and the pipe that tells the client what to send. `closed` says that
    the port itself is blocked at first."""
    rules = Filter(ctx)

    def on_port(port):
        rules.allow(port)
        if closed:
            rules.close(port)

    read_end, write_end = os.pipe()
    try:
        server, client, port = pair_by_rdma(ctx, what, to_client=read_end, on_port=on_port, **how)
        os.close(read_end)
        yield server, client, port, write_end
        os.close(write_end)
    finally:
        rules.clear()


def at_port(ctx, port):
    """The TCP connections at the server's port, as ss(8) shows them."""
    return world.command(*ctx.enter("server"), "ss", "-Htnp", "state", "established", "sport", "=", f":{port}").splitlines()


def companions(ctx, proc, port):
    """The TCP connections of the server's process at its listener's port."""
    return [line for line in at_port(ctx, port) if f"pid={proc.pid}," in line]


CLIENTS = """import socket, sys
address, port, *names = sys.argv[1:]
for name in names:
    s = socket.create_connection((address, int(port)), 20)
    s.sendall(name.encode())
    assert s.recv(1) == b""
"""


def come_and_go(ctx, address, port, *names):
    """Runs ordinary clients, each of which the server's program must see."""
    ctx.run([*ctx.enter("client"), "python3", "-c", CLIENTS, address, port, *names], role="nobody")


def say(client, write_end, word):
    os.write(write_end, f"{word}\n".encode())
    wait_until(lambda: f"back: {word}\n" in client.stdout() or not client.running(), LIMIT, f"{word} comes back")
    check(client.running(), client.text())


def warnings(ctx):
    """The log's warnings about companions that cannot be made, as an operator sees them."""
    lines = ctx.log.read_text().splitlines() if ctx.log.exists() else []
    return [line for line in lines if "no companion" in line and " WARN " in line]


def others(server):
    return [line for line in server.stdout().splitlines() if line.startswith(("another", "seen", "empty"))]


def await_companion(ctx, server, port):
    wait_until(lambda: companions(ctx, server, port) or not server.running(), 60, "the companion connection is there")
    check(server.running(), server.text())


def goes_on_by_tcp(ctx, server, client, write_end):
    """Removes the queue pair's device and checks that the connection goes on by TCP."""
    removal = ctx.spawn(delete(ctx.client_end), role="nobody")
    try:
        check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
        say(client, write_end, "by TCP")
        equal([monitor.transports(proc.pid) for proc in (server, client)], [["TCP"]] * 2, "transports")
    finally:
        world.ensure_device(ctx.client_end, ctx.kind)


def both_end_well(ctx, server, client):
    for proc in (client, server):
        proc.result(LIMIT)
    equal(warnings(ctx), [], "what an operator is told")


def by_own_port(ctx, what, **how):
    address = how.get("address") or ctx.server_end.address
    with filtered(ctx, what, **how) as (server, client, port, write_end):
        come_and_go(ctx, address, port, "first")
        say(client, write_end, "by RDMA")
        await_companion(ctx, server, port)
        come_and_go(ctx, address, port, "second")
        equal(others(server), ["another first", "another second"], "the clients that were accepted")
        goes_on_by_tcp(ctx, server, client, write_end)
        come_and_go(ctx, address, port, "third")
        equal(len(others(server)), 3, "clients that were accepted in the end")
    both_end_well(ctx, server, client)


@case(limit=250)
def a_companion_comes_to_the_listeners_own_port(ctx):
    """A connection goes on by TCP when a device is removed; ordinary clients come and go meanwhile."""
    by_own_port(ctx, "Accepting")


@case(limit=250)
def a_companion_comes_to_a_listener_in_epoll(ctx):
    """A program that waits by epoll does not see the companion either."""
    by_own_port(ctx, "AcceptingByEpoll")


@case(limit=250)
def a_companion_comes_to_the_listeners_own_port_by_ipv6(ctx):
    by_own_port(ctx, "Accepting", address=ctx.server_end.address6)


@case(limit=250)
def a_companion_comes_to_one_of_two_listeners(ctx):
    """The companion comes to the listener for IPv4 although another one listens for IPv6 at its port."""
    by_own_port(ctx, "AcceptingByIPv4")


@case(limit=250)
def a_companion_comes_to_another_process(ctx):
    """A child that was forked before accepts the companion of a queue pair of the parent's, and further connections too."""
    by_own_port(ctx, "AcceptingElsewhere")


@case(limit=250)
def a_companion_comes_to_a_child_made_after_the_yes(ctx):
    """The companion waits in the kernel's queue when the process of its queue pair forks, and the child accepts it."""
    read_end, to_server = os.pipe()
    with filtered(ctx, "AcceptingInAChildToCome", to_server=read_end) as (server, client, port, write_end):
        os.close(read_end)
        wait_until(lambda: at_port(ctx, port) or not server.running(), 60, "the companion waits to be accepted")
        equal(companions(ctx, server, port), [], "companions that were accepted")
        os.close(to_server)
        await_companion(ctx, server, port)
        come_and_go(ctx, ctx.server_end.address, port, "first")
        equal(others(server), ["another first"], "the clients that were accepted")
        goes_on_by_tcp(ctx, server, client, write_end)
    both_end_well(ctx, server, client)


@case(limit=250)
def a_client_that_is_stalled_shows_few_empty_connections(ctx):
    """Without TCP fast open the program may see a companion, as an empty connection, if its client is not scheduled just then.
    That happens once, and the next companion is taken out of the queue."""
    fast_open = "ipv4/tcp_fastopen"
    world.setting(ctx.client_end.namespace, fast_open, 0)
    try:
        with filtered(ctx, "AcceptingAfterStalls", closed=True) as (server, client, port, write_end):
            rules = Filter(ctx)
            asks = [*ctx.enter("client"), "ss", "-Htn", "state", "syn-sent", "dport", "=", f":{port}"]
            wait_until(lambda: world.command(*asks).strip() or not client.running(), 60, "the companion is being connected")
            client.signal(signal.SIGSTOP)
            rules.allow(port)
            wait_until(lambda: companions(ctx, server, port), 60, "the program has accepted it")
            client.signal(signal.SIGCONT)
            wait_until(lambda: others(server), 60, "the program has seen its end")
            await_companion(ctx, server, port)
            equal(others(server), ["empty"], "the clients that were accepted")
            goes_on_by_tcp(ctx, server, client, write_end)
        both_end_well(ctx, server, client)
    finally:
        world.setting(ctx.client_end.namespace, fast_open, 1)


@case(limit=250)
def where_there_can_be_no_companion_that_is_said(ctx):
    """For a program that would hang in accept(2) there is one warning, with the reason, and its own clients get through."""
    with filtered(ctx, "AcceptingByPoll") as (server, client, port, write_end):
        wait_until(lambda: warnings(ctx) or not client.running(), 60, "the client says that there is no companion")
        said = warnings(ctx)
        check(len(said) == 1 and "blocking accept" in said[0] and f":{port}:" in said[0], f"{said}")
        come_and_go(ctx, ctx.server_end.address, port, "first")
        equal(others(server), ["seen", "another first"], "what the server's program has seen")
        say(client, write_end, "by RDMA")
