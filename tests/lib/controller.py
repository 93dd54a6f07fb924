"""An operator who never rests: switches a program and its children off and on, or exchanges their library, while they run."""

import pathlib
import random
import subprocess
import threading

import host

CTL = pathlib.Path(__file__).resolve().parents[2] / "build" / "netacc_ctl"
# Seconds between the requests: one may find the one before it unfinished.
PAUSES = (0.002, 0.2)
# Seconds for which each of them is waited for: a process that is in no call of the library follows later, and need not follow at all.
PATIENCE = 0.05


class Controller:
    """Is at work as long as the context lasts."""

    def __init__(self, pid, seed, actions=("off", "on")):
        self.pid, self.chance, self.actions = pid, random.Random(seed), actions
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def _work(self):
        while not self.over.is_set():
            for action in self.actions:
                processes = host.tree(self.pid)
                # All at once, or one whose peers stay where they are.
                self._ask(action, processes if self.chance.random() < 0.7 else [self.chance.choice(processes)])
                if self.over.wait(self.chance.uniform(*PAUSES)):
                    return

    def _ask(self, action, processes):
        argv = [CTL, action, *processes, "-w", PATIENCE]
        # What it complains about is no failure: of processes that have ended meanwhile, or that sleep elsewhere.
        subprocess.run(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
