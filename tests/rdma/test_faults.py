"""When a device, a process or a path fails while messages are under way, there is a clear error in bounded time."""

import os
import signal

import harness
import monitor
import world
from harness import check
from host import wait_until
from matrix import case
from test_ss import queue_pairs
from test_verbs import pingpong_server

# A number of messages for which there is never time.
ENDLESS = 10_000_000
# The limit only turns a hang into a failure; nothing here takes a second if it works.
LIMIT = 30


def endless(ctx, what="client", **spawn):
    """A server and a client whose messages are already going back and forth."""
    server, port = pingpong_server(ctx, ctx.server_end.address)
    client = ctx.spawn([ctx.built("rdma_pingpong"), what, ctx.server_end.address, port, ENDLESS], role="client", **spawn)
    wait_until(lambda: ctx.carried("client")["rdma_sends"] > 50 or not client.running(), LIMIT, "messages are sent")
    check(client.running(), f"the client ended: {' / '.join(client.tail(4))}")
    return server, client


def failed(proc):
    """Checks that the program ended by itself, with an error that names the operation, and not by a signal or a panic."""
    code = proc.wait(LIMIT)
    text = proc.err.read_text()
    check(code == 1 and text.startswith("rdma_pingpong: ") and len(text.splitlines()) == 1,
          f"{proc.name} ended with {code}: {text}")
    check("nothing happened" not in text, f"{proc.name} heard of nothing: {text}")
    return text.strip()


def delete(side):
    return [*world.inside(side.namespace), "rdma", "link", "delete", side.device]


@case()
def device_of_the_client_goes(ctx):
    server, client = endless(ctx)
    # The kernel's removal must end too: it waits for the programs that use the device.
    removal = ctx.spawn(delete(ctx.client_end), role="client")
    said = failed(client)
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    check(not (world.INFINIBAND / ctx.client_end.device).exists(), "the device is still there")
    print(f"    {ctx.kind}: {said}", flush=True)
    server.kill()


@case()
def device_of_the_server_goes(ctx):
    server, client = endless(ctx)
    removal = ctx.spawn(delete(ctx.server_end), role="server")
    said = failed(server)
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    print(f"    {ctx.kind}: {said}", flush=True)
    client.kill()


@case()
def device_goes_and_the_program_stays(ctx):
    """A program that has dropped its objects on the device does not delay the removal by living on."""
    read_end, write_end = os.pipe()
    server, client = endless(ctx, "stay", stdin=read_end)
    removal = ctx.spawn(delete(ctx.client_end), role="client")
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    wait_until(lambda: "let go" in client.stdout(), LIMIT, "the client lets go")
    check(client.running(), f"the client ended: {' / '.join(client.tail(4))}")
    os.close(write_end)
    failed(client)
    server.kill()


@case()
def peer_is_killed(ctx):
    for victim in ("server", "client"):
        server, client = endless(ctx)
        (server if victim == "server" else client).signal(signal.SIGKILL)
        said = failed(client if victim == "server" else server)
        print(f"    {ctx.kind} {victim}: {said}", flush=True)
        ctx.mark()


# The tests below are about connections of NetACC, which go on by TCP.

SCRIPT = str(harness.ROOT / "tests" / "rdma" / "lasting.py")


def shown(proc):
    try:
        return monitor.connections(proc.pid)
    except monitor.NoAnswer:
        return []


