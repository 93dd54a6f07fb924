"""ctl_clients.py PORT CLIENTS: redis clients that set and get values without a pause and compare each reply, until standard input ends.

Each has a connection that lives through all of it; now and then one makes a new connection. The last line says how many replies came, and
the longest time (ms) that one of them waited for a reply.
"""

import random
import selectors
import socket
import sys
import time

port, count = int(sys.argv[1]), int(sys.argv[2])
random.seed(port)
look = selectors.EpollSelector()
look.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
replies, longest, running = 0, 0.0, True


class Client:
    def __init__(self, number):
        self.number, self.turn, self.sock = number, 0, None
        self.connect()
        self.ask()

    def connect(self):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setblocking(False)
        look.register(self.sock, selectors.EVENT_READ, self)

    def ask(self):
        self.turn += 1
        self.value = random.randbytes(random.choice((1, 30, 700, 20000)))
        key = b"key:%d" % self.number
        size = len(self.value)
        request = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, size, self.value)
        request += b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key)
        self.wanted = b"+OK\r\n$%d\r\n%s\r\n" % (size, self.value)
        self.came, self.since = b"", time.monotonic()
        view = memoryview(request)
        while view:
            try:
                view = view[self.sock.send(view):]
            except BlockingIOError:
                time.sleep(0.0005)

    def hear(self):
        global replies, longest
        piece = self.sock.recv(65536)
        if not piece:
            sys.exit(f"client {self.number}: the connection ended in turn {self.turn}")
        self.came += piece
        if not self.wanted.startswith(self.came):
            sys.exit(f"client {self.number}: another reply than was wanted in turn {self.turn}")
        if len(self.came) < len(self.wanted):
            return
        replies += 1
        longest = max(longest, time.monotonic() - self.since)
        if self.turn % 50 == 49 and self.number % 10 == 0:
            look.unregister(self.sock)
            self.sock.close()
            self.connect()
        self.ask()


clients = [Client(number) for number in range(count)]
print("ready", flush=True)
while running:
    for key, _ in look.select():
        if key.data is None:
            running = False
        else:
            key.data.hear()
print(replies, round(longest * 1000, 1))
