"""The environment of one test: a temporary directory, processes that end with the test, and checks of what remains.

A test is a function taking a `Ctx`. The mode says which roles run under the launcher.
"""

import itertools
import os
import pathlib
import pwd
import random
import shutil
import signal
import subprocess
import sys

import host
import monitor
from host import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "servers" / "programs"
MODES = {"plain": (), "client": ("client",), "server": ("server",), "both": ("server", "client")}

# The limits are generous, since they only turn a hang into a failure.
START_LIMIT = 30
RUN_LIMIT = 60
END_LIMIT = 15


class Failure(Exception):
    pass


class Skipped(Exception):
    """The test needs something that this machine does not have; the reason is printed and counted."""


def check(condition, message):
    if not condition:
        raise Failure(message)


def equal(found, expected, what):
    if found != expected:
        found, expected = differing(found, expected)
        raise Failure(f"{what}: {short(found)} instead of {short(expected)}")


def differing(a, b):
    """The entries of two dictionaries that differ, or the lines of two texts."""
    if isinstance(a, str) and isinstance(b, str):
        lines = itertools.zip_longest(a.splitlines(), b.splitlines(), fillvalue="")
        changed = [pair for pair in lines if pair[0] != pair[1]]
        if changed:
            return tuple("\n".join(pair[side] for pair in changed) for side in (0, 1))
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return a, b
    parts = {key: differing(a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}
    return tuple({key: part[side] for key, part in parts.items()} for side in (0, 1))


def short(value):
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:150]}... ({len(text)} characters)"


def launcher():
    return os.environ.get("NETACC_RUN") or str(ROOT / "build" / "netacc_run")


def need(program):
    """The path of a program that the test needs; if it is missing, the test fails and is never skipped."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin:/usr/local/go/bin")
    check(path, f"{program} is not installed")
    return path


def evidence(directory):
    """What a reader needs after a failure: the last output of every process and the end of the library's log."""
    lines = []
    # If a developer asked for the library's log, more of it is shown.
    many = 10 if os.environ.get("NETACC_TEST_LOG") else 1
    for path in sorted(directory.glob("*")):
        if path.suffix in (".out", ".err", ".log") and path.is_file() and path.stat().st_size:
            lines.append(f"{path.name}:")
            with open(path, "rb") as f:
                f.seek(max(0, path.stat().st_size - 3000 * many))
                tail = f.read().decode(errors="replace").splitlines()[-6 * many:]
            lines.extend(f"  {line[:300]}" for line in tail)
    return lines


class Proc:
    """A process of the test. Its output goes to files, so that no pipe can fill up and block it."""

    def __init__(self, ctx, argv, role, env, stdin, cwd, user=None, within=(), readable=False):
        number = len(ctx.procs)
        self.argv = [str(a) for a in argv]
        self.role = role
        self.name = f"{number:02}-{pathlib.Path(self.argv[0]).name}"
        self.out = ctx.dir / f"{self.name}.out"
        self.err = ctx.dir / f"{self.name}.err"
        self.accelerated = ctx.accelerates(role)
        command = ctx.open_launcher() if user or readable else launcher()
        full = [*within] + ctx.enter(role) + ([command] if self.accelerated else []) + self.argv
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.popen = subprocess.Popen(
                full, stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err,
                cwd=cwd or ctx.dir, env=env, start_new_session=True,
                **({} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}))
        self.pid = self.popen.pid

    def text(self):
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def stdout(self):
        return self.out.read_text(errors="replace")

    def running(self):
        return self.popen.poll() is None

    def wait(self, limit=RUN_LIMIT):
        try:
            return self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            state = "; ".join(host.describe(p) for p in host.tree(self.pid))
            raise Failure(f"{self.name} did not end within {limit} s: {state}") from None

    def tail(self, lines=12):
        return self.text().strip().splitlines()[-lines:]

    def result(self, limit=RUN_LIMIT, status=0):
        """Waits for the end, checks the exit status unless None is expected, and returns the standard output."""
        code = self.wait(limit)
        check(status is None or code == status, f"{self.name} ended with {code}: {' / '.join(self.tail(4))}")
        return self.stdout()

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def end(self, limit=END_LIMIT):
        """Ends the process by SIGTERM. If it does not end, that is a failure: the library must not prevent it."""
        if self.running():
            self.popen.terminate()
            try:
                self.popen.wait(limit)
            except subprocess.TimeoutExpired:
                state = host.describe(self.pid)
                self.kill()
                raise Failure(f"{self.name} did not end on SIGTERM: {state}") from None