class Transfer:
    """lasting.py's transfer in both directions, which a fault interrupts."""

    def __init__(self, ctx, options=()):
        ctx.accelerated = ("server", "client")
        self.ctx, self.env = ctx, {"FAR_LIMIT": "200", **dict(options)}
        # On a machine as slow as this the route is not always known in time; then it is tried again.
        for _ in range(5):
            self.start()
            if self.over("RDMA"):
                break
            self.server.kill()
            self.client.kill()
            os.close(self.write_end)
        wait_until(lambda: self.moved() > 2_000_000 or not self.running(), LIMIT, "bytes arrive")
        check(self.running() and self.over("RDMA"), self.text())

    def start(self):
        address, self.port = self.ctx.server_end.address, self.ctx.port()
        self.server = self.ctx.spawn(["python3", SCRIPT, "Endless", "server", address, self.port], role="server", env=self.env)
        self.ctx.await_listener(self.server, self.port + 20000)
        read_end, self.write_end = os.pipe()
        self.client = self.ctx.spawn(["python3", SCRIPT, "Endless", "client", address, self.port], role="client", env=self.env,
                                     stdin=read_end)
        os.close(read_end)
        wait_until(lambda: all(shown(p) for p in (self.server, self.client)) or not self.running(), 60,
                   "both are connected")

    def running(self):
        return self.server.running() and self.client.running()

    def text(self):
        return " / ".join(str(monitor.summary(p.pid)) + p.text()[-600:] for p in (self.server, self.client))

    def moved(self):
        """The number of bytes that have arrived so far, at the end that has fewer."""
        return min(sum(s["bytes_in"] for s in shown(p)) for p in (self.server, self.client))

    def over(self, transport):
        return all(transport in [s["transport"] for s in shown(p)] for p in (self.server, self.client))

    def survives(self, limit=LIMIT):
        """Checks that both ends go on by TCP, say why, and get all bytes in order."""
        wait_until(lambda: self.over("TCP") or not self.running(), limit, f"both go on by TCP: {self.text()}")
        check(self.running(), self.text())
        for proc in (self.server, self.client):
            shown = monitor.show(proc.pid, "all")
            reasons = [s["reason"] for s in shown["sock"] if s["state"] == "ESTAB"]
            check(reasons == ["qp-failed"], f"reasons: {reasons}")
            check(shown["cnt"]["demotions"] == 1 and "qp-failed" in str(shown["cnt"]), f"counters: {shown['cnt']}")
        before = self.moved()
        wait_until(lambda: self.moved() > before + 2_000_000 or not self.running(), LIMIT, "bytes go on by TCP")
        os.close(self.write_end)
        self.client.result(LIMIT)
        self.server.result(LIMIT)
        print(f"    {self.ctx.kind}: {self.client.stdout().split()[-1]} bytes at the client", flush=True)


@case(limit=200)
def a_device_is_removed_under_load(ctx):
    for side in ctx.ends():
        transfer = Transfer(ctx)
        removal = ctx.spawn(delete(side), role="nobody")
        check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
        check(transfer.running(), transfer.text())
        transfer.survives()
        world.ensure_device(side, ctx.kind)


def swallow(ctx, port):
    """Sends RDMA packets to a neighbour that does not exist, while TCP works. Returns the commands that undo this."""
    undo = []
    for side in ctx.ends():
        inside = ["ip", "-n", side.namespace]
        nobody = f"{side.address.rpartition('.')[0]}.99"
        # A route for RDMA packets leads to the address of a neighbour that does not exist.
        which = ["ipproto", "udp"]
        if ctx.kind != "rxe":
            which = ["ipproto", "tcp", "sport" if side.role == "server" else "dport", str(port + 20000)]
        rule = ["rule", "add", "priority", "100", *which, "table", "100"]
        world.command(*inside, "neigh", "replace", nobody, "lladdr", "02:00:00:00:00:99", "dev", side.netdev,
                      "nud", "permanent")
        world.command(*inside, "route", "replace", "default", "via", nobody, "dev", side.netdev, "table", "100")
        world.command(*inside, *rule)
        undo.append([*inside, *(word if word != "add" else "del" for word in rule)])
    return undo


@case(limit=200)
def the_path_of_rdma_falls_silent(ctx):
    """If only RDMA's packets are lost, that is noticed in bounded time, under load and at rest."""
    transfer = Transfer(ctx)
    undo = swallow(ctx, transfer.port)
    try:
        transfer.survives(60)
    finally:
        for command in undo:
            world.command(*command)


@case(modes=("rxe",), limit=220)
def without_a_companion_silence_is_a_time_out(ctx):
    """The side that sends gets a time-out; the other one may get the end from the connection manager."""
    transfer = Transfer(ctx, options={"NACC_TCP_BASE": "0"})
    undo = swallow(ctx, transfer.port)
    try:
        for proc in (transfer.server, transfer.client):
            proc.result(100, status=None)
        check("TimeoutError" in transfer.server.text() + transfer.client.text(), transfer.text())
    finally:
        for command in undo:
            world.command(*command)
        os.close(transfer.write_end)


