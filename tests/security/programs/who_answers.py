"""Asks one address after the other, at once: who_answers.py PORT ADDRESS... prints the echo or the error of each."""

import socket
import sys


def main():
    for address in sys.argv[2:]:
        try:
            with socket.socket() as s:
                s.settimeout(2)
                s.connect((address, int(sys.argv[1])))
                s.sendall(b"ping")
                print(s.recv(4).decode())
        except OSError as error:
            print(type(error).__name__)


main()
