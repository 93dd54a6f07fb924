"""What is measured: every cell of the matrix, over what it should be, and what is reckoned from it."""

import json
import os
import re
import shutil
import statistics
import subprocess
import xml.etree.ElementTree as xml

import host
import terminals
from benching import ONE, SHORT, Server, cell, environment, run, tool
from harness import check, equal
from matrix import case

WORKLOADS = ["round-trip", "stream", "connect", "requests"]
ENDS = ["plain", "client", "server", "both"]


@case(modes=ONE)
def every_cell(ctx):
    """One run without a server of ours: all workloads and ends; JSON and chart."""
    chart = ctx.dir / "chart.svg"
    found = run(ctx, "client", *SHORT, "-c", 7, "--json", "--svg", chart).json()
    equal([w["name"] for w in found["workloads"]], WORKLOADS, "workloads")
    for workload in WORKLOADS:
        for ends in ENDS:
            one = cell(found, workload, ends)
            where = f"{workload}, {ends}"
            equal(one["error"], None, where)
            equal(one["via"], "shm" if ends == "both" else "tcp", where)
            equal(one["accelerated"], ends == "both", where)
            paths = one["connections"]
            equal(sum(paths[k] for k in ("shm", "rdma", "tcp")) > 0, True, f"connections: {where}")
            if workload == "requests":
                equal(paths["shm"] + paths["tcp"], 2 * 7, f"seven clients in two rounds: {where}")
            why = one["why_not"]
            check((why is None) if ends == "both" else "NetACC" in why, f"why not: {where}: {why}")
            figures(one, where)
    picture = xml.parse(chart).getroot()
    bars = [e for e in picture.iter() if e.tag.endswith("rect") and e.get("class") in ("plain", "one", "both")]
    equal(len(bars), 16, "bars")
    reckoning(found)


def figures(one, where):
    """Medians, extremes and spread are those of the rounds that count; the first one does not."""
    rounds = one["rounds"]
    equal([(r["round"], r["counts"]) for r in rounds], [(0, False), (1, True), (2, True)], f"rounds: {where}")
    for name, metric in one["metrics"].items():
        values = [r[name] for r in rounds if r["counts"]]
        check(all(v >= 0 for v in values), f"{name}: {where}: {values}")
        for key, wanted in (("median", statistics.median(values)), ("min", min(values)), ("max", max(values))):
            check(abs(metric[key] - wanted) <= 1e-9 * abs(wanted), f"{name} {key}: {where}")
        if metric["median"]:
            wanted = (max(values) - min(values)) / 2 / metric["median"]
            check(abs(metric["spread"] - wanted) < 1e-9, f"{name} spread: {where}")
    check(one["metrics"]["cpu_client_us"]["median"] > 0 and one["metrics"]["cpu_server_us"]["median"] > 0,
          f"CPU time of both ends: {where}")


def reckoning(found):
    said = found["conclusion"]
    plain, both = (cell(found, "round-trip", e)["metrics"]["average_us"]["median"] for e in ("plain", "both"))
    saved = (plain - both) * 100 / 1000
    check(abs(said["saved_ms_per_request"] - saved) < 1e-6, f"{said} {saved}")
    check(abs(said["saved_seconds_per_day"] - saved * 1000) < 1e-3, f"{said} {saved}")
    check(said["accelerated"] and "100 round trips" in said["text"][0] and "1,000,000 requests a day" in said["text"][0],
          said)


@case(modes=ONE)
def the_kernel_agrees(ctx):
    """The bytes of the accelerated stream do not go over loopback, those of the plain one do."""
    for ends, over in (("plain", True), ("both", False)):
        before = host.loopback_bytes()
        found = run(ctx, "client", *SHORT, "-w", "stream", "-e", ends, "--json").json()
        carried = host.loopback_bytes() - before
        rounds = cell(found, "stream", ends)["rounds"]
        sent = sum(r["per_second"] * r["seconds"] * 1e6 for r in rounds)
        check(carried > sent if over else carried < sent / 10, f"{ends}: {sent} bytes sent, {carried} over loopback")


