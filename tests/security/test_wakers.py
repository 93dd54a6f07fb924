"""Wakers between users: datagram sockets that are found by a name. A peer may use its own and ours as it likes."""

import array
import contextlib
import os
import pathlib
import socket
import struct
import time

from harness import check
from hostile import RX_WAITER, SERVER, SERVER_SIDE, SUBSCRIBER, VERSION, WAKER, Client, Stranger, message, ping, victim
from host import wait_until
from matrix import case

# A user that is neither the server's nor its peer's.
THIRD = 23456
SLOT = 1


def name(token):
    return b"\0netacc/%d/waker/%08x" % (VERSION, token >> 32)


def proof(token):
    return struct.pack(">I", token & 0xFFFFFFFF)


class Waking(Client):
    """A client that keeps the tokens of the server's wakers, by their numbers."""

    def __init__(self, port):
        self.tokens = {}
        super().__init__(port)
        self.sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sender.setblocking(False)

    def drain(self):
        while True:
            try:
                data = self.control.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            _, _, kind, number, token = struct.unpack("<4sHHI4xQ8x", data)
            if kind == WAKER and token:
                self.tokens[number] = token

    def wake(self, waker):
        self.drain()
        token = self.tokens.get(waker)
        if token is None:
            return super().wake(waker)
        with contextlib.suppress(OSError):
            self.sender.sendto(proof(token), name(token))

    def announce(self, number, token):
        self.control.send(message(WAKER, number, token))

    def sleeps_by(self, number):
        """Says that a thread of ours sleeps for the server's answer by this waker, and that an epoll instance does."""
        line = self.line(SLOT)
        self.word(line + RX_WAITER, number)
        self.word(line + SUBSCRIBER, 0)


def opened(port):
    link = Waking(port)
    link.connect(SLOT, 41000)
    link.await_taken(SLOT)
    echo(link)
    return link


def echo(link):
    link.write(SLOT, b"q")
    check(link.await_bytes(SLOT)[0] == b"q", "the echo is wrong")


def of_the_server(link):
    """The number and the token of the waker by which the server's epoll instance is woken."""
    number = link.word(link.line(SLOT, SERVER_SIDE) + SUBSCRIBER)
    wait_until(lambda: link.drain() and number in link.tokens, 30, f"the server tells of waker {number}")
    return link.tokens[number]


def flood(link):
    """Datagrams as fast as they go."""
    token = of_the_server(link)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            link.sender.sendto(proof(token), name(token))


def never_read(link):
    """A waker of ours that is rung again and again, and never read: it fills, and so does the server's buffer."""
    for number in range(100, 140):
        ours, token = waker_of_ours(number)
        link.kept.append(ours)
        link.announce(number, token)
    for _ in range(30):
        for number in range(100, 140):
            link.sleeps_by(number)
            echo(link)


def close_it(link):
    """A waker that is told of, rung once, and then gone."""
    ours, token = waker_of_ours(7)
    link.announce(100, token)
    for closed in (False, True):
        if closed:
            ours.close()
        for _ in range(3):
            link.sleeps_by(100)
            echo(link)


def of_another_kind(link):
    """At the name is a listening socket, which a send that waited would wait for."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        token = 0x1000 + kind << 32 | 5
        ours = socket.socket(socket.AF_UNIX, kind)
        ours.bind(name(token))
        ours.listen(0)
        link.kept.append(ours)
        link.announce(100, token)
        link.sleeps_by(100)
        echo(link)


def thousands(link):
    """A token for each number that there is, many that there are not, and each of them again and again."""
    for number in (*range(2000), 0xFFFFFFFF, 0x80000000):
        for token in (number << 32 | 1, 0xFFFFFFFFFFFFFFFF):
            while True:
                try:
                    link.announce(number, token)
                    break
                except BlockingIOError:
                    time.sleep(0.001)
        if number % 100 == 0:
            echo(link)


def descriptors(link):
    """Descriptors in the server's waker, which the kernel refuses where it can; elsewhere the link ends."""
    token = of_the_server(link)
    listener = socket.create_server(("127.0.0.1", 0))
    lingers = socket.create_connection(listener.getsockname())
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    lingers.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            lingers.send(b"x" * 65536)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [lingers.fileno()]))]
    try:
        link.sender.sendmsg([proof(token)], rights, socket.MSG_DONTWAIT, name(token))
    except PermissionError:
        echo(link)
        return
    link.kept += [listener]
    lingers.close()
    wait_until(lambda: not link.drain(), 30, "the server ends the link")


def with_a_descriptor(link):
    """The eventfd of a waker, as one that is trusted passes it."""
    link.say(WAKER, 100, 0, [os.eventfd(0)])
    if not link.refused:
        wait_until(lambda: not link.drain(), 30, "the server ends the link")


def waker_of_ours(number):
    token = 0xABC00000 + number << 32 | 9
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.bind(name(token))
    return ours, token


ACTS = {act.__name__: act for act in (
    flood, never_read, close_it, of_another_kind, thousands, descriptors, with_a_descriptor)}


def do(voice, port, what):
    link = opened(port)
    link.kept = []
    ACTS[what](link)
    voice.say("ended")
    voice.hear()


def numbers(proc):
    return len(os.listdir(f"/proc/{proc.pid}/fd"))


@case(modes=SERVER, limit=180)
def hostile(ctx):
    server = victim(ctx)
    ping(server.port)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as other:
        # The server has accepted the connection when it answers, and has its descriptor.
        other.sendall(b"here")
        check(other.recv(100) == b"here", "the first answer is wrong")
        before = numbers(server)
        for what in ACTS:
            with Stranger(do, server.port, what) as stranger:
                stranger.hear("ended", 90)
                other.sendall(b"still here")
                check(other.recv(100) == b"still here", "another client is disturbed")
                ping(server.port)
                # Its link has a control socket, two wakers and the socket by which its own are rung.
                wait_until(lambda: numbers(server) <= before + 6, 30, f"{what}: the server has its {before} descriptors and six more")
        wait_until(lambda: numbers(server) <= before + 1, 30, "the server closes what belongs to the links")
    check(server.running(), "the server has ended")


def idle(voice, port):
    link = opened(port)
    voice.say("open")
    voice.hear()
    echo(link)
    voice.say("answered")
    voice.hear()


def knock(voice):
    """Datagrams to all wakers that there are, whose names everybody sees."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
    wakers = [b"\0" + line.split("@", 1)[1].encode() for line in lines if f"@netacc/{VERSION}/waker/" in line]
    check(wakers, "no waker has a name")
    for i in range(50000):
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            sender.sendto(struct.pack(">I", i), socket.MSG_DONTWAIT, wakers[i % len(wakers)])


def switches(proc):
    """How often the threads of a process have gone to sleep."""
    status = pathlib.Path(f"/proc/{proc.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


@case(modes=SERVER)
def a_third_user_wakes_nobody(ctx):
    server = victim(ctx)
    ping(server.port)
    with Stranger(idle, server.port) as peer:
        peer.hear("open")
        before = switches(server)
        with Stranger(knock, uid=THIRD) as third:
            third.hear("done")
        woken = switches(server) - before
        check(woken < 50, f"the server has woken {woken} times")
        peer.tell("go")
        peer.hear("answered")
