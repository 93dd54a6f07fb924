"""The sides of the comparison, and how a program is started for each."""

import os
import pathlib

import counting
import world
from harness import ROOT, need

BENCH = ROOT / "build" / "bench"
RSOCKET = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"


class Side:
    """`name` is what people say, `kind` the kind of device, `via` the device that carries the bytes, if one does."""

    preload = ()
    launcher = ()
    rdma = True

    def __init__(self, kind, build):
        self.kind = kind
        self.build = pathlib.Path(build)
        self.key = f"{self.name.lower()}-{kind}" if self.rdma else self.name.lower()
        self.title = f"{self.name}, {kind}" if self.rdma else self.name

    def begin(self):
        pass

    def rdma_port(self, port):
        """Where a listener on that port is reached by RDMA-CM, if it is."""
        return None

    def command(self, role, argv):
        return [*world.inside(world.end(self.kind, role).namespace), *self.launcher_for(), *map(str, argv)]

    def launcher_for(self):
        return []

    def environment(self, counted=False):
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        if counted:
            env["NETACC_COUNT_VERBS"] = str(counting.VERBS)
            env["LD_LIBRARY_PATH"] = str(counting.COPIES)
        preload = [str(BENCH / "count_verbs.so")] * counted + list(self.preload)
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        return env


class Tcp(Side):
    name = "TCP"
    rdma = False


class Rsocket(Side):
    name = "rsocket"
    preload = (RSOCKET,)

    def rdma_port(self, port):
        return port


class Smc(Side):
    name = "SMC-R"
    preload = (str(BENCH / "smc_preload.so"),)

    def begin(self):
        import smc
        smc.begin(self.kind)


class NetAcc(Side):
    name = "NetACC"

    def launcher_for(self):
        return [str(self.build / "netacc_run")]

    def rdma_port(self, port):
        return port + 20000

    def environment(self, counted=False):
        return super().environment(counted) | {"NACC_LOG_PATH": "/run/netacc.log"}


class Device(Side):
    """The verbs alone: what no transport over messages can be faster than on this device."""

    name = "verbs"

    def program(self):
        return str(world.BUILT / "rdma_pingpong")


def into_memory(build):
    """Libraries are read from memory: the host's files would take as long as the host likes. A file whose times are set is
    copied to the layer in memory; of a folder the names would still be the host's, so it becomes one in memory."""
    system = pathlib.Path("/usr/lib/x86_64-linux-gnu")
    for pattern in ("libibverbs.so*", "librdmacm.so*", "libnl-*.so*", "rsocket/*.so*"):
        for path in system.glob(pattern):
            os.utime(path, follow_symlinks=False)
            os.utime(path)
    for path in [pathlib.Path("/etc/ld.so.cache"), *pathlib.Path(build).glob("lib*.so"), *BENCH.glob("*.so")]:
        os.utime(path)
    for folder in (system / "libibverbs", pathlib.Path("/etc/libibverbs.d")):
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        world.command("mount", "-t", "tmpfs", "tmpfs", str(folder))
        for name, content in files.items():
            (folder / name).write_bytes(content)


def all_of(kinds, build):
    """All sides to compare. TCP is there once, since every kind of device has the link in common. SMC-R needs RoCE."""
    found = [Tcp(kinds[0], build)]
    for kind in kinds:
        found += [Device(kind, build), Rsocket(kind, build)]
        found += [Smc(kind, build)] * (kind == "rxe")
        found.append(NetAcc(kind, build))
    need("redis-server")
    return found
