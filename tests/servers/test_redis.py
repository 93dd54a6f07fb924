"""redis: every value compared, in both roles and on one side only."""

import subprocess

import host
from harness import check, equal, need
from host import wait_until
from matrix import case
from redis_server import admin, digest, info, saved, start
from resp import encode

MB = 1 << 20


def script(ctx, server, scenario, *args, role="client"):
    return ctx.run(ctx.script("redis_client.py", server.port, scenario, *args), role)


@case()
def values(ctx):
    server = start(ctx)
    ctx.mark()
    script(ctx, server, "values", ctx.random.randrange(1 << 30))
    ctx.prove(server, payload=30 * MB)


@case()
def values_ipv6(ctx):
    server = start(ctx)
    ctx.mark()
    script(ctx, server, "values", ctx.random.randrange(1 << 30), "::1")
    ctx.prove(server, payload=30 * MB)


@case()
def redis_cli(ctx):
    """Binary values through redis-cli: in by standard input, out as raw bytes and a newline."""
    server = start(ctx)
    cli = [need("redis-cli"), "-p", server.port]
    for size in (0, 1, 4096, 65537, MB, 8 * MB):
        data = ctx.bytes(size)
        path = ctx.file("value", data)
        with open(path, "rb") as stdin:
            equal(ctx.run([*cli, "-x", "SET", f"k{size}"], stdin=stdin).strip(), "OK", "SET")
        got = ctx.client([*cli, "--raw", "GET", f"k{size}"])
        got.result()
        check(got.out.read_bytes() == data + b"\n", f"GET of {size} bytes differs")
    equal(ctx.run([*cli, "BLPOP", "nothing", "0.1"]).strip(), "", "BLPOP at its timeout")
    ctx.prove(server)


@case()
def cli_pipe(ctx):
    """redis-cli --pipe: bulk in one direction while replies come back in the other."""
    server = start(ctx)
    commands = [("SET", f"key{n}", ctx.bytes(ctx.random.choice((1, 100, 3000)))) for n in range(8000)]
    path = ctx.file("commands", b"".join(encode(*c) for c in commands))
    ctx.mark()
    with open(path, "rb") as stdin:
        text = ctx.run([need("redis-cli"), "-p", server.port, "--pipe"], stdin=stdin)
    check("errors: 0, replies: 8000" in text, f"redis-cli --pipe says {text.strip()[-120:]}")
    ctx.prove(server, payload=path.stat().st_size)
    with admin(server) as r:
        for _, key, value in commands:
            check(r.call("GET", key) == value, f"{key} differs")


@case()
def pipeline(ctx):
    server = start(ctx)
    ctx.mark()
    script(ctx, server, "pipeline", ctx.random.randrange(1 << 30))
    ctx.prove(server, payload=20 * MB)


@case()
def transactions(ctx):
    server = start(ctx)
    script(ctx, server, "multi", 1)
    ctx.prove(server, accepts=2)


@case()
def pubsub(ctx):
    server = start(ctx)
    script(ctx, server, "pubsub", 2)
    ctx.prove(server, accepts=5)


@case()
def blpop(ctx):
    server = start(ctx)
    script(ctx, server, "blpop")
    ctx.prove(server, accepts=2)


@case()
def client_list(ctx):
    server = start(ctx)
    script(ctx, server, "clientlist")
    ctx.prove(server, accepts=30)


@case()
def debug_sleep(ctx):
    server = start(ctx)
    script(ctx, server, "sleep")
    ctx.prove(server, accepts=2)


@case()
def idle_clients(ctx):
    server = start(ctx)
    client = ctx.client(ctx.script("redis_client.py", server.port, "idle", 1000), stdin=subprocess.PIPE)
    wait_until(lambda: "connected" in client.stdout() or not client.running(), 60, "1,000 clients are connected")
    check(client.running(), f"the clients failed: {client.tail(3)}")
    ctx.prove(server, accepts=1000)
    client.popen.stdin.write(b"\n")
    client.popen.stdin.close()
    client.result()


