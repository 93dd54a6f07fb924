"""What netacc_ss and netacc_check say of programs in different network namespaces, and of what keeps them apart."""

import json
import os
import pathlib
import re
import subprocess

import monitor
from harness import Skipped, check, equal, need
from hosts import command, possible
from matrix import case
from neighbours import PORT, ROUNDS, World, ended
from operators import real
from terminals import Terminal
from test_hosts import CONTAINERS, container, mapped


def shown(*args, columns=None):
    """What netacc_ss prints, on a terminal of so many columns."""
    if columns is None:
        return subprocess.run([monitor.command(), *map(str, args)], capture_output=True, text=True, check=True).stdout
    terminal = Terminal(columns)
    subprocess.run([monitor.command(), *map(str, args)], stdout=terminal.slave, check=True, env={**os.environ, "NO_COLOR": "1"})
    return terminal.text()


@case(modes=("both",))
def the_other_end(ctx):
    """netacc_ss names the process at the other end and its container, also where neither end can see the other."""
    world = World(ctx)
    within = container(*CONTAINERS["pid"])
    if not possible(*within, "true"):
        raise Skipped("no PID namespace can be made")
    server, client = world.serve("threads", within=[*world.b.within, *within]), None
    client = world.talk(within=[*world.a.within, *within])
    with ended(server, client):
        client.expect(("SHM", None))
        near, far = real(client.proc), real(server.proc)
        network = re.search(r"\d+", os.readlink(f"/proc/{far}/ns/net")).group()
        [mine] = json.loads(shown("-p", near, "-s", "sock", "--json"))["sock"]
        equal((mine["peer_pid"], mine["peer_container"]), (far, f"net:{network}"), "the other end in JSON")
        wide = shown("-p", near, "-s", "sock", columns=200)
        check(f"net:{network}" in wide and "Container" in wide, f"on a wide terminal:\n{wide}")
        narrow = shown("-p", near, "-s", "sock", columns=60)
        check(all(len(line) <= 60 for line in narrow.splitlines()), f"on a narrow terminal:\n{narrow}")
        said = shown("--explain", near)
        check(f"process {far} (" in said and f"in container net:{network} over shared memory" in said, said)
        # With a cgroup that a container engine would make.
        group = next((g for g in map(pathlib.Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/pids")) if (g / "cgroup.procs").exists()),
                     None)
        group = group and group / f"docker-{'5eed' * 16}.scope"
        try:
            group.mkdir()
        except (AttributeError, OSError):
            return
        try:
            (group / "cgroup.procs").write_text(str(far))
            [mine] = json.loads(shown("-p", near, "-s", "sock", "--json"))["sock"]
            equal(mine["peer_container"], "docker-5eed5eed5eed", "the container by its cgroup")
        finally:
            (group.parent / "cgroup.procs").write_text(str(far))
            group.rmdir()


@case(modes=("both",))
def why_not(ctx):
    """netacc_ss --explain says what a connection between two containers lacks."""
    world = World(ctx)
    other = world.dir.with_name("other")
    other.mkdir()

    def explained(reason, words, rounds=ROUNDS, server=None, client=None):
        server, client = world.serve("threads", **(server or {})), world.talk(rounds=rounds, **(client or {}))
        with ended(server, client):
            client.expect(("TCP", reason))
            said = " ".join(shown("--explain", real(client.proc)).split())
            check(f"The other end is process {real(server.proc)} (" in said and words in said, f"{words!r} is not in: {said}")

    absent = {"env": {"NACC_HOST_DIR": "/nonexistent/netacc"}}
    explained("no-neighbour", "which runs without NetACC", server={"role": None})
    explained("other-host", "/nonexistent/netacc of this process is not there", client=absent)
    explained("no-neighbour", "/nonexistent/netacc of that process is not there", server=absent)
    explained("no-neighbour", "different directories", server={"env": {"NACC_HOST_DIR": str(other)}})
    other.chmod(0o777)
    explained("no-neighbour", "of that process is not used: others may write", server={"env": {"NACC_HOST_DIR": str(other)}})
    for owner, words in ((100000, "of that process is not used"), (0, "of this process is not used")):
        os.chown(world.dir, owner, owner)
        world.dir.chmod(0o1777)
        within = mapped(ctx, "0 100000 65536")
        client = {"within": [*world.a.within, *within], "readable": True}
        explained("no-neighbour" if owner else "other-host", f"{words}: it belongs to user", client=client)
    explained("short-lived", "is looked for only once a connection has made some 20 requests", rounds=2)


@case(modes=("both",))
def predicted(ctx):
    """netacc_check HOST:PORT says beforehand what a connection will come to."""
    world = World(ctx)
    program = pathlib.Path(monitor.command()).with_name("netacc_check")

    def predicts(level, words, within=(), address=f"10.77.0.2:{PORT}", **env):
        done = subprocess.run([*world.a.within, *within, program, "--json", address], capture_output=True, text=True,
                              env={**os.environ, **world.env(**env)})
        found = [f for f in json.loads(done.stdout)["findings"] if words in f["text"]]
        check(found and found[0]["level"] == level, f"no {level} with {words!r}: {done.stdout} {done.stderr}")

    predicts("note", "has none at all")
    server, client = world.serve("threads"), None
    predicts("ok", f"process {real(server.proc)} in container net:")
    predicts("note", "cannot be seen from here", within=container(*CONTAINERS["pid"]))
    predicts("note", "is not there", NACC_HOST_DIR="/nonexistent/netacc")
    predicts("note", "if the network leads there to one of the 1", address="10.77.0.2:80")
    world.dir.chmod(0o1777)
    predicts("warn", "belongs to another user", within=[need("setpriv"), "--reuid=nobody", "--clear-groups"])
    command(*world.a.within, need("sysctl"), "-qw", "net.ipv4.tcp_timestamps=2")
    predicts("warn", "time stamps")
    command(*world.a.within, need("sysctl"), "-qw", "net.ipv4.tcp_timestamps=1")
    # A prediction disturbs nobody, and is right.
    client = world.talk()
    with ended(server, client):
        client.expect(("SHM", None))
