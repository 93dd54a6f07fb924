"""The virtual machine in which the cases of tests/rdma run. It is booted once for all cases of a run.

Outside, each case is an item of pytest. The machine runs the cases in the same order (tests/rdma/guest) and writes a line
with the result of each, which is read when the item's turn comes.
"""

import json
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time

import matrix
from harness import ROOT, Failure

# Two machines that run at once need a folder each.
JOB = pathlib.Path(os.environ.get("NETACC_RDMA_JOB") or ROOT / "build" / "test-logs" / "rdma-vm")
# The folder of a machine with the kernel of another Debian: `make -C tests/rdma SUITE=bullseye` makes build/rdma-vm-bullseye.
KERNEL = os.environ.get("NETACC_RDMA_KERNEL")
MACHINE = ROOT / "build" / (f"rdma-vm-{KERNEL}" if KERNEL else "rdma-vm")
# Seconds that the boot may take, and that a machine may take beyond the limit of a case before it counts as hung.
PATIENCE = 400


class Machine:
    def __init__(self, arguments, limit, job=JOB):
        self.job, self.lines, self.ended = job, queue.Queue(), False
        job.parent.mkdir(parents=True, exist_ok=True)
        command = [str(ROOT / "scripts" / "rdma-vm" / "boot"), "--verbose", "--limit", str(limit), "--job", str(job),
                   "--machine", str(MACHINE), "--", str(ROOT / "tests" / "rdma" / "guest"), *arguments]
        self.boot = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        matrix.kept.add(self.boot.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.boot.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def _line(self, end):
        """The next line of the machine's output; None if there will be no more."""
        if self.ended:
            return None
        try:
            line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            self.kill()
            raise Failure(f"the machine hangs; see {self.job}") from None
        self.ended = line is None
        return line

    def answer(self, name, limit):
        """The result of a case, as `matrix.run_one` returns it. The case's output is printed."""
        end = time.monotonic() + limit + PATIENCE
        while (line := self._line(end)) is not None:
            if not line.startswith(matrix.ANSWER):
                print(line, flush=True)
                continue
            answer = json.loads(line.removeprefix(matrix.ANSWER))
            # The late answer of a case that was given up is ignored.
            if answer["name"] == name:
                return answer
        raise Failure(f"the machine ended before the case was done; see {self.job}")

    def end(self):
        """Waits for the machine's end, and returns its exit status and the complaints of its kernel."""
        complaints = []
        try:
            while (line := self._line(time.monotonic() + PATIENCE)) is not None:
                print(line, flush=True)
                if line.startswith("boot: ") and "the command began" not in line:
                    complaints.append(line)
            status = self.boot.wait(PATIENCE)
        except (Failure, subprocess.TimeoutExpired):
            status = "none: it hung and was ended"
        self.kill()
        return status, complaints

    def kill(self):
        """Ends `boot`, and with it the emulator."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
            if self.boot.poll() is None:
                os.killpg(self.boot.pid, number)
                try:
                    self.boot.wait(patience)
                except subprocess.TimeoutExpired:
                    pass
        matrix.kept.discard(self.boot.pid)
