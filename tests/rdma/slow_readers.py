"""slow_readers.py CONNECTIONS GROUP: one process fills each connection before the other reads anything. Then all is read, rests
and is closed. Prints at each stage the bytes of shared memory in the control group, and how many were unread."""

import os
import pathlib
import select
import socket
import sys
import time

SIZE = 300_000
DATA = bytes(at % 253 for at in range(SIZE))


def shared(group):
    lines = (pathlib.Path(group) / "memory.stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("shmem "))


def read_all(connections):
    for c in connections:
        parts, left = [], SIZE
        while left:
            part = c.recv(left)
            if not part:
                sys.exit("a connection ended")
            parts.append(part)
            left -= len(part)
        if b"".join(parts) != DATA:
            sys.exit("other bytes arrived")


def reader(listener, count, line):
    connections = [listener.accept()[0] for _ in range(count)]
    line.send(b"1")
    line.recv(1)
    read_all(connections)
    line.send(b"2")
    line.recv(1)
    for c in connections:
        c.close()
    line.send(b"3")
    line.recv(1)


def fill(connections):
    """Sends on each as far as it is taken at once, and returns what is left for each."""
    left = []
    for c in connections:
        sent = 0
        while sent < SIZE:
            try:
                sent += c.send(memoryview(DATA)[sent:], socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
        left.append(SIZE - sent)
    return left


def writer(address, count, line, group):
    connections = [socket.create_connection(address) for _ in range(count)]
    line.recv(1)
    left = fill(connections)
    print("filled", shared(group), count * SIZE - sum(left), flush=True)
    line.send(b"x")
    for c, n in zip(connections, left):
        c.sendall(memoryview(DATA)[SIZE - n:])
    line.recv(1)
    print("read", shared(group), flush=True)
    # It waits for what never comes, as a program does that has nothing to do.
    end = time.monotonic() + 15
    while (left := end - time.monotonic()) > 0:
        select.select(connections[:100], [], [], left)
    print("rest", shared(group), flush=True)
    for c in connections:
        c.close()
    line.send(b"y")
    line.recv(1)
    print("closed", shared(group), flush=True)
    line.send(b"z")


def main():
    count, group = int(sys.argv[1]), sys.argv[2]
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        reader(listener, count, theirs)
        os._exit(0)
    theirs.close()
    listener_address = listener.getsockname()
    listener.close()
    writer(listener_address, count, ours, group)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))


if __name__ == "__main__":
    main()
