"""Processes that cannot be shown: what is said, how it ends, and that nothing else is touched."""

import json
import os
import pathlib
import shutil
import struct
import subprocess

import host
import monitor
import redis_server
from harness import check, equal
from host import wait_until
from matrix import case
from seeing import LAYOUT, ONE, PAGE_SIZE, Page, begin, head, run

CTL = pathlib.Path(monitor.command()).parent / "netacc_ctl"
ASKING = (["-p"], ["-s", "all", "-p"], ["--json", "-p"], ["--openmetrics", "-p"], ["--explain"], ["-w", "0.1", "-p"])


def refused(ctx, pid, *parts):
    """However the process is asked for: status 1, no output, and one line that has all parts."""
    for asking in ASKING:
        answer = run(ctx, *asking, pid)
        equal((answer.status, answer.out), (1, ""), f"status and output of {asking} ({answer.err})")
        for part in parts:
            check(part in answer.err, f"{part!r} is not in what {asking} says: {answer.err}")
        equal(answer.err.count("\n"), 1, f"lines of {answer.err!r}")


@case(modes=ONE)
def processes_without_a_page(ctx):
    refused(ctx, 4294967295, "process 4294967295 does not exist", "without a PID to list")
    plain = ctx.spawn(["sleep", "60"], role="tool")
    wait_until(lambda: "(sleep)" in run(ctx, "-p", plain.pid).err, 30, "exec of sleep")
    refused(ctx, plain.pid, f"process {plain.pid} (sleep) is not accelerated", "netacc_run COMMAND")
    # NetACC is there, but there is nothing to tell.
    idle = ctx.spawn(["sleep", "60"], role="server")
    wait_until(lambda: "has NetACC loaded" in run(ctx, "-p", idle.pid).err, 30, "exec of sleep under netacc_run")
    refused(ctx, idle.pid, "(sleep) has NetACC loaded but has not opened a TCP socket yet")
    ended = subprocess.Popen(["true"])
    wait_until(lambda: "has ended" in run(ctx, "-p", ended.pid).err, 30, "a zombie")
    refused(ctx, ended.pid, "has ended")
    ended.wait()


@case(modes=ONE)
def programs_that_cannot_be_accelerated(ctx):
    source = ctx.file("static.c", b"#include <unistd.h>\nint main(void) { pause(); return 0; }\n")
    subprocess.run(["cc", "-static", "-o", ctx.dir / "static", source], check=True)
    static = ctx.spawn([ctx.dir / "static"], role="tool")
    wait_until(lambda: "(static)" in run(ctx, "-p", static.pid).err, 30, "exec")
    refused(ctx, static.pid, "(static) cannot be accelerated", "static")


@case(modes=ONE)
def pages_that_cannot_be_read(ctx):
    """This process holds them under the name that a page has."""
    garbage = ctx.bytes(PAGE_SIZE)
    own = os.getpid()
    whole = head()
    sizes = bytearray(whole)
    struct.pack_into("=I", sizes, 36, 255)
    for what, content, size, parts in (
            ("newer", head(version=LAYOUT + 1), 4096, ("a newer NetACC 9.8.7", f"page layout {LAYOUT + 1}",
                                                       f"this one knows {LAYOUT}", "use the tools of that version")),
            ("older", head(version=1), PAGE_SIZE, ("an older NetACC 9.8.7", "restart it, or use the tools of that")),
            ("newer and short", head(version=9)[:16], 16, ("a newer NetACC (page layout 9",)),
            ("empty", b"", 0, ("damaged statistics page (only 0 bytes)", "restart")),
            ("one byte", b"N", 1, ("damaged", "restart")),
            ("a header", whole, 256, ("damaged", "only 256 bytes", "restart")),
            ("cut", whole, PAGE_SIZE - 1, ("damaged", f"only {PAGE_SIZE - 1} bytes", "restart")),
            ("beginning", b"", PAGE_SIZE, ("is just starting; try again",)),
            ("garbage", garbage, PAGE_SIZE, ("damaged", "it does not begin as one", "restart")),
            ("layout 0", head(version=0), PAGE_SIZE, ("damaged", "unknown layout")),
            ("wrong sizes", bytes(sizes), PAGE_SIZE, ("damaged", "sizes"))):
        with Page(content, size):
            refused(ctx, own, f"process {own} (", *parts)
            for action in ("status", "off", "on", "reload", "upgrade"):
                done = subprocess.run([CTL, action, str(own)], capture_output=True, text=True, timeout=60)
                check((done.returncode, done.stdout) == (1, "") and all(part in done.stderr for part in parts), f"netacc_ctl {action}: {done}")
            # The others are listed all the same, and it is told of this one.
            listed = run(ctx)
            equal(listed.status, 0, f"status of the list with a page that is {what}")
            check(what == "beginning" or f"process {own}" in listed.err, f"{what}: {listed.err}")


