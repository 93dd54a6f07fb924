"""A row: one server under one load, whose client is the same user or another one."""

import os

from .. import proc, sides
from ..case import Case, Metric
from . import site, tree
from .loads import Client

# How many times as long as TCP's longest request NetACC's may take. TCP's counts as a millisecond at least: a thread that loses
# its processor waits that long on any side.
LONGEST, LEAST_MS = 10, 1.0
MOST_CONNECTIONS = 128


def levels():
    """How many connections a load has: one, one per core, four and sixteen per core."""
    cores = len(os.sched_getaffinity(0))
    return [min(count, MOST_CONNECTIONS) for count in (1, cores, 4 * cores, 16 * cores)]


def distinct(*counts):
    """These numbers of connections, of which two may be the same on a machine with few or many cores."""
    return dict.fromkeys(counts)


def counted(number, what):
    return f"{number} {what}{'s' if number > 1 else ''}"


def pairs(rows):
    """The cases of each row: a client of the same user, and one of another user."""
    return [Real(*row, stranger, **options) for row, options in rows for stranger in (False, True)]


class Real(Case):
    metrics = (
        Metric("rps", "requests/s", "more"),
        Metric("p99_ms", "p99 ms", "less", 3),
        Metric("longest_ms", "longest ms", "less", 1, of="max"),
        Metric("server_us", "server CPU us/request", "less", 1),
        Metric("client_us", "client CPU us/request", "less", 1),
    )
    headline = "rps"
    seconds = (2, 1)
    steps_per_round = 2

    def __init__(self, name, title, server, load, stranger, *, usual=None, fresh=False, may_be_tcp=False):
        """`stranger`: the client is another user. `usual`: which of both cases runs without being asked for. `fresh`: each
        measurement has a server of its own, on a port of its own. `may_be_tcp`: connections may go by TCP under NetACC, too."""
        super().__init__()
        self.must_be_accelerated = not may_be_tcp
        self.name = f"real-{name}-{'other' if stranger else 'same'}"
        self.title = f"{title}, {'another' if stranger else 'same'} user"
        self.server, self.load = server, load
        self.stranger, self.seldom, self.fresh = stranger, stranger != usual, fresh

    def possible(self):
        if self.stranger and not site.is_root():
            return "needs root, to run programs as two users"
        tools = ("setpriv", *self.server.tools, *self.load.tools)
        lacking = [tool for tool in dict.fromkeys(tools) if site.program(tool) is None]
        if lacking:
            return f"{', '.join(lacking)} is not installed"
        users = (self.server.user, self.server.other) if site.is_root() else ()
        lacking = [user for user in users if site.account(user) is None]
        return f"there is no user {', '.join(lacking)}" if lacking else None

    def other_sides(self, lab):
        return [sides.UnixSocket()] if self.server.unix else []

    def prepare(self):
        for note in (*self.server.notes, *COMMON):
            self.note(note)
        self.site = site.of(self.lab)
        user = self.server.other if self.stranger else self.server.user
        self.clients = {side.name: Client(self.site, side, user, self.lab.progress.tick) for side in self.sides()}
        if not self.fresh:
            for side in self.sides():
                # Caches are filled, and a server of many processes has as many as it needs.
                self._guarded(lambda side=side: self.load.measure(self.clients[side.name], self._server(side), 1))

    def close(self):
        for client in getattr(self, "clients", {}).values():
            client.close()

    def _server(self, side):
        return self.site.server(self.server, side)

    def _guarded(self, work):
        """A server that has failed is not used again."""
        try:
            return work()
        except BaseException:
            self.site.close()
            raise

    def sample(self, side):
        if not self.fresh:
            return self._guarded(lambda: self._measured(side, self._server(side)))
        server = self.server(self.site, side)
        try:
            return self._measured(side, server)
        finally:
            server.close()

    def _measured(self, side, server):
        watch = server.watch()
        before = tree.cpu_seconds(server.roots())
        done, figures = self.load.measure(self.clients[side.name], server, self.lab.seconds(*self.seconds))
        cpu = tree.cpu_seconds(server.roots()) - before
        proof = {"proof": watch.result()} if watch else {}
        if not figures["requests"]:
            raise proc.Failed(f"{self.title}, {side.title}: no request has ended")
        each = {"server_us": cpu / figures["requests"] * 1e6, "client_us": done.cpu / figures["requests"] * 1e6}
        return {**figures, **each, **proof}

    def findings(self, outcome):
        """(text, whether the run fails because of it) for each way in which NetACC is worse than TCP."""
        ratio = outcome.ratio(self.metrics[0])
        if ratio is not None and ratio < 1:
            noise = _within_noise(outcome, ratio)
            text = f"slower than TCP: {ratio:.3f}x" + (", within the spread of the rounds" if noise else "")
            yield text, not noise
        tcp, netacc = (outcome.median(name, "longest_ms") for name in ("tcp", "netacc"))
        if tcp is not None and netacc is not None and netacc > LONGEST * max(tcp, LEAST_MS):
            yield f"longest request: {netacc:,.0f} ms, TCP's {tcp:,.1f} ms", True


def _within_noise(outcome, ratio):
    """Whether the difference is less than the spread, and NetACC was not slower in each round."""
    spreads = [(found["max"] - found["min"]) / 2 / found["median"] for found in
               (outcome.summary(side, "rps") for side in ("tcp", "netacc"))]  # fmt: skip
    rates = {(row["round"], row["side"]): row["values"]["rps"] for row in outcome.raw}
    numbers = {number for number, _ in rates}
    always = len(numbers) > 1 and all(rates[number, "netacc"] < rates[number, "tcp"] for number in numbers)
    return 1 - ratio <= max(spreads) and not always


COMMON = (
    "real servers: those that root starts serve as users of their own; the client is the same user or nobody;"
    " longest: of all rounds",
)
