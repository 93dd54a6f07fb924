"""Starts a redis server, fills it and reads redis-benchmark's figures."""

import csv
import io
import os
import time

from . import proc

KEYS = 10_000
VALUE_SIZE = 512


class RedisServer:
    """A redis-server of one side, without persistence, at a place: loopback, or a container."""

    def __init__(self, side, scratch, place):
        self.side = side
        self.place = place
        self.socket = None
        # Another program may take the port between our choice and redis's bind.
        for attempt in range(3):
            # The kernel cannot choose a port for redis, which needs a number.
            self.port = place.free_port()
            folder = _folder(scratch, self.port)
            if side.unix:
                self.socket = os.path.join(folder, "redis.sock")
            self.child = place.server(side).start(
                "redis-server", "--port", self.port, "--bind", place.listens_on,
                "--save", "", "--appendonly", "no", "--protected-mode", "no",
                "--dir", folder, "--daemonize", "no", "--loglevel", "warning",
                *(("--unixsocket", self.socket) if self.socket else ()), stdout="file",
            )  # fmt: skip
            if self._answers():
                break
            self.close()
            if attempt == 2:
                raise self._failure("did not start")
        self.pid = self._pid()

    def where(self):
        """The options by which redis-benchmark finds this server."""
        return ("-s", self.socket) if self.socket else ("-h", self.place.address, "-p", self.port)

    def _answers(self):
        deadline = time.monotonic() + proc.START_TIMEOUT
        while self.child.running():
            try:
                if self.command("PING") == b"+PONG\r\n":
                    return True
            except (ConnectionError, TimeoutError):
                if time.monotonic() > deadline:
                    raise self._failure("does not answer") from None
                self.child.wait(0.02)
        return False

    def _failure(self, what):
        said = self.child.output().strip()[-400:] or self.child.errors()
        return proc.Failed(f"redis-server ({self.side.title}) {what}: {said}")

    def _pid(self):
        """The process number from redis itself, since a launcher may start the server as another process."""
        info = self.command("INFO", "server").decode()
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        return int(fields["process_id"])

    def _connect(self):
        return self.place.connect(self.port)

    def command(self, *words):
        with self._connect() as link:
            link.sendall(_encode(*(word.encode() for word in words)))
            return _reply(link)

    def fill(self):
        """Stores the keys for which `redis-benchmark -r 10000` asks, so that GET finds a value."""
        value = b"x" * VALUE_SIZE
        with self._connect() as link:
            for first in range(0, KEYS, 500):
                names = [b"key:%012d" % i for i in range(first, first + 500)]
                link.sendall(b"".join(_encode(b"SET", name, value) for name in names))
                _read_exactly(link, len(b"+OK\r\n") * 500)

    def close(self):
        self.child.stop()


def _folder(scratch, port):
    path = os.path.join(scratch, f"redis-{port}")
    os.makedirs(path, exist_ok=True)
    return path


def _encode(*words):
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def _read_exactly(link, size):
    got = b""
    while len(got) < size:
        part = link.recv(size - len(got))
        if not part:
            raise proc.Failed("redis-server closed the connection")
        got += part
    return got


def _reply(link):
    """Reads a simple or bulk string of redis's protocol."""
    got = b""
    while not got.endswith(b"\r\n"):
        got += _read_exactly(link, 1)
    if got.startswith(b"$"):
        return _read_exactly(link, int(got[1:]) + 2)
    return got


def parse_csv(output):
    """The row of redis-benchmark --csv as numbers; other lines are remarks."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    if len(rows) != 1 or "rps" not in rows[0]:
        raise proc.Failed(f"unexpected output of redis-benchmark: {output.strip()[-200:]}")
    row = {key: value for key, value in rows[0].items() if key != "test"}
    try:
        return {key: float(value) for key, value in row.items()}
    except (TypeError, ValueError):
        raise proc.Failed(f"redis-benchmark printed no number: {output.strip()[-200:]}") from None
