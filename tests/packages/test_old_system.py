"""A release archive on a system with an older glibc than the one it was made on, installed and used there."""

import made
import redis_inside
from harness import check, equal
from matrix import case
from roots import OLD, Root

NEEDS = ("archive", "portable archive", "old system")

SCRIPT = made.ROOT / "dist" / "install.sh"


def brought(ctx, folder):
    """The system with an archive and the installer in it; the archive's name there."""
    root = Root(ctx, OLD)
    archive = made.archive(folder)
    for source in (archive, archive.with_name(f"{archive.name}.sha256"), SCRIPT):
        root.put(source, f"/tmp/{source.name}")
    return root, f"/tmp/{archive.name}"


@case(modes=made.ONE)
def the_portable_archive(ctx):
    root, archive = brought(ctx, made.PORTABLE)
    before = root.files()
    said = root.run("sh", "/tmp/install.sh", archive)
    check("checksum is right" in said and "installed in /usr/local" in said, said)
    equal(root.attempt("true", env={"LD_PRELOAD": "libnetacc-preload.so"}).stderr, "", "the linker on the bare name")
    redis_inside.by_the_manual(root)
    server = redis_inside.serve(root, "netacc_run")
    redis_inside.load(root, "netacc_run")
    accepted = redis_inside.counters(root, server)["accepts_shm"]
    check(accepted >= 16, f"{accepted} connections over shared memory")
    # The running redis keeps its library.
    root.run("sh", "/tmp/install.sh", archive)
    redis_inside.load(root, "netacc_run")
    root.run("sh", "/tmp/install.sh", "--uninstall")
    redis_inside.load(root)
    server.end()
    # The linker's cache is written anew each time.
    equal(sorted(root.files() - before), [], "left by --uninstall")


@case(modes=made.ONE)
def an_archive_for_a_newer_glibc(ctx):
    """Said before anything is installed."""
    root, archive = brought(ctx, made.PACKAGES)
    needs = root.run("sh", "-c", f"tar xzOf {archive} --wildcards '*/REQUIRES'")
    if "glibc=2.3" not in needs or needs.rpartition("glibc=")[2].strip() <= "2.31":
        # Made on a system that is as old: nothing to refuse.
        return
    before = root.files()
    done = root.attempt("sh", "/tmp/install.sh", archive)
    check(done.returncode == 1 and "this system has 2.31" in done.stderr, f"{done}")
    equal(root.files() - before, set(), "installed all the same")
