"""What is tested here, and how it is made. Nothing is made twice: cargo sees what has changed. Each module of tests names in NEEDS
what it needs, and a run makes what its cases need.
"""

import importlib
import os
import pathlib
import shutil
import subprocess

import roots
from harness import ROOT, Failure, check

PACKAGES = ROOT / "build" / "packages"
# Packages whose library runs with any glibc from OLDEST_GLIBC on; see scripts/zig-cc.
PORTABLE = PACKAGES / "portable"
OLDEST_GLIBC = "2.17"
# The packages of a release, as dist/release makes and names them; else they are made here in the same way.
RELEASE = pathlib.Path(os.environ.get("NETACC_RELEASE") or PACKAGES / "release")
# The same sources as if they were the release before.
BEFORE = PACKAGES / "before"
# The library of a later version of the protocol.
NEXT = ROOT / "build" / "target-next"
NEXT_LIBRARY = NEXT / "debug" / "libnetacc_preload.so"
# Nothing here is about which end is accelerated; a test that starts an accelerated server says so by its role.
ONE = ("both",)
# Seconds, for each step of the building.
LIMIT = 1200


def run(*argv, **environment):
    """A command of the build; what it says is shown only if it fails."""
    done = subprocess.run([str(a) for a in argv], cwd=ROOT, env=os.environ | environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, argv))} ended with {done.returncode}:\n{done.stdout[-3000:]}")


def make(*what):
    run(os.environ.get("MAKE") or "make", *what, MAKEFLAGS="")


def make_before(*how):
    """Packages with a lower version, whose programs name "before" as their commit."""
    make("deb", "rpm", "VERSION=0.0.9", "COMMIT=before", f"OUTPUT={BEFORE.relative_to(ROOT)}", *how)


def make_release():
    make_before(f"GLIBC={OLDEST_GLIBC}")
    if "NETACC_RELEASE" not in os.environ:
        make("deb", "rpm", "dist", f"GLIBC={OLDEST_GLIBC}", f"OUTPUT={RELEASE.relative_to(ROOT)}")


# In this order, since the programs that are built have the commit of the last step.
STEPS = {
    "before": make_before,
    "release": make_release,
    "deb": lambda: make("deb"),
    "rpm": lambda: make("rpm"),
    "archive": lambda: make("dist"),
    "portable archive": lambda: make("dist", f"GLIBC={OLDEST_GLIBC}", f"OUTPUT={PORTABLE.relative_to(ROOT)}"),
    "next version": lambda: run("cargo", "build", "-p", "netacc-preload", CARGO_TARGET_DIR=str(NEXT),
                                RUSTFLAGS="--cfg netacc_next_version"),
    "system": lambda: roots.prepare(roots.release),
    "old system": lambda: roots.prepare(lambda: roots.OLD),
    "systems of a release": lambda: roots.prepare(*(lambda suite=suite: suite for suite in roots.SUPPORTED)),
    "system with systemd": lambda: roots.prepare(lambda: f"{roots.release()}+systemd"),
}


def prepare(modules):
    # Packages of an earlier version are not what is tested.
    shutil.rmtree(PACKAGES, ignore_errors=True)
    needs = {need for module in modules for need in importlib.import_module(module).NEEDS}
    for need in needs - set(STEPS):
        raise Failure(f"a module needs {need}, which nothing here makes")
    for need, step in STEPS.items():
        if need in needs:
            step()


def only(folder, pattern):
    found = sorted(folder.glob(pattern))
    check(len(found) == 1, f"{folder}/{pattern}: {[p.name for p in found]}")
    return pathlib.Path(found[0])


def deb():
    return only(PACKAGES, "netacc_*.deb")


def rpm():
    return only(PACKAGES, "netacc-[0-9]*.rpm")


def archive(folder=PACKAGES):
    return only(folder, f"netacc-*-{os.uname().machine}-linux-gnu.tar.gz")


def portable_build():
    return only(ROOT / "build", f"{os.uname().machine}-*-glibc{OLDEST_GLIBC}")


def variable(name):
    """A list in the Makefile."""
    for line in (ROOT / "Makefile").read_text().splitlines():
        if line.startswith(f"{name} := "):
            return line.partition(":= ")[2].split()
    raise Failure(f"the Makefile has no {name}")


def programs():
    return variable("PROGRAMS")


def scripts():
    """What is installed beside them, and takes no options."""
    return variable("SCRIPTS")


def pages():
    """The manual pages that there are, as SECTION/NAME."""
    return sorted(f"man{p.suffix[1:]}/{p.name}" for p in (ROOT / "man").glob("*.[1-8]"))