@case(modes=ONE)
def garbage_behind_a_good_header(ctx):
    """It is shown for what it is: no panic, nothing that a terminal would obey."""
    own = os.getpid()
    for _ in range(8):
        content = head()[:153] + b"\0" * 3 + ctx.bytes(4096 + 8192 + 128 * 1024 + 256 * 300 - 156)
        with Page(content, PAGE_SIZE):
            for asking in (["-s", "all", "-p"], ["-s", "all", "--json", "-p"], ["-s", "all", "--openmetrics", "-p"],
                           ["--explain"], ["-w", "0.1", "--count", "1", "-s", "all", "-p"]):
                answer = run(ctx, *asking, own)
                equal(answer.status, 0, f"status of {asking} ({answer.err})")
                odd = [c for c in answer.out if ord(c) < 32 and c != "\n"]
                check(not odd, f"{asking} prints {odd[:5]}")
            equal(run(ctx).status, 0, "status of the list")


@case(modes=ONE)
def files_that_are_no_page(ctx):
    """What only has the name: a FIFO must not be opened and waited for, a page of somebody else is not ours."""
    own = os.getpid()
    with Page(head(pid=1), PAGE_SIZE):
        answer = run(ctx, "-p", own)
        equal(answer.status, 1, "status with a page of another process")
        check("was forked from process 1" in answer.err, answer.err)


@case(modes=("both",))
def of_another_user(ctx):
    if os.getuid() != 0:
        return
    server = redis_server.start(ctx)
    place = ctx.dir / "tool"
    place.mkdir()
    shutil.copy(monitor.command(), place / "netacc_ss")
    ctx.dir.chmod(0o755)
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}

    def as_nobody(*argv):
        return subprocess.run([str(place / "netacc_ss"), *map(str, argv)], capture_output=True, text=True, timeout=60,
                              cwd="/", **nobody)
    for asking in ASKING:
        done = as_nobody(*asking, server.pid)
        equal((done.returncode, done.stdout), (1, ""), f"status and output of {asking}")
        check("(redis-server) belongs to another user or is protected; run netacc_ss as that user or as root"
              in done.stderr, done.stderr)
    listed = as_nobody()
    equal(listed.returncode, 0, "status of the list")
    check(str(server.pid) not in listed.stdout, listed.stdout)
    check("processes of other users are not shown; root sees all" in listed.stderr, listed.stderr)


@case(modes=("both",))
def stopped_and_killed(ctx):
    """A stopped process is shown, and netacc_ss that watches a process shows its last counts when it is killed."""
    server = redis_server.start(ctx)
    ctx.run(["redis-benchmark", "-p", server.port, "-c", 1, "-n", 500, "-t", "set", "-q"])
    server.signal(19)  # SIGSTOP
    wait_until(lambda: "T" in open(f"/proc/{server.pid}/stat").read().rpartition(") ")[2][:1], 30, "it is stopped")
    before = monitor.show(server.pid, "all")
    check(before["cnt"]["accepts_shm"] >= 1 and before["sock"], "a stopped process")
    watch = begin(ctx, "-w", "0.1", "-p", server.pid, "--json")
    wait_until(lambda: watch.stdout().count("\n") >= 2, 30, "rounds")
    server.kill()
    watch.result(60)

    lines = [json.loads(line) for line in watch.stdout().splitlines()]
    equal([line["ended"] for line in lines], [False] * (len(lines) - 1) + [True], "ended")
    equal(lines[-1]["cnt"]["moved"], before["cnt"]["moved"], "the last figures")
    check(f"process {server.pid} has ended; these were its last figures" in watch.text(), watch.text())


