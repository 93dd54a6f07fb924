"""Programs on two hosts joined by RDMA: all bytes arrive, and the devices' own counters show which transport carried them."""

import os

import harness
import monitor
import world
from harness import check, need
from host import wait_until
from matrix import case


def cli(ctx, port, *words):
    return ctx.run([need("redis-cli"), "-h", ctx.server_end.address, "-p", port, *words])


def redis(ctx, accelerated, **spawn):
    ctx.accelerated = accelerated
    port = ctx.port()
    argv = [need("redis-server"), "--port", port, "--save", "", "--protected-mode", "no", "--dir", ctx.dir]
    server = ctx.spawn(argv, role="server", **spawn)
    wait_until(lambda: "ready to accept" in server.stdout().lower() or not server.running(), 60, "redis is ready")
    check(server.running(), server.text())
    return server, port


@case()
def redis_cli(ctx):
    """redis-cli sends a few commands over one connection each."""
    server, port = redis(ctx, ("server", "client"))
    for _ in range(4):
        for n in range(3):
            check(cli(ctx, port, "set", f"key{n}", "x" * 3000 * n).strip() == "OK", "set")
            check(cli(ctx, port, "get", f"key{n}").strip() == "x" * 3000 * n, "get")
        # Each client has to find the route, and some may not do so in time.
        if ctx.carried("client")["rdma_sends"] >= 10 and ctx.carried("server")["rdma_sends"] >= 10:
            break
    ctx.prove(10)
    check(server.running(), server.text())


def benchmark(ctx, port, *options, **run):
    text = ctx.run([need("redis-benchmark"), "-h", ctx.server_end.address, "-p", port, "-q", "-d", "512", *options], **run)
    check("requests per second" in text, text)
    return text


@case(limit=240)
def redis_benchmark(ctx):
    """redis-benchmark runs with many clients, and with a connection per request."""
    server, port = redis(ctx, ("server", "client"))
    ctx.mark()
    print("    " + benchmark(ctx, port, "-t", "set,get", "-n", 4000, "-c", 20, limit=100).strip().replace("\r", "\n")[-200:])
    ctx.prove(4000, 4000 * 512)
    ctx.mark()
    benchmark(ctx, port, "-t", "set", "-n", 300, "-c", 5, "-k", 0, limit=100)
    ctx.prove(600, 300 * 512)
    check(server.running(), server.text())


def converse(ctx, what, roles=("server", "client"), family="address", options=(), client_options=(), limit=80, at=None,
             script="remote.py", until=None):
    """Runs both ends of one of the script's conversations to their end. The server listens `at` this address instead of the one
    to which the client connects. The client's standard input ends when `until` returns."""
    ctx.accelerated = roles
    script = str(harness.ROOT / "tests" / "rdma" / script)
    address, port = getattr(ctx.server_end, family), ctx.port()
    ctx.mark()
    server = ctx.spawn(["python3", script, what, "server", at or address, port], role="server", env=dict(options))
    wait_until(lambda: "ready" in server.stdout() or not server.running(), 60, "the server's listener")
    if len(roles) == 2:
        ctx.await_listener(server, port + 20000)
    read_end, write_end = os.pipe()
    client = ctx.spawn(["python3", script, what, "client", address, port], role="client",
                       env={**dict(options), **dict(client_options)}, stdin=read_end)
    os.close(read_end)
    ended = lambda: not (client.running() and server.running())
    try:
        if until:
            wait_until(lambda: until() or ended(), limit, "it has gone on for long enough")
    finally:
        os.close(write_end)
    wait_until(ended, limit, "one of them ends")
    server.result(limit)
    client.result(limit)


MB = 1 << 20


def by_rdma(ctx, what, messages, payload=0, senders=("client",), **how):
    """Runs a conversation of which RDMA must carry at least this much."""
    return carried(ctx, lambda: converse(ctx, what, **how), messages, payload, senders)