def benchmark(ctx, server, *options):
    return [need("redis-benchmark"), "-p", server.port, "-d", 512, "-r", 10000, "--csv", *options]


def rates(text, tests):
    """Each test's line has a rate above zero: "SET","91743.12",..."""
    found = {}
    for line in text.splitlines():
        fields = [f.strip('"') for f in line.split(",")]
        if len(fields) > 1 and fields[0] in tests:
            found[fields[0]] = float(fields[1])
    equal(sorted(found), sorted(tests), "the tests that redis-benchmark reports")
    check(all(rate > 0 for rate in found.values()), f"rates {found}")


def values_of_benchmark(server):
    with admin(server) as r:
        keys = r.call("KEYS", "key:*")
        check(keys, "the benchmark wrote keys")
        first = r.call("GET", keys[0])
        for key in keys:
            value = r.call("GET", key)
            check(len(value) == 512 and value == first, f"{key} is damaged")


@case()
def benchmark_threads(ctx):
    server = start(ctx)
    ctx.mark()
    text = ctx.run(benchmark(ctx, server, "-c", 100, "--threads", 4, "-n", 40000, "-t", "set,get"))
    rates(text, ["SET", "GET"])
    ctx.prove(server, accepts=200, payload=40000 * 1000)
    check(int(info(server, "stats", "total_commands_processed")) >= 80000, "too few commands arrived")
    values_of_benchmark(server)


@case()
def benchmark_pipeline(ctx):
    server = start(ctx)
    ctx.mark()
    text = ctx.run(benchmark(ctx, server, "-c", 50, "-P", 16, "-n", 80000, "-t", "set,get"))
    rates(text, ["SET", "GET"])
    ctx.prove(server, accepts=100, payload=80000 * 1000)
    values_of_benchmark(server)


@case()
def benchmark_reconnect(ctx):
    """A connection per request."""
    server = start(ctx)
    text = ctx.run(benchmark(ctx, server, "-c", 50, "-k", 0, "-n", 4000, "-t", "set"))
    rates(text, ["SET"])
    ctx.prove(server, accepts=4000)
    check(int(info(server, "stats", "total_connections_received")) >= 4000, "a connection per request")
    values_of_benchmark(server)


@case()
def bgsave(ctx):
    """Snapshots by a forked child while clients write; the data of before the load is in them, whole."""
    server = start(ctx)
    fixed = {f"fixed{n}": ctx.bytes(2000) for n in range(1000)}
    with admin(server) as r:
        for key, value in fixed.items():
            r.call("SET", key, value)
    load = ctx.client(benchmark(ctx, server, "-c", 20, "-n", 100000000, "-t", "set"))
    with admin(server) as r:
        for _ in range(3):
            before = int(r.info("stats")["total_commands_processed"])
            wait_until(lambda: int(r.info("stats")["total_commands_processed"]) > before + 2000, 30, "load runs")
            saved(server)
    check(load.running(), f"the load ended early: {load.tail(3)}")
    ctx.prove(server, accepts=20)
    server.kill()
    check(load.wait() != 0, "redis-benchmark reports the death of the server")
    again = start(ctx)
    with admin(again) as r:
        for key, value in fixed.items():
            check(r.call("GET", key) == value, f"{key} differs after the reload")
    values_of_benchmark(again)
    saved(again)
    before = digest(again)
    again.kill()
    equal(digest(start(ctx)), before, "digest of all data after a quiet snapshot and reload")


@case()
def aof(ctx):
    """Acknowledged with fsync always means there after kill -9."""
    options = ["--appendonly", "yes", "--appendfsync", "always"]
    server = start(ctx, *options)
    text = ctx.run(benchmark(ctx, server, "-c", 20, "-n", 2000, "-t", "set,incr"))
    rates(text, ["SET", "INCR"])
    ctx.prove(server, accepts=40)
    before = digest(server)
    server.kill()
    check(list((ctx.dir / "appendonlydir").glob("*.aof")), "an append-only file exists")
    equal(digest(start(ctx, *options)), before, "digest after kill -9 and replay")


