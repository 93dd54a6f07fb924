"""calls.py PORT WHAT: single calls whose outcome is printed or checked."""

import os
import pathlib
import select
import signal
import socket
import struct
import sys
import time


def require(condition, message):
    if not condition:
        raise SystemExit(f"wrong: {message}")


def refused(port):
    """Four connects, one error name per line."""
    def blocking():
        s = socket.socket()
        s.connect(("127.0.0.1", port))

    def timed():
        socket.create_connection(("127.0.0.1", port), 30)

    def nonblocking():
        s = socket.socket()
        s.setblocking(False)
        error = s.connect_ex(("127.0.0.1", port))
        if error == 115:  # EINPROGRESS
            _, ready, _ = select.select([], [s], [], 30)
            require(ready, "the connect never ends")
            error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        raise OSError(error, os.strerror(error))

    for one in (blocking, timed, nonblocking, blocking):
        try:
            one()
            print("connected")
        except OSError as error:
            print(type(error).__name__)


def silent(port):
    """Accepts, reads nothing and keeps the connections."""
    s = socket.socket()
    s.bind(("127.0.0.1", port))
    s.listen(16)
    held = []
    while True:
        held.append(s.accept())


def limit_hit(call, least):
    started = time.monotonic()
    try:
        call()
    except TimeoutError:
        require(time.monotonic() - started >= least, "the time limit came too early")
        return
    raise SystemExit("wrong: no time limit was hit")


def timeouts(port):
    s = socket.create_connection(("127.0.0.1", port), 30)
    s.settimeout(0.2)
    limit_hit(lambda: s.recv(1), 0.15)

    def fill():
        while True:
            s.send(b"x" * 65536)

    limit_hit(fill, 0.15)
    require(not select.select([s], [], [], 0)[0], "nothing to read")
    require(not select.select([], [s], [], 0)[1], "no room to write")
    with socket.create_connection(("127.0.0.1", port), 30) as kernel:
        # The kernel's own time limit of a blocking socket.
        kernel.settimeout(None)
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200000))
        started = time.monotonic()
        try:
            kernel.recv(1)
            require(False, "bytes from a silent server")
        except BlockingIOError:
            require(time.monotonic() - started >= 0.15, "SO_RCVTIMEO came too early")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        limit_hit(listener.accept, 0.15)
    limit_hit(lambda: alarm_in(s), 0)


def alarm_in(s):
    """A signal handler runs while recv waits, and its exception ends the wait."""
    def ring(*_):
        raise TimeoutError

    s.settimeout(None)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    s.recv(1)


def footprint(_port):
    """What a process can see of what the library could have added to it."""
    print(sorted(os.readlink(f"/proc/self/fd/{n}") if int(n) > 2 else "std"
                 for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")))
    print("threads", len(os.listdir("/proc/self/task")))
    status = pathlib.Path("/proc/self/status").read_text()
    print([line for line in status.splitlines() if line.startswith(("SigIgn", "SigCgt", "SigBlk"))])
    print("shared", sorted({line.split()[-1] for line in open("/proc/self/maps") if "memfd" in line}))
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    print("child", os.waitpid(pid, 0)[1])
    print(os.popen("echo through a shell").read())


if __name__ == "__main__":
    globals()[sys.argv[2]](int(sys.argv[1]))
