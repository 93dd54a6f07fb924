"""A peer of another user says that a connection goes on by a socket of its own: the connection ends, and the socket is nobody's."""

import array
import contextlib
import socket

from harness import check
from host import wait_until
from hostile import (
    BASE, FIN, MOVED, SERVER, SERVER_SIDE, SLOTS, TAIL, Client, Stranger, message, ping, victim)
from matrix import case

RESET_MARK, MOVED_MARK = 2, 4
PASSES, PASSES_TAIL = b"\x02", b"\x03"


def pair():
    mine, his = socket.socketpair()
    mine.setblocking(False)
    # What the server reads, writes or polls would show here.
    mine.send(b"z" * 1000)
    return mine, his


def is_closed(mine):
    """Whether nobody has the other end any more, and nobody has read or written there."""
    try:
        check(not mine.recv(1), "the server wrote to the stranger's socket")
    except BlockingIOError:
        return False
    except ConnectionResetError:
        # What the stranger sent was still there (unix(7)).
        return True
    check(False, "the server read from the stranger's socket")
    return True


def mark(link, slot):
    link.word(link.line(slot) + FIN, MOVED_MARK)


def has_ended(link, slot):
    return not link.drain() or link.word(link.line(slot, SERVER_SIDE) + FIN) & RESET_MARK


def pass_over(sock, byte, fds):
    with contextlib.suppress(OSError):
        sock.sendmsg([byte], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def opened(port):
    link = Client(port)
    link.connect(1)
    link.await_taken(1)
    link.write(1, b"x")
    check(link.await_bytes(1)[0] == b"x", "the echo is wrong")
    return link


def passing(kinds, marked=True, times=1, slot=1):
    """Passes a socket with each of these messages."""
    def act(port):
        link = opened(port)
        ends = []
        if marked:
            mark(link, 1)
        for kind in kinds * times:
            mine, his = pair()
            link.say(kind, slot, 1, [his.fileno()])
            his.close()
            ends.append(mine)
        link.ring(1)
        return link, ends
    return act


def before_accept(port):
    link = Client(port)
    mine, his = pair()
    link.word(link.open(1) + 40, 1)
    mark(link, 1)
    link.say(MOVED, 1, 1, [his.fileno()])
    his.close()
    link.connect(1)
    return link, [mine]


def mark_alone(port):
    link = opened(port)
    mark(link, 1)
    link.ring(1)
    return link, []


def mark_of_the_server(port):
    """The word that only the server's own processes write."""
    link = opened(port)
    line = link.line(1, SERVER_SIDE)
    link.word(line + FIN, MOVED_MARK)
    mark(link, 1)
    link.ring(1)
    return link, []


def over_the_witness(byte, count):
    def act(port):
        link = opened(port)
        mine, his = socket.socketpair()
        link.say(BASE, 1, 1, [his.fileno()])
        his.close()
        ends = [pair() for _ in range(count)]
        pass_over(mine, byte, [his.fileno() for _, his in ends])
        for _, his in ends:
            his.close()
        link.ring(1)
        link.kept = mine
        return link, [mine for mine, _ in ends]
    return act


def no_message(port):
    """The message without the descriptor that belongs to it."""
    link = opened(port)
    link.control.send(message(MOVED, 1, 1))
    link.ring(1)
    return link, []


ACTS = {
    "moved": passing([MOVED]),
    "moved_without_a_mark": passing([MOVED], marked=False),
    "moved_twice": passing([MOVED], times=2),
    "tail": passing([TAIL], marked=False),
    "tail_and_moved": passing([TAIL, MOVED]),
    "tail_and_moved_often": passing([TAIL, MOVED], times=20),
    "slot_that_is_not_open": passing([MOVED], marked=False, slot=77),
    "slot_that_cannot_be": passing([MOVED], marked=False, slot=SLOTS + 5),
    "before_accept": before_accept,
    "mark_alone": mark_alone,
    "mark_of_the_server": mark_of_the_server,
    "no_descriptor": no_message,
    "over_the_witness": over_the_witness(PASSES, 1),
    "two_over_the_witness": over_the_witness(PASSES, 2),
    "tail_over_the_witness": over_the_witness(PASSES_TAIL, 2),
}


def depart(voice, port, what):
    link, ends = ACTS[what](port)
    wait_until(lambda: has_ended(link, 1), 30, f"{what}: the connection ends")
    wait_until(lambda: all(map(is_closed, ends)), 30, f"{what}: what was passed is closed")
    voice.say("ended")
    voice.hear()


@case(modes=SERVER, limit=180)
def hostile(ctx):
    server = victim(ctx)
    ping(server.port)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as other:
        for what in ACTS:
            with Stranger(depart, server.port, what) as stranger:
                stranger.hear("ended", 90)
                other.sendall(b"still here")
                check(other.recv(100) == b"still here", "another client is disturbed")
                ping(server.port)
    check(server.running(), "the server has ended")


def flood(voice, port):
    """A tail that never ends, and a socket that takes all of it."""
    link = opened(port)
    source, tail = pair()
    sink, socket_of_its_own = pair()
    link.say(TAIL, 1, 1, [tail.fileno()])
    mark(link, 1)
    link.say(MOVED, 1, 1, [socket_of_its_own.fileno()])
    link.ring(1)
    moved = 0
    voice.say("passed")
    while not voice.told():
        with contextlib.suppress(OSError):
            source.send(b"y" * 65536)
        with contextlib.suppress(OSError):
            moved += len(sink.recv(1 << 20))
    voice.say("moved", moved)


@case(modes=SERVER)
def flooding(ctx):
    server = victim(ctx)
    ping(server.port)
    with Stranger(flood, server.port) as stranger:
        stranger.hear("passed")
        for _ in range(20):
            ping(server.port)
        stranger.tell("enough")
        check(stranger.hear("moved") == 0, "the server carried bytes from one of the stranger's sockets to the other")
