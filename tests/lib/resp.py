"""A small redis protocol client: the tests need to see each reply's bytes, which redis-cli reformats."""

import socket


class Error(Exception):
    """An error reply of the server."""


class Closed(Exception):
    """The connection ended."""


def encode(*args):
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if isinstance(arg, (bytes, bytearray)) else str(arg).encode()
        parts += [b"$%d\r\n" % len(data), data, b"\r\n"]
    return b"".join(parts)


class Redis:
    def __init__(self, port, address="127.0.0.1", timeout=60):
        self.sock = socket.create_connection((address, port), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, *args):
        self.sock.sendall(encode(*args))

    def _more(self):
        data = self.sock.recv(262144)
        if not data:
            raise Closed("end of the connection")
        self.buffer += data

    def _line(self):
        start = 0
        while True:
            at = self.buffer.find(b"\r\n", start)
            if at >= 0:
                line = bytes(self.buffer[:at])
                del self.buffer[:at + 2]
                return line
            start = max(0, len(self.buffer) - 1)
            self._more()

    def read(self):
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"-":
            return Error(rest.decode())
        if kind == b"$":
            size = int(rest)
            if size < 0:
                return None
            while len(self.buffer) < size + 2:
                self._more()
            data = bytes(self.buffer[:size])
            if self.buffer[size:size + 2] != b"\r\n":
                raise ValueError("a reply does not end where it should")
            del self.buffer[:size + 2]
            return data
        if kind == b"*":
            count = int(rest)
            return None if count < 0 else [self.read() for _ in range(count)]
        raise ValueError(f"not a reply: {line[:60]!r}")

    def call(self, *args):
        self.send(*args)
        answer = self.read()
        if isinstance(answer, Error):
            raise answer
        return answer

    def info(self, section="all"):
        found = {}
        for line in self.call("INFO", section).decode().splitlines():
            key, colon, value = line.partition(":")
            if colon:
                found[key] = value
        return found
