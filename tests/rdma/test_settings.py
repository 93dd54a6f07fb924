"""The effects of settings between two hosts, and servers of several processes; on one kind of device only, to save time."""

import collections
import os
import pathlib
import re
import signal

import harness
import monitor
import world
from harness import Failure, check, equal
from host import wait_until
from matrix import case
from test_faults import delete
from test_transport import benchmark, by_rdma, converse, redis

SCRIPT = str(harness.ROOT / "tests" / "rdma" / "remote.py")
MANY = 40


class Held:
    """The connections of one of remote.py's conversations, which stay open until `end`.

    With `while_stopped` the server is stopped before the client starts. The function is called with the conversation, and the
    server goes on when it returns.
    """

    def __init__(self, ctx, what="Many", options=(), while_stopped=None, **client):
        ctx.accelerated = ("server", "client")
        self.ctx, address, port = ctx, ctx.server_end.address, ctx.port()
        ctx.mark()
        self.server = ctx.spawn(["python3", SCRIPT, what, "server", address, port], role="server", env=dict(options))
        wait_until(lambda: "ready" in self.server.stdout() or not self.server.running(), 60, "the server's listener")
        ctx.await_listener(self.server, port + 20000)
        if while_stopped:
            os.kill(self.server.pid, signal.SIGSTOP)
        read_end, self.write_end = os.pipe()
        self.client = ctx.spawn(["python3", SCRIPT, what, "client", address, port], role="client", stdin=read_end,
                                env=dict(options), **client)
        os.close(read_end)
        if while_stopped:
            while_stopped(self)
            os.kill(self.server.pid, signal.SIGCONT)
        wait_until(lambda: "open" in self.client.stdout() or not self.client.running(), 70, "all connections are open")
        check(self.client.running(), f"the client ended: {self.client.text()[-600:]}")

    def end(self):
        os.close(self.write_end)
        self.client.result(60)


@case(modes=("rxe",), limit=200)
def more_connections_than_a_link_has_room_for(ctx):
    held = Held(ctx, "More", options={"NACC_SOR_CONN_PER_QP": "64"})
    by = [s["transport"] for s in monitor.connections(held.client.pid)]
    # The first connects may have gone by TCP because the answer came too late.
    check(by.count("RDMA") > 530, f"{by.count('RDMA')} of {len(by)} connections by RDMA")
    held.end()
    held.server.result(60)


@case(limit=150)
def more_connects_than_the_listener_has_room_for(ctx):
    converse(ctx, "Crowd", script="lasting.py")