@case(modes=ONE)
def the_table(ctx):
    """The table has 80 columns and every row, and no progress is shown without a terminal."""
    answer = run(ctx, "client", *SHORT, "--trips", 7, "--per-day", 3).good()
    equal(answer.err, "", "on standard error")
    wide = [line for line in answer.out.splitlines() if len(line) > 80]
    check(not wide, f"wider than 80: {wide}")
    for title in ("both plain", "client only", "server only", "both ends"):
        rows = [line.split()[2] for line in answer.out.splitlines() if re.match(f"{title}  +[A-Z]", line)]
        equal(rows, ["SHM" if title == "both ends" else "TCP"] * 4, f"rows of {title}")
    words = " ".join(answer.out.split())
    for part in ("client only, server only: not accelerated: NetACC is at one end only.", "A request that makes 7 round trips",
                 "At 3 requests a day", "CPU"):
        check(part in words, f"{part!r} is not in {words}")


@case(modes=ONE)
def sizes(ctx):
    """Messages of one byte and of more than any buffer come back whole, over both transports."""
    for size, request, reply in (("1", "1", "1"), ("300K", "3", "100K"), ("2M", "500K", "9")):
        found = run(ctx, "client", "-t", "0.01", "-r", "1", "-e", "plain,both", "-c", "3", "-s", size, "-l", size,
                    "--request", request, "--reply", reply, "--no-icmp", "--json").json()
        for workload in WORKLOADS:
            for ends in ("plain", "both"):
                one = cell(found, workload, ends)
                equal((one["error"], one["accelerated"]), (None, ends == "both"), f"{workload} of {size}, {ends}")
                check(one["rounds"][1]["operations"] > 0, f"{workload} of {size}, {ends}: nothing was done")


@case(modes=ONE)
def many_clients(ctx):
    """More than fit a listener's queue or a shell's limit of descriptors: all of them are measured, all accelerated."""
    limited = ["sh", "-c", "ulimit -Sn 256 && exec \"$@\"", "sh"]
    found = run(ctx, "client", *SHORT, "-w", "requests", "-e", "both", "-c", 600, "--json", within=limited).json()
    one = cell(found, "requests", "both")
    equal((one["via"], one["connections"]["shm"]), ("shm", 1200), "600 clients in two rounds")


@case(modes=ONE)
def a_server_for_many(ctx):
    """One server, one client after the other, on IPv4 and IPv6; and one that ends after the first."""
    server = Server(ctx)
    for address in ("127.0.0.1", "::1", "localhost"):
        found = run(ctx, "client", address, "-p", server.port, *SHORT, "-w", "round-trip", "--json").json()
        equal(cell(found, "round-trip", "both")["via"], "shm", address)
        server.heard("is done")
    once = Server(ctx, "-1", address="127.0.0.1")
    run(ctx, "client", "127.0.0.1", "-p", once.port, *SHORT, "-w", "connect").good()
    once.proc.result()


@case(modes=ONE)
def without_the_library(ctx):
    """If the library is not found every cell is TCP, with the reason, and nothing fails."""
    alone = ctx.dir / "alone"
    alone.mkdir()
    shutil.copy(tool(), alone / "netacc_bench")
    answer = run(ctx, "client", *SHORT, "-w", "round-trip", command=str(alone / "netacc_bench")).good()
    words = " ".join(answer.out.split())
    check("both ends: not accelerated: at this end the library is not loaded: libnetacc-preload.so" in words, words)
    check("Nothing to be gained was found" in words, words)
    # Only the other end is accelerated.
    server = Server(ctx, command=str(alone / "netacc_bench"))
    check("this end cannot be accelerated: the library is not loaded" in server.proc.text(), server.proc.text())
    found = run(ctx, "client", "127.0.0.1", "-p", server.port, *SHORT, "-w", "round-trip", "--json").json()
    why = cell(found, "round-trip", "both")["why_not"]
    check(why.startswith("at the server's end the library is not loaded"), why)
    equal(found["conclusion"]["saved_ms_per_request"], None, "nothing is claimed to be saved")


