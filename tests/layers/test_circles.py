"""The layers: no crate knows one above it, and no circle of files grows."""

import pathlib
import re
import tomllib

import modules
from harness import check
from matrix import case

# Lowest first; crates of one line know nothing of each other.
LAYERS = (
    ("netacc-conf", "netacc-ring", "netacc-stats", "netacc-sys", "netacc-verbs", "netacc-wire", "netacc-log"),
    ("netacc-transport",),
    ("netacc-core",),
    ("netacc-preload",),
)
# What the crates of the floor may know of each other.
FLOOR = {
    "netacc-log": {"netacc-conf", "netacc-stats", "netacc-sys"},
    "netacc-verbs": {"netacc-sys", "netacc-wire"},
}
# Crates of which no circle reaches beyond one folder. In the others a circle may be anywhere, as long as it does not grow.
IN_FOLDERS = ("netacc-core",)
LIMIT = re.compile(r"(\S+): (\d+)")


def limits():
    text = (pathlib.Path(__file__).parent / "limits").read_text()
    return {crate: int(most) for line in text.splitlines() if not line.startswith("#") for crate, most in LIMIT.findall(line)}


def dependencies(name):
    manifest = tomllib.loads((modules.ROOT / "crates" / name / "Cargo.toml").read_text())
    return {d for d in manifest.get("dependencies", {}) if d.startswith("netacc-")}


@case()
def no_crate_knows_one_above_it(ctx):
    below = set()
    for layer in LAYERS:
        for name in layer:
            allowed = below | FLOOR.get(name, set())
            check(dependencies(name) <= allowed, f"{name} depends on {sorted(dependencies(name) - allowed)}")
        below |= set(layer)


@case()
def no_circle_grows(ctx):
    most = limits()
    found = {}
    for name, crate in modules.crates().items():
        circles = crate.circles()
        if circles and name in {n for layer in LAYERS for n in layer}:
            found[name] = len(circles[0])
            names = ", ".join(sorted(map(str, circles[0])))
            check(len(circles[0]) <= most.get(name, 0), f"{name}: {len(circles[0])} files import each other: {names}")
    check(found == most, f"a circle has become smaller: tests/layers/limits should say {found}")


@case()
def a_circle_stays_in_its_folder(ctx):
    crates = modules.crates()
    for name in IN_FOLDERS:
        for circle in crates[name].circles():
            folders = sorted({str(file.parent) for file in circle})
            names = ", ".join(sorted(map(str, circle)))
            check(len(folders) == 1, f"{name}: files of {', '.join(folders)} import each other: {names}")