@case(modes=("both",))
def clearing_touches_nothing(ctx):
    server = redis_server.start(ctx)
    watch = begin(ctx, "-w", "0.1", "-p", server.pid, "--json")
    wait_until(lambda: watch.stdout().count("\n") >= 1, 30, "a round")
    mine = ctx.file("netacc-stats", b"a file of somebody")
    shared = "/dev/shm/netacc-stats.test"
    with open(shared, "w") as file:
        file.write("x")
    names = len(host.abstract_names())
    try:
        answer = run(ctx, "-c")
        check(answer.status == 0 and answer.out.startswith("Nothing to clear"), answer.out + answer.err)
        equal(run(ctx, "-c", "-p", server.pid, "--json").json()["cleared"], 0, "cleared")
        check(os.path.exists(shared) and mine.exists(), "files of others are gone")
    finally:
        os.unlink(shared)
    equal(len(host.abstract_names()), names, "abstract names")
    equal(monitor.show(server.pid)["pid"], server.pid, "the server's page")
    with redis_server.admin(server) as admin:
        equal(admin.call("PING"), "PONG" if isinstance(admin.call("PING"), str) else b"PONG", "the server")


@case(modes=ONE)
def a_page_that_outlives_its_process(ctx):
    """netacc_ss -c reports the page and the process that holds it, and does not remove it."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with Page(head(pid=gone.pid), PAGE_SIZE) as page:
        text = run(ctx, "-c").out
        check(f"The page of ended process {gone.pid} (fake) is held by process {os.getpid()} (" in text, text)
        held = run(ctx, "-c", "--json").json()
        check({"pid": gone.pid, "program": "fake", "held_by": os.getpid()} in held["held"], str(held))
        equal(os.fstat(page.fd).st_size, PAGE_SIZE, "the page")


@case(modes=ONE)
def wrong_command_lines(ctx):
    for wrong in (["state", "open"], ["0"], ["-p", "1", "2"], ["-s", "nonsense", "1"], ["-s", "", "1"], ["-Z"],
                  ["-w", "0"], ["-w"], ["-w", "x", "1"], ["--count", "2"], ["--explain", "x"], ["--explain", "1:x"],
                  ["--explain", "1:-1"], ["--json", "--openmetrics"], ["-c", "-w", "1"], ["-p", "99999999999"]):
        answer = run(ctx, *wrong)
        equal((answer.status, answer.out), (2, ""), f"status and output for {wrong}")
        check(answer.err.strip(), f"nothing is said of {wrong}")
    text = run(ctx, "-h")
    equal((text.status, text.err), (0, ""), "help")
    for option in ("-p", "-s", "-c", "-h", "-v", "-w", "--json", "--openmetrics", "--serve", "--explain", "--count"):
        check(f"{option}," in text.out or f"{option} " in text.out, f"the help does not show {option}")


@case(modes=ONE)
def output_that_nobody_takes(ctx):
    with open("/dev/full", "w") as full:
        for asking in (["-h"], ["--openmetrics"], ["-w", "0.1", "--json"]):
            done = subprocess.run([monitor.command(), *asking], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            check(asking == ["-h"] or done.returncode == 1 and "cannot be written" in done.stderr, f"{asking}: {done}")
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([monitor.command(), "-w", "0.1"], stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write_end)
    equal((done.returncode, done.stderr), (0, ""), "a watch whose reader has gone")
