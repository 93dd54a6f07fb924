"""Runs the small programs of tests/apps, each of which is a test: on kernel TCP, accelerated, promoted while it runs, and
accelerated while an operator switches it off and on, or exchanges its library, all the time.

A program has passed if it ends with status 0 and its last line is `ok NAME`. Status 77 means that this machine lacks
something that the program needs, which its last line names.
"""

import contextlib
import os
import pathlib
import signal
import subprocess

import controller
import host
from harness import Failure, Skipped, check, launcher

TESTS = pathlib.Path(__file__).resolve().parents[1]
SOURCES = TESTS / "apps"
BUILT = TESTS.parent / "build" / "tests" / "apps"
MODES = ("plain", "netacc", "tcp-first")
# The modes in which an operator works on the program all the time, of which that knows nothing, and what he asks for in turn.
OPERATED = {"off-on": ("off", "on"), "upgrade": ("upgrade",)}
# The programs that count on what a change of the path is said to change (docs/reference/calls.md, "netacc_ctl": "While a program waits for
# a state"), and so have none of these modes.
STATES = {
    "backlog_full": "the length of a queue", "backlog_large": "the length of a queue", "connect_ends": "the length of a queue",
    "close_wakes": "the room of a socket", "window_memory": "the room of a socket",
    "epoll_edge_in_child": "the number of edges", "epoll_listener_two": "the number of edges",
    "epoll_threads_one": "the number of edges", "rcvlowat_edge": "the number of edges",
    "kill_after_shutdown": "the number of edges", "reset_edge": "the number of edges", "msg_flags": "how much one call moves",
    "bound_to_all": "the ports that are taken", "same_pair": "the ports that are taken", "epoll_order": "the order of two paths",
    "restart_number": "the room of a socket", "fork_descriptors": "the number of descriptors",
    "cork": "how long bytes are held back", "sendfile_": "how much one call moves", "splice_": "how much one call moves",
}
# Those of which each run has a part: each has passed in 50 rounds there, beside other load. The others run where they are named, and with
# `--whole`. Some still fail now and then: listener_left, listens_later and shared_unconnected may wait for ever where one process that
# shares a listener is switched on before the other. signals_random counts on a call that no exchange of the library interrupts.
STEADY = {
    "off-on": (
        "accept_many_sleep", "accept_threads", "accept_turns", "adopt_listener", "bulk_random", "cancel", "close_beside_calls",
        "close_other_thread", "epoll_et", "epoll_oneshot", "epoll_shared", "epoll_threads", "fork_both", "fork_keep",
        "fork_rights", "fork_server", "fork_sole_threads", "half_close", "inetd", "jump_out", "kill_bulk", "kill_undelivered",
        "many_large", "poll_family", "prefork", "resets", "reuseport", "scm_rights", "shutdown_forked", "shutdown_other_thread",
        "v4v6_same_port",
    ),
    "upgrade": (
        "accept_many_sleep", "bulk_random", "cancel", "close_other_thread", "cookies", "epoll_shared", "epoll_value",
        "half_close", "jump_out", "order_of_links", "poll_family", "poll_idle", "resets", "shutdown_forked", "time_left",
    ),
}
SKIPPED = 77
# A program ends itself after 60 s.
LIMIT = 90


def names():
    return sorted(path.stem for path in SOURCES.glob("*.c"))


def runs(name, mode):
    """Whether a program runs in this mode."""
    return mode not in OPERATED or name not in STATES


def is_steady(name, mode):
    """Whether a program may be chosen for a run that is not whole, in one of the modes in which an operator works on it."""
    return name in STEADY[mode]


def command(name, mode, built=BUILT):
    """The program's command line, and the additions to its environment."""
    program = str(built / name)
    if mode == "plain":
        return [program], {}
    check(os.access(launcher(), os.X_OK), f"the launcher {launcher()} is not there: build NetACC first")
    if mode in OPERATED:
        return [launcher(), program], {}
    found = {"NETACC_SS": os.environ.get("NETACC_SS") or str(TESTS.parent / "build" / "netacc_ss")}
    if mode == "tcp-first":
        return [launcher(), "-T", program], found
    return [launcher(), program], found | {"NETACC_EXPECT": os.environ.get("NETACC_EXPECT", "shm")}


def run(name, mode, patience=1, built=BUILT, seed=0):
    """Runs a program and returns if it has passed. `patience` says how many times slower than usual the machine is."""
    argv, more = command(name, mode, built)
    unknown = ("NETACC_SS", "NETACC_EXPECT") if mode in OPERATED else ()
    env = {k: v for k, v in os.environ.items() if k not in unknown} | more | {"T_PATIENCE": str(patience)}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                               text=True, errors="replace", start_new_session=True)
    operator = controller.Controller(process.pid, f"{name}{seed}", OPERATED[mode]) if mode in OPERATED else contextlib.nullcontext()
    try:
        with operator:
            said, _ = process.communicate(timeout=LIMIT * patience)
        end = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        doing = "; ".join(host.describe(pid) for pid in host.tree(process.pid))
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        end = f"no end after {LIMIT * patience} s: {doing}"
    lines = said.strip().splitlines()
    if process.returncode == SKIPPED:
        raise Skipped(lines[-1] if lines else "does not say why")
    if process.returncode or f"ok {name}" not in lines:
        raise Failure(f"{'; '.join(lines[-4:]) or 'no output'} [{end}]")


class World:
    """The environment of a program: it runs in the network that we are in, and processes that it leaves are ended."""

    def __init__(self, mode, own_network, seed, directory):
        self.mode, self.seed = mode, seed
        self.parts = {}

    def close(self):
        for pid in host.descendants(os.getpid()):
            host.kill_tree(pid)
        return []


class Program:
    """A program as a case of `matrix`."""

    limit = LIMIT + 10
    seldom = False

    def __init__(self, name):
        self.base = name

    def function(self, world):
        run(self.base, world.mode, seed=world.seed)
