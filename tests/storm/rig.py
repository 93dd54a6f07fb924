"""What starts, disturbs and judges the processes of the storm; ./run and ../rdma/storm.py say where."""

import argparse
import collections
import mmap
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import time

import host
import monitor

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
STORM = BUILD / "tests" / "storm" / "storm"

# Offsets in ledger.h's structures, in words of 32 bits.
PROCS, SLOTS, SERVERS, TEXTS = 1 << 18, 1 << 22, 8, 16
STOP, KILLS, DEATHS, NPROCS, NSLOTS, PORT = range(6)
RESTING, COMPLETED, LOST, FAILED, ACTS = range(PORT + SERVERS, PORT + SERVERS + 5)
KILLED_AT, CARRIED, KILLED_OF = ACTS + 8, ACTS + 9, ACTS + 10
LOOKED = KILLED_OF + SERVERS
NOBODY, IN_BOX = 0, -1
WHY = 64
PROC = WHY + TEXTS * 64
SLOT = PROC + 4 * PROCS
SLOT_WORDS = 11
WORDS = SLOT + SLOT_WORDS * SLOTS
NAMES = ("demote", "signals", "fork", "exec", "spawn", "pass", "dup")

SERVED = ("threads", "loop", "workers", "shared", "shared")
NUMBERS = (0, 1, 2, 3, 3)
CLIENTS = 4
# Descriptors at rest, at most. A client keeps up to 100 ports for the next connections of a link, and both ends of it
# the doorbells of threads that slept.
FIXED, PER_LINK = 40, 120


def parser(what):
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--plain", action="store_true", help="on kernel TCP, without NetACC")
    parser.add_argument("--tcp-first", type=float, default=0.4, help="share of clients that begin on TCP")
    parser.add_argument("--only", choices=NAMES, action="append", help="only this is done to connections")
    parser.add_argument("--side", choices=("client", "server", "both"), default="both", help="and only at this end")
    parser.add_argument("--kills", type=float, default=0.05, help="share of blows that kill a process")
    parser.add_argument("--stops", type=float, default=0.25, help="share of blows that stop a process for a moment")
    parser.add_argument("--settle", type=int, default=45, help="seconds until what has not ended is said to hang")
    return parser


