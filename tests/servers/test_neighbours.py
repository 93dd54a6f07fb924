"""Programs in different network namespaces of one host, which find each other by a directory (NACC_HOST_DIR)."""

import os
import pwd
import re
import signal
import socket
import subprocess

import host
import monitor
from harness import ROOT, Skipped, check, equal, need
from host import wait_until
from hosts import Host, cable, possible
from matrix import case
from neighbours import PORT, ROUNDS, Talker, World, ended
from operators import ctl_any, real
from test_hosts import CONTAINERS, container, mapped
from test_postgres import program

MODES = ("plain", "both")


@case(modes=MODES)
def values(ctx):
    """Every kind of server; each byte is compared, and the addresses are those of TCP. Nothing is left in the directory."""
    world = World(ctx)
    for kind, connections in (("threads", 6), ("epoll", 6), ("prefork", 6)):
        server = world.serve(kind)
        client = world.talk(connections=connections)
        with ended(server, client):
            check(client.first == client.again(), "the addresses changed when the connections went over")
            if kind == "prefork":
                client.again()
            client.expect(*[("SHM", None)] * connections)
            if ctx.mode == "both":
                check(world.names() and all(re.fullmatch(rf"netacc\d+\.{PORT}\.[0-9a-f]{{16}}", n) for n in world.names()),
                      f"names in the directory: {world.names()}")
    if ctx.mode == "both":
        # A worker that was killed could not remove its own.
        subprocess.run([monitor.command(), "-c"], env={**os.environ, **world.env()}, check=True, capture_output=True)
    equal(world.names(), [], "names that are left")


@case(modes=MODES)
def ipv6(ctx):
    world = World(ctx)
    for end, address in ((world.a, "fd00:77::1/64"), (world.b, "fd00:77::2/64")):
        end.ip("address", "add", address, "dev", "cable", "nodad")
    server, client = world.serve("threads", "::"), None
    client = world.talk("fd00:77::2")
    with ended(server, client):
        client.expect(("SHM", None))


@case(modes=MODES)
def translated_destination(ctx):
    """A published port, or the address of a service: the client sees another destination than the server."""
    world = World(ctx)
    if not possible(*world.a.within, need("nft"), "add", "table", "ip", "t"):
        raise Skipped("nftables cannot be used here")
    world.a.ip("route", "add", "10.99.0.0/24", "dev", "cable")
    world.a.nft("add chain ip t out { type nat hook output priority -100 ; }",
                f"add rule ip t out ip daddr 10.99.0.1 tcp dport 80 dnat to 10.77.0.2:{PORT}")
    # Other processes have the port, or other ports, and none of them has the connection.
    beside = [world.serve("threads", port=port, within=world.a.within) for port in (80, PORT, PORT + 1)]
    server = world.serve("epoll")
    clients = [world.talk("10.99.0.1", 80, connections=2) for _ in range(2)]
    with ended(server, *clients):
        for client in clients:
            client.again()
            client.expect(("SHM", None), ("SHM", None))
    for other in beside:
        other.end()


@case(modes=MODES)
def translated_source(ctx):
    """Where the client's address is translated the server does not know it: TCP goes on, and says why."""
    world = World(ctx)
    if not possible(*world.a.within, need("nft"), "add", "table", "ip", "t"):
        raise Skipped("nftables cannot be used here")
    world.a.ip("address", "add", "10.77.0.9/24", "dev", "cable")
    world.a.nft("add chain ip t post { type nat hook postrouting priority 100 ; }",
                "add rule ip t post ip daddr 10.77.0.2 snat to 10.77.0.9")
    server, client = world.serve("threads"), None
    client = world.talk()
    with ended(server, client):
        client.again()
        client.expect(("TCP", "translated"))
        later = world.talk()
        later.expect(("TCP", "translated"))
        later.end()


@case(modes=MODES)
def one_address_twice(ctx):
    """Two pairs of containers with the same addresses and ports on networks of their own: nobody gets the other's bytes."""
    world = World(ctx)
    a, b = Host(ctx), Host(ctx)
    cable(a, b, "cable", "10.77.0.1/24", "10.77.0.2/24")
    # A publisher sends to all at the same moments.
    for kind, join in (("threads", lambda within: world.talk(connections=4, within=within)),
                       ("publisher", lambda within: world.hear(4, within=within))):
        servers = [world.serve(kind, within=within) for within in (world.b.within, b.within)]
        clients = [join(within) for within in (world.a.within, a.within)]
        for client in clients * 2:
            client.again()
        for client in clients:
            client.expect(*[("SHM", None)] * 4)
            client.end()
        for server in servers:
            server.end()


