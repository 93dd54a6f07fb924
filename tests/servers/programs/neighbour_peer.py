"""neighbour_peer.py serve KIND ADDRESS PORT | talk ADDRESS PORT CONNECTIONS ROUNDS | fetch ADDRESS PORT PATH ROUNDS
    | hear ADDRESS PORT CONNECTIONS ROUNDS | tell ADDRESS PORT CONNECTIONS ROUNDS SIZE | flood ADDRESS PORT SIZE

Requests and answers, compared.

A request is a size and so many bytes; the answer is the same with every bit turned round, so that a byte of the wrong
direction or connection is seen. KIND: threads, epoll, prefork (three processes), forking (a child per connection;
-kept: which the parent keeps, -both: and uses before the child), publisher (sends without being asked, by turns to all
who have connected; publisher-bulk: large pieces to each without a pause), sink (reads only; -late: accepts only one client before a line of its standard
input; -slow: takes longer for each read than its client to send as much), changing (one client; becomes another user and
makes a child at SIGUSR1, and prints a line).
What goes in one direction only is one stream of known bytes (`stream`), after a number that says where it begins; hear
reads it, tell sends it in pieces of this size, flood without a pause.
A client takes its connections in turns. It prints a line (JSON) after the first ROUNDS of each, and after as many
again for each line of its standard input; talk first makes a child that does, and ends, for the line "fork", starts another
program for "start", and becomes another user and makes a child for "become". Both end with that.
"""

import http.client
import json
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

TURNED = bytes(255 - n for n in range(256))
# The number of the user that a process becomes.
ANOTHER = 1001


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


STREAM = random.Random(1).randbytes(65521)
PAUSE = 0.001


def stream(start, size):
    """The bytes that a connection carries from this place on, if it carries them in one direction only."""
    start %= len(STREAM)
    return (STREAM * (2 + size // len(STREAM)))[start:start + size]


def send_stream(connection, piece):
    place = random.randrange(len(STREAM))
    try:
        connection.sendall(struct.pack("!I", place))
        while True:
            connection.sendall(stream(place, piece))
            place += piece
            yield
    except ConnectionError:
        connection.close()


def publisher(listener):
    opened = []

    def publish():
        """A piece to each in turn, then a pause: as long as a client has it to itself to read what came."""
        while True:
            for one in list(opened):
                if next(one, "gone") == "gone":
                    opened.remove(one)
            time.sleep(PAUSE)

    threading.Thread(target=publish, daemon=True).start()
    while True:
        opened.append(send_stream(listener.accept()[0], 100))


def publisher_bulk(listener):
    while True:
        one = send_stream(listener.accept()[0], 100_000)
        threading.Thread(target=lambda one=one: list(one), daemon=True).start()


def hear_stream(connection, heard=lambda: None):
    """Reads and compares until the other side ends. Calls `heard` after each read."""
    [place] = struct.unpack("!I", exactly(connection, 4))
    while part := connection.recv(30_000):
        if part != stream(place, len(part)):
            print(f"wrong: bytes after {place}", file=sys.stderr, flush=True)
            os._exit(1)
        place += len(part)
        heard()


def sink(listener, heard=lambda: None):
    while True:
        threading.Thread(target=hear_stream, args=(listener.accept()[0], heard), daemon=True).start()


def sink_late(listener):
    """Reads from its first client, and lets the others wait until it is told."""
    first, _ = listener.accept()
    threading.Thread(target=hear_stream, args=(first,), daemon=True).start()
    sys.stdin.readline()
    end_with_input()
    sink(listener)


def compute():
    """For as long as it takes to send a few pieces."""
    for n in range(6):
        stream(n, 30_000)


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


def become_another(*_):
    """The child is made before any other call could tell the peer."""
    os.setgid(ANOTHER)
    os.setuid(ANOTHER)
    child = os.fork()
    if child == 0:
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("wrong: the child's end")


def changing(listener):
    def change(*_):
        become_another()
        print("changed", flush=True)

    signal.signal(signal.SIGUSR1, change)
    answer(listener.accept()[0])
    signal.pause()


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
    if kind not in ("prefork", "sink-late"):
        end_with_input()
    {"publisher": publisher, "publisher-bulk": publisher_bulk, "sink": sink, "sink-late": sink_late,
     "sink-slow": lambda listener: sink(listener, compute), "threads": threads, "epoll": epoll, "prefork": prefork,
     "changing": changing, "forking": forking, "forking-kept": lambda listener: forking(listener, kept=True),
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

    def again(wish):
        """What else happens to the connections before they are used again."""
        if wish == "fork":
            child = os.fork()
            if child == 0:
                converse()
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise SystemExit("wrong: the child's end")
        elif wish == "start":
            subprocess.run(["/bin/true"], check=True)
        elif wish == "become":
            become_another()
        converse()

    converse()
    for line in sys.stdin:
        again(line.strip())


def hear(address, port, connections, rounds):
    """Only reads. A round is a read on each connection."""
    opened = [socket.create_connection((address, int(port)), 30) for _ in range(int(connections))]
    more, counts = threading.Condition(), [0] * len(opened)

    def count(n):
        with more:
            counts[n] += 1
            more.notify()

    for n, s in enumerate(opened):
        s.settimeout(None)
        threading.Thread(target=hear_stream, args=(s, lambda n=n: count(n)), daemon=True).start()

    def rest():
        with more:
            wanted = [n + int(rounds) for n in counts]
            more.wait_for(lambda: all(n >= w for n, w in zip(counts, wanted)))
        print("heard", flush=True)

    rest()
    for _ in sys.stdin:
        rest()


def flood(address, port, size):
    """Sends all the time on one connection, and answers each line of the standard input."""
    connection = socket.create_connection((address, int(port)), 30)
    connection.settimeout(None)
    threading.Thread(target=lambda: list(send_stream(connection, int(size))), daemon=True).start()
    print("begun", flush=True)
    for _ in sys.stdin:
        print("goes on", flush=True)


def tell(address, port, connections, rounds, size):
    """Only sends."""
    opened = [socket.create_connection((address, int(port)), 30) for _ in range(int(connections))]
    senders = []
    for s in opened:
        s.settimeout(None)
        senders.append(send_stream(s, int(size)))

    def rest():
        for _ in range(int(rounds)):
            for one in senders:
                next(one)
        print("told", flush=True)

    rest()
    for _ in sys.stdin:
        rest()


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
    {"serve": serve, "talk": talk, "fetch": fetch, "hear": hear, "tell": tell, "flood": flood}[sys.argv[1]](*sys.argv[2:])
