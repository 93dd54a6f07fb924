"""knocks.py ROLE ADDRESS PORT: what a client asks before it connects, and who answers.

    client    one connection, a line there and a byte back; prints whether the libraries of RDMA were loaded, and its threads.
              WAY is what it does meanwhile: it waits in recv or poll, writes more than anybody takes, or does not wait
    plain     the server of such clients; prints how long the lines were
    door      answers at PORT + 20000 as a server does that can be reached by RDMA, and prints how many have asked
    deaf      has that port, and says nothing
    garbage   sends all kinds of datagrams there, and prints how many were answered
"""

import os
import pathlib
import select
import socket
import sys

MAGIC, QUESTION, ANSWER = b"NACK", 1, 2
NONCE = bytes(range(16))
# More than a connection takes before somebody reads.
LONG = 2_000_000


def said(kind, version, magic=MAGIC, nonce=NONCE):
    return magic + version.to_bytes(2, "little") + bytes((kind, 0)) + nonce


def client(address, port):
    with socket.create_connection((address, port)) as s:
        way = os.environ.get("WAY", "recv")
        s.sendall(b"?" * (LONG if way == "full" else 10) + b"\n")
        if way == "poll":
            s.setblocking(False)
            poll = select.poll()
            poll.register(s, select.POLLIN)
            assert poll.poll(60_000) == [(s.fileno(), select.POLLIN)], "nothing in a minute"
        if way != "close":
            assert s.recv(1) == b"!", "another byte"
        maps = pathlib.Path("/proc/self/maps").read_text()
    print("loaded" if "libibverbs" in maps else f"not loaded, {len(os.listdir('/proc/self/task'))} thread", flush=True)


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
        # Those that get an answer, in their order; so what came before them got none.
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
