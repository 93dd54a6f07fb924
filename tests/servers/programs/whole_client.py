"""whole_client.py PORT COUNT SEED: sends and receives at once, closes after the last byte came back.

For echoes behind something that knows no half close.
"""

import random
import socket
import sys
import threading

port, count, seed = map(int, sys.argv[1:4])
problems = []


def one(n):
    data = random.Random(f"{seed}:{n}").randbytes([1, 100, 5000, 70000, 600000][n % 5])
    got = bytearray()
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        sender = threading.Thread(target=s.sendall, args=(data,))
        sender.start()
        while len(got) < len(data):
            part = s.recv(60000)
            if not part:
                break
            got += part
        sender.join()
    if bytes(got) != data:
        problems.append(f"connection {n}: {len(got)} of {len(data)} bytes came back")


def work(first):
    for n in range(first, count, 8):
        try:
            one(n)
        except Exception as error:
            problems.append(f"connection {n}: {error!r}")
            return


threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if problems:
    sys.exit(f"wrong: {problems}")
print("fine")
