"""Two containers made by hand: network namespaces joined by a bridge in a third one, the node's."""

import copy
import ctypes
import os
import shutil
import socket
import time
from contextlib import contextmanager

from . import proc

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
TOOLS = ("unshare", "nsenter", "ip", "sysctl")
SERVER, CLIENT, NODE, PUBLISHED = "10.99.0.2", "10.98.0.2", ("10.99.0.1", "10.98.0.1"), "10.98.0.1"


def missing(tools=TOOLS):
    """None, or the reason why this machine cannot make containers."""
    if os.getuid() != 0:
        return "needs root, to make network namespaces"
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    return f"{', '.join(lacking)} is not installed" if lacking else None


class Namespace:
    """A network namespace, which lives as long as the process that holds it."""

    def __init__(self):
        self.holder = proc.Child(["unshare", "--net", "sleep", "infinity"])
        self.path = f"/proc/{self.holder.pid}/ns/net"
        self.within = ["nsenter", f"--net={self.path}"]
        deadline = time.monotonic() + proc.START_TIMEOUT
        while os.readlink(self.path) == os.readlink("/proc/self/ns/net"):
            if time.monotonic() > deadline or not self.holder.running():
                raise self.holder.failure("made no network namespace")
            time.sleep(0.01)
        self.command("ip", "link", "set", "lo", "up")

    def command(self, *argv):
        proc.run([*self.within, *map(str, argv)], timeout=20)

    def close(self):
        self.holder.stop()


class Containers:
    """A client's and a server's container. `address` is where the client finds the server: its own address, or with `published`
    one of the node's, which translates it (DNAT)."""

    def __init__(self, scratch, published=False):
        self.folder = os.path.join(scratch, "containers")
        os.makedirs(self.folder, exist_ok=True)
        self.address = PUBLISHED if published else SERVER
        self.made = []
        try:
            self.node, self._server, self._client = (self._make() for _ in range(3))
            self._join()
            if published:
                for rule in ("add table ip nat", "add chain ip nat pre { type nat hook prerouting priority -100; }",
                             f"add rule ip nat pre ip daddr {PUBLISHED} tcp dport 1024-65535 dnat to {SERVER}"):  # fmt: skip
                    self.node.command("nft", *rule.split())
        except BaseException:
            self.close()
            raise

    def _make(self):
        self.made.append(Namespace())
        return self.made[-1]

    def _join(self):
        """Each container has a bridge of its own at the node, which routes between them."""
        self.node.command("sysctl", "-qw", "net.ipv4.ip_forward=1")
        for name, end, address, gateway in zip("ab", (self._server, self._client), (SERVER, CLIENT), NODE, strict=True):
            ip = lambda *argv: self.node.command("ip", *argv)  # noqa: E731
            ip("link", "add", f"bridge-{name}", "type", "bridge")
            ip("link", "add", f"port-{name}", "type", "veth", "peer", "name", "eth0", "netns", end.holder.pid)
            ip("link", "set", f"port-{name}", "master", f"bridge-{name}", "up")
            ip("address", "add", f"{gateway}/24", "dev", f"bridge-{name}")
            ip("link", "set", f"bridge-{name}", "up")
            end.command("ip", "address", "add", f"{address}/24", "dev", "eth0")
            end.command("ip", "link", "set", "eth0", "up")
            end.command("ip", "route", "add", "default", "via", gateway)

    def _inside(self, side, namespace):
        inside = copy.copy(side)
        inside.prefix = [*namespace.within, *side.prefix]
        inside.env = {**side.env, "NACC_HOST_DIR": self.folder}
        return inside

    def server(self, side):
        return self._inside(side, self._server)

    def client(self, side):
        return self._inside(side, self._client)

    def free_port(self):
        with _within(self._server), socket.socket() as probe:
            probe.bind((SERVER, 0))
            return probe.getsockname()[1]

    def connect(self, port):
        with _within(self._client):
            return socket.create_connection((self.address, port), timeout=10)

    @property
    def listens_on(self):
        return SERVER

    def close(self):
        for namespace in self.made:
            namespace.close()


@contextmanager
def _within(namespace):
    """Sockets that this thread makes meanwhile belong to the namespace."""
    with open("/proc/self/ns/net", "rb") as own, open(namespace.path, "rb") as other:
        _enter(other)
        try:
            yield
        finally:
            _enter(own)


def _enter(namespace):
    if _libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise proc.Failed(f"setns: {os.strerror(ctypes.get_errno())}")


class Loopback:
    """Both programs on this host, without containers."""

    address = listens_on = "127.0.0.1"

    def server(self, side):
        return side

    def client(self, side):
        return side

    def free_port(self):
        with socket.socket() as probe:
            probe.bind((self.address, 0))
            return probe.getsockname()[1]

    def connect(self, port):
        return socket.create_connection((self.address, port), timeout=10)

    def close(self):
        pass


LOOPBACK = Loopback()
