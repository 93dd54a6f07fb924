"""What the start of a process with one connection costs, in system calls and page faults."""

import pathlib
import re
import sys

from harness import check
from matrix import case

RUN = pathlib.Path(__file__).with_name("start")


@case(limit=120)
def counts(ctx):
    text = ctx.spawn([sys.executable, RUN]).result(110, status=None)
    ctx.parts = dict(re.findall(r"^(?:ok|FAIL) ([^:\n]*)(?:: (.*))?$", text, re.M))
    check(ctx.parts or "FAIL" in text, text[-2000:] or "nothing was counted")
    check(re.search(r"^\d+ passed, \d+ failed$", text, re.M), text[-2000:])
