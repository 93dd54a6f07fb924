"""Asks a service: asker.py ADDRESS PORT. For each line of its standard input it connects, sends the line and prints the answer."""

import socket
import sys


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    for line in sys.stdin:
        try:
            with socket.create_connection((address, port), timeout=60) as s:
                s.sendall(line.strip().encode())
                print(s.recv(100).decode(), flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)


main()
