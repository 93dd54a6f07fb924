"""netacc_ctl upgrade: the library is replaced by another file while the programs that it is loaded into work."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

import host
import test_memcached
import test_nginx
from harness import check, equal, need
from host import wait_until
from matrix import case
from operators import ctl, ctl_any, real, state
from redis_server import admin, start

CLIENTS = 100
# Says for each line of input how io_uring_setup(2) refuses a bad address, while the program has a connection.
ASKS = """
import ctypes, errno, select, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
listener = socket.create_server(("127.0.0.1", 0))
ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
print("ready", flush=True)
while select.select([sys.stdin, ends[0]], [], [])[0] and sys.stdin.readline():
    libc.syscall(425, 4, None)
    print(errno.errorcode[ctypes.get_errno()], flush=True)
"""
LIBRARY = "libnetacc-preload.so"


class Library:
    """The file from which the programs of a test have the library, and two others that take its place in turn."""

    def __init__(self, ctx):
        self.path = pathlib.Path(ctx.open_launcher()).with_name(LIBRARY)
        self.others = [ctx.dir / "plain.so", ctx.dir / "stripped.so"]
        shutil.copy(self.path, self.others[0])
        subprocess.run([need("strip"), "-o", self.others[1], self.path], check=True)

    def install(self):
        """Replaces the file as an installation does: by a rename."""
        fresh = self.path.with_name("fresh")
        shutil.copy(self.others[1], fresh)
        fresh.rename(self.path)
        self.others.reverse()

    def upgrade(self, *pids):
        """Has the processes replace the library, and checks that they have the new one. Returns how long it took (s)."""
        self.install()
        began = time.monotonic()
        ctl("upgrade", *pids)
        took = time.monotonic() - began
        for pid in pids:
            check(self.is_mapped(pid), f"process {pid} does not have the new library")
            equal(state(pid)["state"], "on", "the state after an upgrade")
        return took

    def is_mapped(self, pid):
        wanted = self.path.stat().st_ino
        with open(f"/proc/{pid}/maps") as maps:
            return any(line.split()[4] == str(wanted) and line.rstrip().endswith(LIBRARY) for line in maps)


@case(modes=("both",))
def redis_under_load(ctx):
    """100 clients, and as many of redis-benchmark beside them: no error and no wrong byte, in whichever program it is."""
    library = Library(ctx)
    server = start(ctx, readable=True)
    clients = ctx.client(ctx.script("ctl_clients.py", server.port, CLIENTS), stdin=subprocess.PIPE, readable=True)
    wait_until(lambda: "ready" in clients.text(), 30, "the clients are connected")
    load = ctx.client([need("redis-benchmark"), "-p", server.port, "-c", CLIENTS, "-n", 100000000, "-t", "set,get", "-d", 100],
                      readable=True)
    at_server, at_clients = real(server), real(clients)
    wait_until(lambda: state(at_server)["connections"]["shm"] >= 2 * CLIENTS, 30, "all are accelerated")
    took = [library.upgrade(*who) for who in ((at_server,), (at_server,), (at_clients,), (at_server, at_clients), (at_server,))]
    check(load.running(), f"redis-benchmark ended: {load.tail(3)}")
    # What is connected now is accelerated by the new library.
    ctx.run([need("redis-benchmark"), "-p", server.port, "-c", 20, "-n", 2000, "-q", "-t", "get"], readable=True)
    wait_until(lambda: state(at_clients)["connections"]["shm"] > 0, 30, "the clients' new connections are accelerated")
    check(load.running() and clients.running(), f"{load.tail(3)} {clients.tail(3)}")
    clients.popen.stdin.close()
    replies, longest = clients.result().split()[-2:]
    load.popen.kill()
    with admin(server) as r:
        equal(r.info("stats")["rejected_connections"], "0", "connections that redis refused")
    check(int(replies) > 20 * CLIENTS, f"only {replies} replies")
    print(f"{replies} replies, the longest pause {longest} ms; netacc_ctl took {max(took) * 1000:.0f} ms at most")


@case(modes=("both",))
def nginx_under_load(ctx):
    """The workers get another library twice while wrk keeps 50 connections busy, and wrk itself does."""
    library = Library(ctx)
    nginx = test_nginx.start(ctx, workers=2, readable=True)
    test_nginx.files(ctx)
    workers = host.children(nginx.pid)
    load = test_nginx.wrk(ctx, nginx, "f4096", 4, readable=True)
    wait_until(lambda: sum(state(pid)["connections"]["shm"] for pid in workers) >= 50, 30, "all are accelerated")
    for who in (workers, workers, [real(load)]):
        library.upgrade(*who)
    test_nginx.wrk_fine(load)
    test_nginx.wrk_fine(test_nginx.wrk(ctx, nginx, "f4096", 1, readable=True))
    test_nginx.no_crash(ctx, nginx)


@case(modes=("both",))
def threads(ctx):
    """memcached's four threads sleep in epoll instances of their own, and come out of all of them."""
    library = Library(ctx)
    server = test_memcached.start(ctx, readable=True)
    pid = real(server)
    seed = ctx.random.randrange(1 << 30)
    load = ctx.client(test_memcached.script(ctx, server, "values", seed), readable=True)
    wait_until(lambda: state(pid)["connections"]["shm"] > 0 or not load.running(), 30, "it is accelerated")
    for _ in range(3):
        library.upgrade(pid)
    load.result()
    # Asleep, without a connection.
    library.upgrade(pid)
    ctx.mark()
    ctx.run(test_memcached.script(ctx, server, "values", seed + 1), readable=True)
    ctx.prove(server, payload=1 << 20)