@case()
def killed(ctx):
    """kill -9 of the server: a client blocked in any kind of wait learns it."""
    server = start(ctx)
    waiting = ctx.client(ctx.script("redis_client.py", server.port, "blocked"))
    cli = [need("redis-cli"), "-p", server.port]
    clis = [ctx.client([*cli, "BLPOP", "nothing", "0"]), ctx.client([*cli, "SUBSCRIBE", "channel"])]
    with admin(server) as r:
        wait_until(lambda: r.info("clients")["blocked_clients"] == "11" or not waiting.running(), 30, "11 are blocked")
        wait_until(lambda: r.call("PUBSUB", "NUMSUB", "channel")[1] == 1, 30, "one is subscribed")
    ctx.prove(server, accepts=12)
    server.kill()
    waiting.result()
    check(clis[0].wait(30) != 0, "redis-cli fails when its server dies")
    # In subscribed mode redis-cli may try again for ever; that it says something is what counts.
    wait_until(lambda: not clis[1].running() or clis[1].err.stat().st_size > 0
               or "closed" in clis[1].text() or "refused" in clis[1].text(), 30, "the subscriber learns of the death")


@case()
def clients_die(ctx):
    """kill -9 of clients: the server forgets them, and gives back what they held."""
    server = start(ctx)
    with admin(server) as r:
        r.call("SET", "big", ctx.bytes(4 * MB))
        script(ctx, server, "churn", 50)
        wait_until(lambda: r.info("clients")["connected_clients"] == "1", 30, "the first clients are gone")
        before = len(host.fds(server.pid))
        for _ in range(6):
            load = ctx.client(benchmark(ctx, server, "-c", 10, "-n", 100000000, "-t", "set"))
            blocked = ctx.client(ctx.script("redis_client.py", server.port, "blocked"))
            wait_until(lambda: int(r.info("clients")["connected_clients"]) > 20, 30, "the clients are connected")
            load.kill()
            blocked.kill()
            wait_until(lambda: r.info("clients")["connected_clients"] == "1", 30, "dead clients are forgotten")
        ctx.prove(server, accepts=120)
        # A link that was set up in advance may come and go; six rounds of leaks could not hide in this.
        wait_until(lambda: len(host.fds(server.pid)) <= before + 3, 30,
                   f"descriptors of dead clients are closed ({before} before, {len(host.fds(server.pid))} now)")
        wait_until(lambda: not host.links(server.pid), 30, "shared memory of dead clients is given back")
    script(ctx, server, "values", 3)


@case()
def replication(ctx):
    """master to replica: first the whole snapshot, then the stream, then again after the death of the replica."""
    master = start(ctx, "--repl-diskless-sync-delay", "0", role="server")
    with admin(master) as r:
        for n in range(3000):
            r.call("SET", f"fixed{n}", ctx.bytes(3000))
    place = ctx.dir / "replica"
    place.mkdir()

    def replica():
        return start(ctx, "--replicaof", "127.0.0.1", str(master.port), "--repl-diskless-load", "swapdb",
                     role="client", cwd=place)

    def same(other):
        def caught_up():
            with admin(master) as m, admin(other) as o:
                a, b = m.info("replication"), o.info("replication")
                return b["master_link_status"] == "up" and a["master_repl_offset"] == b["slave_repl_offset"]
        wait_until(caught_up, 60, "the replica has caught up")
        equal(digest(other), digest(master), "digest of the replica")

    ctx.mark()
    first = replica()
    text = ctx.run(benchmark(ctx, master, "-c", 10, "-n", 20000, "-t", "set,lpush"), role=None)
    rates(text, ["SET", "LPUSH"])
    same(first)
    ctx.prove(master)
    first.kill()
    wait_until(lambda: info(master, "replication", "connected_slaves") == "0", 30, "the master notices")
    second = replica()
    with admin(master) as r:
        for n in range(1000):
            r.call("SET", f"later{n}", ctx.bytes(100))
    same(second)
    second.kill()
