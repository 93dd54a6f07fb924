"""Two hosts with an RDMA device each, made of network namespaces and of the library of crates/netacc-fabric: the world of a case of
tests/rdma, without a virtual machine.

Each case has all of it to itself: namespaces, a mount namespace in which /sys/class lists the devices, and a folder of devices.
The programs find a libibverbs and a librdmacm by LD_LIBRARY_PATH, and the tests a program `rdma` by PATH (`rdma` beside this file).
"""

import json
import mmap
import os
import pathlib
import shutil
import struct

import harness
import host
import world

KIND = "fabric"
HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = harness.ROOT / "build" / "tests" / "fabric" / "libnetacc_fabric.so"
# crates/netacc-fabric/src/device.rs.
FOLDER = pathlib.Path("/run/netacc-fabric")
CLONE_NEWNS = 0x20000
# Where the words of a device's page are: crates/netacc-fabric/src/device.rs.
WORDS = ("rdma_sends", "rdma_recvs", "sent_bytes", "rcvd_bytes", "without_receive", "late_acks", "late_messages", "fail_after",
         "lost_completions", "late_established", "silent", "fail_receive_after", "endless_retries",
         "seed", "choices", "late_completions", "mixed_completions", "doubled_events")


def enter():
    """Moves the case's process into a world of its own."""
    harness.check(LIBRARY.exists(), f"{LIBRARY} is not built: make -C tests/fabric")
    # The names and ports of other suites' programs are none of the case's.
    harness.check(host.enter_own_network(), "no network namespace of our own")
    # Gone with the case's last process.
    if host._libc.unshare(CLONE_NEWNS) != 0:
        raise harness.Skipped("no mount namespace of our own: only root may have one")
    world.command("mount", "--make-rprivate", "/")
    classes = {path.name: [(entry.name, os.readlink(entry)) for entry in path.iterdir() if entry.is_symlink()]
               for path in pathlib.Path("/sys/class").iterdir() if path.is_dir() and path.name in ("net", "block")}
    world.command("mount", "-t", "tmpfs", "classes", "/sys/class")
    for name, links in classes.items():
        folder = pathlib.Path("/sys/class") / name
        folder.mkdir()
        for entry, target in links:
            (folder / entry).symlink_to(target)
    for name in ("infiniband", "infiniband_verbs"):
        (pathlib.Path("/sys/class") / name).mkdir()
    pathlib.Path("/run/netns").mkdir(exist_ok=True)
    world.command("mount", "-t", "tmpfs", "namespaces", "/run/netns")
    FOLDER.mkdir(exist_ok=True)
    world.command("mount", "-t", "tmpfs", "fabric", str(FOLDER))
    for name in ("devices", "pages", "cm_id", "qp", "lib", "bin"):
        (FOLDER / name).mkdir(parents=True)
        (FOLDER / name).chmod(0o1777)
    # A copy, since the project may lie in a private place and some programs run as other users.
    shutil.copy(LIBRARY, FOLDER / "lib" / "libibverbs.so.1")
    (FOLDER / "lib" / "librdmacm.so.1").symlink_to("libibverbs.so.1")
    (FOLDER / "bin" / "rdma").symlink_to(HERE / "rdma")
    os.environ["LD_LIBRARY_PATH"] = str(FOLDER / "lib")
    os.environ["PATH"] = f"{FOLDER / 'bin'}:{os.environ['PATH']}"
    world.build()
    return True


class Page:
    """The counters of a device, and the faults that it is to have."""

    def __init__(self, device):
        path = FOLDER / "pages" / device
        with open(path, "a+b") as f:
            path.chmod(0o666)
            f.truncate(4096)
            self.map = mmap.mmap(f.fileno(), 4096)

    def __getitem__(self, word):
        return struct.unpack_from("<Q", self.map, 8 * WORDS.index(word))[0]

    def __setitem__(self, word, value):
        struct.pack_into("<Q", self.map, 8 * WORDS.index(word), value)


def counters(device):
    page = Page(device)
    return {word: page[word] for word in WORDS[:5]}


world.KINDS = (KIND,)
world.counters = counters


class Ctx(world.Ctx):
    """As in the virtual machine, but on a machine that is not slow."""

    def environment(self, extra=None):
        return super().environment({"NACC_CONNECT_RDMA_MS": 500, **(extra or {})})

    def fault(self, role, **words):
        """Has the device of that host behave as the words say (crates/netacc-fabric/src/device.rs)."""
        page = Page(world.end(self.kind, role).device)
        for word, value in words.items():
            page[word] = value

    def close(self):
        complaints = super().close()
        # Strangers do as they like.
        for side in () if any(proc.role == "stranger" for proc in self.procs) else self.ends():
            if missed := Page(side.device)["without_receive"]:
                complaints.append(f"{side.device}: {missed} messages came that no receive was posted for")
        return complaints
