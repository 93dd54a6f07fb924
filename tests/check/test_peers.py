"""HOST:PORT: which transport a connection would get, looked up without disturbing anybody."""

import os
import socket
import subprocess
import sys

import host
import hosts
import monitor
from checking import ONE, ask, as_nobody, expect
from harness import Skipped, check, equal
from matrix import case
from operators import ctl, real

ADDRESS = "127.0.0.1"


def transport(ctx, target, level, *parts, **extra):
    answer = ask(ctx, target, **extra)
    equal(answer.status, int(level in ("warn", "fail")), f"status for {target}: {answer.out}")
    expect(answer.one(target, "transport"), level, *parts)
    return answer


@case(modes=ONE)
def accelerated_server(ctx):
    """Shared memory, with the server's process; and the server does not notice the query."""
    for address, shown in ((ADDRESS, ADDRESS), ("0.0.0.0", ADDRESS), ("::", "[::1]"), ("::1", "[::1]")):
        port = host.free_port()
        peer = hosts.Server(ctx, "one", address, port)
        pid = peer.proc.pid
        # It counts what its own thread does, until that sleeps in accept.
        host.wait_until(lambda p=pid: monitor.show(p, "cnt")["cnt"]["sleeps"], 30, "the server waits")
        before, files = monitor.show(pid, "cnt"), host.fds(pid)
        for _ in range(3):
            transport(ctx, f"{shown}:{port}", "ok", "shared memory", f"process {pid} (", f"user {os.getuid()}")
        after = monitor.show(pid, "cnt")
        equal(after, before, f"the server's counters at {address}")
        equal(host.fds(pid), files, f"the server's descriptors at {address}")
        peer.end()
        transport(ctx, f"{shown}:{port}", "fail", "nobody listens")


@case(modes=("plain",))
def plain_server(ctx):
    port = host.free_port()
    peer = hosts.Server(ctx, "one", ADDRESS, port)
    transport(ctx, f"{ADDRESS}:{port}", "warn", "TCP: the server there has no NetACC", "netacc_run")
    # It was not even connected to: the first that it accepts is ours.
    client = hosts.Client(ctx)
    hosts.reaches(client, ADDRESS, port, "one")
    client.end()
    peer.end()


@case(modes=ONE)
def a_server_that_stays_on_tcp(ctx):
    """A server with NetACC that leaves its listener to TCP: its own reason, and not that it has no NetACC."""
    def one(parts, env=None, off=False, conf=None):
        if conf:
            file = ctx.dir / "server.conf"
            file.write_text(conf)
            env = {**(env or {}), "NACC_CONFIG_FILE": file}
        port = host.free_port()
        peer = hosts.Peer(ctx, "server", "serve", "one", ADDRESS, port, env=env)
        peer.heard("the listener")
        pid = real(peer.proc)
        if off:
            transport(ctx, f"{ADDRESS}:{port}", "ok", "shared memory")
            ctl("off", pid)
        answer = transport(ctx, f"{ADDRESS}:{port}", "warn", f"process {pid} (", *parts(pid))
        check("has no NetACC" not in answer.out and "without NetACC" not in answer.out, answer.out)
        if off:
            shown = subprocess.run([monitor.command(), "--explain", str(pid)], capture_output=True, text=True, timeout=30)
            check(f"netacc_ctl on {pid}" in shown.stdout and "PID" not in shown.stdout, f"a command to be copied: {shown.stdout}")
        peer.end()

    one(lambda pid: ("switched-off", f"netacc_ctl on {pid}"), off=True)
    one(lambda pid: ("(disabled)", "NACC_ENABLE_RDMA_DEFAULT=0 comes from: environment"),
        env={"NACC_ENABLE_RDMA_DEFAULT": 0})
    one(lambda pid: ("(rule)", "server.conf:2: use=tcp", "netacc_ctl reload"), conf="[rules]\nuse=tcp\n")
    one(lambda pid: ("by RDMA alone", "server.conf:2: use=rdma"), conf="[rules]\nuse=rdma\n")


@case(modes=ONE)
def by_configuration(ctx):
    port = host.free_port()
    peer = hosts.Server(ctx, "one", ADDRESS, port)
    target = f"{ADDRESS}:{port}"
    transport(ctx, target, "warn", "switched off", env={"NACC_ENABLE_RDMA_DEFAULT": 0})
    transport(ctx, target, "warn", "no connection is drawn", env={"NACC_CONNECT_RDMA_PERCENT": 0})
    half = transport(ctx, target, "ok", "shared memory", env={"NACC_CONNECT_RDMA_PERCENT": 50})
    check(any("50 %" in f["text"] and f["level"] == "note" for f in half.all("host", "config")), half.out)
    transport(ctx, target, "ok", "after a beginning on TCP", env={"NACC_CONN_TCP_FIRST": 1})
    peer.end()


@case(modes=ONE)
def another_version(ctx):
    """A rendezvous of another version of the protocol beside a listener."""
    with socket.socket() as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rendezvous:
        listener.bind((ADDRESS, 0))
        listener.listen()
        port = listener.getsockname()[1]
        rendezvous.bind(f"\0netacc/60000/any4/{port}")
        rendezvous.listen()
        transport(ctx, f"{ADDRESS}:{port}", "warn", "speaks version 60000 of the protocol")
        rendezvous.setblocking(False)
        try:
            rendezvous.accept()
            check(False, "somebody connected to the rendezvous")
        except BlockingIOError:
            pass