class Ctx:
    def __init__(self, mode, own_network, seed, directory):
        self.mode = mode
        self.own_network = own_network
        self.random = random.Random(seed)
        self.dir = directory
        self.procs = []
        # For a case that is a whole program of tests: {name of a test: what went wrong, or nothing}.
        self.parts = {}
        self.log = self.dir / "netacc.log"
        self.files_before = host.shared_files()
        self.names_before = set(host.abstract_names())
        self.lo_start = host.loopback_bytes()

    # Processes

    def accelerates(self, role):
        return role in MODES.get(self.mode, ())

    def enter(self, role):
        """The beginning of a command line that makes a program run in the place of its role."""
        return []

    def environment(self, extra=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("NACC_") and k != "LD_PRELOAD"}
        env.update(LC_ALL="C", NACC_LOG_PATH=str(self.log), PYTHONDONTWRITEBYTECODE="1")
        if os.environ.get("NETACC_TEST_LOG"):
            env["NACC_LOG_LEVEL"] = os.environ["NETACC_TEST_LOG"]
        env.update({k: str(v) for k, v in (extra or {}).items()})
        return env

    def stranger(self):
        """(user, directory) for a program that refuses to run as root; None if we are not root ourselves."""
        home = self.dir / "home"
        home.mkdir(exist_ok=True)
        if os.getuid() != 0:
            return None, home
        user = pwd.getpwnam("nobody")
        os.chown(home, user.pw_uid, user.pw_gid)
        return user, home

    def open_launcher(self):
        """Copies launcher and library to a place that every user can read, since the project's folder may be private."""
        place = self.dir / "netacc"
        if not place.exists():
            place.mkdir()
            build = pathlib.Path(launcher()).resolve().parent
            for name in ("netacc_run", "libnetacc-preload.so"):
                shutil.copy(build / name, place / name)
        return str(place / "netacc_run")

    def spawn(self, argv, role=None, env=None, stdin=None, cwd=None, user=None, within=(), readable=False):
        """Starts a program. `within` is a command that runs another one (nsenter, unshare), outside of the launcher.
        `readable` says that the launcher must be readable by every user, which another `user` needs."""
        if self.accelerates(role):
            check(os.access(launcher(), os.X_OK), f"the launcher {launcher()} is not there")
        proc = Proc(self, argv, role, self.environment(env), stdin, cwd, user, within, readable)
        self.procs.append(proc)
        return proc

    def serve(self, argv_for_port, role="server", port=None, **spawn):
        """Starts a server on a port that is free now, and tries another port if that has been taken meanwhile."""
        for attempt in range(5):
            chosen = port or host.free_port()
            proc = self.spawn([str(a) for a in argv_for_port(chosen)], role, **spawn)
            proc.port = chosen
            wait_until(lambda: host.listening(chosen) or not proc.running(), START_LIMIT,
                       f"{proc.name} listens on {chosen}")
            if proc.running():
                self._await_rendezvous(proc)
                return proc
        raise Failure(f"{proc.name} does not start: {' / '.join(proc.tail(4))}")

    def _await_rendezvous(self, proc):
        """Waits until the rendezvous listens, which the kernel may do a moment before: no client must come in between."""
        if proc.accelerated:
            try:
                wait_until(lambda: any(n[0].endswith(f"/{proc.port}") for n in host.abstract_names()), 0.5, "")
            except TimeoutError:
                pass  # The tests that need shared memory check for it themselves.

    def client(self, argv, role="client", **spawn):
        return self.spawn(argv, role, **spawn)

    def run(self, argv, role="client", limit=RUN_LIMIT, status=0, **spawn):
        return self.spawn(argv, role, **spawn).result(limit, status)

    def script(self, name, *args):
        """The command line of one of our own programs."""
        return [sys.executable, str(PROGRAMS / name), *map(str, args)]

    # Data

    def bytes(self, size):
        return self.random.randbytes(size)

    def file(self, name, data):
        path = self.dir / name
        path.write_bytes(data)
        return path

    # Proof

    def mark(self):
        """Begins to count the bytes over loopback."""
        self.lo_start = host.loopback_bytes()

    def prove(self, *servers, payload=0, accepts=1):
        """Checks that shared memory carried the bytes if both ends are accelerated, and that none was used if not.

        The library's own counters say which transport it used; the kernel's count of bytes over loopback
        says the same without having to believe the library.
        """
        if self.mode not in ("both", "server"):
            return
        pids = [pid for s in servers for pid in host.tree(s.pid)]
        found = sum(monitor.accepts_shm(host.tree(s.pid)) for s in servers)
        if self.mode == "server":
            equal(found, 0, "connections accepted over shared memory from plain clients")
            return
        # A connect that a process has not taken after 200 ms goes to other processes by TCP, if there are any. On a loaded
        # machine that happens even to a running process: at worst half of the connections may come by TCP, and are counted.
        passed_by = monitor.passed_by(pids) if found < accepts else 0
        check(found >= accepts or (found + passed_by >= accepts and found * 2 >= accepts),
              f"only {found} connections came over shared memory, {accepts} expected; "
              + "; ".join(monitor.summary(p) for p in pids[:5]))
        if payload and self.own_network:
            carried = host.loopback_bytes() - self.lo_start
            # The bytes of those connections went by TCP, to the server and back.
            by_tcp = max(0, accepts - found) / max(1, accepts)
            check(carried < payload * (0.5 + 2.5 * by_tcp), f"{carried} bytes went over kernel TCP of {payload} in all, "
                  f"{found} of {accepts} connections over shared memory")

    # End

    def close(self):
        """Ends everything, then looks for what is left, and returns the complaints."""
        complaints = []
        for proc in reversed(self.procs):
            try:
                proc.end()
            except Failure as failure:
                complaints.append(str(failure))
        for check_one in (self._processes, self._names, self._files):
            try:
                check_one()
            except (Failure, TimeoutError) as failure:
                complaints.append(str(failure))
        return complaints

    def _processes(self):
        def none_left():
            host.reap()
            return not host.descendants(os.getpid())
        try:
            wait_until(none_left, END_LIMIT, "")
        except TimeoutError:
            left = host.descendants(os.getpid())
            text = "; ".join(host.describe(p) for p in left)
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            wait_until(none_left, END_LIMIT, "killed processes are gone")
            raise Failure(f"still alive after the test: {text}") from None

    def _names(self):
        def left():
            new = [n for n in host.abstract_names() if n not in self.names_before]
            # Without a namespace of our own, another program's name is recognised by its living holder.
            return [n for n in new if self.own_network or not host.holders(f"socket:[{n[3]}]")]
        # Programs of other tests come and go beside this one in a network that is shared, and between the two looks: what
        # remains is there at every look.
        remaining = set(left())

        def none_left():
            remaining.intersection_update(left())
            return not remaining
        try:
            wait_until(none_left, 5, "")
        except TimeoutError:
            raise Failure(f"abstract names remain: {sorted(n[0] for n in remaining)}") from None

    def _files(self):
        def left():
            return {f for f in host.shared_files() - self.files_before if not host.holders(f)}
        # Those of other programs come and go, as names do.
        remaining = left()

        def none_left():
            remaining.intersection_update(left())
            return not remaining
        try:
            wait_until(none_left, 5, "")
        except TimeoutError:
            raise Failure(f"files remain: {sorted(remaining)}") from None
