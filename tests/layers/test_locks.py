"""The locks: each is free in the child of a fork, where the thread that held it does not exist."""

import collections
import re

import modules
from harness import check
from matrix import case

STATIC = re.compile(r"\bstatic (\w+): (?:\w+::)*Lock<")


@case()
def each_static_lock_is_reset_after_a_fork(ctx):
    seen = 0
    for name, crate in modules.crates().items():
        text = "\n".join(modules.code((crate.source / file).read_text()) for file in sorted(crate.files))
        for lock, count in collections.Counter(STATIC.findall(text)).items():
            resets = len(re.findall(rf"\b{lock}\.reset\(\)", text))
            check(resets >= count, f"{name}: {count} locks {lock}, {resets} resets: a child forked while one is taken hangs")
            seen += count
    check(seen > 10, f"only {seen} static locks are found, so this test does not know their form any more")
