"""The same sources give the same packages: byte for byte, in whatever folder and by whatever clock."""

import os
import shutil
import subprocess

import made
from harness import ROOT, Skipped, check, equal, need
from matrix import case

NEEDS = ()
# Minutes of processor: each build is one from scratch.
LIMIT = 1500
# Where scripts/deps puts it.
ZIG = ROOT / "build/zig"


def true_clock(folder):
    """A folder with a cargo and a rustc that see the machine's own clock: below libfaketime rustc stands still."""
    place = folder / "true-clock"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("cargo", "rustc"):
        (place / name).write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {need(name)} "$@"\n')
        (place / name).chmod(0o755)
    return place


def built(folder, clock, *how):
    """The packages of a copy of the sources in `folder`, built while the clock shows `clock`."""
    folder.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                            capture_output=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    if how and ZIG.is_dir():
        shutil.copytree(ZIG, folder / "build/zig", symlinks=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("CARGO_TARGET", "MAKE", "RUSTFLAGS"))}
    env |= {"SOURCE_DATE_EPOCH": "1700000000", "COMMIT": "0123456789ab", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PATH": f"{true_clock(folder.parent)}:{env['PATH']}"}
    done = subprocess.run([need("faketime"), "-f", clock, "make", "deb", "rpm", "dist", *how], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    check(done.returncode == 0, done.stdout[-3000:])
    return {p.name: p.read_bytes() for p in (folder / "build/packages").iterdir() if p.is_file()}


def same(ctx, *how):
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        raise Skipped("no repository that says which files are sources")
    # So is what files may be read by, unless the packages say it.
    one = built(ctx.dir / "one", "+0d", *how)
    old = os.umask(0o077)
    two = built(ctx.dir / "another" / "folder", "+400d", *how)
    os.umask(old)
    equal(sorted(one), sorted(two), "files")
    check(len(one) >= 8, f"files: {sorted(one)}")
    equal([name for name in one if one[name] != two[name]], [], "files that differ")


@case(modes=made.ONE, limit=LIMIT, seldom=True)
def two_folders_and_two_clocks(ctx):
    same(ctx)


@case(modes=made.ONE, limit=LIMIT, seldom=True)
def two_folders_of_a_release(ctx):
    """As dist/release builds it: each folder with a zig of its own, whose start files and libunwind are part of the programs."""
    if not (ZIG.is_dir() or shutil.which(os.environ.get("ZIG", "zig"))):
        raise Skipped("no zig: scripts/deps packages")
    same(ctx, f"GLIBC={made.OLDEST_GLIBC}")
