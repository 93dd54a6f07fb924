"""Several hosts in one machine: network namespaces joined by veth pairs, containers, and peers that talk in them.

A namespace lives as long as a process of the test that holds it, so nothing has to be removed afterwards.
"""

import json
import os
import shutil
import subprocess

import host
import monitor
from harness import START_LIMIT, Failure, Skipped, check, need
from host import wait_until


def need_root():
    if os.getuid() != 0:
        raise Skipped("needs root, to make network namespaces")


def command(*argv):
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
    check(done.returncode == 0, f"{' '.join(map(str, argv))}: {done.stderr.strip()}")
    return done.stdout


def possible(*argv):
    return subprocess.run(argv, capture_output=True).returncode == 0


class Host:
    """A network namespace whose loopback is up."""

    def __init__(self, ctx):
        self.holder = ctx.spawn([need("unshare"), "--net", "sleep", "infinity"])
        wait_until(lambda: self._there(), START_LIMIT, "a network namespace")
        self.within = [need("nsenter"), f"--net=/proc/{self.holder.pid}/ns/net"]
        self.ip("link", "set", "lo", "up")

    def _there(self):
        check(self.holder.running(), f"no network namespace: {self.holder.text()}")
        path = f"/proc/{self.holder.pid}"
        return os.readlink(f"{path}/ns/net") != os.readlink("/proc/self/ns/net") and b"sleep" in _read(f"{path}/comm")

    def ip(self, *argv):
        return command(*self.within, need("ip"), *argv)

    def nft(self, *rules):
        for rule in rules:
            command(*self.within, need("nft"), *rule.split())


def _read(path):
    with open(path, "rb") as f:
        return f.read()


def cable(a, b, device, address_a, address_b):
    """A veth pair between two hosts; the device has the same name at both ends."""
    a.ip("link", "add", device, "type", "veth", "peer", "name", device, "netns", str(b.holder.pid))
    for end, address in ((a, address_a), (b, address_b)):
        end.ip("address", "add", address, "dev", device)
        end.ip("link", "set", device, "up")


class Peer:
    """host_peer.py in a host, in a container, or beside us."""

    def __init__(self, ctx, role, *argv, script=None, **spawn):
        command = ctx.script("host_peer.py", *argv)
        if script:
            # Script and interpreter must be readable by every user.
            command[:2] = [shutil.which("python3", path="/usr/bin:/bin") or command[0], script]
        self.proc = ctx.spawn(command, role, stdin=subprocess.PIPE, **spawn)
        self.lines = 0

    def heard(self, what):
        def line():
            check(self.proc.running(), f"{what}: the process ended: {' / '.join(self.proc.tail(4))}")
            lines = self.proc.stdout().splitlines(keepends=True)
            return lines[self.lines] if len(lines) > self.lines and lines[self.lines].endswith("\n") else None
        found = wait_until(line, 60, what)
        self.lines += 1
        return found

    def page(self, what):
        """What netacc_ss says of the peer's process, which may be below the launcher and other commands."""
        for pid in host.tree(self.proc.pid):
            try:
                return monitor.show(pid, what)[what]
            except monitor.NoAnswer as problem:
                last = problem
        raise Failure(str(last))

    def end(self):
        self.proc.popen.stdin.close()
        check(self.proc.wait() == 0, f"{self.proc.name}: {' / '.join(self.proc.tail(4))}")


class Server(Peer):
    def __init__(self, ctx, name, address, port, *options, role="server", **spawn):
        super().__init__(ctx, role, "serve", name, address, port, *options, **spawn)
        self.heard(f"{name} listens")


class Client(Peer):
    def __init__(self, ctx, role="client", **spawn):
        super().__init__(ctx, role, "ask", **spawn)

    def ask(self, address, port, size=100_000, **request):
        words = json.dumps({"to": [address, port], "size": size, **request}) + "\n"
        self.proc.popen.stdin.write(words.encode())
        self.proc.popen.stdin.flush()
        return json.loads(self.heard(f"an answer from {address}:{port}"))

    def path(self):
        """(transport, reason) of the connection of the last request."""
        found = [s for s in self.page("sock") if s["state"] not in ("LISTEN", "NEW")]
        check(len(found) == 1, f"not one connection: {found}")
        return found[0]["transport"], found[0]["reason"]


def reaches(client, address, port, name, **request):
    """Checks that the content arrives, and that the server with this name answers."""
    words = client.ask(address, port, **request)
    wanted = {"name": name, "whole": True, "same_addresses": True}
    found = {k: words.get(k) for k in wanted}
    check(found == wanted, f"to {address}:{port}: {words} instead of {wanted}")
    return words
