"""Words that a hostile client writes into shared memory: they cost a server's thread next to nothing."""

import os

from harness import check
from hostile import (LIVENESS_WAKER, FORKED, OWNER_READ, OWNER_WRITE, RX_WAITER, SERVER, SERVER_SIDE, TX_WAITER, Client, Stranger,
                     ping, victim)
from matrix import case


def ask_with_a_forged_bell(voice, port, count, forked):
    """Requests whose sender asks to be woken by its base, which it has never passed."""
    link = Client(port)
    slots = range(1, count + 1)
    for slot in slots:
        link.connect(slot, 42000 + slot)
    for slot in slots:
        link.await_taken(slot)
    voice.say("taken")
    voice.hear()
    for slot in slots:
        line = link.line(slot)
        link.word(line + FORKED, int(forked))
        link.word(line + RX_WAITER, LIVENESS_WAKER)
        link.word(line + TX_WAITER, LIVENESS_WAKER)
        link.write(slot, b"q")
    for slot in slots:
        check(link.await_bytes(slot)[0] == b"q", "the echo is wrong")
    voice.say("answered")
    voice.hear()


def forged_bells(ctx, forked):
    server = victim(ctx)
    ping(server.port)
    with Stranger(ask_with_a_forged_bell, server.port, 100, forked) as stranger:
        stranger.hear("taken")
        before = cpu_time(server)
        stranger.tell("go")
        stranger.hear("answered", 120)
        spent = cpu_time(server) - before
        ping(server.port)
        # A server that looks for a base while it sends spends ten milliseconds on each answer, and this is time of its own.
        check(spent < 0.3, f"100 answers cost the server {spent:.2f} s")


def hold_the_word(voice, port, count):
    """After a fork of the server says of each of its connections that another process of the server's is about to read or write."""
    link = Client(port)
    slots = range(1, count + 1)
    for slot in slots:
        link.connect(slot, 42000 + slot)
        link.await_taken(slot)
    link.write(1, b"fork")
    check(link.await_bytes(1)[0] == b"fork", "the echo is wrong")
    voice.say("forked")
    voice.hear()
    for slot in slots:
        line = link.line(slot, SERVER_SIDE)
        for word in (OWNER_READ, OWNER_WRITE):
            # Its own number: a process that is there, and cannot be looked into.
            link.word(line + word, os.getpid())
        link.write(slot, b"q")
    voice.say("written")
    voice.hear()


@case(modes=SERVER)
def word_of_a_process_of_the_server(ctx):
    server = victim(ctx)
    with Stranger(hold_the_word, server.port, 50) as stranger:
        stranger.hear("forked")
        ping(server.port)
        before = cpu_time(server)
        stranger.tell("go")
        stranger.hear("written")
        # The server has dealt with those connections when it answers this one.
        ping(server.port)
        spent = cpu_time(server) - before
        check(spent < 0.3, f"50 requests cost the server {spent:.2f} s")
        check(server.running(), "the server is there")


def cpu_time(proc):
    """What the process has run, in seconds."""
    return int(open(f"/proc/{proc.pid}/schedstat").read().split()[0]) / 1e9


@case(modes=SERVER)
def bell_of_a_base_that_never_came(ctx):
    forged_bells(ctx, False)


@case(modes=SERVER)
def bell_of_a_base_that_was_promised(ctx):
    """The peer also says that it has forked."""
    forged_bells(ctx, True)
