"""host_peer.py serve NAME ADDRESS PORT [OPTION...] | host_peer.py ask: one end of a conversation between hosts.

A server takes a stream to its end and answers with its name, a digest of what came, and the addresses it saw. A client
reads one request (JSON) per line and answers each with a line; its connection stays open until the next request. Both
end with their standard input. OPTION: NAME=VALUE of a socket option below.
"""

import hashlib
import json
import os
import random
import socket
import sys
import threading

IP_TRANSPARENT = 19
NAMES = {
    "mark": lambda s, v: s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, int(v)),
    "device": lambda s, v: s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, v.encode()),
    "transparent": lambda s, v: s.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, int(v)),
    "reuseport": lambda s, v: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(v)),
}


def opened(address, options):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    for option in options:
        name, _, value = option.partition("=")
        NAMES[name](s, value)
    return s


def answer(connection, name):
    with connection:
        digest = hashlib.sha256()
        while part := connection.recv(65536):
            digest.update(part)
        words = {"name": name, "digest": digest.hexdigest(), "peer": connection.getpeername()[:2],
                 "local": connection.getsockname()[:2]}
        connection.sendall(json.dumps(words).encode())


def serve(name, address, port, *options):
    listener = opened(address, options)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, int(port)))
    listener.listen(100)
    print("ready", flush=True)

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection, name), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


def converse(connection, request):
    connection.settimeout(request.get("limit", 30))
    if "bind" in request:
        connection.bind((request["bind"], 0))
    connection.connect(tuple(request["to"]))
    addresses = list(connection.getsockname()[:2]), list(connection.getpeername()[:2])
    data = random.Random(request["size"]).randbytes(request["size"])
    sender = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
    sender.start()
    text = b""
    while part := connection.recv(65536):
        text += part
    sender.join()
    words = json.loads(text)
    words["whole"] = words.pop("digest") == hashlib.sha256(data).hexdigest()
    words["same_addresses"] = (words["peer"], words["local"]) == addresses
    return words


def ask():
    connection = None
    for line in sys.stdin:
        request = json.loads(line)
        if connection:
            connection.close()
        connection = opened(request["to"][0], request.get("options", ()))
        try:
            words = converse(connection, request)
        except OSError as error:
            words = {"error": type(error).__name__ if error.errno is None else os.strerror(error.errno)}
        print(json.dumps(words), flush=True)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
