"""What calls cost that are not accelerated, in instructions."""

import pathlib
import re
import sys

from harness import check
from matrix import case

RUN = pathlib.Path(__file__).with_name("run")


@case(limit=280)
def instructions(ctx):
    text = ctx.spawn([sys.executable, RUN]).result(270, status=None)
    ctx.parts = dict(re.findall(r"^(?:ok|FAIL) (.*? \(\w+\))(?:: (.*))?$", text, re.M))
    check(ctx.parts or "FAIL" in text, text[-2000:] or "nothing was counted")
    check(re.search(r"^\d+ passed, \d+ failed$", text, re.M), text[-2000:])
