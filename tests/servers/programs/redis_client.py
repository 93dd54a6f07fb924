"""Clients of redis, run plain or under the launcher: redis_client.py PORT SCENARIO [ARGUMENT...]."""

import hashlib
import pathlib
import random
import select
import selectors
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lib"))
from resp import Closed, Error, Redis, encode  # noqa: E402

EDGES = [0, 1, 2, 15, 16, 17, 63, 64, 65, 1023, 4095, 4096, 4097, 16383, 16384, 16385, 65535, 65536, 65537,
         131072, 262143, 262144, 262145, 1048575, 1048576, 1048577, 3000001, 8388608]


def require(condition, message):
    if not condition:
        sys.exit(f"wrong: {message}")


def values(port, seed, address="127.0.0.1"):
    rng = random.Random(int(seed))
    with Redis(port, address) as r:
        sizes = EDGES + [rng.randrange(200000) for _ in range(30)]
        data = {f"v{n}": rng.randbytes(size) for n, size in enumerate(sizes)}
        for key, value in data.items():
            require(r.call("SET", key, value) == "OK", f"SET {key}")
            require(r.call("GET", key) == value, f"GET {key} of {len(value)} bytes")
        for key, value in data.items():
            at = rng.randrange(len(value) + 1)
            require(r.call("GETRANGE", key, at, at + 999) == value[at:at + 1000], f"GETRANGE {key}")
        require(r.call("MGET", *data) == list(data.values()), "MGET of everything")


def pipeline(port, seed):
    """Requests are written as long as the socket takes them, replies read as they come, from one thread."""
    rng = random.Random(int(seed))
    keys = [(f"p{n}", rng.randbytes(rng.choice([3, 40, 512, 5000]))) for n in range(8000)]
    out = b"".join(encode("SET", k, v) + encode("GET", k) for k, v in keys)
    want = hashlib.sha256(b"".join(b"+OK\r\n$%d\r\n%b\r\n" % (len(v), v) for _, v in keys)).hexdigest()
    total = sum(5 + len(b"$%d\r\n" % len(v)) + len(v) + 2 for _, v in keys)
    with Redis(port) as r:
        sock = r.sock
        sock.setblocking(False)
        digest, got, sent = hashlib.sha256(), 0, 0
        view = memoryview(out)
        while got < total:
            readable, writable, _ = select.select([sock], [sock] if sent < len(out) else [], [], 60)
            require(readable or writable, f"stands still at {sent} sent, {got} of {total} received")
            if writable:
                try:
                    sent += sock.send(view[sent:sent + 100000])
                except BlockingIOError:
                    pass
            if readable:
                try:
                    part = sock.recv(65536)
                except BlockingIOError:
                    continue
                require(part, "end of the connection")
                digest.update(part)
                got += len(part)
        require(digest.hexdigest() == want, "the replies differ")


def multi(port, seed):
    rng = random.Random(int(seed))
    with Redis(port) as a, Redis(port) as b:
        blob = rng.randbytes(100000)
        a.call("DEL", "m")
        require(a.call("MULTI") == "OK", "MULTI")
        for command in (("SET", "m", blob), ("APPEND", "m", "tail"), ("STRLEN", "m"), ("GET", "m")):
            require(a.call(*command) == "QUEUED", f"{command[0]} is queued")
        require(b.call("GET", "m") is None, "nothing visible before EXEC")
        require(a.call("EXEC") == ["OK", 100004, 100004, blob + b"tail"], "EXEC")
        a.call("WATCH", "m")
        b.call("SET", "m", "other")
        a.call("MULTI")
        a.call("SET", "m", "mine")
        require(a.call("EXEC") is None, "a watched key changed, so EXEC does nothing")
        a.call("MULTI")
        a.call("SET", "m", "no")
        require(a.call("DISCARD") == "OK" and a.call("GET", "m") == b"other", "DISCARD")


def pubsub(port, seed):
    rng = random.Random(int(seed))
    messages = [rng.randbytes(rng.choice([0, 1, 100, 4096, 70000])) for _ in range(400)]
    problems = []
    subscribers = []
    for n in range(4):
        r = Redis(port)
        kind = "PSUBSCRIBE" if n == 3 else "SUBSCRIBE"
        answer = r.call(kind, "chan*" if n == 3 else "channel")
        require(answer[2] == 1, "subscribed")
        subscribers.append(r)

    def listen(r):
        try:
            for n, message in enumerate(messages):
                answer = r.read()
                if answer[-1] != message:
                    problems.append(f"message {n} differs")
                    return
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=listen, args=(r,)) for r in subscribers]
    for thread in threads:
        thread.start()
    with Redis(port) as p:
        for message in messages:
            require(p.call("PUBLISH", "channel", message) == 4, "four receivers")
    for thread in threads:
        thread.join(60)
        require(not thread.is_alive(), "a subscriber still waits")
    require(not problems, problems)


def blpop(port):
    with Redis(port) as a, Redis(port) as b:
        started = time.monotonic()
        require(a.call("BLPOP", "nothing", "0.4") is None, "BLPOP answers nil at its timeout")
        require(time.monotonic() - started >= 0.35, "BLPOP waited")
        for n in range(200):
            a.send("BLPOP", "queue", "60")
            if n % 2:
                wait_blocked(b)
            b.call("RPUSH", "queue", f"item{n}")
            require(a.read() == [b"queue", f"item{n}".encode()], "the pushed item")
        a.sock.settimeout(0.2)
        a.send("BLPOP", "nothing", "30")
        try:
            a.read()
            require(False, "an answer to a BLPOP on nothing")
        except TimeoutError:
            pass
        b.call("RPUSH", "nothing", "late")
        a.sock.settimeout(60)
        require(a.read() == [b"nothing", b"late"], "the connection goes on after a timeout of the socket")


