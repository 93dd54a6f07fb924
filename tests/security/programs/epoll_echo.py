"""An ordinary server: one thread, epoll, non-blocking sockets; it sends back what it is sent. epoll_echo.py ADDRESS PORT. If that is
`fork` it forks before: a process that keeps all connections open and does nothing with them."""

import os
import select
import socket
import sys
import time


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                accept_some(listener, poll, connections)
            else:
                answer(number, poll, connections)


def accept_some(listener, poll, connections):
    for _ in range(16):
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            print("accept:", error, flush=True)
            # Without a pause a server that is out of descriptors would do nothing else.
            time.sleep(0.1)
            return
        connection.setblocking(False)
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)


def leave_a_child():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        # Until the parent ends.
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)


def answer(number, poll, connections):
    connection = connections[number]
    try:
        while data := connection.recv(4096):
            if data == b"fork":
                leave_a_child()
            connection.send(data)
    except BlockingIOError:
        return
    except OSError:
        pass
    poll.unregister(number)
    del connections[number]
    connection.close()


main()
