"""without_call.py ptrace|process_vm_writev COMMAND: runs a command in which ptrace(2) fails with EPERM, as a container's filter has it,
or process_vm_writev(2) ends its caller. x86-64 only."""

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
EPERM, FAILS, ENDS, ALLOWED = 1, 0x00050000, 0x80000000, 0x7FFF0000

number, answer = {"ptrace": (101, FAILS | EPERM), "process_vm_writev": (311, ENDS)}[sys.argv[1]]
CODE = ((LOAD_WORD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, answer), (RETURN, 0, 0, ALLOWED))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in CODE))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(CODE), ctypes.addressof(code)))

libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[2], sys.argv[2:])
