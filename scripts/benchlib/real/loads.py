"""The tools that load the servers. Each gives the rate, the 99th percentile and the longest of its requests."""

import glob
import os
import re
import shutil

from .. import proc
from .site import program

# What `measure` returns: requests per second, the number of requests, milliseconds.
FIGURES = ("rps", "requests", "p99_ms", "longest_ms")
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}


class Client:
    """Runs the load's program on one side as a user, in a folder that belongs to this user."""

    def __init__(self, site, side, user, tick):
        self.side = site.side(side, user)
        self.folder = site.folder(user)
        self.tick = tick

    def run(self, name, *argv, limit):
        return self.side.run(program(name) or name, *argv, timeout=limit, tick=self.tick)

    def path(self, name):
        return os.path.join(self.folder, name)

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def _number(pattern, output, tool):
    found = re.search(pattern, output)
    if not found:
        raise proc.Failed(f"unexpected output of {tool}: {output.strip()[-400:]}")
    return float(found[1])


def _of_times(times_ms, rps, tool):
    """The figures from the times of all requests."""
    if not times_ms:
        raise proc.Failed(f"{tool} has finished no request")
    times = sorted(times_ms)
    figures = (rps, len(times), times[int(0.99 * (len(times) - 1))], times[-1])
    return dict(zip(FIGURES, figures, strict=True))


class Pgbench:
    """pgbench writes the time of each transaction into a log."""

    tools = ("pgbench",)

    def __init__(self, connections, *options):
        self.options = ("-c", connections, *options)

    def measure(self, client, server, seconds):
        where = f"host={server.socket or server.address} port={server.port} user=bench dbname=postgres sslmode=disable"
        prefix = client.path("pgbench")
        done = client.run("pgbench", "-n", "-T", seconds, "-l", "--log-prefix", prefix, *self.options, where, limit=seconds + 60)
        times = []
        for path in glob.glob(prefix + ".*"):
            with open(path, encoding="ascii") as log:
                times += [int(line.split()[2]) / 1e3 for line in log]
            os.unlink(path)
        return done, _of_times(times, _number(r"tps = ([0-9.]+)", done.output, "pgbench"), "pgbench")


class Sysbench:
    """sysbench with one of its scripts; a transaction is a request."""

    tools = ("sysbench",)
    ROWS = 10_000
    TABLE = ("--db-driver=mysql", "--mysql-user=bench", "--mysql-db=bench", "--tables=1", f"--table-size={ROWS}")

    def __init__(self, script, threads):
        self.script = script
        self.threads = threads

    def measure(self, client, server, seconds):
        where = [f"--mysql-socket={server.socket}"] if server.socket else [f"--mysql-host={server.address}"]
        done = client.run(
            "sysbench", self.script, *self.TABLE, *where, f"--mysql-port={server.port}", f"--threads={self.threads}",
            f"--time={seconds}", "--percentile=99", "run", limit=seconds + 60,
        )  # fmt: skip
        requests = _number(r"transactions:\s+(\d+)", done.output, "sysbench")
        rate = _number(r"transactions:\s+\d+\s+\(([0-9.]+) per sec", done.output, "sysbench")
        longest = _number(r"max:\s+([0-9.]+)", done.output, "sysbench")
        # It is the upper end of a class.
        p99 = min(longest, _number(r"99th percentile:\s+([0-9.]+)", done.output, "sysbench"))
        return done, {"rps": rate, "requests": requests, "p99_ms": p99, "longest_ms": longest}


class Gets:
    """A program of the benchmark: all connections ask memcached for one value, again and again. Debian's load generators measure
    no times, or call the kernel past the C library, so that they stay on TCP."""

    tools = ("gcc", "make")

    def __init__(self, connections):
        self.connections = connections

    def measure(self, client, server, seconds):
        gets = os.path.join(server.site.built("gets", "gets"), "gets")
        done = client.run(gets, self.connections, seconds, server.socket or server.port, limit=seconds + 60)
        count, took, p99, longest = map(float, done.output.split())
        return done, {"rps": count / took, "requests": int(count), "p99_ms": p99 / 1e3, "longest_ms": longest / 1e3}