@case(modes=MODES)
def containers(ctx):
    """Ends with mounts, processes and users of their own. A user who has no number at the other end is not trusted."""
    world = World(ctx, mode=0o1777)
    for name in ("mounts", "pid", "all"):
        way = container(*CONTAINERS[name])
        if not possible(*way, "true"):
            raise Skipped(f"no container with {name} can be made")
        server, client = world.serve("epoll", within=[*world.b.within, *way]), None
        client = world.talk(connections=2, within=[*world.a.within, *way])
        with ended(server, client):
            client.again()
            client.expect(("SHM", None), ("SHM", None))


@case(modes=MODES)
def unfit_directories(ctx):
    """A directory in which others could replace a socket is not used, and the log says so."""
    world = World(ctx)
    elsewhere = world.dir.with_name("elsewhere")

    def link():
        world.dir.rename(elsewhere)
        world.dir.symlink_to(elsewhere)

    for change, words in ((lambda: world.dir.chmod(0o777), "others may write to it"), (link, "no directory"),
                          (world.dir.unlink, None), (lambda: world.dir.write_text(""), "no directory")):
        change()
        log = ctx.dir / "log"
        log.unlink(missing_ok=True)
        server, client = world.serve("threads"), None
        client = world.talk()
        with ended(server, client):
            client.expect(("TCP", "other-host"))
        if ctx.mode == "both" and words:
            text = log.read_text()
            check(words in text and "NACC_HOST_DIR" in text, f"the log does not say {words!r}: {text[-300:]}")


@case(modes=MODES)
def liars(ctx):
    """What others may put into the directory: silent sockets, dead ones, files of every kind. TCP goes on meanwhile."""
    world = World(ctx, mode=0o1777)
    version = re.search(r"NUMBER: u16 = (\d+)", (ROOT / "crates/netacc-wire/src/lib.rs").read_text()).group(1)

    def name(n):
        return world.dir / f"netacc{version}.{PORT}.{n:016x}"

    held = []
    for n, listens in enumerate((True, True, False)):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.bind(str(name(n)))
        if listens:
            s.listen(1)
            held.append(s)
        else:
            s.close()
    # One whose queue is full, one of another type, and files.
    filler = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
    for s in filler:
        s.setblocking(False)
        try:
            s.connect(str(name(1)))
        except BlockingIOError:
            pass
    stream = socket.socket(socket.AF_UNIX)
    stream.bind(str(name(3)))
    stream.listen()
    name(4).write_text("x")
    name(5).mkdir()
    os.mkfifo(name(6))
    name(7).symlink_to("/dev/zero")
    (world.dir / "netacc14").write_text("")
    server, client = world.serve("threads"), None
    client = world.talk()
    with ended(server, client):
        # The silent one is waited for, two seconds, while the connection goes on.
        if ctx.mode == "both":
            def over():
                client.again()
                return client.paths() == [("SHM", None)]
            wait_until(over, 60, "the connection goes over to the right process")
            held[0].setblocking(False)
    check(name(4).exists() and name(7).is_symlink(), "files of others were removed")
    for s in (*held, *filler, stream):
        s.close()


@case(modes=("both",))
def a_killed_server(ctx):
    """The peer's death is seen at once, and what it left in the directory is removed by who finds it."""
    world = World(ctx)
    server, client = world.serve("threads"), None
    client = world.talk()
    client.expect(("SHM", None))
    [left] = world.names()
    for pid in host.tree(server.proc.pid):
        os.kill(pid, signal.SIGKILL)
    server.proc.wait()
    client.proc.popen.stdin.write(b"again\n")
    client.proc.popen.stdin.flush()
    check(client.proc.wait() != 0, "the client saw no end")
    equal(world.names(), [left], "the name of a killed process")
    done = subprocess.run([monitor.command(), "-c"], env={**os.environ, **world.env()}, capture_output=True, text=True)
    check(done.returncode == 0 and "1 socket" in done.stdout, f"netacc_ss -c: {done.stdout} {done.stderr}")
    equal(world.names(), [], "after netacc_ss -c")


