"""The cases of scripts/bench that need containers run, and their connections go over to shared memory, or are redirected by sockmap."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from benching import ONE, SHORT, cell, run
from exchange import BYTES, CONNECTIONS
from harness import ROOT, Skipped, check, equal
from host import wait_until
from hosts import need_root
from matrix import case

sys.path.append(str(ROOT / "scripts"))

from benchlib import containers, proc, sides, sockmap  # noqa: E402

EXCHANGE = ROOT / "tests" / "bench" / "exchange.py"


@case(modes=ONE, limit=240)
def in_containers(ctx):
    """By their own addresses, and by a published port."""
    need_root()
    path = ctx.dir / "bench.json"
    only = [word for name in ("containers-redis-one", "containers-published") for word in ("--only", name)]
    # The figures to reach are for a machine that does nothing else.
    done = subprocess.run([ROOT / "scripts" / "bench", "--quick", "--rounds", "1", *only, "--json", path],
                          env=ctx.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    check("Traceback" not in done.stderr, done.stderr)
    found = json.loads(path.read_text())["cases"]
    equal([one["name"] for one in found], ["containers-redis-one", "containers-published"], "cases")
    for one in found:
        equal(one["proof"]["accelerated"], "yes", f"{one['name']}: {one['proof']['said']}")
        # The further side is there, or the reason why it is not.
        absent = any(note.startswith("sockmap is not measured: ") for note in one["notes"])
        equal(one["sockmap_proof"] is None, absent, f"{one['name']}: no sockmap, and the reason is said: {one['notes']}")
        if not absent:
            equal(one["sockmap_proof"]["accelerated"], "yes", f"{one['name']}: {one['sockmap_proof']['said']}")
            check(one["metrics"]["rps"]["sockmap"]["median"] > 0, f"{one['name']}: {one['metrics']['rps']}")
    equal("sockmap is not measured" in done.stdout, absent, "the reason is shown")


def need_sockmap():
    """The side, which the caller has to close."""
    try:
        return sockmap.Sockmap()
    except proc.Failed as reason:
        check(str(reason), "no reason is said")
        raise Skipped(f"sockmap: {reason}") from None


def wire_bytes(place):
    """What the client's container has sent and received."""
    told = place.client(sides.Plain()).run("ip", "-s", "-j", "link", "show", "eth0").output
    return sum(json.loads(told)[0]["stats64"][way]["bytes"] for way in ("rx", "tx"))


@contextmanager
def joined(ctx):
    """Two containers whose client uses a translated address, and the side, which leaves nothing behind."""
    need_root()
    side = need_sockmap()
    try:
        place = containers.Containers(str(ctx.dir), published=True)
        try:
            yield side, place
        finally:
            place.close()
    finally:
        side.close()
    check(not os.path.exists(side.cgroup), f"{side.cgroup} is left behind")


def exchange_bytes(side, place):
    """Runs both programs of exchange.py, and returns what the watch has seen."""
    watch = side.watch(None)
    server = place.server(side).start("python3", EXCHANGE, "server", place.listens_on)
    place.client(side).run("python3", EXCHANGE, "client", place.address, server.read_line(), timeout=60)
    equal(server.wait(30), 0, f"the server: {server.errors()}")
    return watch.result()


@case(modes=ONE)
def sockmap_redirects(ctx):
    """The bytes arrive as they were sent, and not by the network."""
    with joined(ctx) as (side, place):
        before = wire_bytes(place)
        seen = exchange_bytes(side, place)
        wire = wire_bytes(place) - before
        # A connection whose first message was too early for the server's end stays on TCP.
        check(seen["bytes"] > 0.75 * BYTES > 3 * wire, f"{seen}, {wire} bytes by the network, of {BYTES}")


@case(modes=ONE)
def sockmap_too_early(ctx):
    """The handshake's last packet is lost, so that TCP carries the first message: no later one overtakes it."""
    with joined(ctx) as (side, place):
        place.node.command("sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1")
        for rule in ("add chain ip nat late { type filter hook forward priority 0; }",
                     f"add rule ip nat late ip daddr {place.listens_on} tcp flags == ack ct original packets <= 2 drop"):
            place.node.command("nft", rule)
        seen = exchange_bytes(side, place)
        check(seen["tcp"] >= CONNECTIONS, f"{seen} of {CONNECTIONS} connections")


@case(modes=ONE)
def sockmap_killed(ctx):
    """A benchmark that is killed leaves neither the cgroup nor a process in it: with one, it could not be removed."""
    need_root()
    need_sockmap().close()
    words = """import sys, time; sys.path.append(sys.argv[1]); from benchlib.sockmap import Sockmap; side = Sockmap()
side.start("sh", "-c", "sleep 1000 & wait"); print(side.cgroup, flush=True); time.sleep(1000)"""
    with subprocess.Popen([sys.executable, "-c", words, ROOT / "scripts"], stdout=subprocess.PIPE, text=True) as benchmark:
        cgroup = benchmark.stdout.readline().strip()
        wait_until(lambda: members(cgroup) == 2, 30, "a shell and its child in the cgroup")
        benchmark.send_signal(signal.SIGKILL)
    wait_until(lambda: not os.path.exists(cgroup), 30, f"{cgroup} is removed")


def members(cgroup):
    with open(f"{cgroup}/cgroup.procs", encoding="ascii") as processes:
        return len(list(processes))


@case(modes=ONE, limit=120)
def the_tool(ctx):
    """netacc_bench makes two containers and leaves nothing behind."""
    need_root()
    words = ("client", "--containers", *SHORT, "-w", "round-trip,connect,requests", "-c", "4")
    there = {"TMPDIR": str(ctx.dir)}
    before = set(ctx.dir.iterdir())
    found = run(ctx, *words, "--json", env=there).json()
    for workload in ("round-trip", "requests"):
        both = cell(found, workload, "both")
        equal((both["via"], both["accelerated"]), ("shm", True), workload)
        equal(cell(found, workload, "client")["via"], "tcp", f"{workload}, one end")
    equal(cell(found, "connect", "both")["via"], "tcp", "connections that are too short-lived")
    equal({path.name for path in set(ctx.dir.iterdir()) - before if path.name.startswith("netacc_bench")}, set(), "left behind")
