"""Cases in two containers of one host. Each connection begins on TCP and goes over to shared memory (NACC_HOST_DIR)."""

from . import containers
from .case import Target
from .http_cases import KeepAlive
from .redis_cases import Connect, OneClient, RedisCase
from .redisctl import KEYS
from .stream_cases import Iperf


class InContainers:
    """What the cases have in common."""

    others = ("sockmap",)
    published = False

    def possible(self):
        return containers.missing((*containers.TOOLS, "nft") if self.published else containers.TOOLS)

    def prepare(self):
        self.place = containers.Containers(self.lab.scratch, self.published)
        self.note("containers: network namespaces, each with a bridge at a third one that routes between them")
        super().prepare()

    def close(self):
        super().close()
        self.place.close()


class Benchmark(InContainers):
    # redis-benchmark first asks on a connection of its own how the server is configured.
    short_lived = 1


class One(Benchmark, OneClient):
    name = "containers-redis-one"
    title = "redis SET, one client, in containers"
    targets = (Target("rps", "ratio", 8),)


class Many(Benchmark, RedisCase):
    name = "containers-redis-set"
    title = "redis SET, 50 clients, in containers"
    options = ("-c", 50, "-r", KEYS)
    targets = (Target("rps", "ratio", 5),)


class Published(Many):
    name = "containers-published"
    title = "redis SET, 50 clients, at a published port (DNAT)"
    published = True


class Stream(InContainers, Iperf):
    # iperf3 closes its control connection at the end, and says little on it.
    short_lived = 1
    name = "containers-stream"
    title = "iperf3, one stream, 1 KiB writes, in containers"
    size = 1024
    targets = (Target("gbytes", "ratio", 6),)


class Http(InContainers, KeepAlive):
    # wrk first makes a connection to see that the server is there.
    short_lived = 1
    name = "containers-http"
    title = f"{KeepAlive.title}, in containers"
    targets = (Target("rps", "ratio", 3),)

    def possible(self):
        return super().possible() or KeepAlive.possible(self)


class ShortLived(InContainers, Connect):
    name = "containers-connect"
    title = "redis SET, a connection per request, in containers"
    # A connection that is closed at once stays on TCP.
    must_be_accelerated = False
    targets = (Target("rps", "ratio", 0.95),)


ALL = (One, Many, Published, Stream, Http, ShortLived)
