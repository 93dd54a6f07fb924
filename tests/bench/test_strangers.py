"""Peers that are not there, are of another version, speak garbage, or stop in the middle; and other ends of patience."""

import json
import os
import signal
import socket
import subprocess
import threading

import host
from benching import ONE, Server, environment, run, tool
from harness import check, equal
from host import wait_until
from matrix import case

ADDRESS = "127.0.0.1"
GREETING = b"netacc_bench 2 0.1.0\n"
QUICK = ("-t", "0.02", "-r", "1", "-w", "round-trip", "-e", "plain", "--no-icmp")


def welcome(plain, netacc):
    door = {"obstacle": None}
    return json.dumps({"welcome": {"plain": {"port": plain, **door}, "netacc": {"port": netacc, **door}, "host": {
        "kernel": "\x1b[31m", "cpu": "x", "cores": 1, "version": "1"}}}).encode() + b"\n"


class Impostor:
    """A server that sends the given bytes, whatever it receives, and then closes."""

    def __init__(self, *sayings):
        self.listener = socket.create_server((ADDRESS, 0))
        self.port = self.listener.getsockname()[1]
        self.sayings = sayings
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        link, _ = self.listener.accept()
        with link:
            for saying in self.sayings:
                try:
                    link.recv(65536)
                    link.sendall(saying)
                except OSError:
                    return

    def asked(self, ctx):
        return run(ctx, "client", ADDRESS, "-p", self.port, *QUICK)


@case(modes=ONE)
def servers_that_are_none(ctx):
    run(ctx, "client", ADDRESS, "-p", host.free_port(), *QUICK).failed(1, "no connection to", "refused", "firewall")
    run(ctx, "client", "no-such-host.invalid", *QUICK).failed(1, "no-such-host.invalid", "address of the host is not known")
    for sayings, said in (
            ((b"SSH-2.0-OpenSSH_9.2p1\r\n",), "begins with \"SSH-2.0-OpenSSH_9.2p1\\r\""),
            ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "is no netacc_bench server"),
            ((b"\x16\x03\x01\xff\n",), "what is not text"),
            ((b"x" * 200000,), "a line of more than 65536 bytes"),
            ((b"",), "closed the connection"),
            ((b"netacc_bench 2",), "in the middle of a message"),
            ((b"netacc_bench 999 9.9.9\n",), "version 999 of the protocol (netacc_bench 9.9.9)"),
            ((GREETING,), "closed the connection"),
            ((GREETING + b"\0\1\2\n",), "no message of the protocol"),
            ((GREETING + b"{\"welcome\":",), "in the middle of a message"),
            ((GREETING + b"{\"mark\":{\"cpu_ns\":1}}\n",), "out of turn"),
            ((GREETING + b"[" * 60000 + b"\n",), "no message of the protocol"),
            ((GREETING + b"{\"failed\":{\"text\":\"\\u001b[31mno\"}}\n",), "cannot go on: \\u{1b}[31mno"),
            ((GREETING + b"{\"busy\":{\"with\":\"somebody\"}}\n",), "measures with somebody now; try again later")):
        answer = Impostor(*sayings).asked(ctx).failed(1, said)
        check("\x1b" not in answer.err, f"control characters: {answer.err!r}")


@case(modes=ONE)
def servers_that_lie(ctx):
    """The control connection is in order, what it promises is not."""
    nobody = host.free_port()
    marks = [b"{\"mark\":{\"cpu_ns\":1}}\n"] * 20
    answer = Impostor(GREETING + welcome(nobody, nobody), *marks).asked(ctx)
    equal(answer.status, 1, "status")
    check("FAILED: no data connection" in answer.out and "firewall" in " ".join(answer.out.split()), answer.out)
    check("\x1b" not in answer.out, f"control characters: {answer.out!r}")
    for answer_of_data in (b"", b"\0" * 63):
        data = Impostor(answer_of_data)
        answer = Impostor(GREETING + welcome(data.port, nobody), *marks).asked(ctx)
        equal(answer.status, 1, "status")
        check("closed a data connection in the middle" in " ".join(answer.out.split()), answer.out)
    echo = Impostor(*[b"\xff" * 64] * 9)
    answer = Impostor(GREETING + welcome(echo.port, nobody), *marks).asked(ctx)
    check(answer.status == 1 and "answers with other bytes" in " ".join(answer.out.split()), answer.out)


@case(modes=ONE)
def silence(ctx):
    """Waiting for a server that says nothing comes to an end."""
    with socket.create_server((ADDRESS, 0)) as listener:
        run(ctx, "client", ADDRESS, "-p", listener.getsockname()[1], *QUICK).failed(1, "says nothing")


def talk(port, data, half_close=True):
    """What a server answers to these bytes until it closes."""
    with socket.create_connection((ADDRESS, port), timeout=30) as link:
        got = b""
        try:
            link.sendall(data)
            if half_close:
                link.shutdown(socket.SHUT_WR)
            while part := link.recv(65536):
                got += part
        except TimeoutError:
            raise
        except OSError:
            pass  # The server closed before it had read everything, so the next call reports a reset.
        return got