def carried(ctx, talk, messages, payload=0, senders=("client",)):
    """Checks that RDMA carries at least this much of the conversation `talk`, and tries again if not: on a slow machine the
    route is not always known in time, and on a fast one a conversation that begins on TCP may end before the upgrade."""
    for attempt in range(4):
        talk()
        try:
            return [ctx.prove(messages, payload, sender) for sender in senders]
        except harness.Failure as failure:
            if attempt == 3:
                raise
            print(f"    {ctx.kind} again: {failure}", flush=True)


@case(limit=240)
def bulk(ctx):
    by_rdma(ctx, "Bulk", 50, 6 * MB, ("client", "server"))


@case(limit=150)
def addresses(ctx):
    for family in ("address", "address6"):
        by_rdma(ctx, "Names", 5, senders=("server",), family=family)


@case(limit=150)
def listener_of_both_families(ctx):
    """An IPv4 client finds a listener of both families, also on iWARP, where an IPv6 client goes by TCP."""
    by_rdma(ctx, "Names", 5, senders=("server",), at="::")
    converse(ctx, "Names", family="address6", at="::")


# A program that takes every fourth port that connections from here can have, on sockets that do not share it.
# A port that a connection of an earlier test still has is taken, too.
HOLDER = """
import contextlib, signal, socket, sys
kept = [socket.socket() for port in range(50000, 50128, 4)]
for n, s in enumerate(kept):
    with contextlib.suppress(OSError):
        s.bind((sys.argv[1], 50000 + 4 * n))
print("ready", flush=True)
signal.pause()
"""


@case(modes=("siw",), limit=240)
def a_port_that_is_taken(ctx):
    """iWARP connects from a TCP port that may be taken; then it connects from another one, and the connection stays on RDMA."""
    setting = [*world.inside("client"), "sysctl", "-n", "-w"]
    usual = world.command(*setting[:-1], "net.ipv4.ip_local_port_range").split()
    world.command(*setting, "net.ipv4.ip_local_port_range=50000 50127")
    try:
        holder = ctx.spawn(["python3", "-c", HOLDER, ctx.client_end.address], role="client")
        wait_until(lambda: "ready" in holder.stdout() or not holder.running(), 30, "ports are taken")
        check(holder.running(), holder.text())
        for _ in range(8):
            by_rdma(ctx, "Polls", 320, options={"NACC_SOR_CONN_PER_QP": "1", "NACC_TCP_COMPANION": "0", "NACC_LOG_LEVEL": "1"})
            said = [line for line in ctx.log.read_text().splitlines() if "rdma_connect: EADDR" in line]
            # One port in four is taken; nine in a row, which happens once in 100,000 runs, would cause a fallback.
            check(all("connecting from another port" in line for line in said), f"the library's log: {said}")
            if said:
                return
        check(False, "no port was taken")
    finally:
        world.command(*setting, f"net.ipv4.ip_local_port_range={usual[0]} {usual[1]}")


@case(limit=150)
def half_close(ctx):
    by_rdma(ctx, "HalfClose", 10, 3 * MB)


@case(limit=150)
def written_before_the_end(ctx):
    by_rdma(ctx, "Exits", 10, 600_000, ("server",))


@case(limit=240)
def one_that_does_not_read(ctx):
    """A connection that is not read delays no other one, not even on the same queue pair."""
    for per_qp in ("1", "8"):
        by_rdma(ctx, "Stops", 40, 3 * MB, options={"NACC_SOR_CONN_PER_QP": per_qp})


@case(limit=240)
def fork_per_connection(ctx):
    by_rdma(ctx, "Forks", 50, 12 * MB, ("client", "server"))


@case(limit=150)
def closed_while_the_next_one_begins(ctx):
    """A connection whose client has ended keeps its bytes, even if the next one on the queue pair gets the same number."""
    by_rdma(ctx, "Again", 20, 2_000_000)


