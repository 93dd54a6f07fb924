"""What is tested here, and how it is made. Nothing is made twice: cargo sees what has changed."""

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


def prepare():
    make = os.environ.get("MAKE") or "make"
    flags = {"MAKEFLAGS": ""}
    # Packages of an earlier version are not what is tested.
    shutil.rmtree(PACKAGES, ignore_errors=True)
    run(make, "deb", "rpm", "dist", **flags)
    run(make, "dist", f"GLIBC={OLDEST_GLIBC}", f"OUTPUT={PORTABLE.relative_to(ROOT)}", **flags)
    run("cargo", "build", "-p", "netacc-preload", CARGO_TARGET_DIR=str(NEXT), RUSTFLAGS="--cfg netacc_next_version")
    roots.prepare()


def only(folder, pattern):
    found = sorted(folder.glob(pattern))
    check(len(found) == 1, f"{folder.relative_to(ROOT)}/{pattern}: {[p.name for p in found]}")
    return pathlib.Path(found[0])


def deb():
    return only(PACKAGES, "netacc_*.deb")


def rpm():
    return only(PACKAGES, "netacc-*.rpm")


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
