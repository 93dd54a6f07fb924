"""A peer of another user passes a socket of its own for a connection: it ends, and no process has the socket."""

import array
import contextlib
import os
import shutil
import socket
import stat
import sys

import host
from harness import check, equal
from host import wait_until
from hostile import (
    LIVENESS, CLIENT, GENERATION, FIN, SWITCH_TO_KERNEL, PROGRAMS, SERVER, SERVER_SIDE, SLOTS, OLD_SUBFLOW, Client, Server, Stranger,
    mark_listener, message, name, ping, victim)
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
    """Whether no process has the other end any more, and none has read or written there."""
    try:
        check(not mine.recv(1), "the server wrote to the stranger's socket")
    except BlockingIOError:
        return False
    except ConnectionResetError:
        # What the stranger sent was still there (unix(7)).
        return True
    check(False, "the server read from the stranger's socket")
    return True


def await_closed(ends):
    # The ends are checked one after the other, since the error is reported only once.
    for mine in ends:
        wait_until(lambda mine=mine: is_closed(mine), 30, "what was passed is closed")


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
    link.word(link.open(1) + GENERATION, 1)
    mark(link, 1)
    link.say(SWITCH_TO_KERNEL, 1, 1, [his.fileno()])
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
        link.say(LIVENESS, 1, 1, [his.fileno()])
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
    link.control.send(message(SWITCH_TO_KERNEL, 1, 1))
    link.ring(1)
    return link, []


ACTS = {
    "moved": passing([SWITCH_TO_KERNEL]),
    "moved_without_a_mark": passing([SWITCH_TO_KERNEL], marked=False),
    "moved_twice": passing([SWITCH_TO_KERNEL], times=2),
    "tail": passing([OLD_SUBFLOW], marked=False),
    "tail_and_moved": passing([OLD_SUBFLOW, SWITCH_TO_KERNEL]),
    "tail_and_moved_often": passing([OLD_SUBFLOW, SWITCH_TO_KERNEL], times=20),
    "slot_that_is_not_open": passing([SWITCH_TO_KERNEL], marked=False, slot=77),
    "slot_that_cannot_be": passing([SWITCH_TO_KERNEL], marked=False, slot=SLOTS + 5),
    "before_accept": before_accept,
    "mark_alone": mark_alone,
    "mark_of_the_server": mark_of_the_server,
    "no_descriptor": no_message,
    "over_the_witness": over_the_witness(PASSES, 1),
    "two_over_the_witness": over_the_witness(PASSES, 2),
    "tail_over_the_witness": over_the_witness(PASSES_TAIL, 2),
}


def leave(voice, port, what):
    link, ends = ACTS[what](port)
    wait_until(lambda: link.refused or has_ended(link, 1), 30, f"{what}: the connection ends")
    await_closed(ends)
    voice.say("ended")
    voice.hear()


@case(modes=SERVER, limit=180)
def hostile(ctx):
    server = victim(ctx)
    ping(server.port)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as other:
        for what in ACTS:
            with Stranger(leave, server.port, what) as stranger:
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
    link.say(OLD_SUBFLOW, 1, 1, [tail.fileno()])
    mark(link, 1)
    link.say(SWITCH_TO_KERNEL, 1, 1, [socket_of_its_own.fileno()])
    link.ring(1)
    moved = 0
    voice.say("passed")
    while not voice.told():
        with contextlib.suppress(OSError):
            source.send(b"y" * 65536)
        with contextlib.suppress(OSError):
            moved += len(sink.recv(1 << 20))
    voice.hear()
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


