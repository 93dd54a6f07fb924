"""neighbour_peer.py serve KIND ADDRESS PORT | talk ADDRESS PORT CONNECTIONS ROUNDS | fetch ADDRESS PORT PATH ROUNDS

Requests and answers, compared.

A request is a size and so many bytes; the answer is the same with every bit turned round, so that a byte of the wrong
direction or connection is seen. KIND: threads, epoll, prefork (three processes), forking (a child per connection;
-kept: which the parent keeps, -both: and uses before the child).
A client takes its connections in turns. It prints a line (JSON) after the first ROUNDS of each, and after as many
again for each line of its standard input. Both end with that.
"""

import http.client
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import threading
import time

TURNED = bytes(255 - n for n in range(256))


def exactly(connection, size):
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(65536, size - len(data)))
        if not part:
            if data:
                raise SystemExit(f"wrong: an end after {len(data)} of {size} bytes")
            return None
        data += part
    return bytes(data)


def answer(connection, most=None):
    """Answers all requests and closes the connection, or answers so many and leaves it open."""
    while most != 0 and (head := exactly(connection, 4)):
        [size] = struct.unpack("!I", head)
        connection.sendall(head + exactly(connection, size).translate(TURNED))
        most = most and most - 1
    if most is None:
        connection.close()


def threads(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def epoll(listener):
    """Answers when a whole request is there, in one thread."""
    listener.setblocking(False)
    selector = selectors.EpollSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    while True:
        for key, events in selector.select():
            if key.data is None:
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    continue
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, (bytearray(), bytearray()))
                continue
            connection, (came, going) = key.fileobj, key.data
            try:
                if events & selectors.EVENT_READ:
                    part = connection.recv(40000)
                    if not part:
                        selector.unregister(connection)
                        connection.close()
                        continue
                    came += part
                while len(came) >= 4 and len(came) >= 4 + int.from_bytes(came[:4], "big"):
                    end = 4 + int.from_bytes(came[:4], "big")
                    going += came[:4] + came[4:end].translate(TURNED)
                    del came[:end]
                if going:
                    del going[:connection.send(going)]
            except BlockingIOError:
                pass
            except ConnectionError:
                selector.unregister(connection)
                connection.close()
                continue
            selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if going else 0), key.data)


WORKERS = []


def prefork(listener):
    for _ in range(3):
        worker = os.fork()
        if worker == 0:
            threads(listener)
        WORKERS.append(worker)
    end_with_input()
    os.wait()


KEPT = []


def forking(listener, kept=False, both=False):
    """A child per connection. The parent closes its copy, keeps it, or answers the first five requests by it."""
    while True:
        connection, _ = listener.accept()
        turn, given = os.pipe()
        if os.fork() == 0:
            os.close(given)
            if both:
                os.read(turn, 1)
            answer(connection)
            os._exit(0)
        os.close(turn)
        if both:
            answer(connection, most=5)
        if kept:
            KEPT.append(connection)
        else:
            connection.close()
        os.close(given)


def end(*_):
    for worker in WORKERS:
        os.kill(worker, signal.SIGKILL)
    sys.exit(0)


def end_with_input():
    """Ends the server by exit(3) when its standard input ends."""
    signal.signal(signal.SIGTERM, end)

    def wait():
        sys.stdin.read()
        # A signal that comes just before the main thread sleeps does not wake it.
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    threading.Thread(target=wait, daemon=True).start()


def serve(kind, address, port):
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, int(port)))
    listener.listen(100)
    print("ready", flush=True)
    if kind != "prefork":
        end_with_input()
    {"threads": threads, "epoll": epoll, "prefork": prefork, "forking": forking,
     "forking-kept": lambda listener: forking(listener, kept=True),
     "forking-both": lambda listener: forking(listener, both=True)}[kind](listener)


def talk(address, port, connections, rounds):
    target, rng = (address, int(port)), random.Random(f"{address}{port}")
    opened = [socket.create_connection(target, 30) for _ in range(int(connections))]
    for s in opened:
        s.settimeout(None)

    def converse():
        for _ in range(int(rounds)):
            for s in opened:
                data = rng.randbytes(rng.choice((1, 10, 300, 4000, 20000)))
                s.sendall(struct.pack("!I", len(data)) + data)
                if exactly(s, 4 + len(data))[4:] != data.translate(TURNED):
                    raise SystemExit(f"wrong: an answer of {len(data)} bytes")
        print(json.dumps([[s.getsockname()[:2], s.getpeername()[:2]] for s in opened]), flush=True)

    converse()
    for _ in sys.stdin:
        converse()


def fetch(address, port, path, rounds):
    """Gets a file by HTTP over one connection, and compares it with the file itself."""
    connection = http.client.HTTPConnection(address, int(port))
    wanted = open(path, "rb").read()

    def converse():
        for _ in range(int(rounds)):
            connection.request("GET", "/" + os.path.basename(path))
            if connection.getresponse().read() != wanted:
                raise SystemExit("wrong: the file that came")
        print("same", flush=True)

    converse()
    for _ in sys.stdin:
        converse()


if __name__ == "__main__":
    {"serve": serve, "talk": talk, "fetch": fetch}[sys.argv[1]](*sys.argv[2:])
