"""On a terminal: what fits, what the keys do, and that it is given back as it was, whatever ends the watch."""

import os
import pathlib
import re
import signal
import time

import monitor
import redis_server
from harness import check, equal
from host import wait_until
from matrix import case
from seeing import Terminal, run, strip


def busy(ctx):
    """A redis with two accelerated clients and a plain one."""
    server = redis_server.start(ctx)
    client = ctx.client(["redis-benchmark", "-p", server.port, "-c", 2, "-n", 100000000, "-t", "set", "-q"])
    wait_until(lambda: monitor.transports(server.pid).count("SHM") >= 2, 30, "accelerated connections")
    return server, client


@case(modes=("both",))
def tables_fit(ctx):
    server, client = busy(ctx)
    # Long numbers, so that something has to give.
    wait_until(lambda: sum(s["bytes_in"] for s in monitor.sockets(server.pid)) > 10_000_000, 60, "some megabytes")
    with redis_server.admin(server) as admin:
        admin.call("PING")
        asked = ("-p", server.pid, "-s", "all")
        piped = run(ctx, *asked).out
        check("\x1b" not in piped and max(map(len, piped.splitlines())) > 100, "a pipe gets plain, whole lines")
        for columns in (60, 80, 120):
            helped = Terminal(ctx, columns, 24, "--help")
            equal(helped.end(), 0, "status of --help")
            wide = [line for line in strip(helped.text).replace("\r", "").split("\n") if len(line) > columns]
            helped.close()
            check(not wide or columns < 80, f"help wider than {columns}: {wide}")
            # A setting may be as long as it likes.
            tables = asked if columns >= 80 else ("-p", server.pid, "-s", "cnt,mem,qp,sock")
            for argv in ((), tables, ("--explain", server.pid)):
                shown = Terminal(ctx, columns, 24, *argv)
                equal(shown.end(), 0, f"status of {argv}")
                lines = [strip(line) for line in shown.text.replace("\r\n", "\n").split("\n")]
                wide = [line for line in lines if len(line) > columns]
                check(not wide, f"wider than {columns}: {wide[:2]}")
                check("\x1b[1m" in shown.text, "titles are bold")
                shown.close()
        narrow = Terminal(ctx, 80, 24, "-p", server.pid, "-s", "sock")
        narrow.end()
        text = strip(narrow.text)
        narrow.close()
        check("Bytes-Out" in text and "Reason" in text, "the volumes stay")
        for columns in (20, 40, 80):
            for argv in (("-p", server.pid, "-s", "sock"), ("-s", "sock"), ("-s", "sock", "state", "established")):
                shown = Terminal(ctx, columns, 24, *argv)
                equal(shown.end(), 0, f"status of {argv}")
                text = strip(shown.text)
                shown.close()
                for word in ("State", "Local Address:Port", "Reason", "ESTAB", f"127.0.0.1:{server.port}", "plain-client"):
                    check(word in text, f"{word} is not on the screen of {columns} columns: {argv}")
                check("LISTEN" not in text or "established" not in argv, "the filter")
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            plain = Terminal(ctx, 80, 24, *asked, **env)
            plain.end()
            check("\x1b" not in plain.text, f"colours in spite of {env}")
            plain.close()
        bright = Terminal(ctx, 80, 24, *asked, NO_COLOR="")
        bright.end()
        check("\x1b" in bright.text, "an empty NO_COLOR says nothing")
        bright.close()


@case(modes=("both",), limit=180)
def nothing_is_wider_than_the_terminal(ctx):
    """Lists, findings, complaints and wrong command lines are folded between words, on standard error too."""
    server = redis_server.start(ctx)
    tools = pathlib.Path(monitor.command()).parent
    for columns in (20, 80):
        for tool, *argv in (("netacc_ss",), ("netacc_ss", "-s", "sock"), ("netacc_ss", "--explain", server.pid), ("netacc_ss", "-c"),
                            ("netacc_ss", "-p", "4294967295"), ("netacc_ss", "-s", "sock", "state", "bogus"), ("netacc_ss", "-s", "bogus"),
                            ("netacc_ctl", "status"), ("netacc_ctl", "off", "no-such-program"), ("netacc_ctl", "bogus"),
                            ("netacc_check", f"localhost:{server.port}"), ("netacc_check", "redis-server"), ("netacc_check", "no-such-program"),
                            ("netacc_check", "--facts", "no-such-file"), ("netacc_run", "no-such-program"), ("netacc_run", "-p", "x", "true"),
                            ("netacc_bench", "bogus"), ("netacc_bench", "client", "--bogus")):
            shown = Terminal(ctx, columns, 24, *argv, program=tools / tool)
            shown.end()
            lines = [strip(line) for line in shown.text.replace("\r", "").split("\n")]
            shown.close()
            # Only a word that is longer is.
            wide = [line for line in lines if len(line) > columns and " " in line.strip().replace("l A", "l-A").replace("r A", "r-A")]
            check(not wide and len(lines) > 1, f"wider than {columns}: {tool} {argv}: {wide or lines}")


