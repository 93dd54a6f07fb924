"""unread.py: one connection whose reader is asked for each piece that it reads.

"unread.py" prints its port, accepts a connection and obeys lines of standard input: "read BYTES" reads so many, compares them and says
"had SUM"; "end" reads to the end of the stream, and says how many bytes there were; "execute" has another program do that.
"unread.py PORT BYTES" sends so many bytes to it.
"""

import random
import socket
import subprocess
import sys

BLOCK = random.Random(1).randbytes(1 << 20)


def send(port, wanted):
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sent = 0
        while sent < wanted:
            at = sent % len(BLOCK)
            sent += sock.send(memoryview(BLOCK)[at : at + min(50_000, wanted - sent)])


def read(sock, had, until):
    while had < until:
        at = had % len(BLOCK)
        piece = sock.recv(min(until - had, 30_000, len(BLOCK) - at))
        if not piece:
            break
        if piece != BLOCK[at : at + len(piece)]:
            sys.exit(f"other bytes after {had}")
        had += len(piece)
    print("had", had, flush=True)
    return had


def obey():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        sock, _ = listener.accept()
    had = 0
    for line in sys.stdin:
        word, _, number = line.partition(" ")
        if word.strip() == "execute":
            # What it is given it has as a socket of the kernel's.
            subprocess.run([sys.executable, __file__, "rest", str(had)], stdin=sock, check=True)
        else:
            had = read(sock, had, had + int(number) if word == "read" else float("inf"))


match sys.argv[1:]:
    case []:
        obey()
    case ["rest", had]:
        read(socket.socket(fileno=0), int(had), float("inf"))
    case [port, total]:
        send(int(port), int(total))
