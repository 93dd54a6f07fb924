"""The library in processes that it was not made for: another libc, an image of a few files, a static program. Each behaves as if
the variable were not set."""

import os
import pathlib
import re
import shutil
import subprocess

import symbols
from harness import Skipped, check, equal, need
from matrix import case

PROGRAM = pathlib.Path(__file__).parent / "programs" / "foreign.c"


def built(ctx, compiler, *flags):
    program = ctx.dir / f"foreign-{compiler}"
    done = subprocess.run([need(compiler), "-O1", "-w", PROGRAM, "-o", program, "-pthread", *flags], capture_output=True, text=True)
    check(done.returncode == 0, done.stderr)
    return program


def said(argv, preload=None, **options):
    env = {"PATH": os.environ["PATH"], "NACC_LOG_PATH": ""} | ({"LD_PRELOAD": str(preload)} if preload else {})
    done = subprocess.run(list(map(str, argv)), env=env, capture_output=True, text=True, timeout=60, **options)
    return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def same(*argv, library=symbols.LIBRARY, status=7):
    plain, preloaded = said(argv), said(argv, preload=library)
    equal(plain["status"], status, f"{argv} without the library: {plain['stderr']}")
    equal(preloaded, plain, f"{argv} with the library")


def elf(*options):
    return subprocess.run([need("readelf"), "-W", *options, symbols.LIBRARY], capture_output=True, text=True, check=True).stdout


@case()
def it_needs_nothing(ctx):
    """No library, no version of a symbol, no thread-local variable, and nothing that must be found."""
    dynamic, segments = elf("-d"), elf("-l")
    check("(NEEDED)" not in dynamic, "it names a library that the process must have")
    check("(VERNEED)" not in dynamic, "it names versions of symbols")
    check(" TLS " not in segments, "it has thread-local variables")
    undefined = re.findall(r"^ *[1-9]\d*: \S+ +\d+ \S+ +(\S+) +\S+ +UND +(\S+)$", elf("--dyn-syms"), re.M)
    check(undefined, "no undefined symbol was understood")
    equal([name for binding, name in undefined if binding != "WEAK"], [], "symbols that must be found")


@case()
def glibc(ctx):
    same(built(ctx, "gcc"))


@case()
def a_program_that_is_longer_than_the_loader_that_starts_it(ctx):
    # Its code begins behind the end of the loader's file, which is that of the process.
    program = built(ctx, "gcc", "-Wl,-z,max-page-size=0x200000")
    loader = re.search(r"interpreter: (\S+)\]", subprocess.run([need("readelf"), "-l", program], capture_output=True, text=True).stdout)
    same(loader.group(1), program)


@case()
def musl(ctx):
    same(built(ctx, "musl-gcc"))


@case()
def a_static_program(ctx):
    same(built(ctx, "gcc", "-static"))


@case()
def static_busybox(ctx):
    same(need("busybox"), "sh", "-c", "echo a b | wc -w; exit 7")


@case()
def an_image_of_a_few_files(ctx):
    """A program, the loader and glibc, without libgcc_s."""
    if os.getuid() != 0:
        raise Skipped("needs root, for a root folder of its own")
    program, image = built(ctx, "gcc"), ctx.dir / "image"
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for file in re.findall(r"(/\S+)", listed):
        (image / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, image / file[1:])
    check("libgcc_s" not in listed and image.exists(), listed)
    shutil.copy(program, image / "program")
    shutil.copy(symbols.LIBRARY, image / "library.so")
    # Static, so that the variable is set for the program alone.
    shutil.copy(need("busybox"), image / "busybox")
    # The program executes itself by its name in proc.
    for folder in ("proc", "tmp"):
        (image / folder).mkdir()
    setup = 'mount --bind /proc "$0/proc" && exec chroot "$0" "$@"'
    within = [need("unshare"), "--mount", "sh", "-c", setup, image]
    plain = said([*within, "/program"])
    preloaded = said([*within, "/busybox", "env", "LD_PRELOAD=/library.so", "/program"])
    equal(plain["status"], 7, f"without the library: {plain['stderr']}")
    equal(preloaded, plain, "with the library")
