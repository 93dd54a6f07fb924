"""Hostile ends of a link: a client and a server of the rendezvous that say what they like. Nothing of the library is used; the
layout is that of docs/internals/shm.md and crates/netacc-transport/src/shm/segment.rs. They run in processes of another user,
which `Stranger` makes: the functions that it runs get a pipe to say what they found.
"""

import array
import contextlib
import fcntl
import json
import mmap
import os
import pathlib
import select
import signal
import socket
import struct
import sys
import time
import traceback

from harness import Skipped, check
from host import wait_until

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"

# An accelerated server whose clients are the test's own; clients that the test accelerates are started by it.
SERVER, CLIENT, BOTH = ("server",), ("client",), ("both",)

# A user that no program here has.
STRANGER = 12345

VERSION = 16
SLOTS = 512
SEALS = 0x1 | 0x2 | 0x4
F_ADD_SEALS = 1033
# Where a segment has what: the header's words, the connect queue, the slots, the ready sets, the windows.
SERVER_WORD, BACKLOG, SERVER_PID, KICK_ALL = 0, 4, 8, 20
PUSHED, POPPED = 64, 128
CLIENT_READY_SETS, QUEUE, SLOT, SERVER_READY_SETS = 256, 1280, 3328, 167168
SMALL, LARGE = 184320, 2281472
SLOT_SIZE, READY_SET_SIZE, WINDOW, LARGE_WINDOW = 320, 128, 2048, 262144
SEGMENT = LARGE + SLOTS * 2 * LARGE_WINDOW
# Offsets in the line of a side: the words of its producer, and those of its waiters.
FIN, SUBSCRIBER, RX_WAITER, TX_WAITER, WANT_ROOM, OWNER_READ, OWNER_WRITE, FORKED = 16, 32, 36, 40, 44, 52, 56, 60
# Offsets of the words of a connect.
GENERATION, OUTCOME, WHEN, SERVER_DONE = 40, 44, 48, 56
SERVER_OPEN, TAKEN = 1, 1
LIVENESS_WAKER = 0xFFFFFFFF
# Kinds of message on a control socket.
HELLO, WAKER, WAKE, LIVENESS, PROMOTE, SWITCH_TO_KERNEL, OLD_SUBFLOW = 1, 2, 3, 4, 5, 6, 7

CLIENT_SIDE, SERVER_SIDE = 0, 1


def name(port, scope="any4"):
    return b"\0netacc/%d/%s/%d" % (VERSION, scope.encode(), port)


def mark_listener(listener):
    """Marks a TCP listener as one that has a rendezvous: clients look for no name where the mark is missing."""
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)


def message(kind, first=0, second=0):
    return struct.pack("<4sHHI4xQ8x", b"NACC", VERSION, kind, first, second)