def full_pair(ctx):
    """A connection whose server does not read, and of which the server's device has acknowledged everything."""
    read_end, write_end = os.pipe()
    server, client, port = pair_by_rdma(ctx, "Full", {"NACC_TCP_BASE": "0"}, to_server=read_end)
    os.close(read_end)
    wait_until(lambda: "full" in client.stdout() or not client.running(), 60, "nobody takes any more")
    return server, client, port, write_end


@case(modes=("rxe",), limit=220)
def without_a_companion_silence_ends_what_waits_for_room(ctx):
    """The wait ends although no message is under way that could fail."""
    server, client, port, write_end = full_pair(ctx)
    undo = swallow(ctx, port)
    try:
        client.result(60)
        check(client.stdout().split()[-1] == "TimeoutError", client.text())
    finally:
        for command in undo:
            world.command(*command)
        server.kill()
        os.close(write_end)


@case(limit=150)
def without_a_companion_room_may_be_long_in_coming(ctx):
    """The engines probe each other while a program waits for room, and no program notices that."""
    server, client, _, write_end = full_pair(ctx)
    posted = lambda: sum(qp["queue_pair"]["sends_posted"] for qp in queue_pairs(client.pid))  # noqa: E731
    before = posted()
    wait_until(lambda: posted() >= before + 5 or not client.running(), 60, f"the other device is asked: {before}")
    os.write(write_end, b"go\n")
    os.close(write_end)
    for proc in (server, client):
        proc.result(LIMIT)
    size = int(client.stdout().split()[-2])
    check(client.stdout().split()[-1] == "sent" and server.stdout().split()[-2:] == ["end", str(size + (1 << 20))],
          f"{client.stdout()} {server.stdout()}")


@case(modes=("rxe",), limit=220)
def without_a_companion_keepalive_finds_a_silent_path(ctx):
    """Keepalive finds the silent path although no side sends anything; iWARP alone would take a quarter of an hour."""
    server, client, port = pair_by_rdma(ctx, "Kept", {"NACC_TCP_BASE": "0"})
    undo = swallow(ctx, port)
    try:
        for proc in (server, client):
            proc.result(60)
        said = [proc.stdout().split()[-1] for proc in (server, client)]
        check("TimeoutError" in said and "end" not in said, f"{said}")
    finally:
        for command in undo:
            world.command(*command)


@case(limit=220)
def keepalive_finds_a_silent_host_after_a_failure(ctx):
    """After failover to TCP keepalive finds that no packet gets through any more, although no side sends anything."""
    pair = pair_by_rdma(ctx, "Kept")[:2]
    removal = ctx.spawn(delete(ctx.client_end), role="nobody")
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    by_tcp = lambda: all("TCP" in monitor.transports(p.pid) for p in pair if p.running())  # noqa: E731
    wait_until(by_tcp, LIMIT, "both go on by TCP")
    check(all(p.running() for p in pair), f"{[p.text() for p in pair]}")
    lost = [["ip", "-n", side.namespace, "neigh", "replace", other.address, "dev", side.netdev, "lladdr",
             "02:00:00:00:00:99", "nud", "permanent"] for side, other in (ctx.ends(), ctx.ends()[::-1])]
    try:
        for command in lost:
            world.command(*command)
        for proc in pair:
            proc.result(60)
        check([proc.stdout().split()[-1] for proc in pair] == ["TimeoutError"] * 2, f"{[p.stdout() for p in pair]}")
    finally:
        for command in lost:
            world.command(*command[:4], "del", *command[5:8])
        world.ensure_device(ctx.client_end, ctx.kind)


