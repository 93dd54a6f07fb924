"""echo_client.py PORT KIND COUNT SEED: streams of random sizes, sent and received at once, compared byte by byte.

Each client ends its direction with a half close and then reads to the end, so an early or a missing end of the
stream is seen as well as a damaged byte.
"""

import asyncio
import random
import selectors
import socket
import sys
import threading


def require(condition, message):
    if not condition:
        raise SystemExit(f"wrong: {message}")


def plan(seed, n):
    rng = random.Random(f"{seed}:{n}")
    size = rng.choice([0, 1, 100, 5000, 70000, 300000, 1500000] if n % 10 == 0 else [1, 100, 5000, 70000])
    data = rng.randbytes(size)
    pieces, at = [], 0
    while at < size:
        step = rng.choice([1, 7, 512, 4096, 65536, 200000]) if size < 100000 else rng.choice([4096, 65536, 200000])
        pieces.append(data[at:at + step])
        at += step
    return data, pieces


def one_blocking(port, seed, n, timeout):
    data, pieces = plan(seed, n)
    got = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout or 60) as s:
        s.settimeout(timeout)

        def send():
            for piece in pieces:
                s.sendall(piece)
            s.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        while part := s.recv(60000):
            got += part
        sender.join()
    if bytes(got) != data:
        raise ValueError(f"connection {n}: {len(got)} of {len(data)} bytes came back")


def in_threads(port, count, seed, timeout):
    problems = []

    def work(first):
        for n in range(first, count, 8):
            try:
                one_blocking(port, seed, n, timeout)
            except Exception as error:
                problems.append(repr(error))
                return

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not problems, problems)


def at_once(port, count, seed):
    """All connections together in one thread, non-blocking from the connect on."""
    selector = selectors.DefaultSelector()
    left = count
    for n in range(count):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
        data, _ = plan(seed, n)
        state = {"n": n, "data": data, "sent": 0, "got": bytearray(), "connected": False}
        selector.register(s, selectors.EVENT_READ | selectors.EVENT_WRITE, state)
    while left:
        ready = selector.select(60)
        require(ready, f"nothing happens, {left} connections are open")
        for key, events in ready:
            s, state = key.fileobj, key.data
            if events & selectors.EVENT_WRITE:
                if not state["connected"]:
                    error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    require(error == 0, f"connect: {error}")
                    state["connected"] = True
                try:
                    state["sent"] += s.send(state["data"][state["sent"]:state["sent"] + 100000])
                except BlockingIOError:
                    pass
                if state["sent"] == len(state["data"]):
                    s.shutdown(socket.SHUT_WR)
                    selector.modify(s, selectors.EVENT_READ, state)
            if events & selectors.EVENT_READ:
                try:
                    part = s.recv(50000)
                except BlockingIOError:
                    continue
                state["got"] += part
                if not part:
                    require(bytes(state["got"]) == state["data"],
                            f"connection {state['n']}: {len(state['got'])} of {len(state['data'])} bytes")
                    selector.unregister(s)
                    s.close()
                    left -= 1


def with_asyncio(port, count, seed):
    async def one(n):
        data, pieces = plan(seed, n)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send():
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            writer.write_eof()

        got, _ = await asyncio.gather(reader.read(), send())
        require(got == data, f"connection {n}: {len(got)} of {len(data)} bytes")
        writer.close()
        await writer.wait_closed()

    async def main():
        await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(count))), 80)

    asyncio.run(main())


if __name__ == "__main__":
    port, kind, count, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if kind == "blocking":
        in_threads(port, count, seed, None)
    elif kind == "timeouts":
        in_threads(port, count, seed, 60)
    elif kind == "selectors":
        at_once(port, count, seed)
    else:
        if kind == "uvloop":
            import uvloop
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        with_asyncio(port, count, seed)
    print("fine")
