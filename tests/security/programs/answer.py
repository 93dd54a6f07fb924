"""A service with one answer for everybody: answer.py ADDRESS PORT ANSWER."""

import socket
import sys


def main():
    address, port, answer = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(8)
    while True:
        connection, _ = listener.accept()
        connection.recv(100)
        connection.sendall(answer)
        connection.close()


main()
