"""Which glibc the library and the programs need, and that no newer one creeps in."""

import re
import subprocess

import made
from harness import ROOT, check, equal, need
from matrix import case

NEEDS = ("portable archive",)

# What glibc itself gives a newer version to when it is linked against a new one: the old ones have the same under an
# older version (zig chooses that), or under the same name and weak.
RENEWED = {
    "__libc_start_main", "dlsym", "dladdr", "dlopen", "dlclose", "dlerror", "fstat64", "stat64", "lstat64",
    "pthread_getattr_np", "pthread_attr_getstack", "pthread_create", "pthread_join", "pthread_detach",
    "pthread_attr_setstacksize", "pthread_attr_getguardsize", "pthread_sigmask", "pthread_setname_np",
    "pthread_key_create", "pthread_key_delete", "pthread_getspecific", "pthread_setspecific", "sem_init",
}


def version(text):
    return tuple(int(n) for n in text.split("."))


OLDEST = version(made.OLDEST_GLIBC)


def newer_symbols(file):
    """{name: version} of the symbols that came, or were renewed, after the oldest glibc; weak ones may be missing."""
    out = subprocess.run([need("objdump"), "-T", file], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\S+ +(w?) +\S+ \*UND\*\s+\S+ +\(?GLIBC_([0-9.]+)\)? +(\S+)$", out, re.M)
    check(len(found) > 20, f"{file}: only {len(found)} symbols of glibc were understood")
    return {name: v for weak, v, name in found if not weak and version(v) > OLDEST}


def built(folder):
    """The programs; the library needs no glibc (tests/symbols)."""
    return [folder / name for name in made.programs()]


@case(modes=made.ONE)
def no_newer_symbol(ctx):
    """Of what the code needs nothing is younger than the oldest glibc, so that linking against that is possible."""
    for file in built(ROOT / "build"):
        new = {name: v for name, v in newer_symbols(file).items() if name not in RENEWED}
        equal(new, {}, f"symbols in {file.name} that glibc {made.OLDEST_GLIBC} does not have")


@case(modes=made.ONE)
def the_portable_build_needs_what_the_readme_says(ctx):
    folder = made.portable_build()
    for file in built(folder):
        needed = subprocess.run([ROOT / "scripts" / "glibc-needed", file], check=True, capture_output=True, text=True).stdout
        check(version(needed.strip()) <= OLDEST, f"{file.name} needs glibc {needed}")
    check(f"glibc {made.OLDEST_GLIBC}" in (ROOT / "README.md").read_text(), "the README says something else")


@case(modes=made.ONE)
def it_exports_the_same(ctx):
    """Another linker must not lose or add a name of the library's."""
    def names(folder):
        out = subprocess.run([need("nm"), "-D", "--defined-only", folder / "libnetacc-preload.so"], check=True,
                             capture_output=True, text=True).stdout
        return sorted(line.split()[-1].partition("@")[0] for line in out.splitlines())
    equal(names(made.portable_build()), names(ROOT / "build"), "exported names")