@case(limit=150)
def child_of_a_killed_process(ctx):
    """A process that waits on a connection that a killed parent carried gets the end."""
    ctx.accelerated = ("server", "client")
    script = str(harness.ROOT / "tests" / "rdma" / "lasting.py")
    for _ in range(5):
        address, port = ctx.server_end.address, ctx.port()
        server = ctx.spawn(["python3", script, "Orphans", "server", address, port], role="server")
        ctx.await_listener(server, port + 20000)
        client = ctx.spawn(["python3", script, "Orphans", "client", address, port], role="client")
        wait_until(lambda: "waiting" in server.stdout() or not server.running(), 60, "the child waits")
        check(server.running() and client.running(), server.text() + client.text())
        # With TCP the child would keep the connection.
        if "RDMA" in monitor.transports(client.pid):
            break
        client.kill()
        server.kill()
    server.kill()
    wait_until(lambda: len(server.stdout().split()) > 2, 30, "the child hears of the end")
    check(server.stdout().split()[-1] in ("end", "ConnectionResetError"), server.stdout())


@case()
def exec_of_another_program(ctx):
    converse(ctx, "Executes")


@case()
def exec_of_another_program_while_both_ways_are_full(ctx):
    """The thread that carries the connection waits for room on the program's new socket, and for the other host."""
    by_rdma(ctx, "ExecutesFull", 20, script="handed.py")


@case(limit=200)
def exec_in_the_same_process(ctx):
    """The process that carries the connection executes another program, which goes on with the connection."""
    for threads in ("1", "2"):
        for what in ("ServerBecomesAnother", "ClientBecomesAnother"):
            by_rdma(ctx, what, 20, script="handed.py", options={"NACC_SOR_IO_THREADS": threads})


@case()
def exec_that_fails(ctx):
    by_rdma(ctx, "FailsToExecute", 40, script="handed.py")


@case()
def exit_with_bytes_unread(ctx):
    by_rdma(ctx, "ExitsUnread", 20, script="handed.py")


@case()
def quick_exit(ctx):
    by_rdma(ctx, "QuickExits", 20, script="handed.py")


@case(limit=200)
def the_parent_ends_and_a_child_goes_on(ctx):
    for what in ("LeavesToChild", "ClientLeavesToChild", "BecomesDaemon"):
        by_rdma(ctx, what, 20, script="handed.py")


@case()
def passed_on_while_it_is_full(ctx):
    """The unread bytes have to fit into the new socket that the program gets."""
    by_rdma(ctx, "PassesFull", 20, script="handed.py")


@case()
def more_connects_than_the_backlog_has_room_for(ctx):
    by_rdma(ctx, "Backlog", 12)


@case()
def readiness(ctx):
    by_rdma(ctx, "Polls", 320, options={"NACC_SOR_CONN_PER_QP": "1"})
    # Data of several connections shares messages while others still open. Each connection by TCP means 40 messages less.
    by_rdma(ctx, "Polls", 300, options={"NACC_SOR_CONN_PER_QP": "8"})


@case()
def one_end_only(ctx):
    """A peer without NetACC is reached by TCP."""
    for roles in (("server",), ("client",)):
        converse(ctx, "HalfClose", roles)
        # The request for a connection and its refusal are counted too.
        carried = ctx.carried("server")["rdma_recvs"] + ctx.carried("client")["rdma_recvs"]
        check(carried < 5, f"{roles} alone: {carried} RDMA messages")


def silent_pair(ctx):
    """A connection over RDMA on which both ends wait for bytes."""
    ctx.accelerated = ("server", "client")
    script = str(harness.ROOT / "tests" / "rdma" / "lasting.py")
    address, port = ctx.server_end.address, ctx.port()
    server = ctx.spawn(["python3", script, "Silent", "server", address, port], role="server")
    ctx.await_listener(server, port + 20000)
    client = ctx.spawn(["python3", script, "Silent", "client", address, port], role="client")
    for proc in (server, client):
        wait_until(lambda: "waiting" in proc.stdout() or not proc.running(), 60, "both wait")
        check(proc.running(), proc.text())
    return server, client


