"""Real programs that are built with musl, among themselves and with programs of glibc. What arrives is compared."""

import json
import os
import re
import subprocess

import host
import made
from harness import Skipped, check, equal, need
from host import wait_until
from matrix import case

MB = 1 << 20
ONE = ("both",)


def redis(ctx, program):
    return ctx.serve(lambda port: [program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", ctx.dir])


def values_through(ctx, server, cli):
    """Binary values by one connection each, then many by one."""
    for size in (0, 1, 4096, 65537, 8 * MB):
        data = ctx.bytes(size)
        with open(ctx.file("value", data), "rb") as stdin:
            equal(ctx.run([cli, "-p", server.port, "-x", "SET", f"k{size}"], stdin=stdin).strip(), "OK", "SET")
        got = ctx.client([cli, "-p", server.port, "--raw", "GET", f"k{size}"])
        got.result()
        check(got.out.read_bytes() == data + b"\n", f"GET of {size} bytes differs")
    pushes = "".join(f"RPUSH list {n}\n" for n in range(2000))
    with open(ctx.file("commands", pushes.encode()), "rb") as stdin:
        ctx.run([cli, "-p", server.port], stdin=stdin)
    equal(ctx.run([cli, "-p", server.port, "LRANGE", "list", "0", "-1"]).split(), [str(n) for n in range(2000)], "the list")


@case()
def redis_of_musl(ctx):
    server = redis(ctx, made.real("redis"))
    values_through(ctx, server, made.real("redis", "src/redis-cli"))
    ctx.prove(server, accepts=12)


@case(modes=ONE)
def redis_of_musl_and_its_client_of_glibc(ctx):
    server = redis(ctx, made.real("redis"))
    values_through(ctx, server, need("redis-cli"))
    ctx.prove(server, accepts=12)


@case(modes=ONE)
def redis_of_glibc_and_its_client_of_musl(ctx):
    server = redis(ctx, need("redis-server"))
    values_through(ctx, server, made.real("redis", "src/redis-cli"))
    ctx.prove(server, accepts=12)


@case(modes=ONE)
def many_clients_at_once(ctx):
    server = redis(ctx, made.real("redis"))
    text = ctx.run([need("redis-benchmark"), "-p", server.port, "-c", 50, "-n", 20000, "-q", "-t", "set,get,lpush,lrange_100"])
    equal(len(re.findall(r"requests per second", text)), 5, "results of the benchmark")
    ctx.prove(server, accepts=50)


def web_client(client):
    """The command of a client that writes what it gets to its standard output."""
    return {
        "curl": [need("curl"), "-sS", "--max-time", 50],
        "curl of musl": [made.real("curl"), "-sS", "--max-time", 50],
        "wget of musl": [made.real("busybox"), "wget", "-q", "-O", "-"],
    }[client]


def fetched(ctx, client, url, content):
    got = ctx.client([*web_client(client), url])
    got.result()
    check(got.out.read_bytes() == content, f"{client} got other bytes from {url}")


def nginx(ctx, program):
    """nginx with two workers, which serves a folder, and under /proxy/ what it fetches from itself."""
    content = ctx.bytes(3 * MB)
    (ctx.dir / "www").mkdir()
    (ctx.dir / "www" / "file").write_bytes(content)
    (ctx.dir / "www").chmod(0o755)
    paths = " ".join(f"{kind}_temp_path {ctx.dir}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    origin = host.free_port()

    def start(port):
        conf = ctx.file("nginx.conf", f"""
            daemon off; user root; worker_processes 2; pid {ctx.dir}/pid; error_log {ctx.dir}/error.log;
            events {{ worker_connections 200; }}
            http {{
                access_log off; sendfile on; {paths}
                upstream origin {{ server 127.0.0.1:{origin}; keepalive 4; }}
                server {{
                    listen 127.0.0.1:{port}; root {ctx.dir}/www;
                    location /proxy/ {{ proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://origin/; }}
                }}
                server {{ listen 127.0.0.1:{origin}; root {ctx.dir}/www; }}
            }}""".encode())
        return [program, "-c", conf, "-e", ctx.dir / "error.log"]

    return ctx.serve(start), content


@case()
def nginx_of_musl(ctx):
    server, content = nginx(ctx, made.real("nginx"))
    # Of itself nginx accepts over shared memory whatever its clients do.
    paths = ("file",) if ctx.mode == "server" else ("file", "proxy/file")
    for client in ("curl", "curl of musl", "wget of musl"):
        for path in paths:
            fetched(ctx, client, f"http://127.0.0.1:{server.port}/{path}", content)
    ctx.prove(server, accepts=6)


@case(modes=ONE)
def nginx_of_glibc_and_clients_of_musl(ctx):
    server, content = nginx(ctx, need("nginx"))
    for client in ("curl of musl", "wget of musl"):
        fetched(ctx, client, f"http://127.0.0.1:{server.port}/file", content)
    ctx.prove(server, accepts=2)


@case(modes=ONE)
def curl_of_musl_sends(ctx):
    """A body of some size, in both directions."""
    data = ctx.bytes(2 * MB)
    server = ctx.serve(lambda port: [*made.node(), ctx.file("echo.js", ECHO), port])
    got = ctx.client([made.real("curl"), "-sS", "--max-time", 50, "--data-binary", f"@{ctx.file('data', data)}",
                      f"http://127.0.0.1:{server.port}/"])
    got.result()
    check(got.out.read_bytes() == data, "the echo differs")
    ctx.prove(server)


@case()
def httpd_of_busybox(ctx):
    """Its child serves a connection as its standard input and output, where it goes on by TCP."""
    content = ctx.bytes(MB)
    (ctx.dir / "file").write_bytes(content)
    server = ctx.serve(lambda port: [made.real("busybox"), "httpd", "-f", "-p", f"127.0.0.1:{port}", "-h", ctx.dir])
    for client in ("curl", "curl of musl", "wget of musl"):
        fetched(ctx, client, f"http://127.0.0.1:{server.port}/file", content)
    ctx.prove(server, accepts=3)


ECHO = b"""
const http = require('http');
http.createServer((question, answer) => {
  const parts = [];
  question.on('data', part => parts.push(part));
  question.on('end', () => answer.end(Buffer.concat(parts)));
}).listen(process.argv[2], '127.0.0.1');
"""

ASK = b"""
const http = require('http'), crypto = require('crypto');
const agent = new http.Agent({keepAlive: true, maxSockets: 8});
let left = 200;
for (let n = 0; n < 200; n++) {
  const data = crypto.randomBytes(n * 500 + 1);
  const question = http.request({host: '127.0.0.1', port: process.argv[2], agent, method: 'POST'}, answer => {
    const parts = [];
    answer.on('data', part => parts.push(part));
    answer.on('end', () => {
      if (!Buffer.concat(parts).equals(data)) throw Error('other bytes');
      if (--left == 0) { console.log('all the same'); process.exit(0); }
    });
  });
  question.end(data);
}
"""


@case()
def node_of_musl(ctx):
    server = ctx.serve(lambda port: [*made.node(), ctx.file("echo.js", ECHO), port])
    asked = ctx.file("ask.js", ASK)
    for command in (made.node(), [need("node")]):
        equal(ctx.run([*command, asked, server.port]).strip(), "all the same", command[-1])
    ctx.prove(server, accepts=16)


PYTHON_SERVER = b"""
import asyncio, sys

async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    async with await asyncio.start_server(echo, '127.0.0.1', int(sys.argv[1])) as server:
        await server.serve_forever()

asyncio.run(main())
"""

PYTHON_CLIENT = b"""
import os, socket, sys, threading

def ask():
    data = os.urandom(1500000)
    with socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=50) as s:
        threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))).start()
        with s.makefile('rb') as file:
            assert file.read() == data
    done.append(1)

done = []
threads = [threading.Thread(target=ask) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(done))
"""


@case()
def python_of_musl(ctx):
    server = ctx.serve(lambda port: [*made.python(), ctx.file("server.py", PYTHON_SERVER), port])
    client = ctx.file("client.py", PYTHON_CLIENT)
    for command in (made.python(), [need("python3")]):
        equal(ctx.run([*command, client, server.port]).strip(), "8", command[-1])
    ctx.prove(server, accepts=16)


@case(modes=ONE)
def to_another_host_it_says_why(ctx):
    """On a host with an RDMA device the reason is musl, without one it is that there is none."""
    if os.getuid() != 0 or not ctx.own_network:
        raise Skipped("needs root, for a network and mounts of its own")
    for command in (("link", "add", "out", "type", "veth", "peer", "name", "nobody"), ("addr", "add", "192.0.2.1/24", "dev", "out"),
                    ("link", "set", "nobody", "up"), ("link", "set", "out", "up")):
        subprocess.run([need("ip"), *command], check=True)
    with_device = "mount -t tmpfs classes /sys/class && mkdir -p /sys/class/infiniband/device0 && exec \"$@\""
    no_device = "mount -t tmpfs classes /sys/class && exec \"$@\""
    for script, reason in ((with_device, "musl"), (no_device, "other-host")):
        within = [need("unshare"), "--mount", "sh", "-c", script, "sh"]
        # Nobody is there: the connect waits.
        client = ctx.client([made.real("curl"), "-sS", "--max-time", 20, "http://192.0.2.2/"], within=within)
        shown = [made.ROOT / "build" / "netacc_ss", "-p", client.pid, "-s", "sock", "--json"]

        def reasons():
            text = ctx.run(shown, role=None, status=None)
            return [s["reason"] for s in json.loads(text)["sock"]] if text.startswith("{") else []

        wait_until(lambda: reasons() == [reason], 10, f"netacc_ss shows {reason}")
        client.kill()


@case(modes=ONE)
def the_tools_see_it(ctx):
    """netacc_ss and netacc_check say of a program of musl what is so."""
    server = redis(ctx, made.real("redis"))
    waits = ctx.client([made.real("redis", "src/redis-cli"), "-p", server.port, "BLPOP", "nothing", "20"])
    shown = [made.ROOT / "build" / "netacc_ss", "-p", server.pid, "-s", "sock", "--json"]

    def connections():
        return [s["transport"] for s in json.loads(ctx.run(shown, role=None))["sock"] if s["state"] == "ESTAB"]

    wait_until(lambda: connections() == ["SHM"], 10, "netacc_ss shows the connection over shared memory")
    explained = ctx.run([made.ROOT / "build" / "netacc_ss", "--explain", server.pid], role=None)
    check("over shared memory" in explained, explained)
    waits.kill()
    text = ctx.run([made.ROOT / "build" / "netacc_check", "--json", made.real("redis")], role=None, status=None)
    said = {f["check"]: f for f in json.loads(text)["findings"]}
    check("musl" in said["acceleration"]["text"] and said["acceleration"]["level"] == "ok", said)
    check("musl" in said["rdma"]["text"] and said["rdma"]["level"] == "note", said)
