"""Strangers at port + 20000 are refused, or their queue pairs closed, while the connections of others go on."""

import os
import pathlib
import time

import harness
import world
from harness import check, equal
from host import wait_until
from matrix import case
from test_settings import Held

# The scenarios by their permitted results. With `open` the violation harms only the stranger itself.
REFUSED = ("nothing", "garbage", "half-a-hello", "another-version", "no-receives", "tiny-receives")
ENDED = ("empty-message", "short-message", "unknown-kind", "followed-by-nothing", "followed-by-half",
         "followed-by-garbage", "followed-beyond-its-end", "credits-never-granted", "large-credits-never-granted",
         "longer-than-a-receive", "asks-with-garbage", "asks-by-half", "ready-unasked", "asks-and-talks",
         "unmarked-short-message")
# Scenarios whose messages have their heads in the immediate data, which iWARP does not have.
BRIEF_ENDED = ("brief-credits-never-granted", "brief-longer-than-a-receive")
BRIEF_EITHER = ("brief-unknown-connection", "brief-window-never-used", "brief-without-a-byte", "brief-after-the-end")
EITHER = ("more-than-credits", "unknown-connection", "window-never-used", "garbage-addresses", "half-addresses",
          "opened-twice", "no-credits-back", "asks-for-nothing", "never-established", "gone-at-once")


def stranger(ctx, scenario, port, *more):
    """A stranger that stays until it is killed, or until the case ends, which closes its standard input."""
    read_end, _ = os.pipe()
    proc = ctx.spawn([ctx.built("rdma_stranger"), scenario, ctx.server_end.address, port + 20000, port, *more],
                     role="stranger", stdin=read_end)
    os.close(read_end)
    return proc


