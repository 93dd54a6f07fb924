"""Faults of a device that no real one has when a test wants it, each at a moment that the test chooses: every byte arrives, nothing
hangs, and netacc_ss says why a connection is not on RDMA any more."""

import contextlib
import os
import pathlib
import re

import monitor
import world
from harness import check, equal
from host import wait_until
from matrix import case
from test_faults import delete, shown

PATTERN = str(pathlib.Path(__file__).with_name("pattern.py"))
# Only turns a hang into a failure.
LIMIT = 20
NEVER = 10**9
BYTES = 1_000_000
ROLES = ("client", "server")
# Where the message fails that opens a connection, by the word that asks for the fault.
OPENING = {"fail_after": "client", "fail_receive_after": "server"}


class Exchange:
    """Connections on which both sides write; the faults are there before the client connects."""

    def __init__(self, ctx, faults=(), count=1, options=()):
        self.ctx, self.count = ctx, count
        ctx.accelerated = ROLES
        address, port, seed = ctx.server_end.address, ctx.port(), ctx.random.getrandbits(32)
        self.ends = []
        argv = [address, port, seed, count]
        self.server = self.spawn("server", argv, dict(options))
        ctx.await_listener(self.server, port + 20000)
        for role, words in faults:
            ctx.fault(role, **words)
        self.client = self.spawn("client", argv, dict(options))
        self.both = (self.server, self.client)
        wait_until(lambda: all(len(shown(p)) == count for p in self.both) or not self.running(), LIMIT, "they are connected")

    def spawn(self, role, argv, options):
        read_end, write_end = os.pipe()
        self.ends.append(write_end)
        proc = self.ctx.spawn(["python3", PATTERN, role, *argv], role=role, stdin=read_end, env=options)
        os.close(read_end)
        return proc

    def running(self):
        return all(p.running() for p in self.both)

    def text(self):
        return " / ".join(f"{monitor.summary(p.pid)} {p.text()[-600:]}" for p in self.both)

    def moved(self):
        """Bytes that have come so far on each connection of each end: the smallest number."""
        return min((s["bytes_in"] for p in self.both for s in shown(p)), default=0)

    def flows(self, limit=LIMIT):
        """On every connection bytes arrive at both ends."""
        before = self.moved()
        self.wait(lambda: self.moved() >= before + BYTES // self.count, limit, "bytes arrive")

    def wait(self, condition, limit, what):
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: condition() or not self.running(), limit, what)
        check(self.running() and condition(), f"not so within {limit} s: {what}: {self.text()}")

    def on(self, transport):
        return all(s["transport"] == transport for p in self.both for s in shown(p))

    def goes_on_by_tcp(self, limit=LIMIT, reason="qp-failed"):
        self.wait(lambda: self.on("TCP"), limit, "all go on by TCP")
        for proc in self.both:
            equal([s["reason"] for s in shown(proc)], [reason] * self.count, f"reasons at {proc.role}")
        self.flows()

    def end(self):
        """Both sides end what they write, and each has had all of it."""
        for end in self.ends:
            os.close(end)
        said = []
        for proc in self.both:
            text = proc.result(LIMIT)
            said.append({int(n): (int(sent), int(received))
                         for n, sent, received in re.findall(r"connection (\d+) sent (\d+) received (\d+)", text)})
        equal(said[0], {n: (received, sent) for n, (sent, received) in said[1].items()}, "bytes at the server, by those of the client")
        equal(len(said[0]), self.count, "connections")


def fails(ctx, word):
    """At the first messages, of which each means something else, and later; at either side."""
    for role in ROLES:
        # The client's first message opens the connection: see `the_opening_of_a_connection_fails`.
        first = () if OPENING[word] == role else (1,)
        for moment in (*first, 2, 3, 4, ctx.random.randrange(5, 100), ctx.random.randrange(100, 2000)):
            exchange = Exchange(ctx, [(role, {word: moment})])
            print(f"    {role}, message {moment}", flush=True)
            exchange.goes_on_by_tcp()
            exchange.end()


@case(seldom=True, limit=120)
def a_queue_pair_fails_as_it_sends(ctx):
    fails(ctx, "fail_after")


@case(seldom=True, limit=120)
def a_queue_pair_fails_as_it_receives(ctx):
    """Its device has acknowledged the message to the other one, and the program never gets it."""
    fails(ctx, "fail_receive_after")


@case(seldom=True, limit=60)
def the_opening_of_a_connection_fails(ctx):
    """The server gets the connection by TCP, and shows it so."""
    for word, role in OPENING.items():
        exchange = Exchange(ctx, [(role, {word: 1})])
        exchange.goes_on_by_tcp()
        exchange.end()


