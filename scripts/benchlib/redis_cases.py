"""Cases with unmodified redis-server and redis-benchmark."""

from . import sides
from .case import Case, Metric, Target
from .containers import LOOPBACK
from .redisctl import KEYS, VALUE_SIZE, RedisServer, parse_csv

METRICS = (
    Metric("rps", "requests/s", "more", 0),
    Metric("avg_ms", "average ms", "less", 3),
    Metric("p50_ms", "p50 ms", "less", 3),
    Metric("p99_ms", "p99 ms", "less", 3),
    Metric("cpu_us", "CPU us/request", "less", 2),
)


class RedisCase(Case):
    metrics = METRICS
    headline = "rps"
    others = ("unix",)
    options = ()
    test = "set"
    seconds = (1.2, 0.6)  # usual, quick: how long one measurement should take
    first_try = 20_000
    place = LOOPBACK

    def prepare(self):
        self.note(
            f"redis: values of {VALUE_SIZE} bytes, {KEYS:,} keys; 50 clients where no number is given;"
            " CPU is that of server and client"
        )
        self.servers = {}
        for side in self.sides():
            self.servers[side.name] = RedisServer(side, self.lab.scratch, self.place)
            self.servers[side.name].fill()
        # Each side gets the number of requests that fills the time. With one number for
        # both, the run of the faster side would be so short that its start dominates.
        self.requests = {side.name: self._calibrate(side) for side in self.sides()}

    def close(self):
        for server in getattr(self, "servers", {}).values():
            server.close()

    def _benchmark(self, side, server, requests):
        return self.place.client(side).run(
            "redis-benchmark", *server.where(), *self.options,
            "-d", VALUE_SIZE, "-t", self.test, "-n", requests, "--csv",
            tick=self.lab.progress.tick,
        )  # fmt: skip

    def _calibrate(self, side):
        goal = self.lab.seconds(*self.seconds)
        requests = self.first_try
        for _ in range(3):
            done = self._benchmark(side, self.servers[side.name], requests)
            took = requests / parse_csv(done.output)["rps"]
            if took > 0.6 * goal:
                break
            requests = int(requests * min(goal / took, 20))
        return max(1000, int(requests * goal / took))

    def sample(self, side):
        return self.measure(side, self.servers[side.name], self.requests[side.name])

    def measure(self, side, server, requests):
        done, cpu, proof = sides.serving(side, server.pid, lambda: self._benchmark(side, server, requests))
        row = parse_csv(done.output)
        return {
            "rps": row["rps"],
            "avg_ms": row["avg_latency_ms"],
            "p50_ms": row["p50_latency_ms"],
            "p99_ms": row["p99_latency_ms"],
            "cpu_us": (cpu + done.cpu) / requests * 1e6,
            "requests": requests,
            **proof,
        }


class Set100(RedisCase):
    name = "redis-set"
    title = "redis SET, 100 clients, 4 threads"
    options = ("-c", 100, "-r", KEYS, "--threads", 4)
    # redis-benchmark with threads checks only every 250 ms whether it has finished.
    seconds = (2.5, 1.0)
    first_try = 100_000
    targets = (
        Target("rps", "ratio", 6, 8),
        Target("avg_ms", "ratio", 5, 8),
        Target("p99_ms", "ratio", 5, 8),
        Target("cpu_us", "ratio", 5, 8),
    )


class Get100(Set100):
    name = "redis-get"
    title = "redis GET, 100 clients, 4 threads"
    test = "get"
    targets = (Target("rps", "ratio", 6, 8),)


class OneClient(RedisCase):
    name = "redis-one"
    title = "redis SET, one client"
    options = ("-c", 1, "-r", KEYS)
    first_try = 5_000
    targets = (Target("rps", "ratio", 6, 10),)


class Pipeline(RedisCase):
    name = "redis-pipeline"
    title = "redis SET, pipeline of 16, one thread"
    options = ("-c", 50, "-r", KEYS, "-P", 16)
    first_try = 100_000
    targets = (Target("rps", "ratio", 1.6, 2),)


class Connect(RedisCase):
    """A connection per request.

    Every closed TCP connection keeps its pair of ports in TIME_WAIT for a minute, and
    there are about 28,000 pairs for one server port. So each round has a server of its
    own, and few enough requests to leave most pairs free: TCP never waits for a port.
    """

    name = "redis-connect"
    title = "redis SET, a connection per request"
    options = ("-c", 50, "-r", KEYS, "-k", 0)
    tcp_requests = 12_000
    most_requests = 400_000
    targets = (Target("rps", "ratio", 10, 15),)

    def prepare(self):
        self.tcp_requests = self.lab.seconds(type(self).tcp_requests, 8_000)
        self.requests = {side.name: self.tcp_requests for side in self.sides()}
        self.note(
            f"a connection per request: each round has a new server port and at most"
            f" {self.tcp_requests:,} TCP connections, so that TCP never waits for a port in TIME_WAIT"
        )
        for side in self.sides():
            self._adapt(side)

    def _adapt(self, side):
        """Warms up the side, and gives it a longer run if it uses no pairs of TCP ports."""
        values = self.sample(side)
        seen = values.get("proof", {})
        if side.unix or seen.get("shm", 0) > 0.99 * self.tcp_requests:
            longer = int(values["rps"] * self.lab.seconds(*self.seconds))
            self.requests[side.name] = max(self.tcp_requests, min(longer, self.most_requests))

    def sample(self, side):
        waiting = time_wait()
        server = RedisServer(side, self.lab.scratch, self.place)
        try:
            values = self.measure(side, server, self.requests[side.name])
        finally:
            server.close()
        return {**values, "time_wait_before": waiting}


def time_wait():
    """The number of sockets in TIME_WAIT on this machine."""
    with open("/proc/net/sockstat", encoding="ascii") as stat:
        for line in stat:
            if line.startswith("TCP:"):
                words = line.split()
                return int(words[words.index("tw") + 1])
    return None


ALL = (Set100, Get100, OneClient, Connect, Pipeline)