@case(modes=("rxe",), limit=220)
def a_queue_pair_of_a_host_that_is_gone_is_given_up(ctx):
    """A server gives up an idle queue pair of a host that is gone, and does not keep it for the next connection."""
    read_end, write_end = os.pipe()
    server, client, port = pair_by_rdma(ctx, "Closed", to_client=read_end)
    os.close(read_end)
    os.write(write_end, b"go\n")
    wait_until(lambda: "closed" in server.stdout() or not server.running(), LIMIT, "the connection is over")
    mine = lambda: [qp for qp in world.resources("qp")  # noqa: E731
                    if qp["ifname"] == ctx.server_end.device and qp["type"] == "RC"]
    check(len(mine()) == 1, f"{mine()}")
    undo = swallow(ctx, port)
    try:
        # The messages by which the client's device reports its end are lost.
        client.kill()
        wait_until(lambda: not mine(), 120, "the server has given it up")
        check(server.running(), server.text())
    finally:
        for command in undo:
            world.command(*command)
        os.close(write_end)


def pair_by_rdma(ctx, what, options=(), to_server=None, to_client=None, on_port=lambda port: None, address=None):
    """Both ends of one of lasting.py's conversations, which wait, and the port, with which `on_port` is called before. Tries
    again if the route is not known in time."""
    ctx.accelerated = ("server", "client")
    for _ in range(5):
        address, port = address or ctx.server_end.address, ctx.port()
        on_port(port)
        argv = ["python3", SCRIPT, what]
        server = ctx.spawn([*argv, "server", address, port], role="server", env=dict(options), stdin=to_server)
        ctx.await_listener(server, port + 20000)
        client = ctx.spawn([*argv, "client", address, port], role="client", env=dict(options), stdin=to_client)
        wait_until(lambda client=client: "waiting" in client.stdout() or not client.running(), 60, "they are connected")
        # A client's connect returns before its queue pair exists, which may then fail.
        wait_until(lambda server=server: shown(server), 60, "the server has it")
        check(client.running(), client.text())
        if all("RDMA" in monitor.transports(proc.pid) for proc in (server, client)):
            return server, client, port
        client.kill()
        server.kill()
    raise harness.Failure(f"no connection by RDMA: {client.text()}")


@case(limit=150)
def what_a_killed_process_had_written(ctx):
    """All bytes of a killed process arrive, or the stream ends with an error."""
    for what in ("BreaksOff", "FewCredits"):
        read_end, write_end = os.pipe()
        stopped = what == "FewCredits"
        server, client, _ = pair_by_rdma(ctx, what, **{"to_server" if stopped else "to_client": read_end})
        os.close(read_end)
        if stopped:
            wait_until(lambda server=server: "waiting" in server.stdout(), 60, "the server has accepted")
            client.signal(signal.SIGSTOP)
            os.write(write_end, b"go\n")
        wait_until(lambda server=server: "full" in server.stdout() or not server.running(), 60, "nobody takes any more")
        written = int(server.stdout().split()[-1])
        server.kill()
        if stopped:
            client.signal(signal.SIGCONT)
        else:
            os.write(write_end, b"go\n")
        os.close(write_end)
        client.result(60)
        how, got = client.stdout().split()[-2:]
        said = f"{what}: {how} after {got} of {written} bytes"
        print(f"    {ctx.kind} {said}", flush=True)
        check(how == "ConnectionResetError" or int(got) == written, said)


@case(limit=150)
def what_a_killed_process_has_said_of_its_end(ctx):
    """A stream of a killed process whose bytes have all arrived ends, as with TCP."""
    server, client, _ = pair_by_rdma(ctx, "HasTalked")
    wait_until(lambda: "waiting" in server.stdout(), 60, "both wait")
    client.kill()
    server.result(60)
    check(server.stdout().split()[-1] == "end", server.stdout())


@case(modes=("rxe",))
def without_a_companion_a_failed_queue_pair_ends_its_connections(ctx):
    transfer = Transfer(ctx, options={"NACC_TCP_BASE": "0"})
    removal = ctx.spawn(delete(ctx.client_end), role="nobody")
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    for proc in (transfer.server, transfer.client):
        # The thread that checks first gets the error, so the exit status is not certain.
        proc.result(LIMIT, status=None)
        check("ConnectionResetError" in proc.text() or "BrokenPipeError" in proc.text(), proc.text())
    os.close(transfer.write_end)
    world.ensure_device(ctx.client_end, ctx.kind)