def wait_blocked(r, count=1):
    end = time.monotonic() + 30
    while int(r.info("clients")["blocked_clients"]) < count:
        require(time.monotonic() < end, "the client never blocks")


def clientlist(port):
    clients = [Redis(port) for _ in range(30)]
    lines = clients[0].call("CLIENT", "LIST").decode().splitlines()
    shown = {}
    for line in lines:
        fields = dict(f.partition("=")[::2] for f in line.split(" "))
        shown[fields["addr"]] = fields["laddr"]
    require(len(shown) == len(lines), "every address appears once")
    for r in clients:
        address, own_port = r.sock.getsockname()
        require(address == "127.0.0.1" and own_port > 0, f"own address {address}:{own_port}")
        require(r.sock.getpeername() == ("127.0.0.1", int(port)), f"peer {r.sock.getpeername()}")
        require(shown.get(f"{address}:{own_port}") == f"127.0.0.1:{port}", f"{address}:{own_port} is listed")
    victim = clients[5]
    clients[0].call("CLIENT", "KILL", "ADDR", "%s:%d" % victim.sock.getsockname())
    try:
        require(victim.sock.recv(1) == b"", "bytes from a killed connection")
    except ConnectionResetError:
        pass


def sleep(port):
    """A server that does nothing for a while is not a dead one."""
    with Redis(port) as a, Redis(port) as b:
        started = time.monotonic()
        a.send("DEBUG", "SLEEP", "0.7")
        b.send("PING")
        ready, _, _ = select.select([b.sock], [], [], 60)
        require(ready and b.read() == "PONG", "PONG after the pause")
        require(a.read() == "OK" and time.monotonic() - started >= 0.6, "the pause was a pause")


def idle(port, count):
    clients = [Redis(port) for _ in range(int(count))]
    require(len({c.sock.getsockname() for c in clients}) == len(clients), "addresses are distinct")
    for r in clients:
        require(r.call("PING") == "PONG", "PING")
    active = clients[len(clients) // 2]
    for n in range(1000):
        require(active.call("INCR", "n") == n + 1, "INCR")
    for n, r in enumerate(clients):
        r.send("ECHO", f"e{n}")
    for n, r in enumerate(clients):
        require(r.read() == f"e{n}".encode(), "ECHO")
    print("connected", flush=True)
    sys.stdin.readline()
    for r in clients:
        r.close()
    with Redis(port) as r:
        end = time.monotonic() + 30
        while int(r.info("clients")["connected_clients"]) > 1:
            require(time.monotonic() < end, "closed connections stay")


def ways():
    """The ways to wait for bytes; each must see the other's death."""
    def use_select(s):
        select.select([s], [], [])
        return s.recv(10)

    def use_poll(s):
        p = select.poll()
        p.register(s, select.POLLIN)
        p.poll()
        return s.recv(10)

    def use_epoll(s, flags=select.EPOLLIN):
        with select.epoll() as e:
            e.register(s, flags)
            e.poll()
            return s.recv(10)

    def nonblocking(s):
        s.setblocking(False)
        with selectors.DefaultSelector() as sel:
            sel.register(s, selectors.EVENT_READ)
            sel.select()
        return s.recv(10)

    def timeout(s):
        s.settimeout(300)
        return s.recv(10)

    def hang_up_only(s):
        with select.epoll() as e:
            e.register(s, select.EPOLLRDHUP)
            e.poll()
            return s.recv(10)

    return {
        "recv": lambda s: s.recv(10), "timeout": timeout, "select": use_select, "poll": use_poll,
        "epoll": use_epoll, "edge": lambda s: use_epoll(s, select.EPOLLIN | select.EPOLLET),
        "rdhup": hang_up_only, "selectors": nonblocking, "peek": lambda s: s.recv(10, socket.MSG_PEEK),
        "waitall": lambda s: s.recv(100, socket.MSG_WAITALL),
    }


def blocked(port):
    """Blocks in every way; ends well only if each way reports the end of the connection."""
    found = {}

    def wait(name, way):
        r = Redis(port)
        r.sock.settimeout(None)
        r.send("BLPOP", "nothing", "0")
        try:
            found[name] = "eof" if way(r.sock) == b"" else "bytes"
        except ConnectionResetError:
            found[name] = "reset"
        except Exception as error:
            found[name] = repr(error)

    threads = [threading.Thread(target=wait, args=item, daemon=True) for item in ways().items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    missing = sorted(set(ways()) - set(found))
    require(not missing, f"still waiting after the server's death: {missing}")
    wrong = {n: o for n, o in found.items() if o not in ("eof", "reset")}
    require(not wrong, wrong)


def churn(port, count):
    """Short connections, some ended in the middle of a reply."""
    for n in range(int(count)):
        r = Redis(port)
        require(r.call("PING") == "PONG", "PING")
        if n % 3 == 0:
            r.send("GET", "big")
        r.close()


if __name__ == "__main__":
    try:
        globals()[sys.argv[2]](int(sys.argv[1]), *sys.argv[3:])
    except (Closed, Error) as error:
        sys.exit(f"wrong: {error!r}")
    print("fine")
