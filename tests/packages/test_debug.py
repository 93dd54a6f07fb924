"""The packages of debug symbols: installed beside the others, gdb names functions and lines of a stripped library."""

import re
import subprocess
import tarfile

import host
import made
from harness import START_LIMIT, check, equal, need
from matrix import case

NEEDS = ("deb", "rpm", "archive", "portable archive")


def build_id(file):
    notes = subprocess.run([need("readelf"), "--notes", file], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Build ID: (\w+)", notes)
    check(found, f"{file} has no build ID")
    return found[1]


def symbols(ctx):
    tree = ctx.dir / "tree"
    for package in (made.deb(), made.only(made.PACKAGES, "netacc-dbgsym_*.deb")):
        subprocess.run([need("dpkg-deb"), "--extract", package, tree], check=True)
    return tree


def place(id):
    return f"usr/lib/debug/.build-id/{id[:2]}/{id[2:]}.debug"


@case(modes=made.ONE)
def each_file_has_its_symbols(ctx):
    """In the packages of all kinds, and under the ID that the package's own files have."""
    tree = symbols(ctx)
    library = next(tree.glob("usr/lib/*/libnetacc-preload.so"))
    files = [library, *(tree / "usr/bin" / program for program in made.programs())]
    wanted = sorted(place(build_id(file)) for file in files)
    equal(sorted(str(p.relative_to(tree)) for p in tree.rglob("*.debug")), wanted, "symbols in the Debian package")
    for file in files:
        sections = subprocess.run([need("readelf"), "-SW", file], check=True, capture_output=True, text=True).stdout
        check(".debug_line" not in sections and ".symtab" not in sections, f"{file.name} is not stripped")
    listed = subprocess.run([need("rpm"), "-qpl", made.only(made.PACKAGES, "netacc-debuginfo-*.rpm")], check=True, capture_output=True, text=True)
    equal(sorted(line.lstrip("/") for line in listed.stdout.split() if line.endswith(".debug")), wanted, "symbols in the RPM")
    with tarfile.open(made.only(made.PACKAGES, "netacc-*-debug.tar.gz")) as archive:
        equal(sorted(name for name in archive.getnames() if name.endswith(".debug")), wanted, "symbols in the archive")


def by_build_id(ctx, folder):
    """The archives of a folder: each program and library has its symbols under its build ID."""
    for name in (made.archive(folder), made.only(folder, "netacc-*-debug.tar.gz")):
        subprocess.run([need("tar"), "--extract", "--file", name, "--directory", ctx.dir], check=True)
    files = [*ctx.dir.glob("netacc-*/files/usr/lib/libnetacc-preload.so"), *ctx.dir.glob("netacc-*/files/usr/bin/netacc_*")]
    equal(len(files), 1 + len(made.programs()), "files that have symbols")
    equal(sorted(str(p.relative_to(ctx.dir)) for p in ctx.dir.rglob("*.debug")), sorted(place(build_id(file)) for file in files), "symbols")


@case(modes=made.ONE)
def those_of_the_portable_build(ctx):
    """It has another linker."""
    by_build_id(ctx, made.PORTABLE)


@case(modes=made.ONE)
def gdb_finds_them(ctx):
    """A process that sleeps in a call of the library: the stack has names and lines with the symbols, and none without."""
    tree = symbols(ctx)
    library = next(tree.glob("usr/lib/*/libnetacc-preload.so"))
    program = "import socket\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('ready', flush=True); s.accept()"
    sleeper = ctx.spawn([need("python3"), "-c", program], env={"LD_PRELOAD": str(library)})
    stack = lambda folder: subprocess.run(
        [need("gdb"), "-nx", "-batch", "-iex", f"set debug-file-directory {folder}", "-p", str(sleeper.pid), "-ex", "bt"],
        capture_output=True, text=True).stdout
    host.wait_until(lambda: sleeper.stdout() == "ready\n", START_LIMIT, "the program listens")
    # It is in the call a moment later.
    host.wait_until(lambda: re.search(r"netacc_core::\S+ .* at crates/netacc-core/src/\S+\.rs:\d+", stack(tree / "usr/lib/debug")), 30,
                    "functions and lines in the stack")
    check("netacc_core" not in stack(ctx.dir), "names without symbols")
    sleeper.end()
