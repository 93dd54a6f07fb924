"""The objects: no type of the library has too many methods, in however many files they are written."""

import collections
import pathlib
import re

import modules
from harness import check
from matrix import case

# Most methods of a type that is not named in the file `methods`.
MOST = 50
IMPL = re.compile(r"^impl(?:<[^{]*?>)?\s+(?:[\w:<>', ]+\s+for\s+)?([\w:]+)[^{;]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
METHOD = re.compile(r"^    (?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn ", re.MULTILINE)
LIMIT = re.compile(r"(\S+) (\w+): (\d+)")


def limits():
    text = (pathlib.Path(__file__).parent / "methods").read_text()
    return {(crate, name): int(most) for crate, name, most in LIMIT.findall(text)}


def methods(crate):
    """{type: number of its methods}, of all `impl` blocks of the crate outside of unit tests."""
    found = collections.Counter()
    for file in crate.files:
        for name, body in IMPL.findall(modules.code((crate.source / file).read_text())):
            found[name.rsplit("::")[-1]] += len(METHOD.findall(body))
    return found


@case()
def no_type_has_too_many_methods(ctx):
    most = limits()
    found = {}
    for name, crate in modules.crates().items():
        if name in ("xtask", "netacc-tools", "netacc-fabric"):
            continue
        for kind, count in methods(crate).items():
            allowed = most.get((name, kind), MOST)
            check(count <= allowed, f"{name}: {kind} has {count} methods, and {allowed} are allowed")
            if count > MOST:
                found[name, kind] = count
    check(found == most, f"a type has become smaller: tests/layers/methods should say {found}")
