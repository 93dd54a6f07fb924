"""Daemons with ways of their own to serve: rsync (a fork per client, on both ends), stunnel, mosquitto, sshd, vsftpd."""

import getpass
import os
import subprocess

import certificate
import host
from harness import START_LIMIT, Skipped, check, equal, need
from host import wait_until
from matrix import case

MB = 1 << 20


def tree(ctx, name):
    """A folder of files of several sizes."""
    root = ctx.dir / name
    for folder in ("", "a", "a/b"):
        (root / folder).mkdir()
        for size in (0, 1, 1000, 70000):
            (root / folder / f"f{size}").write_bytes(ctx.bytes(size))
    (root / "large").write_bytes(ctx.bytes(8 * MB))
    return root


def contents(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def same(one, other, what):
    a, b = contents(one), contents(other)
    equal(sorted(b), sorted(a), f"files of {what}")
    wrong = [name for name in a if a[name] != b[name]]
    check(not wrong, f"{what}: {wrong} differ")


# rsync

@case()
def rsync(ctx):
    program = need("rsync")
    given, taken = tree(ctx, "given"), ctx.dir / "taken"
    taken.mkdir()
    conf = ctx.file("rsyncd.conf", f"""
use chroot = no
{"uid = root" if os.getuid() == 0 else ""}
{"gid = root" if os.getuid() == 0 else ""}
[given]
path = {given}
[taken]
path = {taken}
read only = no
""".encode())
    server = ctx.serve(lambda port: [program, "--daemon", "--no-detach", f"--config={conf}", f"--port={port}",
                                     "--address=127.0.0.1"])
    base = f"rsync://127.0.0.1:{server.port}"
    check("given" in ctx.run([program, f"{base}/"]), "the list of modules")
    ctx.mark()
    for options in (("-r",), ("-rz",)):
        got = ctx.dir / f"got{options[0]}"
        ctx.run([program, *options, f"{base}/given/", got])
        same(given, got, f"a copy with {options}")
        (got / "large").write_bytes(b"x" + (got / "large").read_bytes()[: 4 * MB])
        (got / "a" / "f0").unlink()
        ctx.run([program, *options, "-c", "--delete", "--no-whole-file", f"{base}/given/", got])
        same(given, got, f"a repaired copy with {options}")
    ctx.run([program, "-r", f"{given}/", f"{base}/taken/"])
    same(given, taken, "what was sent")
    ctx.prove(server, accepts=6, payload=12 * MB)


# stunnel

def stunnel(ctx, name, role, accept, connect, extra):
    def argv(port):
        text = (f"foreground = yes\npid =\nsyslog = no\n[{name}]\naccept = 127.0.0.1:{port if accept is None else accept}\n"
                f"connect = 127.0.0.1:{connect}\n{extra}\n")
        return [need("stunnel4"), ctx.file(f"{name}.conf", text.encode())]
    return ctx.serve(argv, role=role)


@case()
def stunnel_pair(ctx):
    """Echo client, stunnel (TLS client), stunnel (TLS server), echo server. Mode "client": the first two."""
    key, cert = certificate.make(ctx, ctx.dir)
    echo = ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"))
    inner = stunnel(ctx, "inner", "server", None, echo.port, f"cert = {cert}\nkey = {key}")
    outer = stunnel(ctx, "outer", "client", None, inner.port, f"client = yes\nCAfile = {cert}\nverifyChain = yes")
    # TLS knows no half close, so the end of one direction is the end.
    ctx.mark()
    ctx.run(ctx.script("whole_client.py", outer.port, 40, ctx.random.randrange(1 << 30)))
    ctx.prove(inner, accepts=40, payload=4 * MB)
    if ctx.mode == "both":
        ctx.prove(echo, accepts=40)


# mosquitto

@case()
def mosquitto(ctx):
    """Retained messages, a large one, many small ones in order to several subscribers, a subscriber that dies."""
    def argv(port):
        user = "user root\n" if os.getuid() == 0 else ""
        text = f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n{user}" \
               "log_type error\nlog_type subscribe\n"
        return [need("mosquitto"), "-c", ctx.file("mosquitto.conf", text.encode())]

    server = ctx.serve(argv)
    where = ["-h", "127.0.0.1", "-p", server.port]
    large = ctx.file("large", ctx.bytes(5 * MB))
    ctx.mark()
    ctx.run([need("mosquitto_pub"), *where, "-q", "1", "-r", "-t", "large", "-f", large])
    got = ctx.client([need("mosquitto_sub"), *where, "-q", "1", "-N", "-C", "1", "-t", "large"])
    got.result()
    check(got.out.read_bytes() == large.read_bytes(), "the large message differs")
    ctx.prove(server, accepts=2, payload=8 * MB)

    count = 3000
    subscribers = [ctx.client([need("mosquitto_sub"), *where, "-q", "2", "-C", count, "-t", "many/#"]) for _ in range(4)]
    doomed = ctx.client([need("mosquitto_sub"), *where, "-q", "1", "-t", "many/#"])
    # The broker's word for it: the subscribers' own comes late.
    wait_until(lambda: server.text().count(" many/#") == 5, 30, "all have subscribed")
    lines = [f"line {n}" for n in range(count)]
    publisher = ctx.client([need("mosquitto_pub"), *where, "-q", "2", "-t", "many/one", "-l"],
                           stdin=ctx.file("lines", ("\n".join(lines) + "\n").encode()).open("rb"))
    wait_until(lambda: "line 100" in doomed.stdout() or not doomed.running(), 30, "messages flow")
    doomed.kill()
    publisher.result()
    for s in subscribers:
        found = [line for line in s.result().splitlines() if line.startswith("line ")]
        equal(found, lines, "messages of a subscriber")


# OpenSSH

def sshd(ctx, *options):
    """(server, ssh's options). The server runs as the tests' user, with keys of its own and nothing of the system's."""
    home = ctx.dir / "ssh"
    home.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run([need("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True, timeout=60)
    (home / "authorized").write_bytes((home / "user.pub").read_bytes())
    (home / "authorized").chmod(0o600)
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    conf = ctx.file("sshd_config", f"""
HostKey {home}/host
AuthorizedKeysFile {home}/authorized
StrictModes no
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
AllowTcpForwarding yes
Subsystem sftp internal-sftp
""".encode())
    server = ctx.serve(lambda port: [need("sshd"), "-D", "-e", "-f", conf, "-p", port, "-o", "ListenAddress=127.0.0.1",
                                     *options])
    common = ["-F", "none", "-i", home / "user", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no", "-o",
              f"UserKnownHostsFile={home}/known", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=20"]
    return server, common


def ssh_session(ctx, server, common):

    to = [*common, "-p", server.port, f"{getpass.getuser()}@127.0.0.1"]
    data = ctx.file("data", ctx.bytes(5 * MB))
    ctx.mark()
    equal(ctx.run([need("ssh"), *to, "echo here; exit 7"], status=7), "here\n", "what the command printed")
    back = ctx.client([need("ssh"), *to, "cat"], stdin=data.open("rb"))
    back.result()
    check(back.out.read_bytes() == data.read_bytes(), "what came back through cat differs")
    got = ctx.dir / "got"
    ctx.run([need("scp"), *common, "-P", server.port, f"{getpass.getuser()}@127.0.0.1:{data}", got])
    check(got.read_bytes() == data.read_bytes(), "what scp brought differs")
    # A forwarded port: bytes of another connection inside this one.
    echo = ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"), role=None)
    port = host.free_port()
    forward = ctx.client([need("ssh"), "-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:127.0.0.1:{echo.port}", *to])
    wait_until(lambda: host.listening(port) or not forward.running(), START_LIMIT, "the port is forwarded")
    ctx.run(ctx.script("echo_client.py", port, "blocking", 30, 1))


@case()
def ssh(ctx):
    """sshd as it comes: it executes itself anew for each connection."""
    ssh_session(ctx, *sshd(ctx))


@case()
def ssh_forked(ctx):
    """sshd -r: a fork per connection, another one for the user's part, and a confined one for the first steps."""
    server, common = sshd(ctx, "-r")
    ssh_session(ctx, server, common)
    ctx.prove(server, accepts=3)


# vsftpd

@case()
def vsftpd(ctx):
    """Sessions are made by clone(2) through syscall(2), with namespaces of their own; the data comes by connections of theirs."""
    program = need("vsftpd")
    if os.getuid():
        raise Skipped("vsftpd wants to be started by root")
    given = tree(ctx, "given")
    empty = ctx.dir / "empty"
    empty.mkdir()
    # It does not serve from a folder that its clients could write to.
    for path in (ctx.dir, given, empty):
        path.chmod(0o755)
    conf = """listen=YES
listen_address=127.0.0.1
listen_port={port}
background=NO
anonymous_enable=YES
no_anon_password=YES
local_enable=NO
ftp_username=daemon
anon_root={given}
secure_chroot_dir={empty}
seccomp_sandbox=NO
"""
    server = ctx.serve(lambda port: [program, ctx.file("vsftpd.conf", conf.format(
        port=port, given=given, empty=empty).encode())])
    ctx.mark()
    for name in ("a/f1000", "a/b/f70000", "large"):
        got = ctx.dir / "got"
        ctx.run([need("curl"), "-sS", "--max-time", "60", "-o", got, f"ftp://127.0.0.1:{server.port}/{name}"])
        check(got.read_bytes() == (given / name).read_bytes(), f"{name} differs")
    ctx.prove(server, accepts=3)