@case(modes=("rxe",), limit=300)
def connections_per_queue_pair(ctx):
    # The first connects may have gone by TCP because the answer came too late.
    for per_qp, least, most in ((1, MANY // 2, MANY), (8, 2, MANY // 8 + 3), (64, 1, 4)):
        held = Held(ctx, options={"NACC_SOR_CONN_PER_QP": str(per_qp)})
        for role in ("server", "client"):
            # Processes of another namespace have other numbers, or none, so the queue pairs of both ends' devices are counted.
            device = world.end(ctx.kind, role).device
            found = [qp for qp in world.resources("qp") if qp["ifname"] == device and qp["type"] == "RC"]
            check(least <= len(found) <= most, f"-p {per_qp}: {len(found)} queue pairs on {device}, not {least} to {most}")
        held.end()
        held.server.result(60)
        ctx.prove(3 * MANY, 3 * MANY * 5000)


@case(limit=240)
def threads_that_poll(ctx):
    """Threads that poll do not sleep for a minute after each message, and still get events of queue pairs and companions."""
    held = Held(ctx, options={"NACC_POLL_CQ_MS": "60000"})
    links = [link for link in monitor.show(held.client.pid, "qp")["qp"]["links"] if link["transport"] == "RDMA"]
    check(len(links) >= MANY // 2, f"{len(links)} queue pairs")
    held.end()
    held.server.result(60)
    ctx.prove(3 * MANY, 3 * MANY * 5000)


THREADS = {"NACC_SOR_IO_THREADS": "4"}


def threads_of(proc):
    """The CPUs on which each of NetACC's threads may run, by the thread's name, and those of the program's first thread."""
    found = {}
    for task in pathlib.Path(f"/proc/{proc.pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("netacc-io") or task.name == str(proc.pid):
            [cpus] = re.findall(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())
            found["program" if task.name == str(proc.pid) else name] = cpus
    return found


def connections_by_thread(proc):
    counts = collections.Counter()
    for link in monitor.show(proc.pid, "qp")["qp"]["links"]:
        if link["transport"] == "RDMA":
            counts[link["queue_pair"]["thread"]] += link["connections"]
    return counts


@case(limit=200)
def connections_are_spread_over_threads(ctx):
    held = Held(ctx, options={**THREADS, "NACC_SOR_AFFINITY": "1"})
    for proc in (held.server, held.client):
        cpus = threads_of(proc)
        check(cpus.pop("program") not in ("1", ""), "the program itself was bound")
        equal(cpus, {f"netacc-io-{n}": "1" for n in range(4)}, "threads and their CPUs")
        counts = connections_by_thread(proc)
        check(sorted(counts) == [0, 1, 2, 3] and max(counts.values()) - min(counts.values()) <= 3, f"spread: {counts}")
        check(sum(counts.values()) > MANY // 2, f"carried: {counts}")
    held.end()
    held.server.result(60)
    ctx.prove(3 * MANY, 3 * MANY * 5000)


@case(modes=("rxe",))
def one_thread(ctx):
    held = Held(ctx)
    for proc in (held.server, held.client):
        equal(sorted(threads_of(proc)), ["netacc-io", "program"], "threads")
    held.end()
    held.server.result(60)


@case(limit=240)
def redis_with_threads(ctx):
    """redis works on four threads with unshared and shared queue pairs, and then with a connection per request."""
    server, port = redis(ctx, ("server", "client"), env=THREADS)
    for shared in ("1", "4"):
        ctx.mark()
        benchmark(ctx, port, "-t", "set,get", "-n", 2000, "-c", 20, "--threads", 2, limit=100,
                  env={**THREADS, "NACC_SOR_CONN_PER_QP": shared})
        ctx.prove(2000, 2000 * 512)
    ctx.mark()
    benchmark(ctx, port, "-t", "set", "-n", 300, "-c", 5, "-k", 0, limit=100, env=THREADS)
    ctx.prove(600, 300 * 512)
    check(server.running(), server.text())


@case(modes=("rxe",))
def conversations_with_threads(ctx):
    """The last bytes of a process arrive, forks share connections, and half-closes work, whichever thread carries them."""
    for what in ("Exits", "HalfClose", "Polls", "Bulk"):
        by_rdma(ctx, what, 5, options=THREADS)


@case(limit=300)
def connects_of_several_threads_keep_their_order(ctx):
    """The server talks on one connection after the other in the order in which it accepts them, and the client in the order in
    which it made them. Each has a queue pair of its own, which different threads carry at one side or both."""
    one = {"NACC_SOR_IO_THREADS": "1"}
    for family, server, client in (("address", one, THREADS), ("address6", THREADS, one), ("address", THREADS, THREADS)):
        by_rdma(ctx, "Names", 5, senders=("server",), family=family, options=server, client_options=client)


@case(limit=200)
def a_device_goes_that_all_threads_have(ctx):
    """The removal of a device that all threads use is not delayed, and every connection goes on by TCP."""
    held = Held(ctx, options={"FAR_LIMIT": "150", **THREADS})
    removal = ctx.spawn(delete(ctx.client_end), role="nobody")
    check(removal.wait(60) == 0, f"rdma link delete: {removal.text()}")
    held.end()
    held.server.result(60)
    world.ensure_device(ctx.client_end, ctx.kind)


@case(modes=("rxe",), limit=200)
def idle_queue_pairs_of_all_threads_are_kept(ctx):
    """Idle queue pairs are kept as long as the program listens, whichever thread has them: not all threads have the listener."""
    held = Held(ctx, "Leaves", options={"FAR_LIMIT": "200", **THREADS})
    before = connections_by_thread(held.client)
    equal(sorted(before), [0, 1, 2, 3], "threads with queue pairs")
    os.write(held.write_end, b"\n")

    def idle():
        return [qp for qp in monitor.show(held.client.pid, "qp")["qp"]["links"] if qp["transport"] == "RDMA"]

    # The server ends queue pairs that it does not keep after two seconds, and has checked again two seconds later.
    wait_until(lambda: all(not qp["connections"] and qp["idle_seconds"] > 4 for qp in idle()), 100, "all are idle")
    equal(sorted({qp["queue_pair"]["thread"] for qp in idle()}), [0, 1, 2, 3], "threads with idle queue pairs")
    held.end()
    held.server.end()


@case(modes=("rxe",), limit=300)
def idle_queue_pairs_are_limited(ctx):
    """Of the queue pairs of eight connections that end, as many are kept as the limit says. Each run tests two of the limits."""
    limits = (("EXPIRE_MS", 0, 0), ("MAX_PER", 2, 2), ("MAX_ALL", 3, 3), ("EXPIRE_MS", -1, 8))
    for key, value, kept in ctx.random.sample(limits, 2):
        held = Held(ctx, "Leaves", options={"NACC_SOR_CONN_PER_QP": "1", f"NACC_EMPTY_QP_{key}": str(value)})

        def links(held=held):
            return [qp for qp in monitor.show(held.client.pid, "qp")["qp"]["links"] if qp["transport"] == "RDMA"]

        # A connect that had to wait for long may have gone by TCP.
        before = len(links())
        check(before >= 4, f"{before} queue pairs")
        os.write(held.write_end, b"\n")
        wait_until(lambda: not any(qp["connections"] for qp in links()), 60, "all are idle")
        wait_until(lambda kept=kept: len(links()) <= kept, 60, f"{key} {value}: {kept} are left")
        equal(len(links()), min(kept, before), f"queue pairs with NACC_EMPTY_QP_{key}={value}")
        held.end()
        held.server.end()


def memory(proc):
    return monitor.show(proc.pid, "mem")["mem"]


def receives_of_the_server(client):
    return [qp["queue_pair"]["receives"] for qp in monitor.show(client.pid, "qp")["qp"]["links"]
            if qp["transport"] == "RDMA" and qp["connections"]]


def on_a_queue_pair(ctx, what):
    """A connection over RDMA, which is tried again, since on a busy machine the route may not be known in time."""
    for _ in range(3):
        held = Held(ctx, what)
        if receives_of_the_server(held.client):
            return held
        held.client.kill()
        held.server.kill()
    raise Failure("the connection does not come to a queue pair")


def burst_of(held, nth):
    """The mean size in bytes of the messages of one more burst."""
    def so_far():
        [link] = [qp for qp in monitor.show(held.server.pid, "qp")["qp"]["links"]
                  if qp["transport"] == "RDMA" and qp["connections"]]
        return link["bytes_in"], link["queue_pair"]["received"]
    size, messages = so_far()
    os.write(held.write_end, b"\n")
    wait_until(lambda: held.client.stdout().count("moved") == nth or not held.client.running(), 60, "the stream")
    check(held.client.running(), f"the client ended: {held.client.text()[-600:]}")
    size_now, messages_now = so_far()
    return (size_now - size) / (messages_now - messages)


@case(limit=200)
def receives_grow_and_are_given_back(ctx):
    """A stream gets larger receives than a queue pair has at first, and their memory is released when the stream is idle."""
    held = on_a_queue_pair(ctx, "Bursts")
    idle = 5 * 16384
    for proc in (held.server, held.client):
        check(0 < memory(proc)["registered_bytes"] <= idle, f"at first: {memory(proc)}")
    equal(receives_of_the_server(held.client), [4], "receives at first")
    # Larger receives come some time after the first messages, none of which has more than 16 KiB.
    each = []
    while not each or (each[-1] < 20_000 and len(each) < 20):
        each.append(burst_of(held, len(each) + 1))
    check(each[-1] >= 20_000, f"bytes of a message: {each}")
    # A region stays for ten seconds after its last use, so it is still visible here.
    check(memory(held.server)["registered_bytes"] >= 2 * idle, f"after the stream: {memory(held.server)}")
    wait_until(lambda: receives_of_the_server(held.client) == [4], 60, "receives are given back")
    for proc in (held.server, held.client):
        wait_until(lambda p=proc: memory(p)["registered_bytes"] <= idle, 90, "memory is given back")
        equal(memory(proc)["registered_used_bytes"], 4 * 16384, "what is posted")
    held.end()
    held.server.result(60)
    # A burst consists of 48 long messages.
    ctx.prove(40, 3 << 20)


@case(modes=("rxe",))
def sizes_of_regions(ctx):
    """All regions have the one size that the keys permit, and hold the buffers of 40 queue pairs."""
    mib = 1 << 20
    held = Held(ctx, options={"NACC_SOR_MSG_SIZE": "65536", "NACC_RDMA_MR_MIN_INC_SIZE": str(mib),
                              "NACC_RDMA_MR_MAX_INC_SIZE": str(mib)})
    shown = memory(held.client)
    check(2 <= shown["registered_regions"] <= MANY * 4 // 16 + 3, f"regions: {shown}")
    equal(shown["registered_bytes"], shown["registered_regions"] * mib, "bytes of regions")
    check(shown["registered_used_bytes"] <= shown["registered_bytes"], f"in use: {shown}")
    held.end()
    held.server.result(60)
    # The queue pairs are kept, and none of their buffers is lost.
    ctx.prove(3 * MANY, 3 * MANY * 5000)


@case(modes=("rxe",))
def fast_connect(ctx):
    for what in ("HalfClose", "Names", "Polls"):
        converse(ctx, what, options={"NACC_FAST_CONNECT": "1"})
        ctx.prove(5)


@case(modes=("rxe",))
def half_of_the_connections(ctx):
    """Both transports carry connections; a draw of 40 is outside these limits once in half a million runs."""
    held = Held(ctx, options={"NACC_CONNECT_RDMA_PERCENT": "50"})
    counted = monitor.show(held.client.pid, "all")["cnt"]
    check(4 <= counted["connects_rdma"] <= MANY - 5, f"{counted['connects_rdma']} of {MANY} connects by RDMA")
    held.end()
    held.server.result(60)
    ctx.prove(8)


@case(modes=("rxe",))
def a_connect_that_does_not_wait_for_an_answer(ctx):
    """Connects to a server that is stopped, so that it cannot answer about RDMA, go by TCP. The kernel accepts them for it."""

    def connects(held):
        try:
            return monitor.show(held.client.pid)["cnt"]["connects_tcp"]
        except monitor.NoAnswer:
            return 0  # It has not opened a socket yet.

    def all_by_tcp(held):
        wait_until(lambda: not held.client.running() or connects(held) == MANY, 60, f"{MANY} connects by TCP")

    held = Held(ctx, options={"NACC_CONNECT_RDMA_MS": "0"}, while_stopped=all_by_tcp)
    held.end()
    held.server.result(60)


@case(modes=("rxe",))
def no_memory_to_lock(ctx):
    """With RLIMIT_MEMLOCK at 64 KiB and no privilege to exceed it, TCP is used, and the reason names the limit."""
    within = ("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock")
    held = Held(ctx, options={"NACC_LOG_LEVEL": "1"}, within=within)
    carried = ctx.carried("server")["rdma_recvs"]
    check(carried < 20, f"{carried} RDMA messages")
    said = ctx.log.read_text()
    check(re.search("memlock", said, re.I) and "65536" in said, f"the log does not name the limit: {said[-1500:]}")
    held.end()
    held.server.result(60)


@case(modes=("rxe",))
def prefork(ctx):
    """Three processes accept from one listener; whichever takes a connection, its bytes come by RDMA."""
    held = Held(ctx, "Prefork")
    held.end()
    ctx.prove(36, 36 * 5000)
    held.server.end()
