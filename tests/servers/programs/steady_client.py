"""steady_client.py PORT COUNT STOPFILE: echo streams kept running and compared until the file exists.

A line is printed per MiB and connection. COUNT 0: open redis connections until no descriptor is left instead.
"""

import hashlib
import os
import pathlib
import random
import resource
import socket
import sys
import threading

MB = 1 << 20
problems = []


def steady(port, number, stop):
    rng = random.Random(number)
    sent, received = hashlib.sha256(), hashlib.sha256()
    size = 0
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        def write():
            nonlocal size
            printed = 0
            while not stop.exists():
                data = rng.randbytes(rng.choice([1, 100, 5000, 100000]))
                s.sendall(data)
                sent.update(data)
                size += len(data)
                if size // MB > printed:
                    printed = size // MB
                    print(number, printed, flush=True)
            s.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=write)
        writer.start()
        got = 0
        while part := s.recv(50000):
            received.update(part)
            got += len(part)
        writer.join()
    if got != size or sent.digest() != received.digest():
        problems.append(f"connection {number}: {got} of {size} bytes came back")


def exhaust(port):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lib"))
    from resp import Redis
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    clients = []
    try:
        while True:
            clients.append(Redis(port))
    except OSError as error:
        if error.errno != 24:  # EMFILE
            sys.exit(f"wrong: {error!r}")
    if not 5 <= len(clients) <= 40:
        sys.exit(f"wrong: {len(clients)} connections with 40 descriptors")
    blob = os.urandom(MB)
    for n, r in enumerate(clients):
        if r.call("SET", f"k{n}", blob) != "OK" or r.call("GET", f"k{n}") != blob:
            sys.exit("wrong: the value differs")
    for r in clients[::2]:
        r.close()
    with Redis(port) as r:
        if r.call("PING") != "PONG":
            sys.exit("wrong: no PONG after descriptors were freed")


if __name__ == "__main__":
    port, count, stop = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    if count == 0:
        exhaust(port)
    else:
        threads = [threading.Thread(target=steady, args=(port, n, stop)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if problems:
        sys.exit(f"wrong: {problems}")
    print("fine")
