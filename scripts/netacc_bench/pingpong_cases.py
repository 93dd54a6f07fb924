"""64 bytes there and back: the time of one round trip, by way of waiting and by placement."""

import json
import math
import os

from . import proc
from .case import Case, Metric, Target

ROUND_TRIPS = 100_000  # over all rounds of a side


class PingPong(Case):
    metrics = (
        Metric("median_us", "median us", "less", 2),
        Metric("p99_us", "p99 us", "less", 2),
        Metric("cpu_us", "CPU us/round trip", "less", 2),
    )
    usual_rounds = 3
    quick_rounds = 1
    headline = "median_us"

    def __init__(self, mode, same_core):
        super().__init__()
        self.mode = mode
        self.same_core = same_core
        self.name = f"pingpong-{mode}-{'same' if same_core else 'two'}"
        place = "on one core" if same_core else "on two cores"
        self.title = f"64-byte round trip, {mode}, {place}"
        if mode == "recv" and not same_core:
            self.targets = (Target("median_us", "most", 1, 0.4, "us"),)

    def possible(self):
        if not self.same_core and len(os.sched_getaffinity(0)) < 2:
            return "this machine has one core"
        return None

    def _cores(self):
        cores = sorted(os.sched_getaffinity(0))
        return (cores[0], cores[0]) if self.same_core else (cores[0], cores[-1])

    def sample(self, side):
        program = self.lab.program("pingpong")
        server_core, client_core = self._cores()
        count = math.ceil(ROUND_TRIPS / self.rounds(self.lab.settings))
        if self.lab.settings.quick:
            count //= 5
        server = side.start(program, "server", self.mode, server_core)
        try:
            told = server.read_json()
            watch = side.watch(told["pid"])
            before = proc.cpu_seconds(told["pid"])
            done = side.run(
                program, "client", self.mode, client_core, told["port"], count,
                tick=self.lab.progress.tick,
            )  # fmt: skip
            cpu = proc.cpu_seconds(told["pid"]) - before + done.cpu
            values = _values(json.loads(done.output), cpu)
            if watch:
                values["proof"] = watch.result()
            return values
        except proc.Failed as error:
            raise proc.Failed(f"{error}\n{server.errors()}".strip()) from None
        finally:
            server.stop()


def _values(told, cpu):
    return {
        "median_us": told["median_ns"] / 1e3,
        "p99_us": told["p99_ns"] / 1e3,
        "mean_us": told["mean_ns"] / 1e3,
        "min_us": told["min_ns"] / 1e3,
        "max_us": told["max_ns"] / 1e3,
        "cpu_us": cpu * 1e6 / told["count"],
        "round_trips": told["count"],
    }


def all_cases():
    modes = ("recv", "epoll", "poll", "select")
    return [PingPong(mode, same) for same in (False, True) for mode in modes]