@case(modes=ONE)
def switched_off(ctx):
    """A configuration that leaves connections on TCP is a reason like others."""
    found = run(ctx, "client", *SHORT, "-w", "round-trip,connect", "--json", env={"NACC_ENABLE_RDMA_DEFAULT": 0}).json()
    for workload in ("round-trip", "connect"):
        one = cell(found, workload, "both")
        check(one["via"] == "tcp" and one["why_not"].startswith("disabled: "), f"{workload}: {one['why_not']}")


@case(modes=ONE)
def started_accelerated(ctx):
    """Under netacc_run the plain ends are plain all the same."""
    launcher = tool().replace("netacc_bench", "netacc_run")
    found = run(ctx, "client", *SHORT, "-w", "round-trip", "--json", within=[launcher]).json()
    equal([cell(found, "round-trip", e)["via"] for e in ENDS], ["tcp", "tcp", "tcp", "shm"], "over what")


@case(modes=ONE)
def redis(ctx):
    """The manual's table, short: all servers with the same settings, one of them accelerated."""
    found = run(ctx, "redis", "-n", 20000, "-r", 1, "--json").json()
    tcp, unix, netacc = found["sides"]
    equal((tcp["name"], unix["name"], netacc["name"]), ("TCP", "UNIX", "NetACC"), "sides")
    check(netacc["accelerated"] and netacc["connections"]["shm"] >= 100 and not netacc["connections"]["tcp"], netacc)
    equal((tcp["accelerated"], unix["accelerated"]), (False, False), "TCP and UNIX")
    for side in (tcp, unix, netacc):
        equal(len(side["rounds"]), 1, "rounds that count")
        check(side["metrics"]["requests_per_second"]["median"] > 0, side)
    table = run(ctx, "redis", "-n", 2000, "-r", 1).good().out
    check(all(len(line) <= 80 for line in table.splitlines()) and re.search(r"^NetACC +[\d,]+ ", table, re.M), table)
    run(ctx, "redis", env={"PATH": str(ctx.dir)}).failed(1, "redis-server: ", "install redis")


@case(modes=ONE)
def redis_elsewhere(ctx):
    """A redis-server that somebody has started, as on another host: it is measured by both sides, and left running."""
    launcher = tool().replace("netacc_bench", "netacc_run")
    server = ctx.serve(lambda port: [launcher, "redis-server", "--port", str(port), "--protected-mode", "no",
                                     "--save", "", "--dir", str(ctx.dir)], role=None)
    port = server.port
    found = run(ctx, "redis", "127.0.0.1", "-p", port, "-n", 20000, "-r", 1, "--json").json()
    tcp, netacc = found["sides"]
    equal((tcp["name"], netacc["name"], found["server"]), ("TCP", "NetACC", "127.0.0.1"), "sides")
    check(netacc["accelerated"] and netacc["connections"]["shm"] >= 100 and not netacc["connections"]["tcp"], netacc)
    check(server.running(), "the server has ended")
    run(ctx, "redis", "-p", port).failed(2, "HOST")
    server.end()
    run(ctx, "redis", "127.0.0.1", "-p", port).failed(1, f"no connection to 127.0.0.1:{port}", "netacc_run redis-server")