@case(modes=("both",))
def first_copy_is_no_program(ctx):
    """What the library has among its constants and in its code is not taken for the program's, whichever copy looks."""
    library = Library(ctx)
    # Usually EFAULT; some systems forbid rings.
    plain = subprocess.run([sys.executable, "-c", ASKS], input="\n", capture_output=True, text=True, check=True).stdout.split()[-1]
    program = ctx.client([sys.executable, "-c", ASKS], stdin=subprocess.PIPE, readable=True)
    wait_until(lambda: "ready" in program.text(), 30, "the program has a connection")
    pid = real(program)
    for turn in range(3):
        program.popen.stdin.write(b"\n")
        program.popen.stdin.flush()
        wait_until(lambda: len(program.text().split()) == turn + 2, 30, "it has asked for a ring")
        equal(program.text().split()[-1], plain, f"the answer after {turn} upgrades")
        library.upgrade(pid)
    program.popen.stdin.close()
    program.result()


@case(modes=("both",))
def file_that_is_overwritten(ctx):
    """What lies in the library's file once the process has replaced its library does it no harm."""
    library = Library(ctx)
    server = start(ctx, readable=True)
    pid = real(server)
    with accelerated_client(ctx, server):
        library.upgrade(pid)
        with open(library.path, "r+b") as file:
            file.write(b"\0" * library.path.stat().st_size)
        library.upgrade(pid)
        library.path.open("r+b").truncate(0)
        with admin(server) as r:
            for n in range(100):
                r.call("SET", f"key{n}", "value")
    check(server.running(), f"the server ended: {server.tail(3)}")


@contextlib.contextmanager
def aside(path):
    other = path.with_name("aside")
    path.rename(other)
    try:
        yield other
    finally:
        other.rename(path)


@case(modes=("both",))
def what_it_says(ctx):
    """A library that cannot take over is refused before anything changes, and the message says why."""
    library = Library(ctx)
    server = start(ctx, readable=True)
    pid = real(server)

    def refused(why):
        said = ctl("upgrade", pid, status=1)
        check("goes on with the library that it has" in said and why in said, said)
        equal(state(pid)["state"], "on", "the state after a refusal")
        # The client closes its connection and makes another one now and then.
        wait_until(lambda: state(pid)["connections"]["shm"] == 1, 30, "the client is still accelerated after a refusal")

    with accelerated_client(ctx, server):
        wait_until(lambda: state(pid)["connections"]["shm"] == 1, 30, "the client is accelerated")
        with aside(library.path) as whole:
            refused("cannot be read: No such file")
            for content in (b"", b"no library", whole.read_bytes()[:100000], pathlib.Path(need("redis-server")).read_bytes()):
                library.path.write_bytes(content)
                refused("not whole, or of a version")
            library.path.unlink()
            library.path.mkdir()
            refused("not whole, or of a version")
            library.path.rmdir()
        library.upgrade(pid)
    # A program that has opened no TCP socket.
    name = f"sleeps{os.getpid()}"
    link = ctx.dir / name
    link.symlink_to(need("sleep"))
    ctx.client([str(link), "60"], readable=True)
    wait_until(lambda: name in ctl_any("status", name, out=True), 20, "the program is found by its name")
    check("no TCP socket yet" in ctl("upgrade", name, status=1), "a program without a socket")


@contextlib.contextmanager
def accelerated_client(ctx, server):
    client = ctx.client(ctx.script("ctl_clients.py", server.port, 1), stdin=subprocess.PIPE, readable=True)
    wait_until(lambda: "ready" in client.text(), 30, "the client is connected")
    yield client
    client.popen.stdin.close()
    client.result()
