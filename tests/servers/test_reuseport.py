"""Groups of listeners with SO_REUSEPORT of which a part is not accelerated, or comes and goes."""

import collections
from contextlib import contextmanager

import monitor
from harness import check, equal
from hosts import Client, Server, reaches
from matrix import case

MODES = ("plain", "both")
PORT = 7100
ROUND = 400


@contextmanager
def group(ctx, *names, plain=()):
    """One listener for each name, all on one port; those in `plain` without NetACC."""
    servers = [Server(ctx, name, "127.0.0.1", PORT, "reuseport=1",
                      env={"NACC_ENABLE_RDMA_DEFAULT": 0} if name in plain else None) for name in names]
    client = Client(ctx)
    yield client, dict(zip(names, servers))
    for peer in (client, *servers):
        if peer.proc.running():
            peer.end()


def shares(client):
    return collections.Counter(client.ask("127.0.0.1", PORT, size=10)["name"] for _ in range(ROUND))


def fair(found, names):
    """By a hash of the port, or in turn: nobody has less than half of his share."""
    equal(set(found), set(names), "listeners that were reached")
    check(min(found.values()) > ROUND / len(names) / 2, f"of {ROUND} connections: {found}")


@case(modes=MODES)
def mixed_group(ctx):
    """Members without NetACC keep the share that the kernel gives them, and the others are accelerated."""
    with group(ctx, "a", "b", "c", "d", plain=("b", "c")) as (client, servers):
        # The first answers teach the client that the group is mixed.
        shares(client)
        fair(shares(client), "abcd")
        if ctx.mode == "both":
            for name in "ad":
                found = monitor.accepts_shm([servers[name].proc.pid])
                check(found > ROUND / 4, f"{name} had {found} connections over shared memory")
            # Once the plain ones are gone, nothing is asked any more.
            for name in "bc":
                servers[name].end()
            shares(client)
            before = client.page("cnt")["connects_tcp"]
            fair(shares(client), "ad")
            equal(client.page("cnt")["connects_tcp"], before, "connections by TCP")


@case(modes=MODES)
def alone(ctx):
    """Programs that always set the option are accelerated like others: one link, no TCP."""
    with group(ctx, "only") as (client, _):
        for _ in range(50):
            reaches(client, "127.0.0.1", PORT, "only", size=1000)
        if ctx.mode == "both":
            count = client.page("cnt")
            equal((count["connects_shm"], count["connects_tcp"], count["links_opened"]), (50, 0, 1), "connects and links")


@case(modes=MODES)
def promoted(ctx):
    """TCP first: the offer finds the process that accepted."""
    with group(ctx, "a", "b", "c") as (_, _):
        careful = Client(ctx, env={"NACC_CONN_TCP_FIRST": 1})
        for _ in range(60):
            words = careful.ask("127.0.0.1", PORT, size=2_000_000)
            check(words.get("whole") and words["name"] in "abc", f"answer: {words}")
        if ctx.mode == "both":
            found = careful.page("cnt")["promotions"]
            check(found > 30, f"{found} of 60 connections were promoted")
        careful.end()
