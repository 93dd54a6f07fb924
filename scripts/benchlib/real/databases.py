"""PostgreSQL, MariaDB and memcached."""

import os
import signal

from . import loads
from .case import counted, distinct, levels, pairs
from .server import Server
from .site import program


class Database(Server):
    """A server with data that are made once: each server begins with a copy of them."""

    unix = True

    def begin(self):
        filled = self.site.once(type(self).__name__, self._filled)
        data = os.path.join(self.folder, "data")
        self.site.side(self.site.plain, self.user).run("cp", "-a", "--reflink=auto", filled, data, timeout=120)
        self.serve(data, self.side)

    def _filled(self):
        data = os.path.join(self.site.folder(self.user), "data")
        self.fill(data, self.site.side(self.site.plain, self.user))
        self.stop()
        return data

    def fill(self, data, plain):
        """Makes the data, which needs a server of its own."""
        raise NotImplementedError

    def serve(self, data, side):
        raise NotImplementedError


class Postgres(Database):
    user = "postgres"
    tools = ("postgres", "initdb", "pgbench")
    notes = ("PostgreSQL: pgbench's tables at scale 10, fsync off; pgbench writes down the time of each transaction",)

    SETTINGS = {
        "listen_addresses": "127.0.0.1",
        "fsync": "off",
        "autovacuum": "off",
        "max_connections": 150,
        "shared_buffers": "256MB",
        "checkpoint_timeout": "1h",
        "max_wal_size": "256MB",
    }

    def fill(self, data, plain):
        plain.run(program("initdb"), "-D", data, "-U", "bench", "-A", "trust", "-N", "--no-locale", "-E", "UTF8")
        self.serve(data, self.site.plain)
        plain.run(program("pgbench"), "-i", "-q", "-s", 10, "-h", self.folder, "-p", self.port, "-U", "bench", "postgres")

    def serve(self, data, side):
        settings = {**self.SETTINGS, "unix_socket_directories": self.folder}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.port = self.start(
            lambda port: ["postgres", "-D", data, "-p", port, *options],
            user=self.user, side=side, ready="ready to accept connections",
        )  # fmt: skip
        self.socket = self.folder if side.unix else None

    def stop(self):
        for child in self.children:
            if child.running():
                os.kill(child.pid, signal.SIGINT)  # At SIGTERM it would wait for its clients.
        super().stop()


class MariaDb(Database):
    user = "mysql"
    tools = ("mariadbd", "mariadb-install-db", "mariadb", "sysbench")
    notes = (f"MariaDB: one table of {loads.Sysbench.ROWS:,} rows, without a flush per transaction; sysbench's transactions",)

    def fill(self, data, plain):
        plain.run(program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db",
                  "--auth-root-authentication-method=normal", "--innodb-log-file-size=64M")  # fmt: skip
        self.serve(data, self.site.plain)
        users = [f"create user bench@'{host}'; grant all on bench.* to bench@'{host}'" for host in ("%", "localhost")]
        statements = "; ".join(["create database bench", *users])
        plain.run(program("mariadb"), "--no-defaults", "-uroot", f"--socket={self._path}", "-e", statements)
        plain.run(program("sysbench"), "oltp_point_select", *loads.Sysbench.TABLE, f"--mysql-socket={self._path}", "prepare")

    def serve(self, data, side):
        self._path = os.path.join(self.folder, "mysql.sock")
        self.port = self.start(
            lambda port: [
                "mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}", f"--bind-address={self.address}",
                f"--socket={self._path}", f"--pid-file={self.folder}/pid", "--skip-name-resolve",
                "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M",
            ],
            user=self.user, side=side, ready="ready for connections",
        )  # fmt: skip
        self.socket = self._path if side.unix else None


class Memcached(Server):
    user = "memcache"
    tools = ("memcached",)
    unix = True
    notes = ("memcached: gets of a value of 1 KiB",)

    def begin(self):
        self.socket = os.path.join(self.folder, "memcached.sock") if self.side.unix else None
        self.port = self.start(
            lambda port: ["memcached", "-m", 64, *self._where(port)], user=self.user, path=self.socket
        )

    def _where(self, port):
        return ["-s", self.socket, "-a", "0777"] if self.socket else ["-l", self.address, "-p", port, "-U", 0]


def cases():
    one, cores, four, sixteen = levels()
    loaded = []
    for count in distinct(one, cores, four, sixteen):
        load = loads.Pgbench(count, "-S", "-j", min(count, 8))
        loaded.append((f"postgres-select-{count}", f"PostgreSQL, pgbench -S, {counted(count, 'client')}", Postgres, load))
    loaded += [
        (f"postgres-prepared-{sixteen}", f"PostgreSQL, pgbench -S prepared, {sixteen} clients", Postgres,
         loads.Pgbench(sixteen, "-S", "-M", "prepared", "-j", 4)),
        ("postgres-tpcb-8", "PostgreSQL, pgbench TPC-B, 8 clients", Postgres, loads.Pgbench(8, "-j", 8)),
        ("postgres-connect-8", "PostgreSQL, pgbench -S -C, 8 clients", Postgres, loads.Pgbench(8, "-S", "-C", "-j", 8)),
    ]  # fmt: skip
    for count in distinct(one, cores, four, sixteen):
        load = loads.Sysbench("oltp_point_select", count)
        loaded.append((f"mariadb-point-{count}", f"MariaDB, point selects, {counted(count, 'thread')}", MariaDb, load))
    loaded += [
        ("mariadb-read-only-4", "MariaDB, read only, 4 threads", MariaDb, loads.Sysbench("oltp_read_only", 4)),
        ("mariadb-read-write-4", "MariaDB, read and write, 4 threads", MariaDb, loads.Sysbench("oltp_read_write", 4)),
    ]
    for count in distinct(one, cores, four, sixteen):
        loaded.append((f"memcached-{count}", f"memcached, {counted(count, 'client')}", Memcached, loads.Gets(count)))
    usual = {f"postgres-select-{four}": False, f"mariadb-point-{four}": True}
    return pairs([(row, {"usual": usual.get(row[0])}) for row in loaded])
