"""Strangers at port + 20000: refused, or their queue pair closed, while the connections of others go on."""

import os

import harness
import world
from harness import check
from host import wait_until
from matrix import case
from test_settings import Held

# What may come of it. `open`: the stranger alone is worse off.
REFUSED = ("nothing", "garbage", "half-a-greeting", "another-version", "no-receives", "tiny-receives")
ENDED = ("empty-message", "short-message", "unknown-kind", "followed-by-nothing", "followed-by-half",
         "followed-by-garbage", "followed-beyond-its-end", "credits-never-granted", "large-credits-never-granted",
         "longer-than-a-receive", "asks-with-garbage", "asks-by-half", "ready-unasked", "asks-and-talks",
         "unmarked-short-message")
# Of those messages that have their head in the immediate data, which iWARP has not.
BRIEF_ENDED = ("brief-credits-never-granted", "brief-longer-than-a-receive")
BRIEF_EITHER = ("brief-unknown-connection", "brief-window-never-used", "brief-without-a-byte", "brief-after-the-end")
EITHER = ("more-than-credits", "unknown-connection", "window-never-used", "garbage-addresses", "half-addresses",
          "opened-twice", "no-credits-back", "asks-for-nothing", "never-established", "gone-at-once")


def stranger(ctx, scenario, port, *more):
    return ctx.spawn([ctx.built("rdma_stranger"), scenario, ctx.server_end.address, port + 20000, port, *more],
                     role="stranger")


def queue_pairs(ctx):
    return sum(qp["ifname"] == ctx.server_end.device and qp["type"] == "RC" for qp in world.resources("qp"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


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
    # What the strangers had is given back: their ends were refused, closed, or killed.
    wait_until(lambda: queue_pairs(ctx) <= before, 60, f"the {before} queue pairs from before are left")
    wait_until(lambda: descriptors(held.server.pid) <= open_before + 2, 60,
               f"no more descriptors than the {open_before} from before")
    held.end()
    held.server.end()


@case(limit=150)
def nobody_gets_anothers_connection(ctx):
    """A stranger knows the addresses of a plain client's connection, and asks to carry it."""
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


@case(modes=("rxe",), limit=300)
def a_flood_of_connects(ctx):
    """Others are still served, those that are there and one that comes now; afterwards all is given back."""
    held = Held(ctx, "Prefork")
    port, before = ctx.next_port, queue_pairs(ctx)
    proc = stranger(ctx, "flood", port, 120)
    wait_until(lambda: proc.stdout().strip() or not proc.running(), 120, "the flood")
    print(f"    {ctx.kind}: {proc.stdout().strip()}", flush=True)
    check(proc.running(), proc.text())
    script = str(harness.ROOT / "tests" / "rdma" / "far.py")
    late = ctx.spawn(["python3", script, "Prefork", "client", ctx.server_end.address, port], role="client")
    late.result(100)
    proc.kill()
    wait_until(lambda: queue_pairs(ctx) <= before, 60, f"the {before} queue pairs from before are left")
    held.end()
    held.server.end()
