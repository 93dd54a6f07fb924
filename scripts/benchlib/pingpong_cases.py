"""Cases that measure a round trip of 64 bytes, by the way in which a side waits and by the placement of the processes."""

import os

from .case import Metric, Target
from .ours import Ours


class PingPong(Ours):
    workload = "round-trip"
    metrics = (
        Metric("median_us", "median us", "less", 2),
        Metric("p99_us", "p99 us", "less", 2),
        Metric("cpu_us", "CPU us/round trip", "less", 2),
    )
    usual_rounds = 3
    quick_rounds = 1
    headline = "median_us"
    seconds = (0.5, 0.1)

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

    def options(self):
        cores = sorted(os.sched_getaffinity(0))
        client = cores[0] if self.same_core else cores[-1]
        return ("-s", 64, "--wait", self.mode, "--server-cpu", cores[0], "--cpu", client)

    def values(self, found):
        return {
            "median_us": found["p50_us"],
            "p99_us": found["p99_us"],
            "mean_us": found["average_us"],
            "max_us": found["max_us"],
            "cpu_us": found["cpu_us"],
            "round_trips": found["operations"],
        }


def all_cases():
    modes = ("recv", "epoll", "poll", "select")
    return [PingPong(mode, same) for same in (False, True) for mode in modes]
