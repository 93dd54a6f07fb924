"""The server of a connection is the owner of the TCP listener at that moment, and not an earlier owner."""

import os
import shutil
import socket
import struct
import sys
import time
import types

from harness import check, equal
from hostile import CLIENT, PROGRAMS, STRANGER, Squatter, Stranger, mark_listener
from host import wait_until
from matrix import case

SO_COOKIE = 57
FALSE = b"false answer"
TRUE = b"true answer"


def squat(voice, address, scope, keeps, shared):
    """Serves the clients of a port, as a program that listens there may; releases the port on request, and goes
    on. It `keeps` the rendezvous then, or not. A `shared` port has one that is named after the socket."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        scope = f"{int.from_bytes(listener.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder):016x}"
    listener.bind((address, 0))
    listener.listen(8)
    mark_listener(listener)
    port = listener.getsockname()[1]
    squatter = Squatter(port, scope, FALSE)
    voice.say("listens", port)
    while True:
        squatter.step()
        time.sleep(0.001)
        if voice.told():
            if voice.hear()[0] == "give the port back":
                listener.close()
                if not keeps:
                    squatter.leave()
            voice.say("got", [data.decode() for data in squatter.got])


class Asker:
    """A client that connects anew for each question."""

    def __init__(self, ctx, address, port, **spawn):
        self.questions = os.pipe()
        shutil.copy(PROGRAMS / "asker.py", ctx.dir)
        # The interpreter of this process may lie where other users may not look.
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        self.proc = ctx.client([python, ctx.dir / "asker.py", address, port], stdin=self.questions[0], **spawn)
        os.close(self.questions[0])
        self.count = 0

    def ask(self, what):
        os.write(self.questions[1], what + b"\n")
        self.count += 1
        wait_until(lambda: self.proc.stdout().count("\n") >= self.count or not self.proc.running(), 60, "an answer comes")
        check(self.proc.running(), f"the client ended: {self.proc.tail()}")
        return self.proc.stdout().splitlines()[self.count - 1].encode()

    def end(self):
        os.close(self.questions[1])
        equal(self.proc.wait(), 0, "status of the client")


def taken_over(ctx, at=("127.0.0.1", "7f000001"), then="0.0.0.0", user=STRANGER, client=None, keeps=False, shared=False):
    """A client asks a squatter while the port is the squatter's, and then the service of root that has it afterwards."""
    address, scope = at
    with Stranger(squat, address, scope, keeps, shared, uid=user) as squatter:
        port = squatter.hear("listens")
        target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
        asker = Asker(ctx, target, port, **({} if client is None else {"user": client, "readable": True}))
        equal([asker.ask(b"first"), asker.ask(b"second")], [FALSE] * 2, "answers of the first owner")
        squatter.tell("give the port back")
        equal(squatter.hear("got"), ["first", "second"], "what came over shared memory")
        ctx.serve(lambda port: [sys.executable, PROGRAMS / "answer.py", then, port, TRUE.decode()], port=port)
        equal([asker.ask(b"secret") for _ in range(3)], [TRUE] * 3, "answers when the port is another one's")
        squatter.tell("what?")
        equal(squatter.hear("got"), ["first", "second"], "what the first owner got in all")
        asker.end()


@case(modes=CLIENT)
def another_user_had_the_port(ctx):
    taken_over(ctx)


@case(modes=CLIENT)
def another_user_keeps_the_rendezvous(ctx):
    taken_over(ctx, keeps=True)


@case(modes=CLIENT)
def another_user_had_every_address(ctx):
    taken_over(ctx, at=("0.0.0.0", "any4"), then="127.0.0.1", keeps=True)


@case(modes=CLIENT)
def another_user_had_both_families(ctx):
    taken_over(ctx, at=("::", "any"), then="::", keeps=True)


@case(modes=CLIENT)
def another_user_shared_the_port(ctx):
    taken_over(ctx, shared=True, keeps=True)


@case(modes=CLIENT)
def the_same_user_had_the_port(ctx):
    taken_over(ctx, user=0)


@case(modes=CLIENT)
def the_clients_user_keeps_the_rendezvous_of_a_port_of_root(ctx):
    taken_over(ctx, client=types.SimpleNamespace(pw_uid=STRANGER, pw_gid=STRANGER), keeps=True)


def notes_users(voice):
    """Serves, and says the users that the kernel names with what comes over links."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)
    mark_listener(listener)
    squatter = Squatter(listener.getsockname()[1], "7f000001", TRUE)
    voice.say("listens", listener.getsockname()[1])
    while not voice.told():
        squatter.step()
        time.sleep(0.001)
    for link, _ in squatter.links:
        link.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    voice.say(voice.hear()[0], len(squatter.links))
    for link, _ in squatter.links:
        link.control.settimeout(60)
        _, notes, _, _ = link.control.recvmsg(64, socket.CMSG_SPACE(12))
        voice.say("user", struct.unpack("3i", notes[0][2])[1])
    while not voice.told():
        squatter.step()
        time.sleep(0.001)


def becomes_another_user(ctx, how):
    """A program of root's that gives that up says so on its links, unasked; its connections go on."""
    with Stranger(notes_users, uid=0) as server:
        asker = Asker(ctx, "127.0.0.1", server.hear("listens"))
        equal(asker.ask(b"first"), TRUE, "the answer to root")
        server.tell("note")
        equal(server.hear("note"), 1, "links")
        equal(asker.ask(f"{how} {STRANGER}".encode()), str(STRANGER).encode(), "the user of the client")
        equal(server.hear("user"), STRANGER, "the user that the link's other end hears of")
        asker.end()


@case(modes=CLIENT)
def setuid_is_told(ctx):
    becomes_another_user(ctx, "setuid")


@case(modes=CLIENT)
def setreuid_is_told(ctx):
    becomes_another_user(ctx, "setreuid")


@case(modes=CLIENT)
def setresuid_is_told(ctx):
    becomes_another_user(ctx, "setresuid")


@case(modes=CLIENT)
def setresuid_by_syscall_is_told(ctx):
    becomes_another_user(ctx, "syscall")


def listen_twice(voice):
    """Has a port, gives it up without a word to its clients, and takes it again with another socket."""
    def listener(port):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(8)
        mark_listener(sock)
        return sock
    now = listener(0)
    port = now.getsockname()[1]
    squatter = Squatter(port, "7f000001", TRUE)
    voice.say("listens", port)
    while True:
        squatter.step()
        time.sleep(0.001)
        if voice.told():
            what, _ = voice.hear()
            if what == "close":
                now.close()
            elif what == "open":
                now = listener(port)
            voice.say(what, len(squatter.got))


@case(modes=CLIENT)
def a_listener_that_is_gone_refuses(ctx):
    """Clients are refused when the listener is gone, whichever process has the link."""
    with Stranger(listen_twice) as squatter:
        port = squatter.hear("listens")
        asker = Asker(ctx, "127.0.0.1", port)
        equal(asker.ask(b"a"), TRUE, "the answer of the process that listens")
        squatter.tell("close")
        squatter.hear("close")
        equal([asker.ask(b"b"), asker.ask(b"b")], [b"ConnectionRefusedError"] * 2, "answers without a listener")
        squatter.tell("open")
        equal(squatter.hear("open"), 1, "questions that came in all")
        # Its rendezvous is found again when the client looks there anew; until then it connects by TCP, where no
        # process accepts.
        time.sleep(0.1)
        equal([asker.ask(b"c"), asker.ask(b"c")], [TRUE] * 2, "answers of the process that listens again")
        asker.end()
