"""A server that makes a process for each connection, which sends back what it is sent. fork_echo.py ADDRESS PORT."""

import os
import signal
import socket
import sys


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                while data := connection.recv(4096):
                    connection.sendall(data)
            except OSError:
                pass
            os._exit(0)
        connection.close()


main()