@case(modes=MODES)
def forking(ctx):
    """A child per connection: the parent gives it up, and it goes over in the child."""
    world = World(ctx)
    server, client = world.serve("forking"), None
    client = world.talk(connections=3)
    with ended(server, client):
        client.expect(*[("SHM", None)] * 3)
        if ctx.mode == "both":
            check(not any(".0." in name for name in world.names()), f"names in the directory: {world.names()}")
        client.again()
    equal(world.names(), [], "names that are left")


@case(modes=MODES)
def forking_and_shared(ctx):
    """A child per connection whose parent keeps the connection, or uses it, too: that stays on TCP, and nothing is lost."""
    world = World(ctx)
    for kind in ("forking-kept", "forking-both"):
        server, client = world.serve(kind), None
        client = world.talk()
        with ended(server, client):
            client.again()
            client.again()
            if ctx.mode == "both":
                equal({transport for transport, _ in client.paths()}, {"TCP"}, kind)


@case(modes=MODES)
def one_direction(ctx):
    """A client that only sends, and one that only receives; small messages, and a stream without a pause."""
    world = World(ctx)
    for kind, connections, join in (("sink", 3, lambda n: world.tell(100, n)), ("sink", 1, lambda n: world.tell(100_000, n)),
                                    ("publisher", 3, world.hear), ("publisher-bulk", 1, world.hear)):
        wanted = [("SHM", None)] * connections
        with ended(world.serve(kind), client := join(connections)):
            client.expect(*wanted)


@case(modes=MODES)
def accepted_late(ctx):
    """A server accepts a client that has sent for some time already, and waits for no answer."""
    world = World(ctx)
    server = world.serve("sink-late")
    # A client without NetACC: the server's calls for it see each offer.
    first = world.tell(100, 1, role="nobody")
    early = world.tell(100, 1)
    # Long after it has looked for its neighbour, which says that it does not know it.
    for _ in range(4):
        first.again()
        early.again()
    server.proc.popen.stdin.write(b"accept\n")
    server.proc.popen.stdin.flush()
    with ended(server, first, early, next_one := world.tell(100, 1)):
        for client in (early, next_one):
            client.expect(("SHM", None))


@case(modes=MODES)
def slow_reader(ctx):
    """What a client has sent is never all read, unless it pauses."""
    world = World(ctx)
    with ended(world.serve("sink-slow"), client := world.flood(100_000)):
        client.expect(("SHM", None))


