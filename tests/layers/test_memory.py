"""The program's memory: a call reads and writes it through `netacc_sys::user`, so that a bad address is answered by the kernel."""

import pathlib
import re

import modules
from harness import check
from matrix import case

# What reads or writes memory at an address.
ACCESS = re.compile(
    r"\bfrom_ptr\(|\.as_(?:ref|mut)\(\)|\b(?:read|write)_(?:unaligned|volatile)\(|\.(?:read|write)\(|\bfrom_raw_parts|\(\*\w+\)\.|\*\w+\.add\("
)
LIMIT = re.compile(r"(\S+): (\d+)")


@case()
def hooks_look_at_addresses_first(ctx):
    text = (pathlib.Path(__file__).parent / "accesses").read_text()
    most = {file: int(count) for line in text.splitlines() if not line.startswith("#") for file, count in LIMIT.findall(line)}
    source = modules.ROOT / "crates" / "netacc-preload" / "src"
    found = {}
    for file in sorted(source.rglob("*.rs")):
        count = len(ACCESS.findall(modules.code(file.read_text())))
        name = str(file.relative_to(source))
        check(count <= most.get(name, 0), f"netacc-preload {name} has {count} accesses to memory: those to the program's go through netacc_sys::user")
        if count:
            found[name] = count
    check(found == most, f"a file has fewer accesses: tests/layers/accesses should say {found}")
