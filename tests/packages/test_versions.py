"""Processes with libraries of different versions meet: they use TCP, and say that this is why."""

import made
from harness import START_LIMIT, check, equal
from host import free_port, wait_until
from hosts import Client, Server, reaches
from matrix import case

NEEDS = ("next version",)

PORT_ADDRESS = "127.0.0.1"


def later():
    """The environment of a process with the library of a later version of the protocol."""
    return {"LD_PRELOAD": str(made.NEXT_LIBRARY)}


def talk(ctx, server, client):
    """`server` and `client`: how each is started. Returns both, after a request."""
    port = free_port()
    serving = Server(ctx, "one", PORT_ADDRESS, port, **server)
    asking = Client(ctx, **client)
    reaches(asking, PORT_ADDRESS, port, "one", size=300_000)
    return serving, asking, port




def falls_back(ctx, server, client):
    serving, asking, port = talk(ctx, server, client)
    equal(asking.path(), ("TCP", "peer-version"), "the client's connection")
    count = serving.page("cnt")
    equal((count["accepts_tcp"], count["accepts_shm"]), (1, 0), "accepts by TCP and over shared memory")
    # The client says hello, which the server reads at its next accept(2).
    wait_until(lambda: serving.page("cnt")["fallbacks"]["reasons"].get("peer-version"), START_LIMIT,
               "the server counts a client with another version")
    # The answer is remembered for a moment, and with its reason.
    reaches(asking, PORT_ADDRESS, port, "one", size=10)
    equal(asking.path(), ("TCP", "peer-version"), "the client's next connection")
    asking.end()
    serving.end()


@case(modes=made.ONE)
def an_older_client(ctx):
    falls_back(ctx, {"env": later(), "role": None}, {})


@case(modes=made.ONE)
def an_older_server(ctx):
    falls_back(ctx, {}, {"env": later(), "role": None})


@case(modes=made.ONE)
def two_later_ones(ctx):
    """The other library is whole: with itself it uses shared memory."""
    serving, asking, _ = talk(ctx, {"env": later(), "role": None}, {"env": later(), "role": None})
    equal(asking.path(), ("SHM", None), "the client's connection")
    check(serving.page("cnt")["accepts_shm"] == 1, "not accepted over shared memory")
    asking.end()
    serving.end()