class Collector(Client):
    """Keeps the descriptors that the server passes."""

    def __init__(self, port):
        self.passed = []
        super().__init__(port)

    def drain(self):
        while True:
            try:
                data, rights, _, _ = self.control.recvmsg(64, socket.CMSG_SPACE(4), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            for _, _, fds in rights:
                self.passed += [(data, fd) for fd in array.array("i", fds[:4])]
            if not data:
                return False


def depart_from_a_child(voice, port, byte, count):
    link = Collector(port)
    link.connect(1)
    link.await_taken(1)
    link.write(1, b"x")
    check(link.await_bytes(1)[0] == b"x", "the echo is wrong")
    link.drain()
    held = [fd for data, fd in link.passed if data[6] == LIVENESS and stat.S_ISSOCK(os.fstat(fd).st_mode)]
    ends = []
    for fd in held:
        passed = [pair() for _ in range(count)]
        pass_over(socket.socket(fileno=os.dup(fd)), byte, [his.fileno() for _, his in passed])
        for mine, his in passed:
            his.close()
            ends.append(mine)
    if held:
        wait_until(lambda: has_ended(link, 1), 30, "the connection ends")
    await_closed(ends)
    voice.say("ended")
    voice.hear()


@case(modes=SERVER)
def hostile_to_a_child(ctx):
    """The same over what a server gives its peer before it forks."""
    server = ctx.serve(lambda port: [sys.executable, PROGRAMS / "fork_echo.py", "0.0.0.0", port])
    ping(server.port)
    for byte, count in (PASSES, 1), (PASSES, 2), (PASSES_TAIL, 3):
        with Stranger(depart_from_a_child, server.port, byte, count) as stranger:
            stranger.hear("ended", 90)
            ping(server.port)


def never_dials(voice, port):
    """Has a connection with a child of the server, and takes no notice of what the child says of it."""
    link = Client(port)
    link.connect(1)
    link.await_taken(1)
    link.write(1, b"x")
    check(link.await_bytes(1)[0] == b"x", "the echo is wrong")
    voice.say("there")
    voice.hear()


@case(modes=SERVER)
def killed_before_a_child_hears_of_it(ctx):
    """The child ends with its connection, also where the peer is in a PID namespace of which the child knows nothing."""
    for within in [], ["unshare", "--pid", "--fork", "--kill-child"]:
        server = ctx.serve(lambda port: [sys.executable, PROGRAMS / "fork_echo.py", "0.0.0.0", port], within=within)
        ping(server.port)
        wait_until(lambda: len(host.descendants(server.pid)) == len(within[:1]), 30, "the child of the ping has ended")
        with Stranger(never_dials, server.port) as stranger:
            stranger.hear("there")
            check(len(host.descendants(server.pid)) == 1 + len(within[:1]), "a child has the connection")
        wait_until(lambda: len(host.descendants(server.pid)) == len(within[:1]), 30, "the child ends with its connection")
        server.kill()


def serve_and_depart(voice, kinds):
    """A server that passes its clients sockets of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    mark_listener(listener)
    port = listener.getsockname()[1]
    rendezvous = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rendezvous.bind(name(port, "7f000001"))
    rendezvous.listen(8)
    voice.say("listens", port)
    control, _ = rendezvous.accept()
    link = Server(control)
    slot = None

    def taken():
        nonlocal slot
        link.drain()
        slot = link.accept()
        return slot is not None
    wait_until(taken, 30, "a connect comes")
    wait_until(lambda: link.read(slot) == b"question", 30, "the question comes")
    ends = []
    mark(link, slot)
    for kind in kinds:
        mine, his = pair()
        link.say(kind, slot, link.word(link.open(slot) + GENERATION), [his.fileno()])
        his.close()
        ends.append(mine)
    link.ring(slot)
    await_closed(ends)
    voice.say("ended")
    voice.hear()


@case(modes=CLIENT)
def hostile_server(ctx):
    shutil.copy(PROGRAMS / "asker.py", ctx.dir)
    for kinds in [SWITCH_TO_KERNEL], [OLD_SUBFLOW], [OLD_SUBFLOW, SWITCH_TO_KERNEL], []:
        with Stranger(serve_and_depart, kinds) as stranger:
            question, feed = os.pipe()
            client = ctx.client([sys.executable, ctx.dir / "asker.py", "127.0.0.1", stranger.hear("listens")], stdin=question)
            os.close(question)
            os.write(feed, b"question\n")
            os.close(feed)
            stranger.hear("ended", 90)
            equal(client.wait(), 0, "status of the client")
            equal(client.stdout().strip(), "ConnectionResetError", "what the client gets")