@case(modes=("both",))
def keys(ctx):
    server, client = busy(ctx)
    # High enough for what else runs on the machine.
    screen = Terminal(ctx, 100, 90, "-w", "0.2")

    def line(of):
        # Behind the mark where it has that; at the very left where the numbers of other processes are shorter.
        return next((text for text in screen.picture() if str(of) in text.split()[:2]), "")
    screen.until(lambda p: line(server.pid).split()[-2:] and "redis-server" in line(server.pid), "the overview")
    # How large they are is the machine's affair.
    screen.until(lambda p: sum(cell[0] in "123456789" for cell in line(server.pid).split()[5:]) >= 2, "rates")
    equal(len(screen.picture()), 90, "lines of the screen")
    wide = [text for text in screen.picture() if len(text) > 100]
    check(not wide, f"wider than 100: {wide}")
    screen.type(b">")
    screen.until(lambda p: "by Conns" in p[0], "sorting by connections")
    screen.type(b">>r")
    screen.until(lambda p: "by Msgs-In/s" in p[0], "sorting by messages")
    # The mark goes down to the server, by numbers of processes, whose order is no matter of rates.
    screen.type(b"<<<")
    screen.until(lambda p: "by Pid" in p[0], "sorting by numbers")
    screen.type(b"\x1b[H")
    screen.until(lambda p: p[3].lstrip().startswith("> "), "the mark at the top")

    def marked():
        return next((text.split()[1] for text in screen.picture() if text.lstrip().startswith("> ")), None)
    while marked() != str(server.pid):
        before = marked()
        screen.type(b"\x1b[B")
        screen.until(lambda p, before=before: marked() not in (None, before), f"the mark below {before}")
    screen.type(b"\r")
    screen.until(lambda p: f"process {server.pid} (redis-server)" in p[0] and "connects_shm" in " ".join(p), "counters")
    # The following pages are longer than this screen.
    screen.resize(100, 20)
    screen.type(b"5")
    screen.until(lambda p: len(p) == 20 and any("Bytes-Out/s" in text for text in p), "sockets")
    screen.type(b"4")
    screen.until(lambda p: any("Conns/s" in text and "QP" in text for text in p), "links")
    screen.type(b"3")
    screen.until(lambda p: any("Growth-KiB/s" in text for text in p), "memory")
    screen.type(b"a")
    screen.until(lambda p: any("NACC_SOR_MSG_SIZE" in text for text in p), "all of them")
    screen.type(b"j" * 10)
    screen.until(lambda p: not any("NACC_SOR_MSG_SIZE" in text for text in p), "scrolling")
    screen.type(b" ")
    screen.until(lambda p: "every 0.2 s, paused" in p[0], "a pause")
    screen.type(b" +")
    screen.until(lambda p: "every 0.4 s" in p[0], "a longer interval")
    screen.type(b"-?")
    screen.until(lambda p: any("Ctrl-Z: suspend" in text for text in p), "the keys")
    screen.type(b"?")
    screen.resize(70, 12)
    os.kill(screen.pid, signal.SIGWINCH)
    screen.until(lambda p: len(p) == 12 and len(p[0]) <= 70, "the new size")
    client.kill()
    server.kill()
    screen.until(lambda p: "ended: last figures" in p[0], "the end of the process")
    screen.type(b"\x7f")
    screen.until(lambda p: re.search(r"\d+ accelerated process", p[0]), "back to all")
    screen.type(b"q")
    equal(screen.end(), 0, "status")
    screen.close()


@case(modes=("both",))
def more_than_fits(ctx):
    """The mark is in sight wherever it goes, and a process is scrolled by pages to its last line."""
    server, client = busy(ctx)
    screen = Terminal(ctx, 60, 5, "-w", "0.2")
    # Two lines beside head, foot and an empty one: the titles and the first process.
    screen.until(lambda p: len(p) == 5 and p[2].split()[:1] == ["Pid"] and p[3].lstrip().startswith("> ")
                 and re.search(r"\(lines 1 to 2 of \d+\)", p[4]), "the first process")
    for key in (b"\x1b[F", b"\x1b[H", b"\x1b[6~", b"\x1b[5~"):
        screen.type(key)
        there = 3 if key in (b"\x1b[H", b"\x1b[5~") else 2
        screen.until(lambda p: len(p) == 5 and any(text.lstrip().startswith("> ") for text in p[2:4])
                     and ("Pid" in p[2]) == (there == 3), f"the mark after {key}")
    screen.type(b"q")
    equal(screen.end(), 0, "status")
    screen.close()
    screen = Terminal(ctx, 60, 10, "-w", "0.2", "-p", server.pid, "-s", "cnt")
    screen.until(lambda p: "(lines 1 to 7 of " in p[-1], "the beginning")
    whole = int(screen.picture()[-1].rstrip(")").split()[-1])
    screen.type(b"\x1b[6~")
    screen.until(lambda p: "(lines 7 to 13 of " in p[-1], "a page further, of which one line was there before")
    screen.type(b"\x1b[F")
    screen.until(lambda p: f"(lines {whole - 6} to {whole} of {whole})" in p[-1], "the end")
    check(any("fallbacks" in text for text in screen.picture()), str(screen.picture()))
    screen.type(b"\x1b[H")
    screen.until(lambda p: "(lines 1 to 7 of " in p[-1], "the beginning again")
    screen.type(b"q")
    equal(screen.end(), 0, "status")
    screen.close()