class Link:
    """What both hostile ends have: the segment, the control socket, and a side."""

    def __init__(self, control, segment, side):
        self.control, self.segment, self.side = control, segment, side

    def close(self):
        self.control.close()
        self.segment.close()

    def word(self, at, value=None):
        return self._access("<I", at, value)

    def long(self, at, value=None):
        return self._access("<Q", at, value)

    def _access(self, form, at, value):
        if value is None:
            return struct.unpack_from(form, self.segment, at)[0]
        return struct.pack_into(form, self.segment, at, value)

    def line(self, slot, side=None):
        """The offset of a side's line in a slot: the words about its own direction, and its waiters."""
        return SLOT + slot * SLOT_SIZE + 64 * (self.side if side is None else side)

    def consumer(self, slot, side=None):
        return SLOT + slot * SLOT_SIZE + 128 + 64 * (self.side if side is None else side)

    def open(self, slot):
        return SLOT + slot * SLOT_SIZE + 256

    def say(self, kind, first=0, second=0, fds=()):
        """A message, unless the control socket is full; false then, or if the other end is gone. Where the kernel knows
        SO_PASSRIGHTS it may refuse the descriptors for the other end: then the connection goes on."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.control.sendmsg([message(kind, first, second)], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except PermissionError:
            self.refused = True
            return False
        except OSError:
            return False
        return True

    refused = False

    def drain(self):
        """Discards messages of the other end; false once it has ended the link."""
        while True:
            try:
                if not self.control.recv(64, socket.MSG_DONTWAIT):
                    return False
            except BlockingIOError:
                return True
            except OSError:
                return False

    def ring(self, slot):
        """Tells the other end, as a correct one does, that there is something new in a slot."""
        other = 1 - self.side
        line = self.line(slot, other)
        channel = self.word(line + SUBSCRIBER)
        if 0 < channel < 64:
            near = channel < 4
            at = (CLIENT_READY_SETS if near else SERVER_READY_SETS) + ((channel if near else channel - 4) * 2 + other) * READY_SET_SIZE
            bits = at + 8 * (slot // 64)
            self.long(bits, self.long(bits) | 1 << slot % 64)
            if self.word(at + 64):
                self.word(at + 64, 0)
                self.wake(channel)
        waiter = self.word(line + RX_WAITER)
        if waiter:
            self.word(line + RX_WAITER, 0)
            self.wake(waiter)

    def wake(self, waker):
        if not self.say(WAKE, waker):
            self.word(KICK_ALL + 4 * (1 - self.side), 1)

    def window(self, slot, side):
        return SMALL + slot * 2 * WINDOW + side * WINDOW

    def write(self, slot, data):
        """At most one window in all."""
        line, at = self.line(slot), self.window(slot, self.side)
        head = self.long(line)
        for i, byte in enumerate(data):
            self.segment[at + (head + i) % WINDOW] = byte
        self.long(line, head + len(data))
        self.ring(slot)

    def read(self, slot):
        head, at = self.long(self.line(slot, 1 - self.side)), self.window(slot, 1 - self.side)
        consumer = self.consumer(slot)
        tail = self.long(consumer)
        data = bytes(self.segment[at + i % WINDOW] for i in range(tail, min(head, tail + WINDOW)))
        self.long(consumer, tail + len(data))
        return data


class Client(Link):
    """A client of somebody's rendezvous."""

    def __init__(self, port, scope="any4", hello=True):
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(5)
        control.connect(name(port, scope))
        control.setblocking(False)
        memory = os.memfd_create("netacc-link", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, SEGMENT)
        fcntl.fcntl(memory, F_ADD_SEALS, SEALS)
        super().__init__(control, mmap.mmap(memory, SEGMENT), CLIENT_SIDE)
        self.port, self.pushed, self.memory = port, 0, memory
        if hello:
            self.hello()

    def hello(self):
        """The first message, which brings the segment."""
        self.say(HELLO, os.getpid(), SEGMENT, [self.memory])
        os.close(self.memory)

    def connect(self, slot, source=40000, generation=1):
        """Queues a connect from 127.0.0.1 to there."""
        at = self.open(slot)
        for side, port in enumerate((source, self.port)):
            self.word(at + 16 * side, 0x7F000001)
            self.word(at + 32 + 4 * side, socket.AF_INET << 16 | port)
        self.word(at + GENERATION, generation)
        self.word(at + OUTCOME, 0)
        self.long(at + WHEN, time.monotonic_ns())
        self.word(QUEUE + 4 * (self.pushed % SLOTS), slot)
        self.pushed += 1
        self.long(PUSHED, self.pushed)
        self.ring(0)

    def taken(self, slot):
        return self.word(self.open(slot) + OUTCOME) == TAKEN

    def await_taken(self, slot, limit=30):
        def taken():
            check(self.drain(), f"the server ends the link before it takes slot {slot}")
            return self.taken(slot)
        wait_until(taken, limit, f"the server takes slot {slot}")

    def await_bytes(self, slot, limit=30):
        """What comes first; the time that it took, in seconds."""
        begin, found = time.monotonic(), b""

        def arrived():
            nonlocal found
            found = self.read(slot)
            return found
        wait_until(arrived, limit, f"bytes come in slot {slot}")
        return found, time.monotonic() - begin


