"""Rules of the configuration file: what they leave on TCP, what netacc_ss says of it, and what netacc_check foretells."""

import json
import os
import subprocess
import sys

import host
import monitor
from harness import ROOT, check, equal
from host import wait_until
from matrix import case
from seeing import ONE, run

# Accepts at the ports given, and answers one byte on each connection, which it keeps.
SERVER = """
import select, socket, sys
listeners = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[1:]]
kept = []
while True:
    for listener in select.select(listeners, [], [])[0]:
        kept.append(listener.accept()[0])
        kept[-1].sendall(b"x")
"""
# Connects to the ports given, hears the byte, and keeps the connections until it is ended.
CLIENT = """
import socket, sys
kept = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
assert all(one.recv(1) == b"x" for one in kept)
print("there", flush=True)
sys.stdin.read()
"""


def ports(count):
    found = set()
    while len(found) < count:
        found.add(host.free_port())
    return sorted(found)


def settings(ctx, name, *rules, keys=()):
    text = "\n".join(["[netacc]", *keys, "[rules]", *rules, ""])
    return {"NACC_CONFIG_FILE": ctx.file(name, text.encode())}


def begin(ctx, server_env, client_env, numbers):
    """A server that listens at all ports and a client that is connected to all of them."""
    server = ctx.spawn([sys.executable, "-c", SERVER, *map(str, numbers)], role="server", env=server_env)
    wait_until(lambda: all(host.listening(port) for port in numbers), 30, "the server listens")
    client = ctx.spawn([sys.executable, "-c", CLIENT, *map(str, numbers)], role="server", env=client_env,
                       stdin=subprocess.PIPE)
    wait_until(lambda: "there" in client.text() or not client.running(), 30, "the client has heard the server")
    check(client.running(), f"the client ended: {client.tail()}")
    return server, client


def connections(pid):
    """Transport and reason of each connection of a client, by the port of its server."""
    rows = [row for row in monitor.sockets(pid) if row["state"] == "ESTAB"]
    return {int(row["peer"].rpartition(":")[2]): (row["transport"], row["reason"]) for row in rows}


def listeners(pid):
    rows = [row for row in monitor.sockets(pid) if row["state"] == "LISTEN"]
    return {int(row["local"].rpartition(":")[2]): (row["transport"], row["reason"]) for row in rows}


@case(modes=ONE)
def a_rule_of_the_server_leaves_a_listener_on_tcp(ctx):
    plain, fast = ports(2)
    env = settings(ctx, "server.conf", f"use=tcp listen={plain}", "use=shm program=python* listen=1-65535")
    server, client = begin(ctx, env, None, (plain, fast))
    equal(listeners(server.pid), {plain: ("TCP", "rule"), fast: ("SHM", None)}, "listeners")
    equal(connections(client.pid), {plain: ("TCP", "peer-plain"), fast: ("SHM", None)}, "connections")
    conf = env["NACC_CONFIG_FILE"]
    said = " ".join(run(ctx, "--explain", server.pid).out.split())
    check(f"It is {conf}:3: use=tcp listen={plain}." in said, said)
    shown = monitor.show(server.pid, "cfg,cnt")
    equal([(row["value"], row["source"]) for row in shown["cfg"] if row["key"] == "rule"],
          [(f"use=tcp listen={plain}", f"{conf}:3"), ("use=shm program=python* listen=1-65535", f"{conf}:4")], "rules shown")
    equal([rule["decided"] for rule in shown["cnt"]["rules"]], [1, 1], "decisions")
    equal(host_log(ctx), "", "log")


def host_log(ctx):
    """Warnings: what an operator has written down is none."""
    path = ctx.environment()["NACC_LOG_PATH"]
    return open(path).read() if os.path.exists(path) else ""


