"""ignoring.py COMMAND: runs a command that ignores some signals from the start."""

import os
import signal
import sys

for number in (signal.SIGTRAP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
