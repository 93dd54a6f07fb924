"""netacc_check HOST:PORT between hosts that have RDMA devices: which transport a connection would get, and why."""

import json
import os
import subprocess

import harness
import monitor
import world
from harness import check, equal, need
from host import wait_until
from matrix import case
from test_filtered import Filter
from test_verbs import pingpong_server

TOOL = harness.ROOT / "build" / "netacc_check"


def ask(ctx, port, **env):
    """The findings about the server's host, from the client's host."""
    none = ctx.dir / "empty.conf"
    none.write_text("[netacc]\n")
    target = f"{ctx.server_end.address}:{port}"
    env = {**os.environ, "NACC_CONFIG_FILE": str(none), **env}
    done = subprocess.run([*world.inside(ctx.client_end.namespace), str(TOOL), "--json", target], env=env, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    check("panicked" not in done.stderr and done.stdout, f"{done.returncode}: {done.stderr}")
    every = {f["check"]: f for f in json.loads(done.stdout)["findings"] if f["subject"] == target}
    check("transport" in every, f"findings in {done.stdout}")
    equal(done.returncode, int(any(f["level"] in ("warn", "fail") for f in every.values())), f"status for {every}")
    return {**every["transport"], "every": every}


def refused(found, *parts):
    equal(found["level"], "warn", f"level of {found}")
    for part in ("TCP: ", *parts):
        check(part in found["text"] + found["do"], f"{part!r} is not in {found}")


@case()
def a_server_is_reached_by_rdma(ctx):
    ctx.accelerated = ("server",)
    port = ctx.port()
    server = ctx.spawn([need("redis-server"), "--port", port, "--save", "", "--protected-mode", "no", "--dir", ctx.dir],
                       role="server")
    ctx.await_listener(server, port + 20000)
    found = ask(ctx, port)
    # The time is shown if connections would not have waited that long, as may happen on a machine as slow as this.
    check(found["level"] in ("ok", "note") and found["text"].startswith(f"RDMA by {ctx.client_end.device}: "), found)
    check(f"port {port + 20000}" in found["text"] and ctx.client_end.address in found["text"], found)
    equal({name: found["every"][name]["level"] for name in ("question", "failover")}, {"question": "ok", "failover": "ok"},
          "what else the server's host lets in")
    # The query leaves no state behind.
    wait_until(lambda: monitor.show(server.pid, "qp")["qp"]["links_open"] == 0, 60, "the queue pair goes")
    equal(monitor.show(server.pid, "cnt")["cnt"]["accepts_rdma"], 0, "connections")
    refused(ask(ctx, port, NACC_ENABLE_RDMA_DEFAULT="0"), "switched off")
    refused(ask(ctx, port, NACC_CONNECT_RDMA_PERCENT="0"), "drawn")
    check("NACC_CONN_TCP_FIRST" in ask(ctx, port, NACC_CONN_TCP_FIRST="1")["text"], "a beginning on TCP")
    server.kill()


@case(limit=150)
def a_packet_filter_in_front_of_a_server(ctx):
    """The documented rules suffice, once the server's program has accepted a connection; a missing one is reported."""
    ctx.accelerated = ("server",)
    port = ctx.port()
    rules = Filter(ctx)
    rules.allow(port)
    try:
        server = ctx.spawn([need("redis-server"), "--port", port, "--save", "", "--protected-mode", "no", "--dir", ctx.dir],
                           role="server")
        ctx.await_listener(server, port + 20000)
        found = ask(ctx, port)["every"]
        check(found["question"]["level"] == "ok" and found["failover"]["level"] == "warn", found)
        check("has not accepted" in found["failover"]["text"] and f"TCP port {port} " in found["failover"]["do"], found)
        cli = [*ctx.enter("client"), need("redis-cli"), "-h", ctx.server_end.address, "-p", port, "ping"]
        ctx.run(cli, role="nobody")
        before = monitor.show(server.pid, "cnt")["cnt"]["accepts_tcp"]
        found = ask(ctx, port)["every"]
        check(found["failover"]["level"] == "ok" and f"at port {port} itself" in found["failover"]["text"], found)
        equal(monitor.show(server.pid, "cnt")["cnt"]["accepts_tcp"], before, "connections that the program was given")
        rules.allow(port, question=False)
        found = ask(ctx, port)["every"]
        check(found["question"]["level"] == "warn" and f"UDP port {port + 20000}" in found["question"]["do"], found)
    finally:
        rules.clear()
    server.kill()


@case()
def why_a_server_is_not_reached(ctx):
    ctx.accelerated = ()
    port = ctx.port()
    refused(ask(ctx, port), f"nobody listens for RDMA at port {port + 20000}", "netacc_run")
    refused(ask(ctx, 50_000), "would be 70000")
    # Another RDMA program, which is not NetACC, has the port.
    other, taken = pingpong_server(ctx, ctx.server_end.address)
    refused(ask(ctx, int(taken) - 20_000), taken)
    other.kill()