@case(modes=ONE)
def a_rule_of_the_client_leaves_a_connect_on_tcp(ctx):
    plain, fast = ports(2)
    env = settings(ctx, "client.conf", "use=tcp program=no-such-program", f"use=tcp connect=127.0.0.0/8:{plain}")
    server, client = begin(ctx, None, env, (plain, fast))
    equal(connections(client.pid), {plain: ("TCP", "rule"), fast: ("SHM", None)}, "connections")
    rules = monitor.show(client.pid, "cnt")["cnt"]["rules"]
    equal([(rule["rule"], rule["decided"]) for rule in rules], [(f"use=tcp connect=127.0.0.0/8:{plain}", 1)], "rules")
    check(f"netacc_rule_decisions_total{{pid=\"{client.pid}\"" in run(ctx, "--openmetrics", "-p", client.pid).out, "metrics")
    equal(listeners(server.pid)[plain], ("SHM", None), "the listener")


@case(modes=ONE)
def rdma_alone_leaves_one_host_on_tcp(ctx):
    port, = ports(1)
    server, client = begin(ctx, settings(ctx, "server.conf", f"use=rdma listen={port}"), None, (port,))
    equal(listeners(server.pid), {port: ("RDMA", None)}, "listeners")
    equal(connections(client.pid), {port: ("TCP", "peer-plain")}, "connections")
    client.end()
    client = begin(ctx, None, settings(ctx, "client.conf", "use=rdma"), ports(1))[1]
    equal(list(connections(client.pid).values()), [("TCP", "rule")], "connections of a client")


@case(modes=ONE)
def with_a_default_of_zero_a_rule_accelerates(ctx):
    plain, fast = ports(2)
    off = ("NACC_ENABLE_RDMA_DEFAULT=0",)
    server, client = begin(ctx, settings(ctx, "server.conf", f"use=shm listen={fast}", keys=off),
                           settings(ctx, "client.conf", f"use=shm connect=*:{fast}", keys=off), (plain, fast))
    equal(listeners(server.pid), {plain: ("TCP", "disabled"), fast: ("SHM", None)}, "listeners")
    equal(connections(client.pid), {plain: ("TCP", "disabled"), fast: ("SHM", None)}, "connections")


@case(modes=ONE)
def a_connection_that_begins_on_tcp_obeys_the_rules(ctx):
    plain, fast = ports(2)
    env = settings(ctx, "client.conf", f"use=rdma connect={plain}", keys=("NACC_CONN_TCP_FIRST=1",))
    _, client = begin(ctx, None, env, (plain, fast))
    found = connections(client.pid)
    equal(found[plain], ("TCP", "rule"), "the connection for which only RDMA is permitted")
    equal(found[fast][0] == "SHM" or found[fast][1] == "tcp-first", True, f"the other one, {found[fast]}")


@case(modes=ONE)
def netacc_check_foretells_the_rule(ctx):
    conf = settings(ctx, "f.conf", "use=tcp program=sshd", "use=shm connect=127.0.0.0/8")["NACC_CONFIG_FILE"]
    tool = os.environ.get("NETACC_CHECK") or str(ROOT / "build" / "netacc_check")

    def ask(*argv):
        return subprocess.run([tool, "--json", "-f", str(conf), *argv], env=ctx.environment(), capture_output=True, text=True,
                              check=False)
    answer = ask("--rules", "/usr/sbin/sshd", "127.0.0.1:22")
    equal(answer.returncode, 0, f"status ({answer.stderr})")
    found = [f["text"] for f in json.loads(answer.stdout)["findings"] if f["check"] == "rule"]
    equal(found, [f"connecting to 127.0.0.1:22 uses tcp, by {conf}:3: use=tcp program=sshd",
                  f"listening at 127.0.0.1:22 uses tcp, by {conf}:3: use=tcp program=sshd"], "of sshd")
    found = [f["text"] for f in json.loads(ask("--rules", "curl", "127.0.0.1:80").stdout)["findings"] if f["check"] == "rule"]
    equal(found, [f"connecting to 127.0.0.1:80 uses shm, by {conf}:4: use=shm connect=127.0.0.0/8",
                  "listening at 127.0.0.1:80 uses shm,rdma, no rule matches: NACC_ENABLE_RDMA_DEFAULT=1 (default)"], "of curl")
    for words in (("--rules", "curl"), ("--rules", "curl", "nonsense"), ("--rules", "a", "b:1", "c")):
        answer = ask(*words)
        equal((answer.returncode, answer.stdout), (2, ""), f"status of {words}")
        check(answer.stderr.startswith("netacc_check: "), answer.stderr)
