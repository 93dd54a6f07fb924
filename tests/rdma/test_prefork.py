"""Servers of several processes that share a listener: one of them listens for RDMA, and any of them may end at any time."""

import os
import pathlib
import re
import signal

import harness
import world
from harness import check, equal
from host import children, wait_until
from matrix import case

SCRIPT = str(harness.ROOT / "tests" / "rdma" / "workers.py")


class Talk:
    """A client that does something for each line it is given."""

    def __init__(self, ctx, what):
        ctx.accelerated = ("server", "client")
        self.address, self.port = ctx.server_end.address, ctx.port()
        self.server = ctx.spawn(["python3", SCRIPT, what, "server", self.address, self.port], role="server")
        ctx.await_listener(self.server, self.port + 20000)
        read_end, self.write_end = os.pipe()
        self.client = ctx.spawn(["python3", SCRIPT, what, "client", self.address, self.port], role="client", stdin=read_end)
        os.close(read_end)
        self.asked = 0

    def go(self, sign=1):
        self.asked += 1
        os.write(self.write_end, b"%d\n" % (sign * self.asked))

    def answer(self, sign=1):
        """The process that has answered the next question. Every question is answered."""
        self.go(sign)
        answers = lambda: self.client.stdout().split()[1:]  # noqa: E731
        wait_until(lambda: len(answers()) >= self.asked or not self.client.running(), 60, f"answer {self.asked}")
        check(self.client.running(), self.client.text())
        return int(answers()[self.asked - 1])

    def end(self):
        os.close(self.write_end)
        self.client.result(30)


@case(limit=150)
def a_connection_that_is_not_taken(ctx):
    """A connection that waits at a process that is killed, stopped or closes the listener before accept(2) goes to another."""
    talk = Talk(ctx, "NeverAccepts")
    ctx.mark()
    for how in ("killed", "stopped", "closed"):
        wait_until(lambda how=how: how in talk.server.stdout() or not talk.server.running(), 60, how)
        talk.go()
    talk.end()
    talk.server.result(60)
    # The first one may have gone by TCP.
    ctx.prove(5, 150_000)


def process_of(thread):
    """The process of a thread, or None. Of a process that takes over, the engine's thread is listed, which ends first."""
    try:
        status = pathlib.Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return None
    return int(re.search(r"^Tgid:\s+(\d+)$", status, re.M)[1])


def holder(talk):
    """The process that listens for RDMA."""
    for r in world.resources("cm_id"):
        if r.get("state") == "LISTEN" and r.get("src-addr", "").endswith(f":{talk.port + 20000}"):
            return process_of(r["pid"])
    return None


def by_rdma(ctx, talk):
    """Asks until RDMA carries the answer."""
    def carried():
        ctx.mark()
        talk.answer()
        return ctx.carried("client")["rdma_sends"] >= 2 and ctx.carried("server")["rdma_sends"] >= 1
    wait_until(carried, 60, "a connection by RDMA")


@case(limit=200)
def the_process_that_listens_goes(ctx):
    """When the process that listens is killed, or ended by a signal, connects go on, and another one listens for RDMA soon."""
    talk = Talk(ctx, "Workers")
    for number in (signal.SIGKILL, signal.SIGTERM):
        by_rdma(ctx, talk)
        first = holder(talk)
        check(first, f"nobody listens: {world.resources('cm_id')}")
        os.kill(first, number)
        # A connection that reaches a process in its last moments may be lost with it, as with a worker on TCP.
        wait_until(lambda first=first: not os.path.exists(f"/proc/{first}"), 30, f"process {first} is gone")
        for _ in range(5):
            check(talk.answer() != first, "a process that is gone has answered")
        wait_until(lambda first=first: holder(talk) not in (first, None), 30, "another one listens")
    by_rdma(ctx, talk)
    equal(talk.client.running(), True, "the client runs")
    talk.end()
    os.kill(holder(talk), signal.SIGTERM)
    talk.server.result(30)


@case(limit=200)
def the_process_that_carries_quits(ctx):
    """The connections that a process carried for others go on when it quits."""
    for _ in range(5):
        talk = Talk(ctx, "Held")
        by_rdma(ctx, talk)
        engine = holder(talk)
        ctx.mark()
        others = sum(talk.answer() != engine for _ in range(8))
        # On a machine this slow some may have gone by TCP.
        if others > 0 and ctx.carried("client")["rdma_sends"] >= 8:
            break
        talk.end()
        quit_all(talk)
    check(others > 0, "no connection that another process has accepted")
    before = talk.answer(-1)
    os.kill(engine, signal.SIGTERM)
    wait_until(lambda: not os.path.exists(f"/proc/{engine}"), 30, f"process {engine} is gone")
    after = talk.answer(-1)
    said = f"of {before} connections {others} and more had another process, and {after} were answered"
    check(others <= after <= before - (8 - others), said)
    talk.end()
    wait_until(lambda: not carrying(), 30, "nobody carries any more")
    quit_all(talk)


def quit_all(talk):
    """The server ends when all its workers have."""
    for worker in children(talk.server.pid):
        os.kill(worker, signal.SIGTERM)
    talk.server.result(30)


def carrying():
    """The processes that go on with connections that others carried."""
    return [stat for stat in pathlib.Path("/proc").glob("[0-9]*/stat") if "(netacc-engine) S" in reads(stat)]


def reads(path):
    try:
        return path.read_text()
    except OSError:
        return ""
