"""prefork.py PORT WORKERS: processes that share a listener and sleep in poll(2) on it; each answers with its number on each
connection."""

import ctypes
import os
import select
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
listener.setblocking(False)
for _ in range(int(sys.argv[2]) - 1):
    if os.fork() == 0:
        # It ends with the first one.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        break
look = select.poll()
look.register(listener, select.POLLIN)
while True:
    look.poll()
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        continue
    connection.setblocking(True)
    with connection:
        connection.recv(1)
        connection.sendall(b"%d\n" % os.getpid())
