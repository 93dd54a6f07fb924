"""Bytes of a stranger on the rendezvous socket: others are served on, nothing crashes, nothing is kept."""

import os
import socket
import struct
import threading

import host
from harness import check
from host import wait_until
from matrix import case
from redis_server import admin, start

BOTH = ("both",)
MB = 1 << 20


def names(server):
    """The rendezvous sockets of a server, found by what the kernel shows."""
    own = set(host.fds(server.pid).values())
    found = [n for n in host.abstract_names() if n[2] and f"socket:[{n[3]}]" in own]
    check(found, f"the server has no rendezvous among {host.abstract_names()}")
    return found


def dial(name):
    text, kind, _, _ = name
    s = socket.socket(socket.AF_UNIX, kind)
    s.settimeout(20)
    s.connect("\0" + text[1:])
    return s


def say(s, data, fds=()):
    """Send whatever the other side still takes: it may refuse us at any time."""
    try:
        if fds:
            socket.send_fds(s, [data], fds)
        else:
            s.send(data)
    except (BrokenPipeError, ConnectionResetError, TimeoutError, OSError):
        pass


def messages(ctx):
    """What a stranger may say: nothing, noise, numbers at their limits, long and short."""
    yield b""
    for size in (1, 2, 4, 8, 16, 24, 63, 64, 65, 128, 512, 4096, 65536):
        yield ctx.bytes(size)
        yield b"\0" * size
        yield b"\xff" * size
    for kind in range(12):
        for size in (8, 32, 96, 256):
            yield struct.pack("<II", kind, size) + ctx.bytes(size)
            yield struct.pack("<HHI", 1, kind, 0xFFFFFFFF) + b"\0" * size
    yield b"netacc" + b"\0" * 58
    yield b"GET / HTTP/1.1\r\n\r\n"


def served(ctx, server):
    ctx.run(ctx.script("redis_client.py", server.port, "multi", 1))
    ctx.run(ctx.script("redis_client.py", server.port, "multi", 1), role=None)


@case(modes=BOTH)
def garbage(ctx):
    server = start(ctx)
    served(ctx, server)
    load = ctx.client(["redis-benchmark", "-p", server.port, "-c", 10, "-n", 100000000, "-t", "set"])
    with admin(server) as r:
        wait_until(lambda: int(r.info("clients")["connected_clients"]) > 10, 30, "load runs")
    before = host.fds(server.pid)
    for name in names(server):
        for message in messages(ctx):
            with dial(name) as s:
                say(s, message)
        # Several messages, a close in the middle, and one that shuts down first.
        for _ in range(20):
            with dial(name) as s:
                for _ in range(5):
                    say(s, ctx.bytes(ctx.random.randrange(1, 300)))
        with dial(name) as s:
            s.shutdown(socket.SHUT_WR)
    check(load.running(), f"the load suffered: {load.tail(3)}")
    served(ctx, server)
    wait_until(lambda: len(host.fds(server.pid)) <= len(before) + 2, 30,
               f"strangers' descriptors are closed: {sorted(set(host.fds(server.pid).values()) - set(before.values()))[:8]}")
    ctx.prove(server, accepts=10)


@case(modes=BOTH)
def descriptors(ctx):
    """Descriptors sent along with noise are closed, whatever they are."""
    server = start(ctx)
    served(ctx, server)
    before = len(host.fds(server.pid))
    small = os.memfd_create("stranger")
    os.ftruncate(small, 4096)
    reader, writer = os.pipe()
    for name in names(server):
        for message in messages(ctx):
            with dial(name) as s:
                say(s, message or b"x", [small])
        for count in (2, 16, 100):
            with dial(name) as s:
                say(s, ctx.bytes(64), [reader] * count)
    served(ctx, server)
    wait_until(lambda: len(host.fds(server.pid)) <= before + 2, 30, "the strangers' descriptors are closed")
    held = set(host.fds(server.pid).values())
    check(os.readlink(f"/proc/self/fd/{reader}") not in held, "a stranger's pipe is still held")
    for fd in (reader, writer, small):
        os.close(fd)
    check(not [t for t in held if "stranger" in t], "a stranger's memory is still held")
    ctx.prove(server)


@case(modes=BOTH)
def silent_strangers(ctx):
    """Connections that say nothing, or half of something, hold up nobody."""
    server = start(ctx)
    before = len(host.fds(server.pid))
    held = []
    for name in names(server):
        for n in range(100):
            # A full queue of strangers is a refusal to the next stranger, not a hang for clients.
            s = socket.socket(socket.AF_UNIX, name[1])
            s.setblocking(False)
            try:
                s.connect("\0" + name[0][1:])
            except (BlockingIOError, ConnectionRefusedError):
                s.close()
                continue
            if n % 2:
                say(s, b"\x01")
            held.append(s)
    served(ctx, server)
    ctx.run(ctx.script("redis_client.py", server.port, "values", 5))
    for s in held:
        s.close()
    served(ctx, server)
    wait_until(lambda: len(host.fds(server.pid)) <= before + 4, 30, "silent strangers are forgotten")
    ctx.prove(server)


@case(modes=BOTH)
def false_server(ctx):
    """A stranger sits on the name of a port whose real server is plain: clients end up on TCP and work."""
    port = host.free_port()
    server = start(ctx, port=port)
    shown = [n for n in host.abstract_names() if n[0].endswith(f"/{port}")]
    check(shown, "the server has a name")
    server.end()
    squatters = []
    for text, kind, _, _ in {(n[0], n[1], 0, 0) for n in shown}:
        s = socket.socket(socket.AF_UNIX, kind)
        s.bind("\0" + text[1:])
        s.listen(64)
        squatters.append(s)
    def answer(s):
        while True:
            try:
                peer, _ = s.accept()
            except OSError:
                return
            say(peer, ctx.bytes(64))
            peer.close()

    threads = [threading.Thread(target=answer, args=(s,), daemon=True) for s in squatters]
    for thread in threads:
        thread.start()
    try:
        plain = start(ctx, role=None, port=port)
        ctx.run(ctx.script("redis_client.py", plain.port, "values", 6))
        ctx.run(ctx.script("redis_client.py", plain.port, "multi", 6))
    finally:
        for s in squatters:
            # An accept under way would keep a merely closed socket.
            s.shutdown(socket.SHUT_RDWR)
            s.close()
