"""How many system calls a thread makes to sleep, to wake, and to wake its peer, beside TCP's."""

import os
import pathlib
import re

from harness import ROOT, Skipped, check, need
from host import wait_until
from matrix import case

SLEEPS = ROOT / "build" / "tests" / "budget" / "sleeps"
FEW, MANY = 40, 140
STRANGER = 12345

# The most per round, in which the server sleeps, takes a byte and answers; none of them is about signals. A thread sleeps in ppoll and
# takes the ring back by one more call. An epoll instance does that for a peer of another user only. One call wakes the peer, which sleeps, too.
OURS = {
    "recv": {None: 3, STRANGER: 3},
    "poll": {None: 3, STRANGER: 3},
    "epoll_wait": {None: 2, STRANGER: 3},
}
# TCP's: the call that sleeps, the one that takes the byte, and the one that answers.
TCP = {"recv": 2, "poll": 3, "epoll_wait": 3}
# A thread that looks before it sleeps yields, and now and then a round has a call of its own.
FREE, SLACK = ("sched_yield",), 0.6


def counted(ctx, kind, rounds, user):
    """The system calls of a server, by name."""
    log = ctx.dir / f"{kind}-{rounds}-{user}.strace"
    server = ctx.spawn([SLEEPS, "server", kind, rounds], role="server", within=[need("strace"), "-f", "-c", "-o", log])
    wait_until(lambda: "\n" in server.stdout() or not server.running(), 30, "the server listens")
    ctx.run([SLEEPS, "client", kind, rounds, server.stdout().strip(), *([user] if user else [])])
    server.result()
    lines = (line.split() for line in pathlib.Path(log).read_text().splitlines())
    return {words[-1]: int(words[3]) for words in lines if len(words) >= 5 and re.match(r"\d", words[0]) and words[-1] != "total"}


def per_round(ctx, kind, user):
    few, many = (counted(ctx, kind, rounds, user) for rounds in (FEW, MANY))
    each = {name: (many[name] - few.get(name, 0)) / (MANY - FEW) for name in many}
    return {name: n for name, n in each.items() if n > 0.05 and name not in FREE}


@case(modes=("plain", "both"), limit=120)
def system_calls(ctx):
    if os.getuid():
        raise Skipped("only root can be two users")
    for kind, allowed in OURS.items():
        for user, limit in ({None: TCP[kind]} if ctx.mode == "plain" else allowed).items():
            each = per_round(ctx, kind, user)
            check(sum(each.values()) <= limit + SLACK, f"{kind}, {'another' if user else 'one'} user: {each}, at most {limit} are expected")
