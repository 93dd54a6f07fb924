"""pattern.py ROLE ADDRESS PORT SEED COUNT: one end of COUNT connections on which both sides write, in pieces of all sizes, until the
standard input ends. Each byte that comes is compared with what the other side writes there. At the end of each connection its
number and how many bytes were sent and received are said.
"""

import os
import random
import signal
import socket
import sys
import threading

BLOCK = 1_000_003
PIECES = (1, 90, 1000, 4096, 16_000, 70_000)


class Connection(threading.Thread):
    def __init__(self, role, seed, stop):
        super().__init__()
        self.role, self.seed, self.stop, self.problem = role, seed, stop, None

    def begin(self, s, number):
        self.socket, self.number = s, number
        self.start()

    def pattern(self, role):
        return memoryview(random.Random(f"{self.seed} {self.number} {role}").randbytes(BLOCK) * 2)

    def send(self):
        block, chance, self.sent = self.pattern(self.role), random.Random(self.seed), 0
        try:
            while not self.stop.is_set():
                at, size = self.sent % BLOCK, chance.choice(PIECES)
                self.socket.sendall(block[at:at + size])
                self.sent += size
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as e:
            self.problem = f"sending after {self.sent} bytes: {e}"

    def receive(self):
        block, size = self.pattern("client" if self.role == "server" else "server"), 0
        while piece := self.socket.recv(65536):
            at = size % BLOCK
            assert piece == block[at:at + len(piece)], f"other bytes from {size} on, of {len(piece)}"
            size += len(piece)
        return size

    def run(self):
        sender = threading.Thread(target=self.send)
        sender.start()
        received = 0
        try:
            received = self.receive()
        except (OSError, AssertionError) as e:
            self.problem = f"receiving: {e}"
            self.stop.set()
        sender.join()
        # In one write: other connections end at the same time.
        os.write(1, f"connection {self.number} sent {self.sent} received {received} {self.problem or ''}\n".encode())


def main():
    role, address, port, seed, count = sys.argv[1:]
    signal.alarm(int(os.environ.get("PATTERN_LIMIT", "60")))
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    connections = [Connection(role, seed, stop) for _ in range(int(count))]
    listener = socket.create_server((address, int(port))) if role == "server" else None
    for number, connection in enumerate(connections):
        if listener:
            # Which of the client's connections it is, the client says.
            s, _ = listener.accept()
            number = s.recv(1)[0]
        else:
            s = socket.create_connection((address, int(port)))
            s.sendall(bytes([number]))
        connection.begin(s, number)
    for connection in connections:
        connection.join()
    sys.exit(any(connection.problem for connection in connections))


main()