@case(seldom=True, limit=60)
def a_queue_pair_of_several_connections_fails(ctx):
    for role in ROLES:
        for word in ("fail_after", "fail_receive_after"):
            exchange = Exchange(ctx, [(role, {word: ctx.random.randrange(50, 1000)})], count=6,
                                options={"NACC_SOR_CONN_PER_QP": "8"})
            exchange.goes_on_by_tcp()
            exchange.end()


@case(seldom=True, limit=60)
def the_end_overtakes_messages(ctx):
    """The connection manager tells of the end of the other side's queue pair before the last messages have come."""
    for role, other in (ROLES, ROLES[::-1]):
        ctx.fault(other, late_messages=20)
        exchange = Exchange(ctx, [(role, {"fail_after": ctx.random.randrange(5, 40)})])
        exchange.goes_on_by_tcp()
        exchange.end()
        ctx.fault(other, late_messages=0)


@case(seldom=True, limit=60)
def sends_complete_late(ctx):
    exchange = Exchange(ctx, [(role, {"late_acks": 60}) for role in ROLES])
    exchange.flows()
    check(exchange.on("RDMA"), exchange.text())
    exchange.end()


@case(seldom=True, limit=60)
def messages_and_credits_come_late(ctx):
    """A message takes 20 ms at least, and so do the credits that it brings."""
    for role in ROLES:
        exchange = Exchange(ctx, [(role, {"late_messages": 2})])
        exchange.flows()
        check(exchange.on("RDMA"), exchange.text())
        exchange.end()
        ctx.fault(role, late_messages=0)


@case(seldom=True, limit=60)
def a_few_completions_are_lost(ctx):
    exchange = Exchange(ctx)
    exchange.flows()
    for role in ROLES:
        ctx.fault(role, lost_completions=3)
    exchange.flows()
    exchange.flows()
    check(exchange.on("RDMA"), exchange.text())
    exchange.end()


@case(seldom=True, limit=90)
def all_completions_are_lost(ctx):
    """No send completes any more, at one side."""
    for role in ROLES:
        exchange = Exchange(ctx)
        exchange.flows()
        ctx.fault(role, lost_completions=NEVER)
        exchange.goes_on_by_tcp()
        exchange.end()
        ctx.fault(role, lost_completions=0)


@case(seldom=True, limit=60)
def the_connection_manager_tells_late(ctx):
    for role in ROLES:
        exchange = Exchange(ctx, [(role, {"late_established": 200})])
        exchange.flows()
        check(exchange.on("RDMA"), exchange.text())
        exchange.end()
        ctx.fault(role, late_established=0)


@case(seldom=True, limit=60)
def the_connection_manager_never_tells(ctx):
    """The client's queue pair is never established for it: its connection goes by TCP."""
    exchange = Exchange(ctx, [("client", {"late_established": NEVER})])
    exchange.wait(lambda: exchange.on("TCP"), LIMIT, "TCP")
    equal([s["reason"] for s in shown(exchange.client)], ["other-host"], "reasons at the client")
    exchange.end()


@case(seldom=True, limit=90)
def a_device_falls_silent_under_load(ctx):
    for role in ROLES:
        exchange = Exchange(ctx)
        exchange.flows()
        ctx.fault(role, silent=1)
        exchange.goes_on_by_tcp()
        exchange.end()
        ctx.fault(role, silent=0)


@case(seldom=True, limit=90)
def a_device_that_never_gives_up_falls_silent(ctx):
    """As iWARP, which would try for a quarter of an hour."""
    for role in ROLES:
        ctx.fault(role, endless_retries=1)
    exchange = Exchange(ctx)
    exchange.flows()
    ctx.fault(ctx.random.choice(ROLES), silent=1)
    exchange.goes_on_by_tcp()
    exchange.end()


@case(seldom=True, limit=90)
def a_device_is_removed_at_any_moment(ctx):
    """Before the queue pair is established, soon after, and under load; connections that were on it are as they would be by TCP."""
    for side in ctx.ends():
        for late in (0, 60):
            exchange = Exchange(ctx, [("client", {"late_established": late})])
            removal = ctx.spawn(delete(side), role="nobody")
            check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
            exchange.wait(lambda exchange=exchange: exchange.on("TCP"), LIMIT, "all go on by TCP")
            exchange.flows()
            exchange.end()
            world.ensure_device(side, ctx.kind)


@case(seldom=True, limit=60)
def without_a_companion_a_fault_is_an_error(ctx):
    """At both ends, and what came before was right."""
    for role in ROLES:
        exchange = Exchange(ctx, [(role, {"fail_after": ctx.random.randrange(20, 200)})], options={"NACC_TCP_COMPANION": "0"})
        for proc in exchange.both:
            proc.result(LIMIT, status=None)
            # A shutdown gets ENOTCONN, as from the kernel, if another thread has had the connection's error before.
            errors = ("reset", "Broken pipe", "timed out", "not connected")
            check(any(error in proc.text() for error in errors), proc.text())
            check("other bytes" not in proc.text(), proc.text())
        for end in exchange.ends:
            os.close(end)
