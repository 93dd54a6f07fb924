"""probes.py ROLE ADDRESS PORT: clients that send a probe before they connect, and programs that answer it.

    client    makes one connection, sends a line and gets a byte; prints whether the libraries of RDMA were loaded, and its
              threads. WAY says what it does meanwhile: it waits in recv or poll, or in no call of ours, writes more than is
              accepted, or does not wait; or it hands the connection on at once: to a child, to another program, or by
              passing it to another process
    twice     connects to a port at which a probe is answered but no connection is possible, and then to the next port; prints
              the results
    library   loads a library that connects in its constructor
    goes-on   is the other program that gets the connection
    plain     is the server of such clients; prints how long the lines were
    door      answers probes at PORT + 20000 as a server that is reachable by RDMA does, and prints how many came
    deaf      holds that port and answers nothing
    garbage   sends datagrams of all kinds to that port, and prints how many were answered
"""

import ctypes
import errno
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys

MAGIC, QUESTION, ANSWER = b"NAPR", 1, 2
NONCE = bytes(range(16))
# More bytes than a connection accepts before the other end reads.
LONG = 2_000_000


def said(kind, version, magic=MAGIC, nonce=NONCE):
    return magic + version.to_bytes(2, "little") + bytes((kind, 0)) + nonce


def client(address, port):
    with socket.create_connection((address, port)) as s:
        way = os.environ.get("WAY", "recv")
        if way in HANDED:
            HANDED[way](s)
            return
        s.sendall(b"?" * (LONG if way == "full" else 10) + b"\n")
        if way == "asleep":
            signal.pause()
        if way == "poll":
            s.setblocking(False)
            poll = select.poll()
            poll.register(s, select.POLLIN)
            assert poll.poll(60_000) == [(s.fileno(), select.POLLIN)], "nothing in a minute"
        if way != "close":
            assert s.recv(1) == b"!", "another byte"
        maps = pathlib.Path("/proc/self/maps").read_text()
    print("loaded" if "libibverbs" in maps else f"not loaded, {len(os.listdir('/proc/self/task'))} thread", flush=True)


def exchange(s):
    s.sendall(b"?" * 10 + b"\n")
    assert s.recv(1) == b"!", "another byte"


def forked(s):
    child = os.fork()
    if not child:
        exchange(s)
        os._exit(0)
    s.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child failed"
    print("went on", flush=True)


def executed(s):
    s.set_inheritable(True)
    os.execv(sys.executable, [sys.executable, __file__, "goes_on", str(s.fileno()), "0"])


def spawned(s):
    argv = [sys.executable, __file__, "goes_on", str(s.fileno()), "0"]
    with subprocess.Popen(argv, pass_fds=[s.fileno()]) as other:
        s.close()
    assert other.returncode == 0, "the other program failed"


def passed(s):
    here, there = socket.socketpair()
    with subprocess.Popen([sys.executable, __file__, "goes_on", str(there.fileno()), "1"], pass_fds=[there.fileno()]) as other:
        there.close()
        socket.send_fds(here, [b"x"], [s.fileno()])
        s.close()
    assert other.returncode == 0, "the other process failed"


HANDED = {"fork": forked, "exec": executed, "spawn": spawned, "pass": passed}


def goes_on(fd, is_passed):
    s = socket.socket(fileno=int(fd))
    if is_passed:
        _, fds, _, _ = socket.recv_fds(s, 1, 1)
        s = socket.socket(fileno=fds[0])
    exchange(s)
    print("went on", flush=True)


def twice(address, port):
    for at in (port, port + 1):
        try:
            with socket.create_connection((address, at)) as s:
                s.recv(1)
                print("connected", flush=True)
        except OSError as e:
            print(errno.errorcode[e.errno], flush=True)


def library(address, port):
    os.environ.update(ADDRESS=address, PORT=str(port))
    ctypes.CDLL(str(pathlib.Path(__file__).parents[2] / "build" / "tests" / "rdma" / "constructor.so"))
    print("loaded", flush=True)


def plain(address, port):
    with socket.create_server((address, port)) as listener:
        print("ready", flush=True)
        while True:
            s, _ = listener.accept()
            with s:
                got = bytearray()
                while not got.endswith(b"\n") and (piece := s.recv(65536)):
                    got += piece
                print("got", len(got), flush=True)
                if got:
                    s.sendall(b"!")


def bound(address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, port + 20000))
    print("ready", flush=True)
    return s


def door(address, port):
    s = bound(address, port)
    while True:
        asked, who = s.recvfrom(100)
        assert asked[6] == QUESTION and len(asked) == 24, asked
        s.sendto(asked[:6] + bytes((ANSWER,)) + asked[7:], who)
        print("asked", flush=True)


def deaf(address, port):
    s = bound(address, port)
    while True:
        s.recv(100)


def garbage(address, port):
    version = int(os.environ["VERSION"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((address, port + 20000))
        right = said(QUESTION, version)
        wrong = [b"", b"x", right[:-1], right + b"\0", bytes(24), os.urandom(24), said(ANSWER, version), said(3, version),
                 said(QUESTION, version, magic=b"NACB"), right * 50]
        for datagram in wrong * 20:
            s.send(datagram)
        # These get answers, in their order, so the datagrams before them got none.
        s.send(said(QUESTION, version + 1))
        s.send(right)
        s.settimeout(20)
        got = [s.recv(100) for _ in range(2)]
        assert got == [said(ANSWER, version)] * 2, got
        s.setblocking(False)
        try:
            assert False, s.recv(100)
        except BlockingIOError:
            print("answered", len(got), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
