"""What all servers have in common: a folder, users, processes and a free port."""

import os
import shutil
import socket
import time

from .. import proc
from ..containers import LOOPBACK
from . import tree
from .site import is_root, program


class Server:
    """A server of one side, with all of its processes. Under root, `user` is whom it serves as, and `other` a client of another
    user."""

    user = "www-data"
    other = "nobody"
    tools = ()
    unix = False  # whether it can be reached by a UNIX socket
    notes = ()
    address = "127.0.0.1"

    def __init__(self, site, side):
        self.site = site
        self.side = side
        self.children = []
        self.socket = None
        self.folder = site.folder(self.user)
        try:
            self.begin()
        except BaseException:
            self.close()
            raise

    def begin(self):
        """Starts the processes, and sets `port`, and on the side of UNIX sockets `socket`."""
        raise NotImplementedError

    def start(self, argv, *, user=None, ready="", side=None, path=None):
        """Starts a process that listens on a free port, and returns that port. `argv(port)` is its command, `ready` what it
        says when it serves, and `path` the UNIX socket on which it listens instead."""
        for attempt in range(3):
            # Another program may take the port before the server does.
            port = LOOPBACK.free_port()
            started = self.site.side(side or self.side, user)
            name, *words = argv(port)
            child = started.start(program(name) or name, *words, stdout="file")
            self.children.append(child)
            if _serves(child, ready, path or port):
                return port
            if attempt == 2:
                raise child.failure("did not start")
            tree.stop(self.children.pop())
        return None

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def roots(self):
        return [child.pid for child in self.children]

    def watch(self):
        return tree.Watch(self.side.ss, self.roots()) if hasattr(self.side, "ss") else None

    def stop(self):
        while self.children:
            tree.stop(self.children.pop())

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _serves(child, ready, place):
    """Waits until the process serves; False if it has ended."""
    deadline = time.monotonic() + 4 * proc.START_TIMEOUT
    while child.running():
        if ready in child.errors(1000) and _accepts(place):
            return True
        if time.monotonic() > deadline:
            raise child.failure("does not answer")
        child.wait(0.02)
    return False


def _accepts(place):
    """Whether something listens on the port, or at the path of a UNIX socket."""
    try:
        if isinstance(place, int):
            LOOPBACK.connect(place).close()
        else:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(place)
    except OSError:
        return False
    return True


def as_root(text):
    """A part of a configuration that only root needs, which is to name the user of the workers."""
    return text if is_root() else ""