@case(modes=MODES)
def postgres(ctx):
    """PostgreSQL forks a process for each connection, which goes over there."""
    world = World(ctx, mode=0o1777)
    # Not nobody, whose number stands for every user without one.
    user, (_, home) = pwd.getpwnam("daemon"), ctx.stranger()
    os.chown(home, user.pw_uid, user.pw_gid)
    data = home / "data"
    ctx.run([program("initdb"), "-D", data, "-U", "tester", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"],
            role=None, user=user, cwd=home)
    (data / "pg_hba.conf").write_text("host all all all trust\n")
    options = {"listen_addresses": "*", "unix_socket_directories": "", "fsync": "off", "max_connections": 60}
    words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    own = [need("setpriv"), f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    server = ctx.spawn([program("postgres"), "-D", data, "-p", PORT, *words], "server", cwd=home, readable=True,
                       env=world.env(NACC_LOG_PATH=home / "log"), within=[*world.b.within, *own])
    wait_until(lambda: "ready to accept" in server.text() or not server.running(), 60, "postgres is ready")

    def client(*argv, wait=True):
        env = world.env(PGHOST="10.77.0.2", PGPORT=PORT, PGUSER="tester", PGDATABASE="postgres", PGSSLMODE="disable",
                        NACC_LOG_PATH=home / "log")
        one = ctx.spawn([program(argv[0]), *argv[1:]], "client", env=env, cwd=home, readable=True,
                        within=[*world.a.within, *own])
        return one.result() if wait else one

    client("pgbench", "-i", "-q", "-s", "1")
    text = client("pgbench", "-n", "-S", "-c", "8", "-j", "2", "-t", "2000")
    check("actually processed: 16000/16000" in text and "failed transactions: 0" in text, text)
    bench = client("pgbench", "-n", "-c", "4", "-j", "2", "-T", "60", wait=False)
    if ctx.mode == "both":
        def over():
            found = []
            for pid in host.tree(bench.pid):
                try:
                    found += [s["transport"] for s in monitor.show(pid, "sock")["sock"] if s["state"] == "ESTAB"]
                except monitor.NoAnswer:
                    pass
            return len(found) >= 4 and set(found) == {"SHM"}
        wait_until(over, 50, "pgbench's connections go over")
        names = [name for name in world.names() if ".0." in name]
        check(not names, f"entrances of connections that have gone over: {names}")
    os.kill(host.tree(bench.pid)[-1], signal.SIGKILL)
    # A connection for each transaction, and many of them.
    text = client("pgbench", "-n", "-S", "-C", "-c", "4", "-j", "2", "-t", "30")
    check("actually processed: 120/120" in text and "failed transactions: 0" in text, text)
    equal(client("psql", "-X", "-A", "-t", "-c", "select count(*), sum(aid) from pgbench_accounts").strip(),
          "100000|5000050000", "the accounts")


@case(modes=MODES)
def nginx(ctx):
    """A web server that sends its files by sendfile(2)."""
    world = World(ctx)
    www = ctx.dir / "www"
    www.mkdir()
    (www / "file").write_bytes(ctx.bytes(30_000))
    (www / "conf").write_text(f"""user root; worker_processes 2; daemon off; pid {www}/pid; error_log {www}/errors;
        events {{ }} http {{ access_log off; sendfile on; server {{ listen 0.0.0.0:{PORT}; root {www}; }} }}""")
    server = ctx.spawn([need("nginx"), "-e", f"{www}/errors", "-c", f"{www}/conf"], "server", env=world.env(),
                       within=world.b.within)
    there = [*world.b.within, need("bash"), "-c", f"exec 3<>/dev/tcp/127.0.0.1/{PORT}"]
    wait_until(lambda: possible(*there), 30, "nginx listens")
    client = Talker(world, "client", "fetch", "10.77.0.2", PORT, www / "file", ROUNDS, within=world.a.within)
    client.again()
    client.expect(("SHM", None))
    client.end()
    server.end()


@case(modes=MODES)
def another_user(ctx):
    """A process of another user is not trusted, and cannot connect to the socket of ours."""
    world = World(ctx, mode=0o1777)
    server = world.serve("threads")
    nobody = [need("setpriv"), "--reuid=nobody", "--clear-groups"]
    client = world.talk(within=[*world.a.within, *nobody], readable=True)
    with ended(server, client):
        client.again()
        client.expect(("TCP", "peer-uid"))


@case(modes=MODES)
def another_user_later(ctx):
    """Either end becomes another user while it has a connection, which it may have shared with a child before."""
    world = World(ctx)
    for shared in (False, True):
        for side, why in (("client", "peer-uid"), ("server", "peer-moved")):
            server, client = world.serve("changing"), None
            client = world.talk()
            with ended(server, client):
                client.expect(("SHM", None))
                if shared:
                    client.again("fork")
                    client.heard("the parent's line")
                if side == "client":
                    client.again("become")
                else:
                    os.kill(real(server.proc) if ctx.mode == "both" else server.proc.pid, signal.SIGUSR1)
                    server.heard("the change")
                client.expect(("TCP", why))
                client.again()


GROUP = 54321


def as_user(uid, *groups):
    """A command that runs another one as this user, in these groups."""
    held = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return [need("setpriv"), f"--reuid={uid}", f"--regid={uid}", held]


def group_world(ctx):
    world = World(ctx)
    os.chown(world.dir, 0, GROUP)
    world.dir.chmod(0o3770)
    return world


@case(modes=MODES)
def a_group(ctx):
    """Users who may enter a directory as members of its group are one party; others, root apart, do not meet them there."""
    world = group_world(ctx)
    for server, client, path in (((1001, GROUP), (1002, GROUP), ("SHM", None)), ((1001, GROUP), (0,), ("SHM", None)),
                                 ((0,), (1002, GROUP), ("SHM", None)), ((1001, GROUP), (1002,), ("TCP", "other-host")),
                                 ((1001,), (1002, GROUP), ("TCP", "no-neighbour"))):
        for kind in ("threads", "epoll", "prefork", "forking") if path[0] == "SHM" else ("threads",):
            with ended(world.serve(kind, within=[*world.b.within, *as_user(*server)], readable=True),
                       client_there := world.talk(within=[*world.a.within, *as_user(*client)], readable=True)):
                client_there.again()
                client_there.expect(path)
                if kind == "threads" and path[0] == "SHM":
                    client_there.again("start")
                    # The child's line, and its own.
                    client_there.again("fork")
                    client_there.heard("the parent's line")
    for users in (((1001, GROUP), (1002, GROUP)), ((1001, GROUP), (0,)), ((0,), (1002, GROUP))):
        for side in range(2):
            server, client = (as_user(*user) for user in users)
            pair = (world.serve("threads", within=[*world.b.within, *server], readable=True),
                    world.talk(within=[*world.a.within, *client], readable=True))
            with ended(*pair):
                pair[1].expect(("SHM", None))
                if ctx.mode == "both":
                    ctl_any("off", real(pair[side].proc))
                    pair[1].again()
                    equal({transport for transport, _ in pair[1].paths()}, {"TCP"}, "after off")
    # Another member must not remove what the killed workers of the prefork server have left.
    subprocess.run([monitor.command(), "-c"], env={**os.environ, **world.env()}, stdout=subprocess.DEVNULL, check=True)
    equal(world.names(), [], "names in the directory")


@case(modes=MODES)
def a_group_and_user_namespaces(ctx):
    """The members of a group meet even where neither has a number in the other's user namespace."""
    world = group_world(ctx)
    if not possible(need("unshare"), "--user", "true"):
        raise Skipped("no user namespace can be made")
    # Each maps the owner and the group of the directory, and users of its own.
    one, other = (mapped(ctx, f"0 0 1\n1000 {first} 1000", f"0 0 1\n{GROUP} {GROUP} 1\n1000 {first} 1000")
                  for first in (100000, 200000))
    user = as_user(1500, GROUP)
    with ended(world.serve("threads", within=[*world.b.within, *one, *user], readable=True),
               client := world.talk(within=[*world.a.within, *other, *user], readable=True)):
        client.again()
        client.expect(("SHM", None))


@case(modes=MODES)
def user_namespaces(ctx):
    """Containers whose users have other numbers outside: they meet if their users are the same ones outside, and the directory is
    theirs. Who owns a file is not known where the owner has no number."""
    world = World(ctx, mode=0o1777)
    if not possible(need("unshare"), "--user", "true"):
        raise Skipped("no user namespace can be made")
    one, other = (mapped(ctx, f"0 {first} 65536") for first in (100000, 200000))
    unmapped = [need("unshare"), "--user"]
    for owner, server_in, client_in, path in (
            (100000, one, one, ("SHM", None)), (0, one, one, ("TCP", "other-host")),
            (100000, one, other, ("TCP", "other-host")), (0, [], other, ("TCP", "other-host")),
            (200000, unmapped, unmapped, ("TCP", "other-host"))):
        os.chown(world.dir, owner, owner)
        server, client = world.serve("threads", within=[*world.b.within, *server_in], readable=True), None
        client = world.talk(within=[*world.a.within, *client_in], readable=True)
        with ended(server, client):
            client.again()
            client.expect(path)
        for name in world.names():
            (world.dir / name).unlink()


@case(modes=("both",))
def off_and_on(ctx):
    """An operator switches either end off and on."""
    world = World(ctx)
    server, client = world.serve("epoll"), None
    client = world.talk(connections=2)
    with ended(server, client):
        client.expect(("SHM", None), ("SHM", None))
        for one in (server, client):
            # A client that reads its standard input follows at its next call on a socket.
            ctl_any("off", real(one.proc))
            client.again()
            check({t for t, _ in client.paths()} == {"TCP"}, f"after off: {client.paths()}")
            ctl_any("on", real(one.proc))
            client.again()
        later = world.talk()
        later.expect(("SHM", None))
        later.end()
