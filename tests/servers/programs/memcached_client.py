"""Clients of memcached speaking its text protocol: memcached_client.py PORT SCENARIO [ARGUMENT...]."""

import random
import socket
import sys
import threading


def require(condition, message):
    if not condition:
        sys.exit(f"wrong: {message}")


class Memcached:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), 60)
        self.file = self.sock.makefile("rb")

    def set(self, key, value, noreply=False):
        tail = b" noreply" if noreply else b""
        self.sock.sendall(b"set %s 0 0 %d%s\r\n%b\r\n" % (key.encode(), len(value), tail, value))
        if not noreply:
            line = self.file.readline()
            require(line == b"STORED\r\n", f"set {key}: {line!r}")

    def get(self, *keys):
        self.sock.sendall(b"get " + " ".join(keys).encode() + b"\r\n")
        return self.read_values()

    def read_values(self):
        found = {}
        while True:
            line = self.file.readline()
            if line == b"END\r\n":
                return found
            word, key, _, size = line.split()
            require(word == b"VALUE", line)
            found[key.decode()] = self.file.read(int(size))
            require(self.file.read(2) == b"\r\n", "the end of a value")

    def line(self, text):
        self.sock.sendall(text.encode() + b"\r\n")
        return self.file.readline().decode().strip()

    def close(self):
        self.file.close()
        self.sock.close()


def values(port, seed):
    rng = random.Random(int(seed))
    m = Memcached(port)
    data = {f"v{n}": rng.randbytes(size) for n, size in enumerate(
        [0, 1, 2, 100, 1023, 4096, 16384, 65535, 65536, 65537, 262144, 262145, 1000000, 1048576, 2097153, 4000000])}
    for key, value in data.items():
        m.set(key, value)
        require(m.get(key) == {key: value}, f"{key} of {len(value)} bytes differs")
    require(m.get(*data) == data, "get of all keys at once")
    m.set("number", b"10")
    require(m.line("incr number 5") == "15", "incr")
    require(m.line("delete number") == "DELETED" and m.get("number") == {}, "delete")
    for n in range(3000):
        m.set(f"quiet{n}", b"x%d" % n, noreply=True)
    require(m.get("quiet2999") == {"quiet2999": b"x2999"}, "noreply writes are in order")
    m.close()


def many(port, seed, count):
    """Many connections used by several threads, each with keys of its own."""
    problems = []
    lock = threading.Lock()

    def work(n):
        try:
            rng = random.Random(int(seed) + n)
            clients = [Memcached(port) for _ in range(int(count) // 4)]
            for turn in range(6):
                for at, m in enumerate(clients):
                    m.set(f"t{n}c{at}", b"%d:" % turn + rng.randbytes(rng.randrange(3000)))
                for at, m in enumerate(clients):
                    value = m.get(f"t{n}c{at}").get(f"t{n}c{at}", b"")
                    if not value.startswith(b"%d:" % turn):
                        raise ValueError(f"t{n}c{at} holds {value[:20]!r} in turn {turn}")
            for m in clients:
                m.close()
        except BaseException as error:
            with lock:
                problems.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not problems, problems)


def blocked(port):
    """Waits in recv on several connections; each must end when the server dies."""
    outcomes = []

    def wait():
        m = Memcached(port)
        require(m.line("version").startswith("VERSION"), "version")
        ready.release()
        m.sock.settimeout(None)
        try:
            outcomes.append("eof" if m.sock.recv(1) == b"" else "bytes")
        except ConnectionResetError:
            outcomes.append("reset")

    ready = threading.Semaphore(0)
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    print("connected", flush=True)
    for thread in threads:
        thread.join(60)
    require(len(outcomes) == 8 and set(outcomes) <= {"eof", "reset"}, f"outcomes {outcomes}")


if __name__ == "__main__":
    globals()[sys.argv[2]](int(sys.argv[1]), *sys.argv[3:])
    print("fine")
