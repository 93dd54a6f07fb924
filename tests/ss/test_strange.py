"""What tools meet that nobody has tidied up: a thousand processes, names of any bytes, outputs that take nothing, processes that die."""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import monitor
from harness import START_LIMIT, Skipped, check, equal, need
from host import wait_until
from matrix import case
from seeing import ONE, Terminal, run, strip

TOOLS = pathlib.Path(monitor.command()).parent
LIBRARY = TOOLS / "libnetacc-preload.so"

# Names itself as the first argument says, and sleeps in accept.
LISTENER = """
import ctypes, os, socket, sys
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print("ready", flush=True); s.accept()
"""

# Forks so many listeners, which sleep in accept until they are killed.
CROWD = """
import os, signal, socket, sys
read, write = os.pipe()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); os.write(write, b"x"); s.accept(); os._exit(0)
seen = 0
while seen < int(sys.argv[1]): seen += len(os.read(read, 4096))
print("ready", flush=True)
signal.pause()
"""

# Runs in a namespace of its own, so that "all" is nobody else: starts the crowd and asks the tools about it.
ASK = """
import json, os, subprocess, sys, time
tools, library, crowd, number = sys.argv[1:]
listeners = subprocess.Popen([sys.executable, "-c", crowd, number], stdout=subprocess.PIPE, text=True, env=os.environ | {"LD_PRELOAD": library})
assert listeners.stdout.readline() == "ready\\n"
answers = []
for argv in (["netacc_ss"], ["netacc_ss", "-s", "sock"], ["netacc_ss", "--json"], ["netacc_ctl", "status"], ["netacc_ctl", "off", "all"],
             ["netacc_ctl", "status", "--json"], ["netacc_ctl", "on", "all"]):
    begun = time.monotonic()
    done = subprocess.run([tools + "/" + argv[0], *argv[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    answers.append([argv, done.returncode, done.stdout, done.stderr, time.monotonic() - begun])
print(json.dumps(answers))
"""


def listener(ctx, name):
    process = ctx.spawn([need("python3"), "-c", LISTENER, name.hex()], env={"LD_PRELOAD": str(LIBRARY)})
    wait_until(lambda: process.stdout() == "ready\n", START_LIMIT, "a listener")
    return process