def saw_the_end(proc):
    """Checks that the program saw the end within bounded time, and as TCP would report it."""
    proc.result(30)
    check(proc.stdout().split()[-1] in ("end", "ConnectionResetError"), proc.stdout())


@case()
def killed(ctx):
    """kill -9 of either end ends the connection at the other."""
    for victim in (0, 1):
        pair = silent_pair(ctx)
        pair[victim].kill()
        saw_the_end(pair[1 - victim])


@case()
def device_removed(ctx):
    """Programs that wait for bytes on a device do not delay rdma link delete, and their connection goes on by TCP."""
    for side, victim in ((ctx.server_end, 0), (ctx.client_end, 1)):
        pair = silent_pair(ctx)
        removal = ctx.spawn([*world.inside(side.namespace), "rdma", "link", "delete", side.device], role="nobody")
        check(removal.wait(30) == 0, removal.text())
        check(all(proc.running() for proc in pair), "both wait as before")
        pair[victim].kill()
        saw_the_end(pair[1 - victim])
        world.ensure_device(side, ctx.kind)


@case(limit=200)
def the_last_device_is_removed(ctx):
    """All devices of both hosts are removed, one after the other: no removal waits for the programs, and their connection goes
    on by TCP."""
    every = [(world.end(kind, role), kind) for kind in world.KINDS for role in ("server", "client")]
    pair = silent_pair(ctx)
    try:
        # The devices that carry the connection come last.
        for side, _ in sorted(every, key=lambda pair: pair[0] in ctx.ends()):
            removal = ctx.spawn([*world.inside(side.namespace), "rdma", "link", "delete", side.device], role="nobody")
            check(removal.wait(30) == 0, removal.text())
        check(all(proc.running() for proc in pair), "both wait as before")
        pair[1].kill()
        saw_the_end(pair[0])
    finally:
        for side, kind in every:
            world.ensure_device(side, kind)


@case(limit=200)
def silent_host(ctx):
    """Packets are dropped on both hosts' links without an error: both ends notice it in bounded time."""
    ctx.accelerated = ("server", "client")
    script = str(harness.ROOT / "tests" / "rdma" / "lasting.py")
    address = ctx.server_end.address
    patience = {"FAR_LIMIT": 150}
    for _ in range(5):
        port = ctx.port()
        server = ctx.spawn(["python3", script, "Talks", "server", address, port], role="server", env=patience)
        ctx.await_listener(server, port + 20000)
        ctx.mark()
        client = ctx.spawn(["python3", script, "Talks", "client", address, port], role="client", env=patience)
        wait_until(lambda: "waiting" in server.stdout() or not client.running(), 60, "they are connected")
        if "RDMA" in monitor.transports(client.pid):
            break
        client.kill()
        server.kill()
    wait_until(lambda: ctx.carried("client")["rdma_sends"] > 30 or not client.running(), 60, "questions and answers")
    # Packets go to a neighbour that does not exist, so they are lost without the device or the sender noticing it.
    lost = [(side, other, ["ip", "-n", side.namespace, "neigh", "replace", other.address, "dev", side.netdev, "lladdr"])
            for side, other in (ctx.ends(), ctx.ends()[::-1])]
    try:
        for _, _, command in lost:
            world.command(*command, "02:00:00:00:00:99", "nud", "permanent")
        for proc in (server, client):
            proc.result(40)
            check(proc.stdout().split()[-1] in ("ConnectionResetError", "TimeoutError"), proc.stdout())
    finally:
        for side, other, _ in lost:
            world.command("ip", "-n", side.namespace, "neigh", "del", other.address, "dev", side.netdev)
