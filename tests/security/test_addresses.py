"""Which addresses are this host's is known of whole addresses."""

import contextlib
import pathlib
import subprocess
import sys

from harness import Skipped, check, equal
from hostile import BOTH, PROGRAMS, victim
from matrix import case

# The same in 30 bits of a hash that told addresses apart (FNV-1a of the address and two bytes 0).
OURS, ELSEWHERE = "10.77.0.1", "24.55.160.161"


SETTING = pathlib.Path("/proc/sys/net/ipv4/ip_nonlocal_bind")


@contextlib.contextmanager
def two_addresses(ctx):
    """One is this host's, the other one's packets go where nobody is; and connections may come from addresses of others."""
    if not ctx.own_network:
        raise Skipped("addresses can only be added in a network namespace of the test's own")
    setting = SETTING.read_text()
    change = [["addr", f"{OURS}/24"], ["route", f"{ELSEWHERE}/32"]]
    for what, address in change:
        subprocess.run(["ip", what, "add", address, "dev", "lo"], check=True)
    SETTING.write_text("1")
    try:
        yield
    finally:
        SETTING.write_text(setting)
        for what, address in reversed(change):
            subprocess.run(["ip", what, "del", address, "dev", "lo"], check=True)


@case(modes=BOTH)
def an_address_with_the_same_hash_is_another_host(ctx):
    with two_addresses(ctx):
        server = victim(ctx)
        told = ctx.run([sys.executable, PROGRAMS / "who_answers.py", server.port, OURS, ELSEWHERE]).split()
        equal(told[0], "ping", f"what {OURS} answers")
        check(told[1] in ("TimeoutError", "OSError"), f"{ELSEWHERE}, which is somewhere else, answers: {told[1]}")
