"""netacc_ctl reload: running programs take the rules of their configuration files anew."""

import json
import os
import struct
import subprocess

import host
import monitor
from harness import check, equal, need
from host import wait_until
from matrix import case
from operators import ctl, ctl_any, real, state
from redis_server import admin, start

CLIENTS = 40
# Where the words lie on the statistics page: the count of requests, and the answer to the last one.
RELOAD_AT, ANSWERED_AT = 157, 188


class Rules:
    """The configuration file of a program."""

    def __init__(self, ctx, name):
        self.path = ctx.dir / name
        self.env = {"NACC_CONFIG_FILE": self.path}
        self.write()

    def write(self, *rules):
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(["[rules]", *rules, ""]))
        fresh.rename(self.path)


def rules_shown(pid):
    """Text and count of each rule that netacc_ss shows."""
    return [(rule["rule"], rule["decided"]) for rule in monitor.show(pid, "cnt")["cnt"]["rules"]]


def transports(pid, port):
    """Transport and reason of each connection of a client to the port."""
    rows = (row for row in monitor.sockets(pid) if row["state"] == "ESTAB")
    return [(row["transport"], row["reason"]) for row in rows if row["peer"].endswith(f":{port}")]


def listener(pid, port):
    """Transport and reason of the listener at 127.0.0.1."""
    rows = (row for row in monitor.sockets(pid) if row["state"] == "LISTEN")
    [one] = [(row["transport"], row["reason"]) for row in rows if row["local"] == f"127.0.0.1:{port}"]
    return one


def benchmark(ctx, server):
    ctx.run([need("redis-benchmark"), "-p", server.port, "-c", 20, "-n", 2000, "-q", "-t", "get"])


@case(modes=("both",))
def redis_under_load(ctx):
    """Clients and server obey new rules while they work: no error, open connections stay, new ones go where they may."""
    of_server, of_clients = Rules(ctx, "server.conf"), Rules(ctx, "clients.conf")
    server = start(ctx, env=of_server.env)
    clients = ctx.client(ctx.script("ctl_clients.py", server.port, CLIENTS), stdin=subprocess.PIPE, env=of_clients.env)
    wait_until(lambda: "ready" in clients.text(), 30, "the clients are connected")
    at_server, at_clients = real(server), real(clients)
    wait_until(lambda: state(at_clients)["connections"]["shm"] >= CLIENTS, 30, "all are accelerated")

    # A rule of the clients. Some of them make a new connection now and then, the others keep theirs.
    rule = f"use=tcp connect=127.0.0.0/8:{server.port}"
    of_clients.write(rule)
    ctl("reload", at_clients)
    wait_until(lambda: ("TCP", "rule") in transports(at_clients, server.port), 30, "new connections use TCP")
    check(("SHM", None) in transports(at_clients, server.port), "open connections stay")
    [(text, count)] = rules_shown(at_clients)
    check(text == rule and count > 0, f"{text} has decided {count} times")
    of_clients.write()
    ctl("reload", at_clients)
    equal(rules_shown(at_clients), [], "rules of the clients")
    only_shm = lambda: {transport for transport, _ in transports(at_clients, server.port)} == {"SHM"}
    wait_until(only_shm, 30, "connections are accelerated again")

    # A rule of the server, which sleeps in epoll_wait or is busy.
    rule = f"use=tcp listen={server.port}"
    for _ in range(3):
        of_server.write("use=shm program=no-such-program", rule)
        ctl("reload", at_server)
        equal(listener(at_server, server.port), ("TCP", "rule"), "the listener")
        # redis listens at two addresses.
        equal(rules_shown(at_server), [(rule, 2)], "rules of the server")
        before = monitor.accepts_shm([at_server])
        benchmark(ctx, server)
        equal(monitor.accepts_shm([at_server]), before, "connections over shared memory")
        of_server.write()
        ctl("reload", at_server)
        equal(listener(at_server, server.port), ("SHM", None), "the listener")
        benchmark(ctx, server)
        check(monitor.accepts_shm([at_server]) > before, "nobody came over shared memory")
    check(clients.running(), f"{clients.tail(3)}")
    clients.popen.stdin.close()
    replies, longest = clients.result().split()[-2:]
    with admin(server) as r:
        equal(r.info("stats")["rejected_connections"], "0", "connections that redis refused")
    check(int(replies) > 20 * CLIENTS, f"only {replies} replies")
    print(f"{replies} replies, the longest pause {longest} ms")