class Storm:
    """On one host. Where there are two, `SLOW` and what follows `where` differ."""

    # How much slower than a usual host everything is; ms without a byte that are a hang.
    SLOW, PATIENCE = 1, 8000
    # As many ends of conversations a client sees while all is calm.
    CALM = 200
    TRANSPORT = "shm"
    LOG = BUILD / "test-logs" / "storm.netacc.log"

    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        fd = os.memfd_create("storm", 0)
        os.truncate(fd, WORDS * 4)
        self.words = memoryview(mmap.mmap(fd, WORDS * 4)).cast("i")
        self.ledger = fd
        self.box = self.new_box()
        acts = sum(1 << NAMES.index(name) for name in options.only or NAMES)
        self.acts = acts * {"client": 1, "server": 1 << 8, "both": 1 + (1 << 8)}[options.side]
        self.kept = {}
        self.born = collections.deque(maxlen=30)
        self.alive, self.seen = [], 0
        self.stopped = []
        self.calm = True
        self.counts = collections.Counter()
        self.problems = []
        self.tcp_first = set()

    # Where

    @staticmethod
    def new_box():
        """A socket connected to itself: everybody puts connections in, and a free thread takes them out."""
        box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        box.bind("")
        box.connect(box.getsockname())
        return box

    def box_of(self, _role):
        return self.box

    def within(self, _role):
        """What a command line begins with that runs where its role belongs."""
        return []

    def settings(self, role):
        """Options of netacc_run."""
        share = self.options.tcp_first
        if role != "call" or self.calm or not share:
            return []
        # In the end the living are asked what they did: so there is always a client of each kind among them.
        living = {pid in self.tcp_first for pid, kept in self.kept.items() if kept[0] == "call"}
        missing = {True, False} - living
        tcp_first = True in missing if missing and share < 1 else self.random.random() < share
        return ["-T"] if tcp_first else []

    def place(self):
        """Of the servers: address, and the first port or 0."""
        return "127.0.0.1", 0

    def names(self):
        return host.abstract_names()

    # Processes

    def start(self, *role):
        prefix, settings = self.within(role[0]), self.settings(role[0])
        if not self.options.plain:
            prefix += [str(BUILD / "netacc_run"), *settings]
        box, (address, port) = self.box_of(role[0]), self.place()
        env = {k: v for k, v in os.environ.items() if not k.startswith("NACC_") and k != "LD_PRELOAD"}
        env.update(STORM_LEDGER=str(self.ledger), STORM_BOX=str(box.fileno()),
                   STORM_ACTS=str(self.acts), STORM_ADDRESS=address, STORM_PORT=str(port),
                   STORM_PATIENCE=str(self.PATIENCE), NACC_LOG_PATH=str(self.LOG),
                   NACC_LOG_LEVEL=os.environ.get("NETACC_TEST_LOG", "3"))
        process = subprocess.Popen([*prefix, str(STORM), *map(str, role)], env=env, stdin=subprocess.DEVNULL,
                                   pass_fds=(self.ledger, box.fileno()))
        self.kept[process.pid] = role
        if "-T" in settings:
            self.tcp_first.add(process.pid)
        self.born.append(f"pid {process.pid} is {' '.join(map(str, role))}")
        return process.pid

    def reap(self, again=True):
        """Collects what has ended; servers and clients that were killed are born again."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            role = self.kept.pop(pid, None)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) not in (signal.SIGKILL, signal.SIGTERM):
                self.problems.append(f"{role or 'a child'} ended by signal {os.WTERMSIG(status)}")
            elif role and os.WIFEXITED(status):
                self.problems.append(f"{role} ended with {os.WEXITSTATUS(status)}")
            if role and again:
                self.start(*role)

    def proc(self, n):
        at = PROC + 4 * n
        return self.words[at:at + 4]

    def living(self):
        """Numbers in the ledger of processes that may be hit: not the parent of workers, which makes new ones."""
        for n in range(self.seen + 1, min(self.words[NPROCS] + 1, PROCS)):
            self.alive.append(n)
        self.seen = self.words[NPROCS]
        self.alive = [n for n in self.alive if self.proc(n)[0] >= 0 and not self.proc(n)[2]]
        masters = {pid for pid, role in self.kept.items() if role[-1] == "workers"}
        return [n for n in self.alive if self.proc(n)[0] > 0 and self.proc(n)[0] not in masters]

    def send(self, n, sig):
        """A signal to process n of the ledger, if it still is that process."""
        try:
            fd = os.pidfd_open(self.proc(n)[0])
        except OSError:
            return None
        if self.proc(n)[0] <= 0:
            os.close(fd)
            return None
        if sig == signal.SIGKILL:
            # First the note: a process that feels the signal finds it.
            self.proc(n)[2] = 1
            if serves := self.proc(n)[3]:
                self.words[KILLED_OF + serves - 1] += 1
            self.words[KILLS] += 1
        try:
            signal.pidfd_send_signal(fd, sig)
        except ProcessLookupError:
            pass
        return fd

    # The storm

    def blow(self):
        end = time.monotonic() + self.options.seconds
        told, done = time.monotonic(), 0
        while time.monotonic() < end and not self.words[FAILED] and not self.problems:
            self.reap()
            living = self.living()
            now = time.monotonic()
            self.go_on(now)
            what = self.random.random()
            if living and what < self.options.kills:
                fd = self.send(self.random.choice(living), signal.SIGKILL)
                if fd is not None:
                    self.counts["kill"] += 1
                    select.select([fd], [], [])
                    self.words[KILLED_AT] = int(time.monotonic() * 1000)
                    self.words[DEATHS] += 1
                    os.close(fd)
            elif living and what < self.options.kills + self.options.stops:
                fd = self.send(self.random.choice(living), signal.SIGSTOP)
                if fd is not None:
                    self.counts["stop"] += 1
                    self.stopped.append((now + self.SLOW * self.random.uniform(0.001, 0.05), fd))
            self.more()
            time.sleep(self.SLOW * self.random.uniform(0.002, 0.03))
            if now > told + 30:
                told = now
                print(f"  {self.words[COMPLETED]} ends of conversations, {self.words[LOST]} lost with killed processes, "
                      f"{self.counts['kill']} kills, {self.counts['stop']} stops", flush=True)
                if self.words[COMPLETED] == done:
                    self.problems.append("no conversation came to its end within 30 s")
                done = self.words[COMPLETED]
        self.go_on()
        self.look()

    def more(self):
        """Other trouble, now and then."""

    def go_on(self, now=float("inf")):
        """Those that are stopped until then."""
        for when, fd in [s for s in self.stopped if s[0] <= now]:
            self.stopped.remove((when, fd))
            try:
                signal.pidfd_send_signal(fd, signal.SIGCONT)
            except ProcessLookupError:
                pass
            os.close(fd)

    # Afterwards

    def until(self, what, condition, limit=None):
        limit = limit or self.options.settle
        end = time.monotonic() + limit
        while not condition():
            self.reap(again=False)
            if time.monotonic() > end:
                self.problems.append(f"not within {limit} s: {what}")
                print(self.problems[-1], flush=True)
                return False
            time.sleep(0.02)
        self.look()
        return True

    def look(self):
        """Once, when something is said to be wrong: shows what the processes concerned do. One that hangs stays until then."""
        if not self.words[FAILED] or self.words[LOOKED]:
            return
        numbers = {int(n) for text in self.texts() for n in re.findall(r"conversation (\d+) ", text)}
        if not numbers:
            return  # It is just being said.
        for number in sorted(numbers):
            slot = list(self.slot(number))
            print(f"conversation {number}: {slot}")
            for pid in [self.proc(holder)[0] for holder in slot[:2] if holder > 0]:
                if pid > 0:
                    self.print_about(pid)
        self.words[LOOKED] = 1

    @staticmethod
    def print_about(pid):
        print(host.describe(pid))
        for command in ([monitor.command(), "-p", str(pid), "-s", "all"], ["ls", "-l", f"/proc/{pid}/fd"],
                        ["nsenter", "-n", "-t", str(pid), "ss", "-tanx"]):
            print(subprocess.run(command, capture_output=True, text=True, check=False).stdout[-8000:], flush=True)

    def texts(self):
        for n in range(min(self.words[FAILED], TEXTS)):
            yield bytes(self.words[WHY + 64 * n:WHY + 64 * (n + 1)]).split(b"\0")[0].decode(errors="replace")

    def was_killed(self, n):
        while n > 0:
            pid, parent, killed = self.proc(n)[:3]
            if killed:
                return True
            if pid:
                return False
            n = parent
        return False

    def slot(self, n):
        at = SLOT + SLOT_WORDS * n
        return self.words[at:at + SLOT_WORDS]

    def settled(self, n):
        ends = self.slot(n)
        holders, kills, done = ends[:2], ends[2:4], ends[4]
        # No process is known to have taken it out of a box or accepted it; one that was killed may have been about to,
        # or may just have done it.
        gone = any(h in (NOBODY, IN_BOX) and k != self.words[KILLS] for h, k in zip(holders, kills))
        return (done & 3) == 3 or done & 4 or gone or any(self.was_killed(h) for h in holders)

    def open_conversations(self):
        return [n for n in range(min(self.words[NSLOTS], SLOTS)) if not self.settled(n)]

    def pids(self, name):
        return [pid for pid, role in self.kept.items() if role[0] == name]

    def served_by(self):
        """Processes that accept, by kind: of workers those that the first one made."""
        for pid in self.pids("serve"):
            kind = self.kept[pid][2]
            for one in host.children(pid) if kind == "workers" else [pid]:
                yield kind, one

    def calm_round(self):
        """One client that talks to everybody and goes; then everybody is at rest."""
        self.words[STOP] = 0
        resting, before = self.words[RESTING], self.words[COMPLETED]
        pid = self.start("call")
        self.until("a client talks to all", lambda: self.words[FAILED] or self.words[COMPLETED] > before + self.CALM)
        self.words[STOP] = 1
        self.until("the client rests", lambda: self.words[FAILED] or self.words[RESTING] > resting)
        self.all_have_ended()
        return pid

    def all_have_ended(self):
        if not self.until("all conversations end", lambda: self.words[FAILED] or not self.open_conversations()):
            for n in self.open_conversations()[:5]:
                self.problems.append(f"conversation {n} did not end: {list(self.slot(n))}, " + "; ".join(self.holders(n)))

    def end(self, pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        self.until("processes end", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))

    def measure(self):
        """Descriptors at rest, after a quiet round."""
        client = self.calm_round()
        found = {"call": len(host.fds(client))}
        self.end([client])
        for kind, pid in self.served_by():
            self.until(f"{kind} {pid} forgets its clients", lambda: self.has_forgotten(pid), 20)
            self.bounded(kind, pid)
            found[kind] = max(found.get(kind, 0), len(host.fds(pid)))
        return found

    def proof(self):
        """What netacc_ss says that the living processes did: a storm in which nothing moves proves nothing."""
        done = collections.Counter()
        workers = [pid for _, pid in self.served_by()]
        for pid in {*self.kept, *workers}:
            try:
                cnt = monitor.show(pid, "cnt")["cnt"]
            except monitor.NoAnswer:
                continue
            for name in (f"connects_{self.TRANSPORT}", f"accepts_{self.TRANSPORT}", "promotions", "demotions", "forks"):
                done[name] += int(cnt[name])
        print("counters of the living: " + ", ".join(f"{n} {name}" for name, n in done.items()), flush=True)
        missing = [name for name in self.wanted() if not done[name]]
        if missing:
            self.problems.append(f"netacc_ss counted none of: {', '.join(missing)}")

    def wanted(self):
        """What the living cannot but have counted."""
        wanted = ["demotions", "forks"] if not self.options.only else []
        wanted += [f"accepts_{self.TRANSPORT}"] if self.options.tcp_first < 1 else []
        return wanted + (["promotions"] if self.options.tcp_first > 0 else [])

    def has_forgotten(self, pid):
        return not host.links(pid)

    def bounded(self, what, pid):
        count, links = len(host.fds(pid)), len(host.links(pid))
        if count > FIXED + PER_LINK * links:
            self.problems.append(f"{what} {pid} has {count} descriptors at rest and {links} links")

    def nothing_left(self):
        workers = [pid for _, pid in self.served_by()]
        # The processes that would make new ones end first.
        self.end([*self.kept, *workers])
        # Children of killed processes, and those that carry a connection on: all have ended with their conversations.
        self.until("no process is left", lambda: not host.descendants(os.getpid()), 30)
        left = [host.describe(pid) for pid in host.descendants(os.getpid())]
        names = self.names()
        files = {name for name in host.shared_files() - self.files if "netacc" in name}
        for what, found in (("processes", left), ("abstract names", names), ("files", files)):
            if found:
                self.problems.append(f"{what} are left: {list(found)[:5]}")

    def run(self):
        self.files = host.shared_files()
        for kind, n in zip(SERVED, NUMBERS):
            self.start("serve", n, kind)
            self.until(f"{kind} listens", lambda: self.words[PORT + n], 30)
        print(f"seed {self.options.seed}, {self.options.seconds:.0f} s, descriptors at rest: {self.measure()}",
              flush=True)
        if self.good():
            self.all_at_once()
        self.nothing_left()
        return self.report()

    def good(self):
        return not self.problems and not self.words[FAILED]

    def all_at_once(self):
        self.words[STOP] = 0
        self.calm = False
        for _ in range(CLIENTS):
            self.start("call")
        self.blow()
        self.reap()
        self.words[STOP] = 1
        clients = self.pids("call")
        if not self.options.plain:
            self.proof()
        self.all_have_ended()
        counts = [(len(host.fds(pid)), len(host.links(pid))) for pid in clients]
        for pid in clients:
            self.bounded("call", pid)
        self.end(clients)
        self.calm = True
        if self.good():
            print(f"descriptors at rest: {self.measure()}, clients with their links {counts}")

    def holders(self, n):
        for h in self.slot(n)[:2]:
            if h > 0 and self.proc(h)[0] > 0:
                yield host.describe(self.proc(h)[0])

    def report(self):
        acts = ", ".join(f"{self.words[ACTS + i]} {name}" for i, name in enumerate(NAMES))
        print(f"{self.words[NSLOTS]} conversations, {self.words[LOST]} ends lost with killed processes; {acts}; "
              f""
              + ", ".join(f"{n} {what}s" for what, n in sorted(self.counts.items())))
        self.problems += self.texts()
        for problem in self.problems:
            print(f"FAIL storm: {problem}")
        if self.problems and not self.options.plain:
            print(f"    numbers of processes in the ledger: {self.born}; see {self.LOG}")
        return self.good()


def main(storm):
    host.become_subreaper()
    storm.LOG.parent.mkdir(parents=True, exist_ok=True)
    storm.LOG.unlink(missing_ok=True)
    good = storm.run()
    print("1 passed, 0 failed" if good else "0 passed, 1 failed")
    return 0 if good else 1
