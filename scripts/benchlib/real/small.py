"""Clients that live for one request, and rsync."""

import os

from . import loads
from .case import pairs
from .server import Server
from .web import Nginx


class Redis(Server):
    user = "redis"
    tools = ("redis-server",)
    unix = True

    def begin(self):
        path = os.path.join(self.folder, "redis.sock")
        self.port = self.start(
            lambda port: [
                "redis-server", "--port", port, "--bind", self.address, "--save", "", "--appendonly", "no", "--dir", self.folder,
                "--protected-mode", "no", "--daemonize", "no", "--loglevel", "warning", "--unixsocket", path,
                "--unixsocketperm", 777,
            ],
            user=self.user,
        )  # fmt: skip
        self.socket = path if self.side.unix else None


def redis_cli(_client, server):
    return ["redis-cli", *(("-s", server.socket) if server.socket else ("-h", server.address, "-p", server.port)), "PING"]


def oneshot(_client, server):
    return [os.path.join(server.site.built("oneshot", "oneshot"), "oneshot"), server.port]


RSYNC = """
use chroot = no
pid file = {folder}/pid
log file = {folder}/log
max verbosity = 0
[tree]
    path = {folder}/tree
    read only = yes
"""


class Rsync(Server):
    tools = ("rsync",)
    notes = ("rsync: a transfer is a request, of 400 files of 100 to 51,200 bytes",)

    def begin(self):
        tree = os.path.join(self.folder, "tree")
        for number in range(400):
            folder = os.path.join(tree, f"d{number % 20}")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"f{number}"), "wb") as file:
                file.write(b"x" * (100 << number % 10))
        self.port = self.start(
            lambda port: ["rsync", "--daemon", "--no-detach", f"--address={self.address}", f"--port={port}",
                          f"--config={self.write(f'rsync-{port}.conf', RSYNC.format(folder=self.folder))}"],
            user=self.user,
        )  # fmt: skip


def rsync(client, server):
    # Without a look at times and sizes every file is sent each time.
    source = f"rsync://{server.address}:{server.port}/tree/"
    return ["rsync", "-r", "--ignore-times", "--whole-file", source, client.path("tree")]


def cases():
    rows = (
        ("oneshot", "a C client per request, to nginx", Nginx, loads.Repeat(oneshot)),
        ("redis-cli", "redis-cli, a process per request", Redis, loads.Repeat(redis_cli, "redis-cli")),
        ("rsync", "rsync from its daemon, a tree of files", Rsync, loads.Repeat(rsync)),
    )
    usual = {"oneshot": False}
    return pairs([(row, {"usual": usual.get(row[0])}) for row in rows])
