"""NACC_CONN_TCP_FIRST between two hosts: connections begin on kernel TCP and are upgraded to RDMA while they live."""

import signal
import time

import harness
import monitor
from harness import check, need
from host import wait_until
from matrix import case
from test_transport import MB, benchmark, carried, converse, redis

FIRST = {"NACC_CONN_TCP_FIRST": "1"}
SCRIPT = str(harness.ROOT / "tests" / "rdma" / "lasting.py")


def until_carried(ctx, what, messages, payload=0):
    """Runs a conversation that begins on TCP until RDMA has carried at least `messages` messages and `payload` bytes each way.
    How much goes by TCP before depends on the machine."""
    ends = ("client", "server")

    def enough():
        try:
            return [ctx.prove(messages, payload, sender) for sender in ends]
        except harness.Failure:
            return None

    converse(ctx, what, options={**FIRST, "FAR_LIMIT": "200"}, script="lasting.py", until=enough, limit=100)
    for sender in ends:
        ctx.prove(messages, payload, sender)


@case(limit=240)
def small_answers(ctx):
    """Eight connections of a server that waits for readiness are upgraded."""
    until_carried(ctx, "PollsOn", 100)


@case(limit=240)
def both_directions_while_it_goes_over(ctx):
    """3 MiB go each way, again and again, and every byte is compared; some go by TCP and the rest by RDMA."""
    until_carried(ctx, "PiecesOn", 30, 3 * MB)


@case(limit=500)
def conversations(ctx):
    """Conversations work whichever transport carries them in the end, and whatever the programs do meanwhile."""
    for what in ("Stops", "Bulk", "Names", "HalfClose", "Exits", "Forks", "Again", "Executes"):
        ctx.mark()
        converse(ctx, what, options={**FIRST, "FAR_LIMIT": "200"}, limit=210)
        print(f"    {ctx.kind} {what}: {ctx.carried('client')['rdma_sends']} messages by RDMA", flush=True)


@case(limit=240)
def redis_tcp_first(ctx):
    """redis serves clients that begin on TCP, also with one connection per request."""
    server, port = redis(ctx, ("server", "client"))
    ctx.await_listener(server, port + 20000)
    ctx.mark()
    carried(ctx, lambda: benchmark(ctx, port, "-t", "set,get", "-n", 6000, "-c", 10, limit=100, env=FIRST), 2000, MB)
    benchmark(ctx, port, "-t", "set", "-n", 200, "-c", 5, "-k", 0, limit=100, env=FIRST)
    check(server.running(), server.text())


def shown(proc):
    try:
        return monitor.transports(proc.pid)
    except monitor.NoAnswer:
        return []


@case(limit=150)
def it_is_shown(ctx):
    """netacc_ss shows at both ends that RDMA carries the connection now."""
    ctx.accelerated = ("server", "client")
    address, port = ctx.server_end.address, ctx.port()
    server = ctx.spawn(["python3", SCRIPT, "Piecemeal", "server", address, port], role="server")
    ctx.await_listener(server, port + 20000)
    client = ctx.spawn(["python3", SCRIPT, "Piecemeal", "client", address, port], role="client", env=FIRST)
    wait_until(lambda: shown(server) == shown(client) == ["RDMA"] or not client.running(), 60, "both are on RDMA")
    for proc in (server, client):
        cnt = monitor.show(proc.pid, "cnt")["cnt"]
        check(cnt["promotions"] == 1, f"{cnt}")
    ctx.mark()
    wait_until(lambda: ctx.carried("client")["rdma_sends"] > 100, 60, "messages go by RDMA")
    server.kill()
    client.result(30)


@case(limit=150)
def a_server_without_netacc(ctx):
    converse(ctx, "Polls", roles=("client",), options=FIRST)
    # The connection manager sends a few messages for a request that is not answered.
    check(ctx.carried("client")["rdma_sends"] < 20, f"RDMA carried something: {ctx.carried('client')}")
    converse(ctx, "Pieces", roles=("client",), options=FIRST)


@case(limit=300)
def somebody_is_killed_meanwhile(ctx):
    """One side is killed at moments from the connect to some time after the upgrade, and the other side sees it."""
    ctx.accelerated = ("server", "client")
    for n in range(8):
        address, port = ctx.server_end.address, ctx.port()
        server = ctx.spawn(["python3", SCRIPT, "Piecemeal", "server", address, port], role="server")
        ctx.await_listener(server, port + 20000)
        client = ctx.spawn(["python3", SCRIPT, "Piecemeal", "client", address, port], role="client", env=FIRST)
        wait_until(lambda: "open" in client.stdout() or not client.running(), 60, "the client is connected")
        # Only the moment differs between the rounds; nothing depends on the exact time.
        time.sleep(0.02 * n)
        victim, other = (server, client) if n % 2 else (client, server)
        victim.signal(signal.SIGKILL)
        other.result(30)