@case(modes=ONE)
def a_stranger_at_the_rendezvous(ctx):
    """Anybody can take a name; only the owner of the TCP listener is believed."""
    if os.getuid() != 0:
        raise Skipped("needs root, to be another user")
    port = host.free_port()
    peer = hosts.Server(ctx, "one", ADDRESS, port)
    names = [n[0] for n in host.abstract_names() if n[0].endswith(f"/{port}")]
    check(len(names) == 1, f"names of the rendezvous: {names}")
    peer.end()
    squat = ("import os, socket, sys; os.setuid(12345); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
             f"s.bind('\\0' + {names[0].lstrip('@')!r}); s.listen(); print('ready', flush=True); sys.stdin.read()")
    stranger = ctx.spawn([sys.executable, "-c", squat], None, stdin=-1)
    host.wait_until(lambda: "ready" in stranger.stdout(), 30, "the stranger")
    with socket.create_server((ADDRESS, port)):
        transport(ctx, f"{ADDRESS}:{port}", "warn", "TCP: the rendezvous is held by user 12345", "to whom the TCP listener does not belong")
    stranger.popen.stdin.close()
    stranger.wait()


@case(modes=ONE)
def a_rendezvous_that_was_shut_down(ctx):
    """A thread that sleeps on a rendezvous keeps it in the kernel's table after its process has left the listener to TCP."""
    port = host.free_port()
    peer = hosts.Server(ctx, "one", ADDRESS, port)
    [name] = [n[0] for n in host.abstract_names() if n[0].endswith(f"/{port}")]
    peer.end()
    with socket.create_server((ADDRESS, port)), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rendezvous:
        rendezvous.bind("\0" + name.lstrip("@"))
        rendezvous.listen()
        transport(ctx, f"{ADDRESS}:{port}", "ok", "shared memory", f"process {os.getpid()} (")
        rendezvous.shutdown(socket.SHUT_RDWR)
        check(name in [n[0] for n in host.abstract_names()], "the kernel shows it as before")
        transport(ctx, f"{ADDRESS}:{port}", "warn", f"process {os.getpid()} (", "runs without NetACC")


@case(modes=ONE)
def a_server_of_another_user(ctx):
    """Another user's server is believed if the TCP listener is that user's; what may not be inspected is reported."""
    if os.getuid() != 0:
        raise Skipped("needs root, to be another user")
    other, tool = as_nobody(ctx)
    os.environ["NETACC_CHECK"] = tool
    port = host.free_port()
    peer = hosts.Server(ctx, "one", ADDRESS, port)
    transport(ctx, f"{ADDRESS}:{port}", "ok", "shared memory", "a process that you may not look into, user 0", **other)
    peer.end()


@case(modes=ONE)
def listeners_that_share_a_port(ctx):
    port = host.free_port()
    first = hosts.Server(ctx, "one", ADDRESS, port, "reuseport=1")
    transport(ctx, f"{ADDRESS}:{port}", "ok", "shared memory")
    plain = hosts.Peer(ctx, None, "serve", "two", ADDRESS, port, "reuseport=1")
    plain.heard("the second listener")
    found = ask(ctx, f"{ADDRESS}:{port}").one(f"{ADDRESS}:{port}", "group")
    expect(found, "warn", "2 listeners share the port (SO_REUSEPORT), 1 of them take accelerated connections",
           f"process {plain.proc.pid} (", "runs without NetACC", f"start process {plain.proc.pid} ", "with netacc_run")
    plain.end()
    second = hosts.Server(ctx, "two", ADDRESS, port, "reuseport=1")
    expect(ask(ctx, f"{ADDRESS}:{port}").one(f"{ADDRESS}:{port}", "group"), "ok", "2 of them")
    second.end()
    first.end()


@case(modes=ONE)
def several_addresses(ctx):
    """Addresses of a name without a listener are only noted."""
    port = host.free_port()
    peer = hosts.Server(ctx, "one", ADDRESS, port)
    answer = ask(ctx, f"localhost:{port}")
    equal(answer.status, 0, f"status: {answer.out}")
    expect(answer.one(f"{ADDRESS}:{port}", "transport"), "ok", "shared memory")
    for finding in answer.findings():
        check(finding["level"] in ("ok", "note"), finding)
    peer.end()


@case(modes=ONE)
def other_hosts(ctx):
    hosts.need_root()
    a, b = hosts.Host(ctx), hosts.Host(ctx)
    hosts.cable(a, b, "veth0", "10.9.8.1/24", "10.9.8.2/24")
    peer = hosts.Server(ctx, "one", "0.0.0.0", 6379, within=b.within)
    why = "RDMA" if os.path.isdir("/sys/class/infiniband") else "of another host, and this one has no RDMA device"
    transport(ctx, "10.9.8.2:6379", "warn", "TCP: ", why, "leave from 10.9.8.1", within=a.within)
    transport(ctx, "10.9.8.2:6379", "ok", "shared memory", within=b.within)
    transport(ctx, "203.0.113.1:80", "fail", "no way to this address", within=a.within)
    peer.end()


@case(modes=ONE)
def names_that_lead_nowhere(ctx):
    answer = ask(ctx, "no-such-name.invalid:80")
    equal(answer.status, 1, "status")
    expect(answer.one("no-such-name.invalid:80", "address"), "fail", "no address", "getent hosts")
    transport(ctx, "[fe80::1]:80", "warn", "link-local")
