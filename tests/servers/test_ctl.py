"""netacc_ctl: an operator switches redis and its clients to kernel TCP and back while they work."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import monitor
from harness import check, equal, need
from host import wait_until
from matrix import case
from operators import ctl, ctl_any, real, state
from redis_server import admin, start

CLIENTS = 100
# A program that has a listener, and stays.
HOLDS = """
import socket, time
one = socket.create_server(("127.0.0.1", 0))
print("ready", flush=True)
one.accept()
"""


@case(modes=("both",))
def redis_under_load(ctx):
    """100 clients, and as many of redis-benchmark beside them: no error and no wrong byte, whichever side is switched."""
    server = start(ctx)
    clients = ctx.client(ctx.script("ctl_clients.py", server.port, CLIENTS), stdin=subprocess.PIPE)
    wait_until(lambda: "ready" in clients.text(), 30, "the clients are connected")
    load = ctx.client([need("redis-benchmark"), "-p", server.port, "-c", CLIENTS, "-n", 100000000, "-t", "set,get", "-d", 100])
    at_server, at_clients = real(server), real(clients)
    wait_until(lambda: state(at_server)["connections"]["shm"] >= 2 * CLIENTS, 30, "all are accelerated")
    took = []
    for who in ((at_server,), (at_clients,), (at_server, at_clients)) * 2:
        began = time.monotonic()
        ctl("off", *who)
        took.append(time.monotonic() - began)
        for pid in who:
            equal(state(pid)["connections"]["shm"], 0, "connections in shared memory after netacc_ctl off")
            # netacc_ctl returns when no connection is left to switch, and the process says so in its next call.
            wait_until(lambda pid=pid: state(pid)["state"] == "off", 30, "the process says that it is off")
        ctl("on", *who)
        time.sleep(0.2)
    # redis-benchmark's connections are as they were made; those that are made now are accelerated.
    check(load.running(), f"redis-benchmark ended: {load.tail(3)}")
    ctx.run([need("redis-benchmark"), "-p", server.port, "-c", 20, "-n", 2000, "-q", "-t", "get"])
    check(load.running() and clients.running(), f"{load.tail(3)} {clients.tail(3)}")
    clients.popen.stdin.close()
    replies, longest = clients.result().split()[-2:]
    load.popen.kill()
    with admin(server) as r:
        equal(r.info("stats")["rejected_connections"], "0", "connections that redis refused")
    check(int(replies) > 20 * CLIENTS, f"only {replies} replies")
    print(f"{replies} replies, the longest pause {longest} ms; netacc_ctl took {max(took) * 1000:.0f} ms at most")


@case(modes=("both",))
def what_it_says(ctx):
    """Processes that cannot be switched are named, and why; a stopped one follows when it goes on."""
    server = start(ctx)
    pid = real(server)
    check("does not exist" in ctl("off", 4194304, status=1), "a process that is not there")
    check("does not have NetACC loaded" in ctl("off", os.getpid(), status=1), "a process without the library")
    check("has the name nobody-at-all" in ctl("off", "nobody-at-all", status=1), "a name that fits nothing")
    # By name, before the first socket. Other programs on the host have other names.
    name = f"sleeps{os.getpid()}"
    link = ctx.dir / name
    link.symlink_to(need("sleep"))
    sleeping = ctx.client([str(link), "60"])
    wait_until(lambda: name in ctl_any("status", name, out=True), 20, "the program is found by its name")
    ctl("off", name)
    equal(state(real(sleeping))["state"], "off", "the state before the first socket")
    ctl("on", name)
    equal(state(real(sleeping))["state"], "on", "the state before the first socket")
    os.kill(pid, 19)
    try:
        wait_until(lambda: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", 10, "it is stopped")
        check("is stopped" in ctl("off", pid, "-w", 0.2, status=1), "a stopped process")
        equal(state(pid)["state"], "on, asked", "the state of a stopped process")
        # Two controllers at once.
        waiting = subprocess.Popen([str(pathlib.Path(monitor.command()).with_name("netacc_ctl")), "off", str(pid), "-w", "60"],
                                   stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        wait_until(lambda: "another netacc_ctl" in ctl_any("on", pid), 20, "the second controller is refused")
    finally:
        os.kill(pid, 18)
    equal(waiting.wait(60), 0, "the first controller")
    equal(state(pid)["state"], "off", "the state")


@case(modes=("both",))
def long_names(ctx):
    """A program is found by its whole name, also beyond the 15 letters that the kernel keeps, and by its beginning with *;
    netacc_ss selects as netacc_ctl does."""
    name = f"a-service-with-a-long-name-{os.getpid()}"
    program = ctx.dir / name
    shutil.copy(need("sleep"), program)
    script = ctx.file(f"a-script-with-a-long-name-{os.getpid()}", f"#!{sys.executable}\n{HOLDS}".encode())
    script.chmod(0o755)
    sleeping, running = ctx.client([program, "60"]), ctx.client([script])
    wait_until(lambda: "ready" in running.stdout(), 30, "the script")
    for words in ((name,), (name[:-2] + "*",), (name, name)):
        wait_until(lambda w=words: str(real(sleeping)) in ctl_any("status", *w, out=True), 20, f"found by {words}")
    pid = real(running)
    for word in (script.name, script.name[:20] + "*", script.name[:15]):
        equal([one["pid"] for one in json.loads(ctl("status", word, "--json"))], [pid], f"netacc_ctl {word}")
        shown = subprocess.run([monitor.command(), word, "-s", "sock", "--json"], capture_output=True, text=True, timeout=60)
        equal((shown.returncode, shown.stderr), (0, ""), f"netacc_ss {word}")
        equal(json.loads(shown.stdout)["pid"], pid, f"netacc_ss {word}")
    ctl("off", script.name)
    equal(state(pid)["state"], "off", "the state")
    for word in (name[:-2], script.name[:16]):
        check("no process with NetACC has the name" in ctl("off", word, status=1), word)
        shown = subprocess.run([monitor.command(), word], capture_output=True, text=True, timeout=60)
        equal(shown.returncode, 1, shown.stdout)
        check(f"no process with NetACC has the name {word}" in shown.stderr, shown.stderr)


@case(modes=("both",))
def many_processes(ctx):
    """What is said of many processes fits a screen."""
    each = [ctx.client([sys.executable, "-c", HOLDS]) for _ in range(25)]
    for one in each:
        wait_until(lambda one=one: "ready" in one.stdout(), 60, "a process")
    pids = [real(one) for one in each]
    lines = ctl("off", *pids).splitlines()
    equal(lines[0], "25 processes: 25 off", "the summary")
    check(len(lines) < 5, lines)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    refused = ctl("on", *pids, "-w", 0.2, status=1).splitlines()
    check(len(refused) == 1 and "is stopped" in refused[0] and refused[0].endswith("and 16 more"), refused)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    equal(len(ctl("status", *pids).splitlines()), 26, "a line for each on request")


@case(modes=("plain",))
def nobody_there(ctx):
    """To look at nobody is no failure, and it is said; what nobody can be asked for is one."""
    within = [need("unshare"), "--fork", "--pid", "--mount-proc"]
    program = str(pathlib.Path(monitor.command()).with_name("netacc_ctl"))
    if os.geteuid() != 0:
        return
    for verb, status in (("status", 0), ("off", 1)):
        done = subprocess.run([*within, program, verb], capture_output=True, text=True, timeout=60)
        equal((done.returncode, done.stdout), (status, ""), verb)
        check("no process has NetACC loaded" in done.stderr, done.stderr)
    done = subprocess.run([*within, program, "status", "--json"], capture_output=True, text=True, timeout=60)
    equal((done.returncode, json.loads(done.stdout)), (0, []), "as JSON")


@case(modes=("both",))
def another_user(ctx):
    """Only the same user and root may switch a process."""
    server = start(ctx)
    program = str(pathlib.Path(monitor.command()).with_name("netacc_ctl"))
    if os.geteuid() != 0:
        return
    done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", program, "off", str(real(server))],
                          capture_output=True, text=True, timeout=60)
    equal(done.returncode, 1, done.stderr)
    check("belongs to another user" in done.stderr, done.stderr)
    equal(state(real(server))["state"], "on", "the state")
