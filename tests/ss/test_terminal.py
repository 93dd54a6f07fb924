"""On a terminal: what fits, what the keys do, and that it is given back as it was, whatever ends the watch."""

import os
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
        for columns in (80, 120):
            for argv in ((), asked, ("--explain", server.pid)):
                shown = Terminal(ctx, columns, 24, *argv)
                equal(shown.end(), 0, f"status of {argv}")
                lines = [strip(line) for line in shown.text.replace("\r\n", "\n").split("\n")]
                wide = [line for line in lines if len(line) > columns and not line.startswith("netacc_ss: ")]
                check(not wide, f"wider than {columns}: {wide[:2]}")
                check("\x1b[1m" in shown.text, "titles are bold")
                shown.close()
        narrow = Terminal(ctx, 80, 24, "-p", server.pid, "-s", "sock")
        narrow.end()
        text = strip(narrow.text)
        narrow.close()
        check("Bytes-Out" in text and "Reason" in text, "the volumes stay, and what is left out is told")
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            plain = Terminal(ctx, 80, 24, *asked, **env)
            plain.end()
            check("\x1b" not in plain.text, f"colours in spite of {env}")
            plain.close()
        bright = Terminal(ctx, 80, 24, *asked, NO_COLOR="")
        bright.end()
        check("\x1b" in bright.text, "an empty NO_COLOR says nothing")
        bright.close()


@case(modes=("both",))
def keys(ctx):
    server, client = busy(ctx)
    screen = Terminal(ctx, 100, 20, "-w", "0.2")

    def line(of):
        return next((text for text in screen.picture() if f" {of} " in text), "")
    screen.until(lambda p: line(server.pid).split()[-2:] and "redis-server" in line(server.pid), "the overview")
    screen.until(lambda p: any("M" in line(server.pid).split()[i] for i in range(5, len(line(server.pid).split()))),
                 "rates of millions")
    equal(len(screen.picture()), 20, "lines of the screen")
    wide = [text for text in screen.picture() if len(text) > 100]
    check(not wide, f"wider than 100: {wide}")
    screen.type(b">")
    screen.until(lambda p: "by Conns" in p[0], "sorting by connections")
    screen.type(b">>r")
    screen.until(lambda p: "by Msgs-In/s" in p[0], "sorting by messages")
    # The mark goes to the server, wherever that is.
    for _ in range(50):
        if any(text.startswith("> ") and "redis-server" in text for text in screen.picture()):
            break
        screen.type(b"\x1b[B")
        for _ in range(3):
            screen.step()
    screen.type(b"\r")
    screen.until(lambda p: f"process {server.pid} (redis-server)" in p[0] and "connects_shm" in " ".join(p), "counters")
    screen.type(b"5")
    screen.until(lambda p: any("Bytes-Out/s" in text for text in p), "sockets")
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
    screen.until(lambda p: "accelerated processes" in p[0], "back to all")
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
        # Before it has touched it: a terminal that was just made.
        usual = screen.modes()
        screen.until(lambda p: "every 0.1 s" in p[0], "a picture")
        if end:
            end(screen)
        equal(screen.end(), 0, f"status after {name}")
        check(screen.text.endswith(LEFT), f"{name}: the screen is left: {screen.text[-40:]!r}")
        equal(screen.modes(), usual, f"modes of the terminal after {name}")
        screen.close()


@case(modes=("server",))
def suspended_and_continued(ctx):
    for how in (lambda s: s.type(b"\x1a"), lambda s: os.kill(s.pid, signal.SIGTSTP)):
        screen = Terminal(ctx, 80, 24, "-w", "0.1")
        usual = screen.modes()
        screen.until(lambda p: "every 0.1 s" in p[0], "a picture")
        raw = screen.modes()
        how(screen)
        stopped = lambda: open(f"/proc/{screen.pid}/stat").read().rpartition(") ")[2][0] == "T"  # noqa: E731
        wait_until(stopped, 30, "it stops")
        screen.step()
        check(screen.text.endswith(LEFT), f"the screen is left: {screen.text[-40:]!r}")
        equal(screen.modes(), usual, "modes of the terminal while it is stopped")
        screen.text = ""
        os.kill(screen.pid, signal.SIGCONT)
        screen.until(lambda p: "every 0.1 s" in p[0], "a picture again")
        equal(screen.modes(), raw, "modes of the terminal when it goes on")
        screen.type(b"q")
        equal(screen.end(), 0, "status")
        equal(screen.modes(), usual, "modes of the terminal at the end")
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
        row = dict(zip(title.split(), next(r.split() for r in rows if "redis-server" in r)))
        check(int(row["Msgs-In/s"]) > 100 and int(row["Bytes-In/s"]) > int(row["Msgs-In/s"]), str(row))
    one = run(ctx, "-w", "0.2", "--count", 1, "-p", server.pid, "-s", "cnt,sock,qp,mem").out
    for word in ("Per-Second", "Growth-KiB/s", "Conns/s", "Msgs-Out/s", "127.0.0.1:"):
        check(word in one, f"{word} is not in {one}")
    rate = int(next(line.split()[2] for line in one.splitlines() if line.startswith("msgs_in ")))
    check(rate > 100, f"{rate} messages per second")
