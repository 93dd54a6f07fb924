"""Two hosts: connections that are not accelerated are measured nevertheless, and reported as such."""

import shutil

from benching import ONE, SHORT, Server, cell, run, tool
from harness import check, equal
from hosts import Host, cable, need_root
from matrix import case


def joined(ctx):
    need_root()
    a, b = Host(ctx), Host(ctx)
    cable(a, b, "cable", "10.77.0.1/24", "10.77.0.2/24")
    return a, b


@case(modes=ONE)
def between_two_hosts(ctx):
    a, b = joined(ctx)
    server = Server(ctx, within=b.within)
    run_there = ("client", "10.77.0.2", "-p", server.port, *SHORT, "-w", "round-trip,connect")
    found = run(ctx, *run_there, "--json", within=a.within).json()
    for workload in ("round-trip", "connect"):
        both = cell(found, workload, "both")
        equal((both["via"], both["accelerated"]), ("tcp", False), workload)
        check(both["why_not"].startswith("other-host: "), both["why_not"])
        check(both["connections"]["reasons"].get("other-host"), both["connections"])
    check(found["icmp_echo"]["measured"], found["icmp_echo"])
    equal(found["conclusion"]["saved_ms_per_request"], None, "nothing is claimed to be saved")
    words = " ".join(run(ctx, *run_there, within=a.within).good().out.split())
    check("both ends: not accelerated: other-host: The other end is on another host" in words, words)
    # Asked from its own host under the same address it is one host.
    near = run(ctx, *run_there, "--json", within=b.within).json()
    equal(cell(near, "round-trip", "both")["via"], "shm", "on one host")


@case(modes=ONE)
def without_rights(ctx):
    """ICMP echo needs a privilege or a setting: without both that is reported, with the setting it is measured."""
    need_root()
    one = Host(ctx)
    place = ctx.dir / "tool"
    place.mkdir()
    for name in ("netacc_bench", "libnetacc-preload.so"):
        shutil.copy(tool().replace("netacc_bench", name), place / name)
    ctx.log.touch()
    ctx.log.chmod(0o666)
    words = (*one.within, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    ask = ("client", *SHORT, "-w", "round-trip", "--json")
    found = run(ctx, *ask, within=words, command=str(place / "netacc_bench")).json()
    equal(found["icmp_echo"]["measured"], False, "ICMP echo of anybody")
    check("ping_group_range" in found["icmp_echo"]["why_not"], found["icmp_echo"])
    equal(cell(found, "round-trip", "both")["via"], "shm", "for any user")
    allowed = run(ctx, "-w", "net.ipv4.ping_group_range=0 65535", within=one.within, command="sysctl")
    if allowed.status == 0:
        found = run(ctx, *ask, within=words, command=str(place / "netacc_bench")).json()
        check(found["icmp_echo"]["measured"], found["icmp_echo"])