def crowd(number):
    done = subprocess.run([need("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", ASK, str(TOOLS), str(LIBRARY),
                           CROWD, str(number)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    check(done.returncode == 0, f"the crowd: {done.stderr[-2000:]}")
    listed, sockets, as_json, status, off, after, on = json.loads(done.stdout)
    for argv, code, out, err, seconds in (listed, sockets, as_json, status, off, after, on):
        print(f"{' '.join(argv)}: {seconds:.2f} s, {len(out)} bytes")
        equal((code, err), (0, ""), f"status and complaints of {argv}")
    # The parent has no socket, and counts or not.
    check(len(listed[2].splitlines()) >= number and sockets[2].count("LISTEN") == number, "lines of netacc_ss")
    check(len(json.loads(as_json[2])) >= number, "processes in JSON")
    for answer in (off, on):
        check(len(answer[2].splitlines()) < 40 and str(number // 1000) in answer[2], f"{answer[0]} is no summary: {answer[2][:500]}")
    states = [entry.get("state") for entry in json.loads(after[2])]
    check(states.count("off") >= number, f"states after off: { {s: states.count(s) for s in set(states)} }")


@case(modes=ONE)
def a_hundred_processes(ctx):
    crowd(100)


@case(modes=ONE, seldom=True, limit=300)
def a_thousand_processes(ctx):
    crowd(1000)


def strange(text):
    """What of a text a terminal takes for a command, or for the end of a line."""
    return [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2028")]


@case(modes=ONE)
def names_of_any_bytes(ctx):
    """A name that a user has chosen neither moves the cursor of an administrator's terminal nor ends a line of a table."""
    names = {"an escape": b"a\x1b[2Jb", "a line": b"a\nb 1 2 3", "wide": "漢字漢字".encode(), "combining": "e\u0301\u202eab".encode(),
             "no UTF-8": b"\xff\xfea", "C1": b"a\xc2\x9b2Jb", "a bell": b"\x07\x08\x7f"}
    made = {what: listener(ctx, name) for what, name in names.items()}
    for argv in ((), ("-s", "sock"), ("-s", "cnt"), ("--openmetrics",), ("--json",)):
        out = run(ctx, *argv).out
        equal(strange(out), [], f"what netacc_ss {argv} prints of the names")
    for process in made.values():
        lines = [line for line in run(ctx).out.splitlines() if str(process.pid) in line.split()[:1]]
        equal(len(lines), 1, "lines of a process")
    for action in ("status", "off", "on"):
        said = subprocess.run([TOOLS / "netacc_ctl", action, *(str(p.pid) for p in made.values())], capture_output=True, text=True)
        equal(len(said.stdout.splitlines()), len(made) + 1, f"lines of netacc_ctl: {said.stdout!r}")
        equal(strange(said.stdout + said.stderr), [], f"what netacc_ctl {action} prints of the names")
    for process in made.values():
        equal(strange(run(ctx, "--explain", process.pid).out), [], "what --explain prints of a name")
    for columns in (20, 80):
        for argv in ((), ("-s", "sock")):
            shown = Terminal(ctx, columns, 50, *argv)
            equal(shown.end(), 0, f"status of {argv}")
            text = strip(shown.text).replace("\r", "")
            shown.close()
            check("\x1b" not in text and "\x07" not in text and "\x9b" not in text, f"on a terminal of {columns}: {text!r}")
    for process in made.values():
        process.end()


@case(modes=ONE)
def twenty_columns(ctx):
    """No tool needs more to say what it has to say; what does not fit is left to the terminal."""
    process = listener(ctx, b"narrow")
    pid = str(process.pid)
    whole = run(ctx, "--explain", pid).out.split()
    for program, *argv, word in (("netacc_ss", "--explain", pid, whole[-1]), ("netacc_ss", "-s", "all", "-p", pid, "NACC_LOG_PATH"),
                                 ("netacc_ctl", "status", pid, "narrow"), ("netacc_check", "python3", "ok"), ("netacc_ss", "-w", "0.1", "--count", "2", "quit"),
                                 *((tool, "--help", "Usage") for tool in ("netacc_ss", "netacc_ctl", "netacc_check", "netacc_bench", "netacc_run"))):
        shown = Terminal(ctx, 20, 24, *argv, program=TOOLS / program)
        equal(shown.end(), 0, f"status of {program} {argv}")
        text = strip(shown.text)
        check(word in text, f"{word} is not in what {program} {argv} shows: {shown.text!r}")
        # A text is folded between words and a table between columns; the pages of netacc_ss with long names are not.
        if argv[0] != "-s" and argv[0] != "-w":
            wide = [line for line in text.replace("\r", "").split("\n") if len(line) > 20 and " " in line.strip()]
            check(not wide, f"wider than 20: {wide[:3]}")
        shown.close()
    watch = Terminal(ctx, 20, 24, "-w", "0.1")
    watch.type(b"?")
    watch.until(lambda p: any("Ctrl-Z" in line for line in p), "the keys")
    # Behind a line as wide as the terminal the cursor stands on its last letter, which to remove the rest would take away.
    cut = re.findall(r"[^\n\x1b]{20}\x1b\[[JK]", watch.text)
    check(not cut, f"lines without their last letter: {cut}")
    # A terminal would write what follows onto the last column.
    wide = [line for line in re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "\n", watch.text).splitlines() if len(line) > 20]
    check(not wide, f"lines that the terminal would have to cut: {wide}")
    watch.type(b"q")
    equal(watch.end(), 0, "status of -w")
    watch.close()
    process.end()


@case(modes=ONE)
def outputs_that_take_nothing(ctx):
    """A full disk is an error that is said; a reader that has gone is none; neither is a panic."""
    process = listener(ctx, b"full")
    pid = str(process.pid)
    asking = [("netacc_ss",), ("netacc_ss", pid), ("netacc_ss", "-s", "sock"), ("netacc_ss", "--json"), ("netacc_ss", "--explain", pid),
              ("netacc_ctl", "status", pid), ("netacc_ctl", "status", pid, "--json"), ("netacc_check", "--json"), ("netacc_check", "python3"),
              ("netacc_ss", "-c"), ("netacc_ss", "-w", "0.1", "--count", "2"), ("netacc_check", "127.0.0.1:1"), ("netacc_bench", "server", "--help")]
    asking += [(program, option) for program in ("netacc_ss", "netacc_ctl", "netacc_check", "netacc_bench", "netacc_run")
               for option in ("--help", "-v")]
    for argv in asking:
        command = [str(TOOLS / argv[0]), *argv[1:]]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        check(done.returncode in (1, 2) and "cannot be written" in done.stderr and "panicked" not in done.stderr, f"{argv} on a full disk: {done}")
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(write_end)
        check(done.returncode >= 0 and "panicked" not in done.stderr and "cannot be written" not in done.stderr, f"{argv} for nobody: {done}")
    process.end()


@case(modes=ONE)
def a_log_on_a_full_disk(ctx):
    """The program runs as it would, and the lines that the log has no room for are counted."""
    if os.getuid() != 0:
        raise Skipped("needs root, for a file system of its own")
    small = ctx.dir / "small"
    small.mkdir()
    full = 'mount -t tmpfs -o size=16k none "$1" && head -c 100000 /dev/zero >"$1/filling" 2>/dev/null; shift; exec "$@"'
    process = ctx.spawn([need("unshare"), "--mount", "sh", "-c", full, "sh", small, "env", f"LD_PRELOAD={LIBRARY}", need("python3"), "-c", LISTENER,
                         b"full".hex()], env={"NACC_LOG_PATH": str(small / "log"), "NACC_LOG_LEVEL": "debug"})
    wait_until(lambda: process.stdout() == "ready\n", START_LIMIT, "a listener")
    count = run(ctx, "-p", process.pid, "-s", "cnt", "--json").json()["cnt"]
    check(count["log_lines_dropped"] > 0 and count["log_lines"] == 0, f"lines of the log: {count}")
    process.end()


@case(modes=ONE)
def processes_that_die_while_they_are_shown(ctx):
    """They are left out, or shown as they were."""
    stop = threading.Event()
    # By this name no other process of the machine is meant.
    name = f"dies-{os.getpid()}"
    named = f"import ctypes\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"

    def come_and_go():
        while not stop.is_set():
            one = subprocess.Popen([sys.executable, "-c", named + CROWD, "4"], stdout=subprocess.PIPE, env=os.environ | {"LD_PRELOAD": str(LIBRARY)},
                                   start_new_session=True)
            one.stdout.readline()
            os.killpg(one.pid, 9)
            one.wait()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(8):
            for argv in ((), ("-s", "sock"), ("-s", "all"), ("--json",), ("--openmetrics",)):
                answer = run(ctx, *argv)
                equal(answer.status, 0, f"status of {argv}: {answer.err}")
            for action in ("status", "off", "on"):
                done = subprocess.run([TOOLS / "netacc_ctl", action, "-w", "5", f"{name}*"], capture_output=True, text=True)
                # Of a name that nobody has at that moment it is said so.
                check(done.returncode == 0 or "no process with NetACC has the name" in done.stderr, f"netacc_ctl {action}: {done}")
    finally:
        stop.set()
        thread.join()
