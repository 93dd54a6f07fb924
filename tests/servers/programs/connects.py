"""connects.py PORT: connects, hears an answer and prints it, once for each line of standard input."""

import socket
import sys

for _ in sys.stdin:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.sendall(b"x")
        print(connection.makefile().readline().strip(), flush=True)
