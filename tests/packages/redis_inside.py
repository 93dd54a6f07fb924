"""redis in a clean system, started as a user of the package would."""

import json

import host
from harness import START_LIMIT, check

PORT = 6379


def serve(root, *launcher):
    """`launcher`: what stands before the server's command line."""
    server = root.start(*launcher, "redis-server", "--port", PORT, "--save", "", "--appendonly", "no")
    host.wait_until(lambda: not server.running() or root.attempt("redis-cli", "-p", PORT, "ping").stdout == "PONG\n",
                    START_LIMIT, "redis answers")
    check(server.running(), f"redis ended: {server.text()}")
    return server


def load(root, *launcher, env=None):
    """Some thousand requests; an error of a client is one of the benchmark."""
    return root.run(*launcher, "redis-benchmark", "-p", PORT, "-n", 2000, "-c", 8, "-d", 512, "-t", "set,get", "-q", env=env)


def counters(root, server, netacc_ss="netacc_ss"):
    pid = host.tree(server.pid)[-1]
    return json.loads(root.run(netacc_ss, "-p", pid, "-s", "cnt", "--json"))["cnt"]


def by_the_manual(root):
    """The library by the path that the manual names, and its script."""
    done = root.attempt("sh", "-c", "grep -c libnetacc-preload /proc/self/maps", env={"LD_PRELOAD": "/lib64/libnetacc-preload.so"})
    check(done.stderr == "" and int(done.stdout or 0) > 0, f"LD_PRELOAD by /lib64: {done}")
    done = root.attempt("run_with_netacc", "sh", "-c", "echo \"$1\"; grep -c libnetacc-preload /proc/self/maps", "sh", "a b")
    said = done.stdout.split("\n")
    check(done.stderr == "" and said[0] == "a b" and int(said[1] or 0) > 0, f"run_with_netacc: {done}")
