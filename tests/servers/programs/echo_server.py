"""echo_server.py PORT KIND: the same echo in the different ways in which Python programs serve."""

import asyncio
import multiprocessing
import os
import selectors
import signal
import socket
import socketserver
import sys
import threading


def listener(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port))
    s.listen(256)
    return s


def echo(connection):
    with connection:
        while data := connection.recv(50000):
            connection.sendall(data)


def blocking(port):
    """One thread per connection, plain blocking calls."""
    s = listener(port)
    while True:
        connection, _ = s.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def timeouts(port):
    """Sockets with timeouts are non-blocking underneath: each call is a poll and a try."""
    def serve(connection):
        connection.settimeout(60)
        echo(connection)

    s = listener(port)
    s.settimeout(0.05)
    while True:
        try:
            connection, _ = s.accept()
        except TimeoutError:
            continue
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def loop(port, selector_class):
    """One thread; a connection that cannot be written is not read either."""
    s = listener(port)
    s.setblocking(False)
    selector = selector_class()
    selector.register(s, selectors.EVENT_READ, None)
    while True:
        for key, events in selector.select():
            if key.data is None:
                while True:
                    try:
                        connection, _ = s.accept()
                    except BlockingIOError:
                        break
                    connection.setblocking(False)
                    selector.register(connection, selectors.EVENT_READ, bytearray())
                continue
            connection, pending = key.fileobj, key.data
            try:
                if events & selectors.EVENT_READ:
                    data = connection.recv(30000)
                    if not data:
                        selector.unregister(connection)
                        connection.close()
                        continue
                    pending += data
                sent = connection.send(pending)
                del pending[:sent]
            except BlockingIOError:
                pass
            except ConnectionError:
                selector.unregister(connection)
                connection.close()
                continue
            selector.modify(connection, selectors.EVENT_WRITE if pending else selectors.EVENT_READ, pending)


def asyncio_streams(port):
    async def serve(reader, writer):
        try:
            while data := await reader.read(40000):
                writer.write(data)
                await writer.drain()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=256)
        await server.serve_forever()

    asyncio.run(main())


def uvloop_streams(port):
    """asyncio on libuv's loop."""
    import uvloop
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio_streams(port)


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(50000):
            self.request.sendall(data)


def threading_server(port):
    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 256

    Server(("127.0.0.1", port), Handler).serve_forever()


def forking_server(port):
    """A child per connection; the parent closes its copy at once."""
    class Server(socketserver.ForkingTCPServer):
        allow_reuse_address = True
        max_children = 200
        request_queue_size = 256

    Server(("127.0.0.1", port), Handler).serve_forever()


def prefork(port):
    """Worker processes accept from one listening socket that they inherited."""
    s = listener(port)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=prefork_worker, args=(s,), daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()

    def end(*_):
        for worker in workers:
            worker.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    for worker in workers:
        worker.join()


def prefork_worker(s):
    while True:
        connection, _ = s.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


KINDS = {
    "blocking": blocking, "timeouts": timeouts, "asyncio": asyncio_streams, "uvloop": uvloop_streams,
    "threading": threading_server, "forking": forking_server, "prefork": prefork,
    "select": lambda port: loop(port, selectors.SelectSelector),
    "poll": lambda port: loop(port, selectors.PollSelector),
    "epoll": lambda port: loop(port, selectors.EpollSelector),
}

if __name__ == "__main__":
    KINDS[sys.argv[2]](int(sys.argv[1]))
