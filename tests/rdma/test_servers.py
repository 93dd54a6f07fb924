"""Real servers and clients on two hosts joined by RDMA: contents are compared, and the devices' counters are the proof."""

import glob
import hashlib
import json
import re

from harness import check, equal, need
from host import wait_until
from matrix import case

KB, MB = 1 << 10, 1 << 20

NGINX = """
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/nginx.log;
worker_processes 2;
user root;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    sendfile on;
    server {{ listen {address}:{port}; root {dir}/www; }}
}}
"""


def both(ctx):
    ctx.accelerated = ("server", "client")
    return ctx.server_end.address, ctx.port()


@case(limit=240)
def nginx(ctx):
    """nginx with two workers sends files of several sizes over one connection, then small ones with a connection each."""
    address, port = both(ctx)
    www = ctx.dir / "www"
    www.mkdir()
    sums = {}
    for size in (1, 4095, 70_000, 2 * MB + 3):
        content = ctx.bytes(size)
        (www / f"f{size}").write_bytes(content)
        sums[f"f{size}"] = hashlib.sha256(content).hexdigest()
    conf = ctx.file("nginx.conf", NGINX.format(dir=ctx.dir, address=address, port=port).encode())
    server = ctx.spawn([need("nginx"), "-e", ctx.dir / "nginx.log", "-c", conf], role="server")
    ctx.await_listener(server, port + 20000)
    ctx.mark()
    script = ctx.file("files.py", FILES.encode())
    found = ctx.run(["python3", script, address, port, *sums], limit=120).split()
    equal(found, list(sums.values()), "sums of the files")
    ctx.prove(20, 2 * MB, "server")
    ctx.mark()
    # A connect that must not block waits for a first answer only for a moment, so the first ones may go by TCP.
    text = ctx.run([need("wrk"), "-t", 1, "-c", 8, "-d", 3, "--timeout", 30, "-H", "Connection: close",
                    f"http://{address}:{port}/f4095"], limit=120)
    requests = re.search(r"(\d+) requests in", text)
    check(requests and int(requests[1]) > 20, text)
    check("Socket errors" not in text and "Non-2xx" not in text, text)
    ctx.prove(int(requests[1]) // 2, int(requests[1]) * 4095 // 2, "server")


FILES = """
import hashlib, http.client, sys
c = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
for name in sys.argv[3:]:
    c.request("GET", "/" + name)
    print(hashlib.sha256(c.getresponse().read()).hexdigest())
"""

MEMCACHED = """
import hashlib, random, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
f = s.makefile("rb")
values = {f"key{n}": random.Random(n).randbytes(n * n * 40) for n in range(60)}
for key, value in values.items():
    s.sendall(b"set %s 0 0 %d\\r\\n" % (key.encode(), len(value)) + value + b"\\r\\n")
    assert f.readline() == b"STORED\\r\\n"
s.sendall(b"get " + b" ".join(k.encode() for k in values) + b"\\r\\n")
for key, value in values.items():
    assert f.readline() == b"VALUE %s 0 %d\\r\\n" % (key.encode(), len(value)), key
    assert f.read(len(value) + 2) == value + b"\\r\\n", key
assert f.readline() == b"END\\r\\n"
print("done", sum(map(len, values.values())))
"""


@case(limit=240)
def memcached(ctx):
    """memcached with four threads, which pass connections on, serves three clients at once."""
    address, port = both(ctx)
    server = ctx.spawn([need("memcached"), "-u", "root", "-l", address, "-p", port, "-U", 0, "-t", 4, "-m", 64],
                       role="server")
    ctx.await_listener(server, port + 20000)
    ctx.mark()
    script = ctx.file("values.py", MEMCACHED.encode())
    clients = [ctx.spawn(["python3", script, address, port], role="client") for _ in range(3)]
    total = sum(int(client.result(120).split()[1]) for client in clients)
    check(total > 3 * MB, f"{total} bytes")
    # Of three clients that connect at the same moment, one may get its answer too late and go by TCP.
    for sender in ("client", "server"):
        ctx.prove(30, total // 3, sender)
    check(server.running(), server.text())


@case(modes=("rxe",), limit=240)
def iperf3(ctx):
    """iperf3 sends one stream each way, then two at once. Its bytes are not compared; transport.bulk does that."""
    address, port = both(ctx)
    server = ctx.spawn([need("iperf3"), "-s", "-B", address, "-p", port, "--forceflush"], role="server")
    wait_until(lambda: "listening" in server.stdout() or not server.running(), 60, "iperf3 listens")
    ctx.await_listener(server, port + 20000)
    for options, sender in (((), "client"), (("-R",), "server"), (("-P", 2), "client")):
        ctx.mark()
        # With -n the receiver may be stopped before it has everything, so the sent bytes count.
        text = ctx.run([need("iperf3"), "-c", address, "-p", port, "-n", "6M", "-J", *options], limit=100)
        total = json.loads(text)["end"]["sum_received"]["bytes"]
        check(total > 5 * MB, f"iperf3 {options}: {total} bytes received")
        ctx.prove(40, total, sender)


def postgres_program(name):
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else need(name)


# The case runs on one kind of device only, since making the database takes most of the time.
@case(modes=("rxe",), limit=300)
def postgres(ctx):
    """postgres forks a process per connection after accept(2); pgbench uses lasting connections and one per transaction."""
    address, port = both(ctx)
    _, home = ctx.stranger()
    data = home / "data"
    # postgres refuses to run as root, but only root can enter the namespace.
    as_nobody = [need("setpriv"), "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "env", f"HOME={home}"]
    ctx.run([*as_nobody, postgres_program("initdb"), "-D", data, "-U", "tester", "-A", "trust", "-N", "--no-locale",
             "-E", "UTF8"], role=None, cwd=home, limit=200)
    # Connections from another host must be permitted too.
    with open(data / "pg_hba.conf", "a") as rules:
        rules.write("host all all 0.0.0.0/0 trust\n")
    settings = {"listen_addresses": address, "unix_socket_directories": "", "fsync": "off", "shared_buffers": "16MB",
                "max_connections": "20", "jit": "off"}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    server = ctx.spawn([*as_nobody, postgres_program("postgres"), "-D", data, "-p", port, *options], role="server", cwd=home,
                       readable=True, env={"NACC_LOG_PATH": home / "netacc.log"})
    wait_until(lambda: "ready to accept" in server.text() or not server.running(), 100, "postgres is ready")
    check(server.running(), server.text())
    ctx.await_listener(server, port + 20000)
    where = {"PGHOST": address, "PGPORT": port, "PGUSER": "tester", "PGDATABASE": "postgres", "PGCONNECT_TIMEOUT": 60,
             "PGSSLMODE": "disable"}
    text = ctx.run([postgres_program("psql"), "-X", "-q", "-A", "-t", "-c",
                    "select md5(string_agg(repeat('x', n), ',')) from generate_series(1, 500) n",
                    "-c", "select repeat('y', 300000)"], env=where, limit=100)
    lines = text.split()
    equal(lines[0], hashlib.md5(",".join("x" * n for n in range(1, 501)).encode()).hexdigest(), "a sum made by the server")
    equal(lines[1], "y" * 300_000, "a long row")
    script = ctx.file("bench.sql", b"select repeat('z', 5000);\n")
    script.chmod(0o644)
    for more in (("-c", 3, "-t", 10), ("-c", 2, "-t", 6, "-C")):
        ctx.mark()
        text = ctx.run([postgres_program("pgbench"), "-n", "-f", script, *more], env=where, limit=120)
        wanted = more[1] * more[3]
        check(f"actually processed: {wanted}/{wanted}" in text, text)
        # libpq does not block in connect, so the first connects of a process go by TCP before the route is known.
        if "-C" in more:
            ctx.prove(wanted // 2, wanted // 2 * 5000, "server")
