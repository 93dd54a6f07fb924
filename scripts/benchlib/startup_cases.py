"""Measures what the library costs a program that never opens a socket."""

import os
import shutil
import statistics
import time

from . import proc
from .case import Case, Metric, Target

STARTS = 200


class Startup(Case):
    name = "startup"
    title = "start and end of a program without sockets"
    usual_rounds = 4
    quick_rounds = 2
    headline = "median_ms"
    must_be_accelerated = False
    steps_per_round = 1
    metrics = (
        Metric("median_ms", "median ms", "info", 3),
        Metric("cpu_ms", "CPU ms", "info", 3),
    )
    targets = (Target("median_ms", "extra", 1, 0.3, "ms"),)

    def prepare(self):
        self.program = shutil.which("true")
        self.envs = {}
        for side in self.lab.sides:
            self.envs[side.name] = dict(side.env)
            library = side.library()
            if library:
                self.envs[side.name]["LD_PRELOAD"] = library
                self._must_load(self.envs[side.name])

    def _must_load(self, env):
        """Checks that the library is loaded: if it cannot be, the dynamic linker only complains and goes on."""
        said = proc.run([self.program], env).errors
        if said:
            raise proc.Failed(said)

    def round(self, index, announce):
        """Measures both sides, which take turns at every start."""
        announce(self.lab.sides[index % 2])
        times = {side.name: [] for side in self.lab.sides}
        for i in range(STARTS // self.usual_rounds):
            names = list(times) if i % 2 == 0 else list(times)[::-1]
            for name in names:
                times[name].append(self._start(self.envs[name]))
        return {name: _values(measured) for name, measured in times.items()}

    def _start(self, env):
        start = time.perf_counter()
        pid = os.posix_spawn(self.program, [self.program], env)
        _, status, usage = os.wait4(pid, 0)
        took = time.perf_counter() - start
        if status:
            raise proc.Failed(f"{self.program} ended with status {status}")
        return took * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def _values(measured):
    return {
        "median_ms": statistics.median(wall for wall, _ in measured),
        "cpu_ms": statistics.fmean(cpu for _, cpu in measured),
        "starts": len(measured),
    }


ALL = (Startup,)