class Server(Link):
    """A server's end of a link that a client made."""

    def __init__(self, control):
        _, rights, _, _ = control.recvmsg(64, socket.CMSG_SPACE(4))
        memory = array.array("i")
        memory.frombytes(rights[0][2][:4])
        super().__init__(control, mmap.mmap(memory[0], SEGMENT), SERVER_SIDE)
        os.close(memory[0])
        control.setblocking(False)
        self.word(BACKLOG, 100)
        self.word(SERVER_WORD, SERVER_OPEN)
        self.popped = 0

    def accept(self):
        """The slot of a connect that waits, or None."""
        if self.long(PUSHED) == self.popped:
            return None
        slot = self.word(QUEUE + 4 * (self.popped % SLOTS))
        self.popped += 1
        self.long(POPPED, self.popped)
        self.word(self.open(slot) + OUTCOME, TAKEN)
        return slot


class Squatter:
    """A false service: answers `what` to everything on every link that comes to its rendezvous."""

    def __init__(self, port, scope, what):
        self.rendezvous = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.rendezvous.bind(name(port, scope))
        self.rendezvous.listen(64)
        self.rendezvous.setblocking(False)
        self.what, self.links, self.got = what, [], []

    def leave(self):
        """Takes no further links, and goes on with those that there are."""
        self.rendezvous.close()
        self.rendezvous = None

    def step(self):
        """Does what there is to do once."""
        if self.rendezvous:
            # A client that has checked the owner of the rendezvous may leave without a message.
            with contextlib.suppress(BlockingIOError, IndexError):
                control, _ = self.rendezvous.accept()
                control.settimeout(5)
                self.links.append((Server(control), []))
        for link, slots in self.links:
            link.drain()
            slot = link.accept()
            if slot is not None:
                slots.append(slot)
            for slot in slots:
                data = link.read(slot)
                if data:
                    self.got.append(data)
                    link.write(slot, self.what)


class Stranger:
    """A function in a process of another user. It is called with a `Voice`; the test ends it."""

    def __init__(self, function, *args, uid=STRANGER):
        if os.getuid() != 0:
            raise Skipped("only root can be another user")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            self._be(Voice(theirs), function, args, uid)
        theirs.close()
        self.voice = Voice(ours)

    @staticmethod
    def _be(voice, function, args, uid):
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            function(voice, *args)
            voice.say("done")
        except BaseException:
            voice.say("failed", traceback.format_exc(limit=-3))
        os._exit(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.voice.close()

    def hear(self, what, limit=60):
        """The next that it says, which has to be this; what comes with it."""
        said = self.voice.hear(limit)
        check(said[0] == what, f"the stranger says {said} instead of {what}")
        return said[1]

    def tell(self, what, more=None):
        self.voice.say(what, more)


class Voice:
    """One end of what a test and a stranger say to each other."""

    def __init__(self, sock):
        self.sock = sock

    def say(self, what, more=None):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.send(json.dumps([what, more]).encode())

    def hear(self, limit=60):
        self.sock.settimeout(limit)
        text = self.sock.recv(65536)
        return json.loads(text) if text else ["end", None]

    def told(self):
        """Whether something has come."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def close(self):
        self.sock.close()


def victim(ctx, address="0.0.0.0", **spawn):
    """An ordinary epoll server; accelerated as the test's mode says."""
    return ctx.serve(lambda port: [sys.executable, PROGRAMS / "epoll_echo.py", address, port], **spawn)


def ping(port, address="127.0.0.1", limit=60):
    """Asks a server by plain TCP; the time that connect, request and answer took, in seconds."""
    begin = time.monotonic()
    with socket.create_connection((address, port), timeout=limit) as s:
        s.sendall(b"ping")
        check(s.recv(4) == b"ping", "the echo is wrong")
    return time.monotonic() - begin
