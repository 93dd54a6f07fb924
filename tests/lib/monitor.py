"""netacc_ss as the tests use it."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class NoAnswer(Exception):
    pass


def command():
    return os.environ.get("NETACC_SS") or str(ROOT / "build" / "netacc_ss")


def show(pid, what="sock,cnt"):
    """The JSON that netacc_ss gives for a process; NoAnswer if it has none."""
    try:
        done = subprocess.run([command(), "-p", str(pid), "-s", what, "--json"],
                              capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"netacc_ss: {error}") from None
    if done.returncode != 0:
        raise NoAnswer(f"netacc_ss -p {pid} ended with {done.returncode}: {done.stderr.strip()[:200]}")
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise NoAnswer(f"netacc_ss -p {pid} printed no JSON: {done.stdout[:200]!r}") from None


def accepts_shm(pids):
    """The connections that these processes accepted by shared memory. A process that never opened a socket has no page, but at
    least one must have a page."""
    total, problems = 0, []
    for pid in pids:
        try:
            total += int(show(pid)["cnt"]["accepts_shm"])
        except NoAnswer as problem:
            problems.append(str(problem))
    if problems and len(problems) == len(pids):
        raise NoAnswer("; ".join(problems[:2]))
    return total


def passed_by(pids):
    """The number of connections that a server of several processes accepted by TCP, as far as the processes have pages; 0 for a
    server that has not forked."""
    counts = []
    for pid in pids:
        try:
            counts.append(show(pid)["cnt"])
        except NoAnswer:
            pass
    return sum(c["accepts_tcp"] for c in counts) if any(c["forks"] for c in counts) else 0


def sockets(pid):
    return show(pid, "sock")["sock"]


def connections(pid):
    """The sockets that are or were connected, without listeners and new sockets."""
    return [s for s in sockets(pid) if s.get("state") in ("CONNECTING", "ESTAB", "CLOSING")]


def transports(pid):
    return [s.get("transport", "?") for s in connections(pid)]


def summary(pid):
    try:
        answer = show(pid)
        return f"{pid}: {json.dumps(answer.get('cnt'))} {json.dumps(answer.get('sock'))[:400]}"
    except NoAnswer as problem:
        return str(problem)