class Wrk:
    """wrk: connections that are kept."""

    tools = ("wrk",)

    def __init__(self, connections):
        self.connections = connections

    def measure(self, client, server, seconds):
        threads = min(self.connections, len(os.sched_getaffinity(0)))
        done = client.run("wrk", "-t", threads, "-c", self.connections, "-d", f"{seconds}s", "--timeout", "20s", "--latency",
                          f"http://{server.address}:{server.port}/page", limit=seconds + 60)  # fmt: skip
        for bad in ("Socket errors", "Non-2xx"):
            if bad in done.output:
                raise proc.Failed(f"wrk: {next(line.strip() for line in done.output.splitlines() if bad in line)}")
        unit = r"([0-9.]+)(us|ms|s|m)\b"
        times = re.search(rf"Latency\s+\S+\s+\S+\s+{unit}.*?\b99%\s+{unit}", done.output, re.DOTALL)
        if not times:
            raise proc.Failed(f"unexpected output of wrk: {done.output.strip()[-400:]}")
        return done, {
            "rps": _number(r"Requests/sec:\s+([0-9.]+)", done.output, "wrk"),
            "requests": int(_number(r"(\d+) requests in", done.output, "wrk")),
            "p99_ms": float(times[3]) * UNITS[times[4]],
            "longest_ms": float(times[1]) * UNITS[times[2]],
        }


class Ab:
    """ab, with connections that are kept or a connection per request: then with so few that TCP never waits for a port in TIME_WAIT.
    It gives the longest request in whole milliseconds."""

    tools = ("ab",)
    MOST = {True: 1_000_000, False: 12_000}

    def __init__(self, connections, keep, most=None):
        self.connections = connections
        self.keep = keep
        self.most = most or self.MOST[keep]

    def measure(self, client, server, seconds):
        table = client.path("ab.csv")
        done = client.run("ab", "-q", "-l", *(("-k",) if self.keep else ()), "-c", self.connections, "-t", seconds,
                          "-n", self.most, "-e", table,
                          f"http://{server.address}:{server.port}/page", limit=seconds + 60)  # fmt: skip
        failed = _number(r"Failed requests:\s+(\d+)", done.output, "ab")
        if failed or "Non-2xx" in done.output:
            raise proc.Failed(f"ab: failed requests: {done.output.strip()[-600:]}")
        with open(table, encoding="ascii") as rows:
            p99 = next(float(row.split(",")[1]) for row in rows if row.startswith("99,"))
        return done, {
            "rps": _number(r"Requests per second:\s+([0-9.]+)", done.output, "ab"),
            "requests": int(_number(r"Complete requests:\s+(\d+)", done.output, "ab")),
            "p99_ms": p99,
            "longest_ms": max(p99, _number(r"100%\s+(\d+)", done.output, "ab")),
        }


class H2load:
    """h2load: HTTP/2 without TLS, several requests at a time on each connection."""

    tools = ("h2load",)

    def __init__(self, connections, streams):
        self.connections = connections
        self.streams = streams

    def measure(self, client, server, seconds):
        log = client.path("h2load")
        done = client.run("h2load", "-c", self.connections, "-m", self.streams, "-D", seconds, "--log-file", log,
                          f"http://{server.address}:{server.port}/page", limit=seconds + 60)  # fmt: skip
        with open(log, encoding="ascii") as lines:
            rows = [line.split() for line in lines]
        os.unlink(log)
        bad = next((row[1] for row in rows if row[1] != "200"), None)
        if bad:
            raise proc.Failed(f"h2load: a request ended with status {bad}")
        rate = _number(r"([0-9.]+) req/s", done.output, "h2load")
        return done, _of_times([int(row[2]) / 1e3 for row in rows], rate, "h2load")


class Repeat:
    """A program that is run again and again, one process after the other. A request is a process, from its start to its end."""

    tools = ("gcc", "make")

    def __init__(self, command, *tools):
        self.command = command
        self.tools = (*Repeat.tools, *tools)

    def measure(self, client, server, seconds):
        name, *words = self.command(client, server)
        repeat = os.path.join(server.site.built("repeat", "repeat"), "repeat")
        done = client.run(repeat, seconds, program(name) or name, *words, limit=seconds + 60)
        times = [float(line) / 1e3 for line in done.output.splitlines()]
        return done, _of_times(times, len(times) / (sum(times) / 1e3) if times else 0, "repeat")