LEFT = "\x1b[?7h\x1b[?25h\x1b[?1049l"


@case(modes=("server",))
def the_terminal_is_given_back(ctx):
    def by_key(key):
        return lambda screen: screen.type(key)

    def by_signal(number):
        return lambda screen: os.kill(screen.pid, number)
    ends = {"q": by_key(b"q"), "Ctrl-C": by_key(b"\x03"), "Ctrl-D": by_key(b"\x04"), "Ctrl-\\": by_key(b"\x1c"),
            "SIGINT": by_signal(signal.SIGINT), "SIGTERM": by_signal(signal.SIGTERM), "SIGHUP": by_signal(signal.SIGHUP),
            "SIGQUIT": by_signal(signal.SIGQUIT), "itself": None}
    for name, end in ends.items():
        screen = Terminal(ctx, 80, 24, "-w", "0.1", *(("--count", 2) if end is None else ()))
        screen.until(lambda p: "every 0.1 s" in p[0], "a picture")
        if end:
            end(screen)
        equal(screen.end(), 0, f"status after {name}")
        check(screen.text.endswith(LEFT), f"{name}: the screen is left: {screen.text[-40:]!r}")
        equal(screen.modes(), screen.usual, f"modes of the terminal after {name}")
        screen.close()


@case(modes=("server",))
def suspended_and_continued(ctx):
    for how in (lambda s: s.type(b"\x1a"), lambda s: os.kill(s.pid, signal.SIGTSTP)):
        screen = Terminal(ctx, 80, 24, "-w", "0.1")
        screen.until(lambda p: "every 0.1 s" in p[0], "a picture")
        raw = screen.modes()
        how(screen)
        stopped = lambda: open(f"/proc/{screen.pid}/stat").read().rpartition(") ")[2][0] == "T"  # noqa: E731
        wait_until(stopped, 30, "it stops")
        screen.step()
        check(screen.text.endswith(LEFT), f"the screen is left: {screen.text[-40:]!r}")
        equal(screen.modes(), screen.usual, "modes of the terminal while it is stopped")
        screen.text = ""
        os.kill(screen.pid, signal.SIGCONT)
        screen.until(lambda p: "every 0.1 s" in p[0], "a picture again")
        equal(screen.modes(), raw, "modes of the terminal when it goes on")
        screen.type(b"q")
        equal(screen.end(), 0, "status")
        equal(screen.modes(), screen.usual, "modes of the terminal at the end")
        screen.close()


@case(modes=("server",))
def a_terminal_that_goes_away(ctx):
    screen = Terminal(ctx, 80, 24, "-w", "0.1")
    screen.until(lambda p: "every 0.1 s" in p[0], "a picture")
    os.close(screen.master)
    end = time.monotonic() + 30
    done = (0, 0)
    while done[0] == 0 and time.monotonic() < end:
        done = os.waitpid(screen.pid, os.WNOHANG)
    check(done[0] == screen.pid, "it runs on without its terminal")


@case(modes=("both",))
def without_a_terminal(ctx):
    """Tables at intervals, each with its time."""
    server, client = busy(ctx)
    text = run(ctx, "-w", "0.2", "--count", 3).out
    check("\x1b" not in text, "escape sequences in a pipe")
    tables = text.split("\n\n")
    equal(len([t for t in tables if t.strip()]), 3, "tables")

    for table in tables[:3]:
        stamp, title, *rows = table.splitlines()
        check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp), stamp)
        row = dict(zip(title.split(), next(r.split() for r in rows if r.split()[0] == str(server.pid))))
        check(int(row["Msgs-In/s"]) > 100 and int(row["Bytes-In/s"]) > int(row["Msgs-In/s"]), str(row))
    one = run(ctx, "-w", "0.2", "--count", 1, "-p", server.pid, "-s", "cnt,sock,qp,mem").out
    for word in ("Per-Second", "Growth-KiB/s", "Conns/s", "Msgs-Out/s", "127.0.0.1:"):
        check(word in one, f"{word} is not in {one}")
    rate = int(next(line.split()[2] for line in one.splitlines() if line.startswith("msgs_in ")))
    check(rate > 100, f"{rate} messages per second")
