"""The cases of tests/rdma that say something without a kernel's device: each runs here too, on the library of crates/netacc-fabric."""

import importlib
import pathlib

import fabric  # noqa: F401, before the modules of rdma: it says which kinds of devices there are
import matrix

RDMA = pathlib.Path(__file__).resolve().parents[1] / "rdma"
# Modules about kernel devices and drivers, about what the real libraries do, or about the virtual machine itself; and cases of the
# others, with the reason.
ELSEWHERE = {"apps", "bench", "devices", "check", "groups", "verbs"}
NOT_HERE = {
    "transport.a_port_that_is_taken": "which ports are taken is another matter for each kind of device",
    "settings.no_memory_to_lock": "no memory is locked",
    "settings.a_connect_that_does_not_wait_for_an_answer": "here the answer always comes in time",
    "storm.storm": "it removes devices of soft RoCE and soft iWARP by name",
    "strangers.a_flood_of_connects": "soft RoCE's time-outs decide how many are kept",
}

for path in sorted(RDMA.glob("test_*.py")):
    if path.stem.removeprefix("test_") not in ELSEWHERE:
        importlib.import_module(path.stem)
# Most of what these take is waiting for a time-out.
SELDOM = {"faults.a_queue_pair_of_a_host_that_is_gone_is_given_up"}
for entry in matrix.registered():
    left_out = entry.base in NOT_HERE or entry.base.partition(".")[0] in ELSEWHERE
    entry.seldom = entry.base in SELDOM
    entry.modes = () if left_out else (fabric.KIND,)
