"""Cases that measure bytes per second: iperf3, and a transfer of which every byte is compared."""

import json

from . import proc, sides
from .case import Case, Metric, Target
from .containers import LOOPBACK
from .ours import Ours

CHUNK = 128 * 1024
GIB = 1 << 30


class Stream(Case):
    metrics = (
        Metric("gbytes", "GB/s", "more", 2),
        Metric("cpu_ms_gib", "CPU ms/GiB", "less", 1),
    )
    usual_rounds = 3
    headline = "gbytes"
    seconds = (2, 1)

    def values(self, side, server_pid, work):
        """The metrics of `work()`, which moves bytes and returns how many, the time, and the client's CPU time."""
        (count, seconds, client_cpu), cpu, proof = sides.serving(side, server_pid, work)
        return {"gbytes": count / seconds / 1e9, "cpu_ms_gib": (cpu + client_cpu) * 1e3 / (count / GIB), **proof}


class Iperf(Stream):
    name = "iperf3"
    title = "iperf3, one stream, 128 KiB writes"
    direction = ()
    size = CHUNK
    place = LOOPBACK
    targets = (Target("gbytes", "ratio", 5, 8),)

    def sample(self, side):
        port = self.place.free_port()
        server = self.place.server(side).start("iperf3", "-s", "-B", self.place.listens_on, "-p", port, "--forceflush")
        try:
            while "Server listening" not in server.read_line():
                pass
            return self.values(side, server.pid, lambda: self._client(side, port))
        finally:
            server.stop()

    def _client(self, side, port):
        seconds = self.lab.seconds(*self.seconds)
        done = self.place.client(side).run(
            "iperf3", "-c", self.place.address, "-p", port, "-l", self.size, "-t", seconds, "-J",
            *self.direction, tick=self.lab.progress.tick,
        )  # fmt: skip
        try:
            received = json.loads(done.output)["end"]["sum_received"]
            return received["bytes"], received["seconds"], done.cpu
        except (json.JSONDecodeError, KeyError) as error:
            raise proc.Failed(f"iperf3: unexpected output: {error}") from None


class IperfReverse(Iperf):
    name = "iperf3-reverse"
    title = "iperf3 -R (server sends), one stream, 128 KiB writes"
    direction = ("-R",)


class Bulk(Ours):
    name = "bulk"
    title = "one stream, 128 KiB writes, every byte compared on arrival"
    workload = "stream"
    metrics = Stream.metrics
    usual_rounds = Stream.usual_rounds
    headline = Stream.headline
    seconds = Stream.seconds

    def options(self):
        return ("--verify", "-l", CHUNK)

    def values(self, found):
        # netacc_bench counts in millions of bytes.
        return {"gbytes": found["per_second"] / 1e3, "cpu_ms_gib": found["cpu_us"] / 1e3 * (GIB / 1e6)}


ALL = (Iperf, IperfReverse, Bulk)