def page(pid):
    """The number of the descriptor of a process's statistics page."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:netacc-stats"):
            return fd
    raise AssertionError(f"process {pid} has no page")


@case(modes=("both",))
def mistakes_change_nothing(ctx):
    """A file with a mistake: its place is named, no process is asked, and one that finds it by itself keeps its rules."""
    first, second = Rules(ctx, "first.conf"), Rules(ctx, "second.conf")
    rule = "use=tcp connect=127.0.0.1:1"
    first.write(rule)
    one, two = (real(start(ctx, env=rules.env)) for rules in (first, second))
    loaded = [state(pid)["rules"]["loaded"] for pid in (one, two)]

    def nothing_changed(*words):
        said = ctl("reload", one, two, status=1)
        for word in words:
            check(str(word) in said, f"{word} is not in: {said}")
        equal([state(pid)["rules"] for pid in (one, two)],
              [{"count": 1, "loaded": loaded[0]}, {"count": 0, "loaded": loaded[1]}], "the rules")
        equal([text for text, _ in rules_shown(one)], [rule], "the rules shown")

    second.write("use=shm", "use=udp listen=80")
    nothing_changed(f'{second.path}:3: use="udp" names no transports', "all keep those that they have")
    second.path.write_text("[netacc]\nNACC_LOG_LEVEL=9\n")
    nothing_changed(f"{second.path}:2: NACC_LOG_LEVEL")
    second.path.unlink()
    nothing_changed(second.path, "No such file", two)
    second.path.mkdir()
    nothing_changed(second.path, "not a regular file")
    second.path.rmdir()

    # The file may change after netacc_ctl has checked it.
    first.write("use=tcp", "use=shm listen=")
    with open(f"/proc/{one}/fd/{page(one)}", "r+b", buffering=0) as words:
        os.pwrite(words.fileno(), b"\x01", RELOAD_AT)
        answer = lambda: struct.unpack("=III", os.pread(words.fileno(), 12, ANSWERED_AT))
        wait_until(lambda: answer()[0] == 1, 30, "redis answers")
        equal(answer(), (1, 3, 3), "the answer: a mistake in line 3")
    equal([text for text, _ in rules_shown(one)], [rule], "the rules shown")
    check(f"{first.path}:3: " in ctx.log.read_text(), "the process's log names the place")

    # A file of another key's value, which stays as it is.
    first.path.write_text(f"[netacc]\nNACC_POLL_CQ_MS=7\n[rules]\n{rule}\nuse=shm\n")
    second.write("use=shm")
    shown = json.loads(ctl("reload", one, two, "--json"))
    equal([(row["rules"]["count"], row["rules"]["reloaded"]) for row in shown], [(2, True), (1, True)], "the new rules")


@case(modes=("both",))
def processes_that_share_a_listener(ctx):
    """Workers that sleep in poll(2) hear of new rules, each for itself, and go on to serve their clients."""
    rules = Rules(ctx, "server.conf")
    server = ctx.serve(lambda port: ctx.script("prefork.py", port, 4), env=rules.env)
    client = ctx.client(ctx.script("connects.py", server.port), stdin=subprocess.PIPE)
    answered = 0

    def served(times):
        nonlocal answered
        client.popen.stdin.write(b"\n" * times)
        client.popen.stdin.flush()
        answered += times
        wait_until(lambda: len(client.text().split()) >= answered, 60, "the workers answer")

    workers = [pid for pid in host.tree(server.pid) if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "netacc_run"]
    equal(len(workers), 4, "workers")
    served(20)
    for _ in range(5):
        rules.write(f"use=tcp listen={server.port}")
        shown = json.loads(ctl("reload", *workers, "--json"))
        equal([row["rules"]["reloaded"] for row in shown], [True] * 4, "reloaded")
        equal({listener(pid, server.port) for pid in workers}, {("TCP", "rule")}, "the listener")
        served(20)
        rules.write()
        ctl("reload", *workers)
        equal({listener(pid, server.port)[0] for pid in workers}, {"SHM"}, "the listener")
        before = monitor.accepts_shm(workers)

        # The client believes for a moment that the listener is the kernel's.
        def came_by_ring():
            served(1)
            return monitor.accepts_shm(workers) > before
        wait_until(came_by_ring, 30, "clients come over shared memory")


@case(modes=("both",))
def what_it_says(ctx):
    """Processes that cannot be asked are named as with off and on; one that has no socket yet will read the file by itself."""
    rules = Rules(ctx, "rules.conf")
    pid = real(start(ctx, env=rules.env))
    check("does not exist" in ctl("reload", 4194304, status=1), "a process that is not there")
    check("does not have NetACC loaded" in ctl("reload", os.getpid(), status=1), "a process without the library")
    sleeping = ctx.client([need("sleep"), "60"])
    programs = lambda: [pid for pid in host.tree(sleeping.pid) if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "netacc_run"]
    [plain] = wait_until(programs, 20, "the launcher has started it")
    wait_until(lambda: "does not have NetACC loaded" not in ctl_any("reload", plain), 20, "it has the library")
    equal(json.loads(ctl("reload", plain, "--json"))[0]["rules"], None, "rules before the first socket")
    rules.write("use=shm")
    os.kill(pid, 19)
    try:
        wait_until(lambda: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", 10, "it is stopped")
        check("is stopped" in ctl("reload", pid, "-w", 0.2, status=1), "a stopped process")
        # One request does not hide the other.
        check("is stopped" in ctl("off", pid, "-w", 0.2, status=1), "a stopped process")
        equal(state(pid)["state"], "on, asked", "the state of a stopped process")
    finally:
        os.kill(pid, 18)
    wait_until(lambda: (state(pid)["state"], state(pid)["rules"]["count"]) == ("off", 1), 30, "it follows both")
    # New rules of a process that is off count when it is on.
    rules.write("use=tcp")
    ctl("reload", pid)
    equal(state(pid)["state"], "off", "the state")
    rules.write()
    ctl("reload", pid)
    ctl("on", pid)
    equal((state(pid)["state"], state(pid)["rules"]["count"]), ("on", 0), "the state")
    check("reloaded" in ctl("reload", pid), "the table")


@case(modes=("both",))
def another_user(ctx):
    """Only the same user and root may do that."""
    server = start(ctx, env=Rules(ctx, "rules.conf").env)
    if os.geteuid() != 0:
        return
    before = state(real(server))["rules"]
    program = os.path.join(os.path.dirname(monitor.command()), "netacc_ctl")
    done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", program, "reload", str(real(server))],
                          capture_output=True, text=True, timeout=60)
    equal(done.returncode, 1, done.stderr)
    check("belongs to another user" in done.stderr, done.stderr)
    equal(state(real(server))["rules"], before, "the rules")


WAITS = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('ready', flush=True); s.accept()"


@case(modes=("both",))
def a_mistake_of_another_user(ctx):
    """Root has its own processes load their rules, whatever stands in the file of another user's process."""
    user, home = ctx.stranger()
    if user is None:
        return
    ours, theirs = Rules(ctx, "ours.conf"), Rules(ctx, "theirs.conf")
    server = real(start(ctx, env=ours.env))
    stranger = ctx.spawn(["/usr/bin/python3", "-c", WAITS], role="server", user=user, cwd=home, env=theirs.env)
    wait_until(lambda: "ready" in stranger.text(), 30, "the other program listens")
    stranger = real(stranger)
    ours.write("use=tcp connect=127.0.0.1:1")
    theirs.write("use=udp")
    said = ctl("reload", server, stranger, status=1)
    check(f"{theirs.path}:2: " in said and f"{stranger}" in said, said)
    equal([state(pid)["rules"]["count"] for pid in (server, stranger)], [1, 0], "the rules")
