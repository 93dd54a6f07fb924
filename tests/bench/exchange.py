"""A server and a client that exchange bytes on many connections, both directions at once, and compare them.

    exchange.py server IP       prints its port, serves as many clients as there are CONNECTIONS, and ends
    exchange.py client IP PORT
"""

import random
import socket
import sys
import threading

CONNECTIONS = 50
SIZES = (1, 100, 65536, 65537, 1, 300_000)
BYTES = 2 * CONNECTIONS * sum(SIZES)
LIMIT = 30


def messages(who, number):
    draw = random.Random(f"{who} {number}")
    return [draw.randbytes(size) for size in SIZES]


def send(link, saying):
    for message in saying:
        link.sendall(message)
    link.shutdown(socket.SHUT_WR)


def exchange(link, who, other, number):
    """Sends what is to be sent, and closes; meanwhile receives until the other end has closed, and compares."""
    # With a time limit, Python polls before each call. A blocking recv() may end with EAGAIN in a sockmap.
    link.settimeout(LIMIT)
    sender = threading.Thread(target=send, args=(link, messages(who, number)))
    sender.start()
    got = b""
    while part := link.recv(100_000):
        got += part
    sender.join()
    expected = b"".join(messages(other, number))
    if got != expected:
        at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected)))
        sys.exit(f"the {who} received other bytes on connection {number} from {at} on: {len(got)} bytes, expected {len(expected)}")


def main():
    who, ip = sys.argv[1:3]
    if who == "server":
        with socket.create_server((ip, 0)) as listener:
            listener.settimeout(LIMIT)
            print(listener.getsockname()[1], flush=True)
            for number in range(CONNECTIONS):
                with listener.accept()[0] as link:
                    exchange(link, "server", "client", number)
        return
    for number in range(CONNECTIONS):
        with socket.create_connection((ip, int(sys.argv[3])), LIMIT) as link:
            exchange(link, "client", "server", number)


if __name__ == "__main__":
    main()
