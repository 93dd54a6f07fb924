"""Sizes: a function is one step with a name, and a file is one subject."""

import collections
import pathlib
import re

import modules
from harness import check
from matrix import case

# Most lines of a function from its name to its end, and of a file.
FUNCTION, FILE = 60, 500
# rustfmt puts the brace that ends a function under the first letter of its line.
BEGIN = re.compile(r'^( *)(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern "C" )?fn (\w+)')
LIMIT = re.compile(r"(\S+) (functions|files|relaxed): (\d+)")
# The crates whose functions are counted.
CRATES = ("netacc-core", "netacc-transport", "netacc-sys")


def functions(text):
    """Name and number of lines of each function with a body."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if found := BEGIN.match(line):
            indent, name = found.groups()
            # A declaration, or a body in one line, ends before any line with the brace of a body.
            head = next((n for n in range(at, len(lines)) if lines[n].rstrip().endswith(("{", ";", "}"))), at)
            if lines[head].rstrip().endswith("{"):
                end = next(n for n in range(head + 1, len(lines)) if lines[n].rstrip() == indent + "}")
                yield name, end - at + 1


def limits():
    text = (pathlib.Path(__file__).parent / "sizes").read_text()
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {(crate, what): int(most) for line in lines for crate, what, most in LIMIT.findall(line)}


@case()
def nothing_is_too_long(ctx):
    found = collections.defaultdict(list)
    for name in CRATES:
        crate = modules.crates()[name]
        for file in sorted(crate.files):
            text = (crate.source / file).read_text()
            if len(text.splitlines()) > FILE:
                found[name, "files"].append(str(file))
            tests = modules.TESTS.search(text)
            long = functions(text[: tests.start()] if tests else text)
            found[name, "functions"] += [f"{file} {of}" for of, lines in long if lines > FUNCTION]
    most = {key: count for key, count in limits().items() if key[1] != "relaxed"}
    counted = {key: len(names) for key, names in found.items() if names}
    for (name, what), names in found.items():
        check(len(names) <= most.get((name, what), 0), f"{name}: {len(names)} {what} are too long: {', '.join(names)}")
    check(counted == most, f"fewer are too long: tests/layers/sizes should say {counted}")


@case()
def few_accesses_are_relaxed(ctx):
    """A word that nothing is ordered by is a `SharedCell` or the data of a `Locked`, so that its reason stands in one place."""
    for (name, what), most in limits().items():
        if what == "relaxed":
            crate = modules.crates()[name]
            count = sum(len(re.findall(r"\bRelaxed\b", (crate.source / file).read_text())) for file in crate.files)
            check(count <= most, f"{name} says Relaxed {count} times, and {most} are allowed")
