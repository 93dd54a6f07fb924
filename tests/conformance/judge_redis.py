"""redis' own Tcl tests against the installed redis-server: a file is a unit, what it calls a test is a test."""

import re
import shutil

import sources
from judging import Broken, Outcome

LIMIT = 900
WHOLE = "(the file to its end)"
PROGRAMS = ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb", "redis-sentinel")


class Redis:
    name = "redis"
    # Its tests build on what the ones before them left in the server.
    chained = True
    units = (
        "unit/printver", "unit/auth", "unit/protocol", "unit/keyspace", "unit/scan", "unit/info", "unit/type/string",
        "unit/type/incr", "unit/type/list", "unit/type/list-3", "unit/type/set", "unit/type/hash", "unit/type/stream",
        "unit/other", "unit/multi", "unit/quit", "unit/aofrw", "unit/acl", "unit/pubsub", "unit/pubsubshard",
        "unit/slowlog", "unit/scripting", "unit/introspection", "unit/introspection-2", "unit/limits",
        "unit/obuf-limits", "unit/wait", "unit/pause", "unit/querybuf", "unit/pendingquerybuf", "unit/tracking",
        "unit/shutdown", "unit/networking", "unit/client-eviction", "unit/replybufsize", "unit/cluster/links",
        "unit/lazyfree", "unit/dump", "unit/expire", "unit/maxmemory", "integration/block-repl",
        "integration/replication", "integration/replication-2", "integration/replication-3",
        "integration/replication-4", "integration/replication-psync", "integration/replication-buffer",
        "integration/shutdown", "integration/aof", "integration/aof-multi-part", "integration/rdb",
        "integration/logging", "integration/psync2", "integration/psync2-reg", "integration/psync2-pingoff",
        "integration/psync2-master-restart", "integration/failover", "integration/redis-cli",
        "integration/redis-benchmark")
    subset = (
        "unit/auth", "unit/protocol", "unit/info", "unit/quit", "unit/multi", "unit/pubsub", "unit/networking",
        "unit/querybuf", "unit/limits", "integration/replication-2")

    def __init__(self):
        self.tree = sources.fetch("redis-server")
        self.tclsh = shutil.which("tclsh8.6") or shutil.which("tclsh")
        if not self.tclsh:
            raise Broken("tclsh is not installed; scripts/deps conformance installs it")
        for name in PROGRAMS:
            link = self.tree / "src" / name
            if not link.is_symlink():
                link.symlink_to(shutil.which(name) or f"/usr/bin/{name}")

    def run(self, unit, world, _):
        argv = [self.tclsh, "tests/test_helper.tcl", "--durable", "--clients", "1", "--timeout", "240",
                "--single", unit]
        status, output = world.run(argv, LIMIT, cwd=self.tree)
        return self.outcomes(output, status)

    @staticmethod
    def outcomes(output, status):
        """From lines like `[ok]: NAME (12 ms)` and `[err]: NAME in FILE`; an exception ends the unit."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
        found = {}
        for kind, name in re.findall(r"^\[(ok|err|skip)\]: (.*)$", plain, re.M):
            at = plain.find(f"[err]: {name}")
            name = re.sub(r" \(\d+ ms\)$| in tests/\S+\.tcl$", "", name)
            # Where the layout of a cluster is drawn by lot the names are too.
            name = re.sub(r"#\d+|x = \d+", "N", name)
            if kind == "ok":
                found.setdefault(name, Outcome("ok"))
            elif kind == "err":
                found[name] = Outcome("fail", re.split(r"\n\[", plain[at:at + 1500])[0])
        broken = re.search(r"^\[(exception|TIMEOUT)\]: .*", plain, re.M | re.S)
        found[WHOLE] = Outcome("ok")
        if broken or status is None:
            found[WHOLE] = Outcome("hang" if status is None else "exception", (broken[0] if broken else plain)[-2000:])
        return found
