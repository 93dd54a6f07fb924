"""What the running system says about processes, ports and names.

Everything is read from /proc: the tests must see what the kernel sees, not what the library says of itself.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import time

CLONE_NEWNET = 0x40000000
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x41

_libc = ctypes.CDLL(None, use_errno=True)


def wait_until(condition, limit, what):
    """Polls until `condition()` is true, and returns its value. The limit only ends a hang and measures nothing."""
    end = time.monotonic() + limit
    pause = 0.002
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def become_subreaper():
    """Makes orphans of a test come to us instead of to init, so that a process left behind cannot hide."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def follow_parent(give_up):
    """Makes `give_up` be called, as for SIGTERM, if our parent ends before us."""
    signal.signal(signal.SIGTERM, give_up)
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def exit_on_signals():
    """Makes a runner that gets a signal to end unwind, so that the processes that it started are ended too."""
    def leave(number, _):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def _enter_network():
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNET if uid == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if _libc.unshare(flags) != 0:
        return False
    try:
        if uid != 0:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as f:
                    f.write(text)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH22s", b"lo", IFF_UP_RUNNING, b""))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
    except OSError:
        return False
    return True


def enter_own_network():
    """Moves into a network namespace of our own, so that ports and abstract names belong to the tests alone.

    A child tries it first, because we could not return from a namespace whose loopback cannot be switched on.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if _enter_network() else 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return status == 0 and _enter_network()


def loopback_bytes():
    """The number of bytes that the kernel carried over lo in this network namespace."""
    with open("/proc/self/net/dev") as f:
        for line in f:
            name, _, rest = line.partition(":")
            if name.strip() == "lo":
                return int(rest.split()[0])
    return 0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening(port):
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}") as f:
                next(f)
                for line in f:
                    fields = line.split()
                    if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                        return True
        except FileNotFoundError:
            pass
    return False


def _parents():
    table = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            # Any process of the machine may have a name that is no text.
            with open(f"/proc/{entry}/stat", errors="replace") as f:
                text = f.read()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        table[int(entry)] = (int(fields[1]), fields[0])
    return table


def children(pid):
    return sorted(p for p, (parent, state) in _parents().items() if parent == pid and state not in "ZX")


def descendants(pid):
    """The living descendants of `pid`, without zombies."""
    table = _parents()
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        for p, (pp, state) in table.items():
            if pp == parent:
                todo.append(p)
                if state not in "ZX":
                    found.append(p)
    return sorted(found)


def processor(pid):
    """Seconds of processor that a process, its descendants, and those that any of them has waited for have used so far."""
    total = 0
    for p in tree(pid):
        try:
            with open(f"/proc/{p}/stat", errors="replace") as f:
                total += sum(map(int, f.read().rpartition(")")[2].split()[11:15]))
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


def tree(pid):
    return [pid] + descendants(pid)


def reap():
    """Reaps ended children for which no other code waits (adopted orphans)."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def describe(pid):
    """One line that says what a process is doing: the first question when a test hangs."""
    def read(name):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as f:
                return " ".join(f.read().replace(b"\0", b" ").decode(errors="replace").split())
        except OSError:
            return "?"
    threads = []
    try:
        tids = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        tids = []
    for tid in tids[:8]:
        state = read(f"task/{tid}/stat").rpartition(")")[2].split()[:1]
        threads.append(f"{''.join(state)}:{read(f'task/{tid}/wchan')}:{' '.join(read(f'task/{tid}/syscall').split()[:4])}")
    return f"{pid} {read('cmdline')[:120]} [{'; '.join(threads)}]"


def kill_tree(pid, sig=signal.SIGKILL):
    for p in reversed(tree(pid)):
        try:
            os.kill(p, sig)
        except ProcessLookupError:
            pass


def fds(pid):
    """What each descriptor of a process refers to: {fd: link text}."""
    found = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for name in names:
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            pass
    return found


def maps(pid):
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def links(pid):
    """The segments of shared memory that a process has mapped, one entry for each."""
    found = set()
    for line in maps(pid).splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and "memfd:netacc-link" in fields[5]:
            found.add(fields[4])
    return found


def abstract_names():
    """The library's names in the abstract namespace: [(name, socket type, listening, inode)]."""
    found = []
    with open("/proc/self/net/unix", errors="replace") as f:
        next(f)
        for line in f:
            fields = line.rstrip("\n").split(None, 7)
            if len(fields) == 8 and fields[7].startswith("@netacc"):
                found.append((fields[7], int(fields[4], 16), int(fields[3], 16) & 0x10000 != 0, int(fields[6])))
    return found


def holders(path_or_link):
    """The processes that have a file open or mapped."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            pid = int(entry)
            if path_or_link in fds(pid).values() or path_or_link in maps(pid):
                found.append(pid)
    return found


def shared_files():
    """The files that the library could have left behind. A log may stay."""
    found = set()
    for name in _listdir("/dev/shm"):
        found.add(f"/dev/shm/{name}")
    for name in _listdir("/tmp"):
        # Directories and packages are never made by the library.
        if name.startswith("netacc") and not (".log" in name or name.endswith((".deb", ".rpm")) or os.path.isdir(f"/tmp/{name}")):
            found.add(f"/tmp/{name}")
    return found


def _listdir(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
