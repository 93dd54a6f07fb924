"""executes.py FOLDER STATIC BEGINS: executes static Go programs in all ways that there are, looks what of it a parent sees, and prints for
each way whether the library was mapped into the program. FOLDER is for files of its own."""

import ctypes
import errno
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

folder, static, begins = pathlib.Path(sys.argv[1]), *sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
EXECVE, EXECVEAT, AT_EMPTY_PATH = 59, 322, 0x1000
ended = 0


def count(*_):
    global ended
    ended += 1


signal.signal(signal.SIGCHLD, count)


def strings(*words):
    return (ctypes.c_char_p * (len(words) + 1))(*[w.encode() for w in words], None)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def forked(execute):
    """A child that executes something; it ends with the errno if that fails."""
    pid = os.fork()
    if pid == 0:
        try:
            execute()
        except OSError as failure:
            os._exit(failure.errno)
        os._exit(ctypes.get_errno())
    return pid


def is_mapped(start):
    """Whether the library is in the server that `start(argv)` starts. Of the server's life its parent sees the end alone."""
    global ended
    ended, port = 0, free_port()
    pid = start([static, "serve", f"127.0.0.1:{port}"])
    while True:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG) is None, "the server's state changed"
    found = "libnetacc" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert "TracerPid:\t0\n" in status, status
    assert pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text() == "", "the server has a child"
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(-1, 0) == (pid, signal.SIGKILL)
    try:
        raise AssertionError(f"another child: {os.waitpid(-1, 0x40000000)}")
    except ChildProcessError:
        pass
    assert ended == 1, f"{ended} signals for one child"
    return found


def opened(argv):
    fd = os.open(argv[0], os.O_RDONLY)
    try:
        return forked(lambda: os.execve(fd, argv, os.environ))
    finally:
        os.close(fd)


def by_number(argv):
    variables = strings(*[f"{k}={v}" for k, v in os.environ.items()])
    return forked(lambda: libc.syscall(EXECVE, argv[0].encode(), strings(*argv), variables))


def in_folder(argv):
    where, name = os.path.split(argv[0])
    fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    variables = strings(*[f"{k}={v}" for k, v in os.environ.items()])
    return forked(lambda: libc.syscall(EXECVEAT, fd, name.encode(), strings(*argv), variables, 0))


def searched(argv):
    os.environ["PATH"] = f"/none:{os.path.dirname(argv[0])}:{os.environ['PATH']}"
    name = os.path.basename(argv[0])
    return forked(lambda: libc.execvp(name.encode(), strings(*argv)))


# Python uses vfork.
for way, start in {
    "execve": lambda argv: forked(lambda: os.execve(argv[0], argv, os.environ)),
    "execv": lambda argv: forked(lambda: os.execv(argv[0], argv)),
    "execvp": searched,
    "fexecve": opened,
    "syscall": by_number,
    "execveat": in_folder,
    "vfork": lambda argv: subprocess.Popen(argv).pid,
    "shell": lambda argv: subprocess.Popen(["sh", "-c", "exec \"$@\"", "sh", *argv]).pid,
}.items():
    print(way, is_mapped(start))

# An empty environment, and a program that raises privileges: the library is not wanted, or would not be there.
print("no environment", is_mapped(lambda argv: forked(lambda: os.execve(argv[0], argv, {}))))
raises = folder / "raises"
shutil.copy(static, raises)
raises.chmod(0o6755)
print("raises privileges", is_mapped(lambda argv: forked(lambda: os.execv(raises, [raises, *argv[1:]]))))

# A program that is stopped and continued goes on, whenever that happens. The moments are spread over its first milliseconds.
for turn in range(150):
    with subprocess.Popen([begins], stdout=subprocess.DEVNULL, start_new_session=True) as program:
        for _ in range(4):
            sum(range(turn * 400 % 37_000))
            os.killpg(program.pid, signal.SIGSTOP)
            sum(range(turn * 900 % 23_000))
            os.killpg(program.pid, signal.SIGCONT)
        assert program.wait() == 7, program.returncode

# An execution that fails has the kernel's errno, and leaves nothing.
changed = folder / "changed"
shutil.copy(static, changed)
changed.chmod(0o755)
with open(changed, "r+b"):
    assert os.waitpid(forked(lambda: os.execv(changed, [changed])), 0)[1] >> 8 == errno.ETXTBSY
    # In the process itself, which goes on.
    ended = 0
    before = os.listdir("/proc/self/fd")
    try:
        os.execv(changed, [changed])
    except OSError as failure:
        assert failure.errno == errno.ETXTBSY, failure
    assert os.listdir("/proc/self/fd") == before and ended == 0, "something is left"
    try:
        raise AssertionError(f"a child: {os.waitpid(-1, 0x40000000)}")
    except ChildProcessError:
        pass
too_long = ["x" * 100_000] * 100
assert os.waitpid(forked(lambda: os.execv(changed, [changed, *too_long])), 0)[1] >> 8 == errno.E2BIG
changed.chmod(0o644)
assert os.waitpid(forked(lambda: os.execv(changed, [changed])), 0)[1] >> 8 == errno.EACCES

# This process executes one itself.
os.environ["PATH"] = "/usr/bin:/bin"
sys.stdout.flush()
os.execv(begins, [begins, "a", "b c", ""])