def queue_pairs(ctx):
    return sum(qp["ifname"] == ctx.server_end.device and qp["type"] == "RC" for qp in world.resources("qp"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def listens(ctx, port):
    """Whether a TCP socket of the server's host listens there."""
    table = pathlib.Path(f"/proc/{ctx.held.server.pid}/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in table)


def converse_with(ctx, port, role):
    """Runs a separate conversation from the client's host, which goes by RDMA if `role` is accelerated."""
    script = str(harness.ROOT / "tests" / "rdma" / "remote.py")
    return ctx.spawn(["python3", script, "Prefork", "client", ctx.server_end.address, port], role=role)


@case(limit=300)
def none_is_believed(ctx):
    held = Held(ctx, "Prefork")
    port = ctx.next_port
    before, open_before = queue_pairs(ctx), descriptors(held.server.pid)
    problems = []
    immediate = ctx.kind == "rxe"
    ended, either = ENDED + BRIEF_ENDED * immediate, EITHER + BRIEF_EITHER * immediate
    for allowed, scenarios in ((("refused",), REFUSED), (("ended",), ended), (("ended", "open"), either)):
        for scenario in scenarios:
            proc = stranger(ctx, scenario, port)
            wait_until(lambda p=proc: p.stdout().strip() or not p.running(), 60, scenario)
            said = proc.stdout().strip() or proc.text().strip()
            print(f"    {ctx.kind} {scenario}: {said}", flush=True)
            if said not in allowed:
                problems.append(f"{scenario}: {said}")
            check(held.server.running(), f"the server ended after {scenario} with {held.server.popen.returncode}: {held.server.text()[-500:]}")
            if proc.running():
                proc.kill()
    check(not problems, "; ".join(problems))
    # The resources of the strangers are released, since they were refused, closed, or killed.
    wait_until(lambda: queue_pairs(ctx) <= before, 60, f"the {before} queue pairs from before are left")
    wait_until(lambda: descriptors(held.server.pid) <= open_before + 2, 60,
               f"no more descriptors than the {open_before} from before")
    held.end()
    held.server.end()


@case(limit=150)
def nobody_gets_anothers_connection(ctx):
    """A stranger that knows the addresses of a plain client's connection, and asks for its upgrade, does not get it."""
    ctx.accelerated = ("server",)
    script, port = str(harness.ROOT / "tests" / "rdma" / "lasting.py"), ctx.port()
    server = ctx.spawn(["python3", script, "Owned", "server", ctx.server_end.address, port], role="server")
    ctx.await_listener(server, port + 20000)
    read_end, write_end = os.pipe()
    client = ctx.spawn(["python3", script, "Owned", "client", ctx.server_end.address, port], role="client", stdin=read_end)
    os.close(read_end)
    wait_until(lambda: client.stdout().strip() or not client.running(), 60, "the client is connected")
    proc = stranger(ctx, "asks-for-anothers", port, client.stdout().strip())
    wait_until(lambda: proc.stdout().strip() or not proc.running(), 60, "the stranger has asked")
    print(f"    {ctx.kind}: {proc.text().strip()}", flush=True)
    os.close(write_end)
    client.result(30)
    server.result(30)
    proc.kill()


# A client that connects to the given port.
ELSEWHERE = """import socket, sys
print("ready", flush=True)
print(socket.create_connection((sys.argv[1], int(sys.stdin.readline())), 30).recv(1))
"""

# The numbers that the library keeps: silent queue pairs of one address, and silent clients at the port of a companion.
SILENT, STRANGERS = 64, 16


@case(modes=("rxe",), limit=300)
def a_flood_of_connects(ctx):
    """Few connects of a flood are kept, while existing connections and a new one are served; afterwards all is released."""
    held = Held(ctx, "Prefork")
    port, before = ctx.next_port, queue_pairs(ctx)
    proc = stranger(ctx, "flood", port, 120)
    wait_until(lambda: proc.stdout().strip() or not proc.running(), 120, "the flood")
    more = queue_pairs(ctx) - before
    print(f"    {ctx.kind}: {proc.stdout().strip()}, {more} queue pairs more", flush=True)
    check(proc.running(), proc.text())
    check(more <= SILENT, f"{more} queue pairs that have said nothing")
    converse_with(ctx, port, "client").result(100)
    proc.kill()
    wait_until(lambda: queue_pairs(ctx) <= before, 60, f"the {before} queue pairs from before are left")
    held.end()
    held.server.end()


@case(limit=300)
def others_go_on_beside_a_flood(ctx):
    """A stranger makes silent queue pairs endlessly. Meanwhile new conversations begin, by TCP and from an accelerated client,
    and existing ones go on."""
    held = Held(ctx, "Prefork")
    port, before = ctx.next_port, queue_pairs(ctx)
    read_end, write_end = os.pipe()
    proc = ctx.spawn([ctx.built("rdma_stranger"), "flood-on", ctx.server_end.address, port + 20000, port, 100],
                     role="stranger", stdin=read_end)
    os.close(read_end)
    wait_until(lambda: proc.stdout().strip() or not proc.running(), 120, "the first hundred")
    most = 0
    for role in ("plain", "client"):
        conversation = converse_with(ctx, port, role)
        while conversation.running():
            most = max(most, queue_pairs(ctx))
            check(proc.running(), proc.text())
            time.sleep(0.05)
        conversation.result(100)
    held.end()
    os.close(write_end)
    print(f"    {ctx.kind}: {proc.stdout().split()[-1]} made, {most - before} more at a time", flush=True)
    # The later client has some queue pairs as well.
    check(most <= before + SILENT + 16, f"{most} queue pairs, {before} of them from before")
    proc.result(60)
    held.server.end()


@case(limit=200)
def companions_of_nobody(ctx):
    """At a port where a queue pair waits for its companion connection few silent clients are kept, and none from another
    address; the port is closed when no companion is awaited any more."""
    ctx.held = held = Held(ctx, "Prefork")
    port, before = ctx.next_port, descriptors(held.server.pid)
    # The client is started before, since the server does not wait for long.
    ctx.accelerated = ("client",)
    read_end, write_end = os.pipe()
    elsewhere = ctx.spawn(["python3", "-c", ELSEWHERE, ctx.server_end.address], role="server", stdin=read_end)
    os.close(read_end)
    wait_until(lambda: "ready" in elsewhere.stdout() or not elsewhere.running(), 60, "a client at another address")
    proc = stranger(ctx, "companions", port, 60)
    wait_until(lambda: "port" in proc.stdout() or not proc.running(), 60, "a companion connection is awaited")
    companion = int(proc.stdout().split()[1])
    check(listens(ctx, companion), f"nobody listens at {companion}")
    os.write(write_end, f"{companion}\n".encode())
    os.close(write_end)
    equal(elsewhere.result(60).split(), ["ready", "b''"], "what a client at another address gets")
    wait_until(lambda: "kept" in proc.stdout() or not proc.running(), 60, "what became of them")
    kept = int(proc.stdout().split()[3])
    print(f"    {ctx.kind}: {kept} of 60 kept", flush=True)
    check(kept <= STRANGERS, f"{kept} clients that have said nothing")
    # The port is closed only after the server has waited for a while, since none of the clients so far is the one that it
    # awaits.
    wait_until(lambda: not listens(ctx, companion), 30, f"nobody listens at {companion} any more")
    proc.kill()
    wait_until(lambda: descriptors(held.server.pid) <= before + 2, 60, f"no more descriptors than the {before} from before")
    held.end()
    held.server.end()
