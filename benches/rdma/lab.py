"""Servers and clients of one side, and the proof that its bytes went where they should."""

import re

import counting
import world
from host import wait_until
from benchlib import proc
from sides import BENCH

_ports = iter(range(7000, 9000))


class Failed(Exception):
    """Of one figure; the others go on."""


def start(side, role, argv, counted=False, settings=(), **options):
    return proc.Child(side.command(role, argv), side.environment(counted) | dict(settings), **options)


def await_rdma(side, child, port):
    port = side.rdma_port(port)
    if port is None:
        return

    def listening():
        if not child.running():
            raise child.failure("ended")
        return any(r.get("state") == "LISTEN" and r.get("src-addr", "").endswith(f":{port}")
                   for r in world.resources("cm_id"))
    wait_until(listening, 60, f"{side.title}: RDMA port {port}")


class Far:
    """A `far server`, and a client at a time."""

    def __init__(self, side, counted=False):
        self.side, self.counted = side, counted
        self.address, self.port = world.end(side.kind, "server").address, next(_ports)
        self.server = start(side, "server", [BENCH / "far", "server", self.address, self.port], counted)
        self.client = None
        self.server.read_line()
        await_rdma(side, self.server, self.port)

    def fresh_client(self, **settings):
        self.end_client()
        argv = [BENCH / "far", "client", self.address, self.port]
        self.client = start(self.side, "client", argv, self.counted, settings, stdin=True)

    def ask(self, line):
        try:
            self.client.send_line(line)
            return self.client.read_json(60)
        except proc.Failed as error:
            raise Failed(f"{line}: {error} {self.server.errors()}".strip()) from None

    def pids(self):
        return {"client": self.client.pid, "server": self.server.pid}

    def end_client(self):
        if self.client:
            try:
                self.client.send_line("quit")
                self.client.wait(20)
            except proc.Failed:
                pass  # It had ended before, which was said then.
            self.client.stop()
            self.client = None

    def close(self):
        self.end_client()
        self.server.stop()


class Redis:
    def __init__(self, side):
        self.side = side
        self.address, self.port = world.end(side.kind, "server").address, next(_ports)
        self.server = start(side, "server", ["redis-server", "--port", self.port, "--bind", self.address, "--save", "",
                                             "--appendonly", "no", "--protected-mode", "no", "--dir", "/run"])
        try:
            line = ""
            while "ready to accept" not in line.lower():
                line = self.server.read_line(60)
            await_rdma(side, self.server, self.port)
        except (proc.Failed, TimeoutError) as error:
            self.close()
            raise Failed(f"redis-server: {error}") from None

    def set(self, clients, requests, limit):
        argv = ["redis-benchmark", "-h", self.address, "-p", self.port, "-c", clients, "-d", 512, "-t", "set", "-n", requests,
                "--csv"]
        idle, began = counting.idle_seconds(), counting.now()
        try:
            done = proc.run(self.side.command("client", argv), self.side.environment(), limit)
        except proc.Failed as error:
            raise Failed(str(error)[:200]) from None
        busy = counting.now() - began - (counting.idle_seconds() - idle)
        found = re.search(r'^"SET","([\d.]+)"', done.output, re.M)
        if not found:
            raise Failed(f"redis-benchmark said {done.output[-200:]}")
        return {"rps": float(found[1]), "cpu_us": busy / requests * 1e6}

    def close(self):
        self.server.stop()


class Memcached:
    """A server whose first thread accepts, and passes the connections to two others."""

    def __init__(self, side):
        self.side = side
        self.address, self.port = world.end(side.kind, "server").address, next(_ports)
        self.server = start(side, "server", ["memcached", "-u", "root", "-l", self.address, "-p", self.port, "-U", 0, "-t", 2])
        try:
            wait_until(self._listens, 60, f"{side.title}: memcached on port {self.port}")
            await_rdma(side, self.server, self.port)
        except (proc.Failed, TimeoutError) as error:
            self.close()
            raise Failed(f"memcached: {error}") from None

    def _listens(self):
        space = world.inside(world.end(self.side.kind, "server").namespace)
        return bool(world.command(*space, "ss", "-ltnH", f"sport = {self.port}").strip())

    def rate(self, clients, requests, limit):
        """Requests per second, one in ten of which stores a value of 1,024 bytes."""
        argv = ["memcaslap", "-s", f"{self.address}:{self.port}", "-T", 1, "-c", clients, "-x", requests]
        try:
            done = proc.run(self.side.command("client", argv), self.side.environment(), limit)
        except proc.Failed as error:
            raise Failed(str(error)[:200]) from None
        found = re.search(r"TPS: (\d+)", done.output)
        if not found:
            raise Failed(f"memcaslap said {done.output[-200:]}")
        return float(found[1])

    def close(self):
        self.server.stop()


def device(side, round_trips, messages):
    """The verbs alone, by rdma_pingpong: a round trip of 60 bytes and a stream of messages of 4,000."""
    address = world.end(side.kind, "server").address
    server = start(side, "server", [side.program(), "server", address])
    try:
        port = server.read_line().split()[1]
        done = proc.run(side.command("client", [side.program(), "client", address, port, round_trips, messages]),
                        side.environment(), 120)
    except proc.Failed as error:
        raise Failed(str(error)) from None
    finally:
        server.stop()
    return {"rtt64": float(re.search(r"mean ([\d.]+) us", done.output)[1]),
            "stream": float(re.search(r"([\d.]+) MB/s", done.output)[1])}


class Carried:
    """What both devices of a side have sent since it was made."""

    def __init__(self, side):
        self.side = side
        self.before = self._read()

    def _read(self):
        names = [world.end(self.side.kind, role).device for role in ("server", "client")]
        return sum(sum(world.counters(name).get(key, 0) for key in ("rdma_sends", "sent_pkts")) for name in names)

    def check(self, least):
        sent = self._read() - self.before
        if self.side.rdma and sent < least:
            raise Failed(f"{self.side.title} moved {sent} messages or packets over the device, not {least}")
        # Idle queue pairs of other sides are probed now and then.
        if not self.side.rdma and sent > max(least / 10, 30):
            raise Failed(f"{self.side.title} moved {sent} messages or packets over the device")
