"""Two network namespaces of one host with a directory (NACC_HOST_DIR), and programs in them that talk."""

import os
import subprocess
from contextlib import contextmanager

from harness import equal
from host import wait_until
from hosts import Host, Peer, cable, need_root

PORT = 7100
# More than a client waits for before it looks for its neighbour.
ROUNDS = 40


class World:
    """A directory, and two namespaces with a cable between them: a client's and a server's."""

    def __init__(self, ctx, mode=0o755):
        need_root()
        self.ctx, self.a, self.b = ctx, Host(ctx), Host(ctx)
        self.dir = ctx.dir / "neighbours"
        self.dir.mkdir()
        self.dir.chmod(mode)
        cable(self.a, self.b, "cable", "10.77.0.1/24", "10.77.0.2/24")

    def env(self, **more):
        return {"NACC_HOST_DIR": str(self.dir), "NACC_LOG_PATH": str(self.ctx.dir / "log"), "NACC_LOG_LEVEL": "2", **more}

    def serve(self, kind, address="0.0.0.0", port=PORT, within=None, role="server", **spawn):
        return Talker(self, role, "serve", kind, address, port, within=within or self.b.within, **spawn)

    def talk(self, address="10.77.0.2", port=PORT, connections=1, rounds=ROUNDS, within=None, **spawn):
        return Talker(self, "client", "talk", address, port, connections, rounds, within=within or self.a.within, **spawn)

    def hear(self, connections, within=None):
        return Talker(self, "client", "hear", "10.77.0.2", PORT, connections, ROUNDS, within=within or self.a.within)

    def tell(self, size, connections, role="client"):
        return Talker(self, role, "tell", "10.77.0.2", PORT, connections, ROUNDS, size, within=self.a.within)

    def flood(self, size):
        return Talker(self, "client", "flood", "10.77.0.2", PORT, size, within=self.a.within)

    def names(self):
        return sorted(os.listdir(self.dir))


class Talker(Peer):
    def __init__(self, world, role, *argv, env=None, **spawn):
        proc = world.ctx.spawn(world.ctx.script("neighbour_peer.py", *argv), role, stdin=subprocess.PIPE,
                               env=world.env(**(env or {})), **spawn)
        self.proc, self.lines, self.mode = proc, 0, world.ctx.mode
        self.first = self.heard("the first line")

    def again(self, wish="again"):
        self.proc.popen.stdin.write(f"{wish}\n".encode())
        self.proc.popen.stdin.flush()
        return self.heard("another line, or two")

    def paths(self):
        return [(s["transport"], s["reason"]) for s in self.page("sock") if s["state"] not in ("LISTEN", "NEW")]

    def expect(self, *paths):
        """Its connections come to these paths. A connection goes over in one of its calls, and a busy machine may need many."""
        if self.mode == "both":
            def there():
                self.again()
                return self.paths() == list(paths)
            try:
                wait_until(there, 30, "the connections' paths")
            except TimeoutError:
                equal(self.paths(), list(paths), "the connections' paths")


    def comes_to(self, *paths):
        """Whether its connections come to these paths soon."""
        def there():
            self.again()
            return self.paths() == list(paths)
        try:
            wait_until(there, 5, "the connections' paths")
        except TimeoutError:
            return False
        return True


@contextmanager
def ended(server, *clients):
    yield
    for one in (*clients, server):
        one.end()
