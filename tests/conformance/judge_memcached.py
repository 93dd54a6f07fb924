"""memcached's own tests, t/*.t: a file is a unit and a test."""

import re

import sources
from judging import Outcome

# Built without UNIX sockets, its tests use TCP for everything.
CONFIGURE = ("--disable-unix-socket", "--disable-docs", "--disable-dependency-tracking")

# Not about the program: the state of the source tree, and what needs another build or several GB.
ELSEWHERE = ("whitespace", "64bit", "issue_260", "unixsocket")
# These take three seconds or more each, most of it sleep.
SLOW = (
    "00-startup", "binary", "binary-extstore", "chunked-extstore", "chunked-items", "dash-M", "dyn-maxbytes",
    "error-extstore", "evictions", "extstore", "extstore-buckets", "extstore-jbod", "flush-all", "getandtouch",
    "getset", "idle-timeout", "issue_14", "issue_163", "issue_183", "issue_22", "issue_41", "lru-crawler",
    "lru-maintainer", "maxconns", "metaget", "restart", "shutdown", "slabs-reassign-chunked", "slabs-reassign2",
    "slabs_reassign", "touch", "watcher")
LIMIT = 120


class Memcached:
    name = "memcached"
    chained = False
    units = ("all",)
    subset = ("quick",)

    def __init__(self):
        self.tree = sources.fetch("memcached")
        if not (self.tree / "timedrun").exists():
            sources.run(["./configure", *CONFIGURE], self.tree, "memcached's configure")
            sources.run(["make", "memcached-debug", "timedrun"], self.tree, "memcached's make")

    def files(self, unit):
        names = sorted(p.stem for p in (self.tree / "t").glob("*.t"))
        return [n for n in names if n not in ELSEWHERE and (unit == "all" or n not in SLOW)]

    def run(self, unit, world, only=None):
        return {name: self.one(name, world) for name in only or self.files(unit)}

    def one(self, name, world):
        status, output = world.run(["perl", f"t/{name}.t"], LIMIT, cwd=self.tree)
        if status is None:
            return Outcome("hang", output[-3000:])
        if re.search(r"^1\.\.0\b", output, re.M):
            return Outcome("skip", output[-300:])
        bad = re.findall(r"^not ok (?!.*# TODO).*$", output, re.M)
        planned = re.search(r"^1\.\.(\d+)", output, re.M)
        done = len(re.findall(r"^(?:not )?ok \d+", output, re.M))
        if status == 0 and not bad and planned and done == int(planned[1]):
            return Outcome("ok")
        return Outcome("fail", f"{output[-3000:]}\nexit status {status}, {done} of {planned and planned[1]} checks")


