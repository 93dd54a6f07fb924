#!/usr/bin/env python3
"""Checks that the library exports exactly the checked-in list of symbols, and that the list agrees with the source's table.

A symbol too many would shadow a program's own; one too few would let bytes bypass an accelerated connection.
tests/symbols compares them;
    symbols.py --write    writes the list from the table
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "libnetacc-preload.so"
LIST = ROOT / "tests" / "lib" / "exported-symbols.txt"
SOURCE = ROOT / "crates" / "netacc-preload" / "src"


def exported():
    done = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True)
    # A version suffix is part of how a symbol is exported, not of its name.
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.strip()}


def listed():
    return {line.strip() for line in LIST.read_text().splitlines() if line.strip() and not line.startswith("#")}


def table():
    """The names that the library's source exports: the entries of its macros, and functions and data without a macro."""
    found = set()
    for path in sorted(SOURCE.rglob("*.rs")):
        text = re.sub(r"//.*", "", path.read_text())
        found |= set(re.findall(r"no_mangle\)\]\s+(?:#\[.*?\]\s+)*pub\s+(?:unsafe\s+)?extern\s+\"C\"\s+fn\s+(\w+)", text))
        found |= set(re.findall(r"no_mangle\)\]\s+(?:#\[.*?\]\s+)*pub\s+static\s+(\w+)", text))
        for block in re.findall(r"^(?:hooks|before|executes|variadic|liburing|vforks|opens|looks_up|exports)! \{$(.*?)^\}$", text, re.M | re.S):
            found |= set(re.findall(r"^    fn (\w+)(?:\(| in)", block, re.M))
    return found


def foreign(names):
    """The names of a language's runtime: if they were exported, two libraries of that language in one program would conflict."""
    return {n for n in names if n.startswith(("rust_", "__rust", "_ZN", "_R", "__rdl", "__rg_"))}


def write():
    names = sorted(table())
    LIST.write_text("# What libnetacc-preload.so exports. Written by tests/lib/symbols.py --write.\n"
                    + "".join(f"{name}\n" for name in names))
    print(f"{len(names)} names in {LIST.relative_to(ROOT)}")


def checks():
    """The checks: {requirement: the names that violate it}."""
    found = exported()
    wanted = listed() if LIST.exists() else set()
    return {
        "nothing beside the list": found - wanted,
        "everything on the list": wanted - found,
        "the list is what the table of calls says": wanted ^ table(),
        "no symbol of the language's runtime": foreign(found),
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__.strip())
    write()