@case(modes=ONE)
def clients_that_are_none(ctx):
    """The server reports a client that sends nonsense, with its address, and serves the next one."""
    server = Server(ctx)
    equal(talk(server.port, b"GET / HTTP/1.1\r\n\r\n"), b"", "to a browser")
    server.heard("is no netacc_bench client: it begins with \"GET / HTTP/1.1\\r\"")
    equal(talk(server.port, b""), b"", "to a port scanner")
    equal(talk(server.port, b"y" * 300000), b"", "to one without an end of line")
    server.heard("a line of more than 65536 bytes")
    equal(talk(server.port, b"netacc_bench 3 7.0.0\n"), GREETING, "to a later version")
    server.heard("version 3 of the protocol (netacc_bench 7.0.0)")
    for nonsense in (b"{}\n", b"\xff\n", b"{\"mark\":{\"side\":\"plain\",\"seconds\":-1}}\n", b"{\"mark\":"):
        check(talk(server.port, GREETING + nonsense).startswith(GREETING + b"{\"welcome\""), f"to {nonsense}")
    server.heard("before it was done")
    # The data ports answer no nonsense either.
    for port in (server.plain, server.netacc):
        for nonsense in (b"", b"N", b"NACB", b"GET / HTTP/1.1\r\n\r\n", b"NACB\2\0\0\0\0\0\0\0\0\0\0\1", b"NACB\1" + b"\1" * 99, b"NACB\2\0\5\0\0\0\0\1\0\0\0\1",
                         ctx.bytes(100000)):
            equal(talk(port, nonsense), b"", f"{nonsense[:20]} at a data port")
        # Out of turn: a second request before the first answer.
        talk(port, b"NACB\2\0\0\0\0\0\0\2\0\0\0\2" + b"abcdef")
    run(ctx, "client", ADDRESS, "-p", server.port, *QUICK).good()


@case(modes=ONE)
def one_at_a_time(ctx):
    """A client that connects while another measures is refused with a message; a silent client does not keep others out."""
    server = Server(ctx)
    with socket.create_connection((ADDRESS, server.port)) as mute, socket.create_connection((ADDRESS, server.port)) as first:
        check(mute.fileno() >= 0, "a silent client")
        first.sendall(GREETING)
        server.heard("measures")
        mine = "%s:%d" % first.getsockname()
        run(ctx, "client", ADDRESS, "-p", server.port, *QUICK).failed(1, "measures with", mine, "try again later")
    server.heard("before it was done")
    run(ctx, "client", ADDRESS, "-p", server.port, *QUICK).good()
    taken = run(ctx, "server", "-p", server.port)
    taken.failed(1, f"port {server.port} is taken")


def starts(ctx, *argv):
    return subprocess.Popen([tool(), *map(str, argv)], env=environment(ctx), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ctx.dir)


@case(modes=ONE)
def killed_in_the_middle(ctx):
    """Server, listener or client: the others notice, say so, and leave nothing behind (that is looked for at the end)."""
    long = ("-t", "20", "-r", "3", "-w", "round-trip", "-e", "plain")
    for victim in ("server", "listener", "client"):
        server = Server(ctx)
        client = starts(ctx, "client", ADDRESS, "-p", server.port, *long)
        server.heard("measures")
        wait_until(lambda: host.children(client.pid), 30, "a measuring process")
        worker = host.children(client.pid)[0]
        wait_until(lambda: any("socket:" in f for f in host.fds(worker).values()), 30, "its connection")
        if victim == "server":
            server.proc.kill()
        elif victim == "listener":
            os.kill(next(p for p in host.children(server.proc.pid) if f"{server.plain}" in listens(p)), signal.SIGKILL)
        else:
            client.kill()
        out, err = client.communicate(timeout=60)
        if victim == "client":
            server.heard("before it was done")
            run(ctx, "client", ADDRESS, "-p", server.port, *QUICK).good()
            continue
        equal((client.returncode, "panicked" in err), (1, False), f"without its {victim}: {out} {err}")
        check("server" in err, f"without its {victim}: {err}")


def listens(pid):
    """The ports on which a process listens."""
    inodes = {f[8:-1] for f in host.fds(pid).values() if f.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as f:
            for line in list(f)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    found.add(str(int(fields[1].rpartition(":")[2], 16)))
    return found


@case(modes=ONE)
def usage(ctx):
    for words in (["-h"], ["client", "-h"], ["server", "-h"], ["redis", "-h"]):
        text = run(ctx, *words).good().out
        check("Usage: netacc_bench" in text and all(len(line) <= 100 for line in text.splitlines()), text)
    check(run(ctx, "-v").good().out.startswith("netacc_bench 0."), "version")
    for wrong in ([], ["ping"], ["client", "-t", "0"], ["client", "-w", "x"], ["client", "-e", "x"], ["client", "-s", "17M"],
                  ["server", "-p", "65535"], ["server", "-B", "x"], ["redis", "-n", "0"], ["client", "-p", "9"], ["client", "--wait", "x"],
                  ["client", "h", "--server-cpu", "0"], ["client", "--cpu", "1024"]):
        answer = run(ctx, *wrong)
        equal((answer.status, answer.out), (2, ""), f"status and output of {wrong}")
        check(answer.err.strip(), f"nothing is said of {wrong}")
    run(ctx, "server", "-B", "192.0.2.1").failed(1, "192.0.2.1", "does not have the address")
    run(ctx, "client", *QUICK, "--svg", ctx.dir / "absent" / "x.svg").failed(2, "absent/x.svg", "No such file")
    with open("/dev/full", "w") as full:
        done = subprocess.run([tool(), "client", *QUICK], env=environment(ctx), stdout=full, stderr=subprocess.PIPE, text=True,
                              timeout=60)
    equal(done.returncode, 2, "status with a full disk")
    check("the output cannot be written" in done.stderr, done.stderr)
