"""Asks a service: asker.py ADDRESS PORT. For each line of its standard input it connects, sends the line and prints the answer.
It becomes another user where the line is "setuid", "setreuid", "setresuid" or "syscall" and a number."""

import ctypes
import os
import socket
import sys


SYS_SETRESUID = {"x86_64": 117, "aarch64": 147}[os.uname().machine]


def become(how, user):
    if how == "setuid":
        os.setuid(user)
    elif how == "setreuid":
        os.setreuid(user, user)
    elif how == "setresuid":
        os.setresuid(user, user, user)
    else:
        ctypes.CDLL(None).syscall(SYS_SETRESUID, *[ctypes.c_long(user)] * 3)
    print(os.getuid(), flush=True)


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    for line in sys.stdin:
        if " " in line:
            how, user = line.split()
            become(how, int(user))
            continue
        try:
            with socket.create_connection((address, port), timeout=60) as s:
                s.sendall(line.strip().encode())
                print(s.recv(100).decode(), flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)


main()
