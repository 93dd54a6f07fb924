"""Many links of one user: others have room, the server has its descriptors, and its loop goes on."""

import resource
import socket
import time
import types

import host
from harness import check
from hostile import BOTH, SERVER, STRANGER, Client, Stranger, name, ping, victim
from host import wait_until
from matrix import case

# The server's limit of descriptors, which is that of an ordinary program.
LIMIT = 1024


def limited_victim(ctx, limit=LIMIT):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        return victim(ctx)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def make_links(voice, port, count, busy):
    """As many links as the server takes up; each `busy` one has a connection that is open."""
    links = []
    for number in range(count):
        try:
            link = Client(port)
        except OSError:
            # The server's queue is full for the moment.
            time.sleep(0.01)
            continue
        links.append(link)
        if busy:
            link.connect(1, 41000 + number)
    voice.say("made", len(links))
    while voice.hear()[0] == "count":
        voice.say("there", sum(link.drain() for link in links))


def crowd(ctx, busy):
    server = limited_victim(ctx)
    ping(server.port)
    with Stranger(make_links, server.port, 900, busy) as stranger:
        check(stranger.hear("made", 120) > 700, "the links are made")

        def there():
            ping(server.port)
            stranger.tell("count")
            return stranger.hear("there")

        # The server keeps as many links as take a sixteenth of its descriptors.
        wait_until(lambda: there() <= LIMIT // 16, 60, "the server keeps few of the links")
        check(there() >= LIMIT // 32, f"the server keeps {there()} of the links, and might keep more")
        # What a stranger passed or left is closed by a thread that does nothing else, a moment later.
        wait_until(lambda: len(host.fds(server.pid)) < LIMIT // 2, 60, "the server closes what it has of the links")
        return server, stranger.pid


@case(modes=SERVER)
def idle_links(ctx):
    crowd(ctx, False)


@case(modes=SERVER)
def links_with_connections(ctx):
    crowd(ctx, True)


def one_link(voice, port):
    """A link with a connection: whether the server takes it."""
    link = Client(port)
    link.connect(1, 43000)
    link.await_taken(1)
    voice.say("taken")
    voice.hear()


@case(modes=SERVER)
def a_crowd_leaves_room_for_another_user(ctx):
    server = limited_victim(ctx)
    with Stranger(make_links, server.port, 300, True) as crowd_, Stranger(one_link, server.port, uid=STRANGER + 1) as other:
        crowd_.hear("made", 120)
        other.hear("taken")


@case(modes=SERVER)
def crowds_of_many_users_leave_room_for_another_one(ctx):
    """Together they are as many as there may be of all users; the newcomer has fewer than any of them."""
    server = limited_victim(ctx)
    crowds = [Stranger(make_links, server.port, 100, False, uid=STRANGER + number) for number in range(6)]
    try:
        for one in crowds:
            one.hear("made", 120)
        with Stranger(one_link, server.port, uid=STRANGER + 9) as other:
            other.hear("taken")
        used = len(host.fds(server.pid))
        check(used < LIMIT * 3 // 4, f"the server has {used} descriptors open")
    finally:
        for one in crowds:
            one.__exit__()


def slow_hello(voice, port):
    """A client that sends its Hello, and connects, on request: returns whether the server accepts it."""
    link = Client(port, hello=False)
    for step in (link.hello, lambda: link.connect(1, 43000)):
        voice.say("done")
        voice.hear()
        step()
    link.await_taken(1)
    voice.say("taken")
    voice.hear()


@case(modes=SERVER)
def a_late_hello_is_heard_where_the_links_have_all_high_numbers(ctx):
    """The server's descriptor of the client keeps its number when a link is made of it, and it watched that number."""
    server = limited_victim(ctx, 64)
    ping(server.port)
    with (
        Stranger(make_links, server.port, 8, False) as one,
        Stranger(make_links, server.port, 8, False, uid=STRANGER + 1) as other,
        Stranger(slow_hello, server.port, uid=STRANGER + 2) as slow,
    ):
        one.hear("made")
        other.hear("made")
        for step in ("hello", "connect"):
            slow.hear("done")
            # The server has seen what the client did when it has answered what came later.
            ping(server.port)
            slow.tell(step)
        slow.hear("taken")


@case(modes=BOTH)
def a_client_that_is_refused_goes_to_tcp(ctx):
    """Behind a crowd of its own user's whose links are all in use."""
    server = limited_victim(ctx)
    with Stranger(make_links, server.port, 300, True) as stranger:
        stranger.hear("made", 120)
        ping(server.port)
        user = types.SimpleNamespace(pw_uid=STRANGER, pw_gid=STRANGER)
        told = ctx.run(["/usr/bin/python3", "-c", ASK, server.port], user=user, readable=True)
        check(told == "ping\n" * 20, f"the client is told {told!r}")


ASK = """
import socket, sys
for _ in range(20):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30) as s:
        s.sendall(b"ping")
        print(s.recv(4).decode())
"""


def flood(voice, port):
    """Connects to the rendezvous, and says nothing or nonsense, without an end."""
    end = time.monotonic() + 60
    kept = []
    voice.say("begins")
    while time.monotonic() < end and not voice.told():
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.setblocking(False)
        try:
            s.connect(name(port))
            if len(kept) % 2:
                s.send(b"nonsense")
        except OSError:
            pass
        kept.append(s)
        if len(kept) > 500:
            for old in kept[:400]:
                old.close()
            del kept[:400]


@case(modes=SERVER)
def a_flood_of_clients_holds_up_nobody(ctx):
    server = limited_victim(ctx)
    ping(server.port)
    strangers = [Stranger(flood, server.port) for _ in range(2)]
    try:
        for stranger in strangers:
            stranger.hear("begins")
        took = sorted(ping(server.port) for _ in range(100))
        check(took[-1] < 5, f"a ping took {took[-1]:.2f} s")
    finally:
        for stranger in strangers:
            stranger.__exit__()
    ping(server.port)