@case(modes=ONE)
def progress_on_a_terminal(ctx):
    """The line goes to standard error and is wiped at the end."""
    terminal = terminals.Terminal()
    child = subprocess.Popen([tool(), "client", "-t", "0.01", "-r", "1", "-w", "round-trip", "--json"],
                             env=environment(ctx, {"TERM": "xterm"}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=terminal.slave)
    seen = terminal.text()
    out, _ = child.communicate(timeout=30)
    check(json.loads(out)["workloads"], "JSON on standard output")
    check("#" in seen and "both ends" in seen and seen.endswith("\r\x1b[K"), f"progress: {seen[-200:]!r}")


@case(modes=ONE)
def ways_of_waiting(ctx):
    """Each way in which both ends can wait for a message carries round trips, on TCP and accelerated."""
    for how in ("recv", "epoll", "poll", "select"):
        found = run(ctx, "client", "-t", "0.03", "-r", 1, "-w", "round-trip", "--wait", how, "-s", 5000, "--json").json()
        equal(found["settings"]["wait"], how, "settings")
        for ends in ENDS:
            one = cell(found, "round-trip", ends)
            equal((one["error"], one["via"]), (None, "shm" if ends == "both" else "tcp"), f"{how}, {ends}")
            check(all(r["operations"] > 0 for r in one["rounds"]), f"{how}, {ends}: {one['rounds']}")
    check("each end waits in poll" in run(ctx, "client", *SHORT, "-w", "round-trip", "--wait", "poll").good().out, "title")


@case(modes=ONE)
def each_byte_compared(ctx):
    """A stream whose writes are of a size that divides nothing arrives as it was sent."""
    found = run(ctx, "client", *SHORT, "-w", "stream", "--verify", "-l", 70001, "-e", "plain,both", "--json").json()
    for ends, via in (("plain", "tcp"), ("both", "shm")):
        one = cell(found, "stream", ends)
        equal((one["error"], one["via"]), (None, via), ends)
        check(all(r["per_second"] > 0 for r in one["rounds"]), one["rounds"])


@case(modes=ONE)
def idle_connections(ctx):
    """They are counted as connections, and do not ask; without any client nothing is measured."""
    words = ("-w", "requests", "--idle", 40, "-e", "plain,both", "--json")
    found = run(ctx, "client", *SHORT, *words, "-c", 3).json()
    for ends, kind in (("plain", "tcp"), ("both", "shm")):
        one = cell(found, "requests", ends)
        equal((one["error"], one["connections"][kind]), (None, 2 * 43), f"43 connections in two rounds: {ends}")
        equal([r["connections"][kind] for r in one["rounds"]], [43] * 3, f"in each round: {ends}")
        check(one["metrics"]["open_us"]["median"] > 0, "the time to open one")
    nobody = cell(run(ctx, "client", *SHORT, *words, "-c", 0).json(), "requests", "both")
    equal((nobody["error"], nobody["connections"]["shm"], nobody["metrics"]), (None, 2 * 40, {}), "nobody asks")


@case(modes=ONE)
def kept_on_a_cpu(ctx):
    """Each end's measuring process runs on the CPU that was named."""
    cpu = max(os.sched_getaffinity(0))
    server = Server(ctx, "--cpu", cpu)
    allowed = [os.sched_getaffinity(pid) for pid in host.children(server.proc.pid)]
    equal(allowed, [{cpu}] * 2, "the server's measuring processes")
    client = subprocess.Popen([tool(), "client", "127.0.0.1", "-p", str(server.port), "-w", "requests", "-c", "0", "-t", "20",
                               "--cpu", str(cpu)], env=environment(ctx), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        worker = host.wait_until(lambda: host.children(client.pid), 30, "a measuring process")[0]
        equal(os.sched_getaffinity(worker), {cpu}, "the client's measuring process")
    finally:
        client.kill()
        client.wait()
    if max(os.sched_getaffinity(0)) < 1023:
        run(ctx, "server", "-p", 0, "--cpu", 1023).failed(1, "CPU 1023 cannot be used")
        answer = run(ctx, "client", *SHORT, "--cpu", 1023)
        equal(answer.status, 1, "status")
        check("FAILED: CPU 1023 cannot be used" in " ".join(answer.out.split()), answer.out)
