"""Other libraries and tools in one process with NetACC: allocators, sanitizers, debuggers, tracers, what else is preloaded."""

import glob
import os
import shutil
import subprocess

import compiled
import monitor
from harness import ROOT, Failure, check, equal, launcher, need
from matrix import case

ONE = ("server",)
LIBRARY = ROOT / "build" / "libnetacc-preload.so"
# Connections that the client makes one after the other.
CONNECTIONS = 20

# Does what injectors of instrumentation do: it is preloaded, and has the programs that follow preload it alone.
INJECTOR = """#include <stdlib.h>
__attribute__((constructor)) static void inject(void) { setenv("LD_PRELOAD", getenv("INJECTOR"), 1); }
"""


def library(pattern):
    """The path of a Debian package's library."""
    for place in ("/usr/lib/*/", "/usr/lib/*/*/"):
        if found := sorted(glob.glob(place + pattern)):
            return found[0]
    raise Failure(f"{pattern} is not installed; scripts/deps test gets it")


def client(kind="plain", *options):
    """The path of a program that sends to an echo server, compares what comes back, and says that it is fine."""
    def build(source, place):
        return [need(os.environ.get("CC", "cc")), "-g", "-O1", *options, "-o", place / f"echo_client_{kind}", source]
    return compiled.make("sanitized.c", f"echo_client_{kind}", build)


def serve(ctx):
    return ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"))


def accelerated(ctx, server, what, command, env=None, says=("fine",), limit=120):
    """Runs a client; its status, what it says and, at the server, that all of its connections used shared memory."""
    before = monitor.accepts_shm([server.pid])
    env = ctx.environment({key: str(value) for key, value in (env or {}).items()})
    done = subprocess.run([str(part) for part in command], env=env, cwd=ctx.dir, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=limit, check=False)
    equal(done.returncode, 0, f"status of the client {what} ({done.stderr[-600:]})")
    for part in says:
        check(part in done.stdout, f"the client {what} says {done.stdout!r}")
    equal(monitor.accepts_shm([server.pid]) - before, CONNECTIONS, f"connections over shared memory of the client {what}")
    return done


@case(modes=ONE)
def allocators(ctx):
    """jemalloc, tcmalloc and mimalloc, before and after the library, and by way of netacc_run."""
    server, program = serve(ctx), client()
    for name in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"):
        path = library(name)
        accelerated(ctx, server, f"with {name} and netacc_run", [launcher(), program, server.port], {"LD_PRELOAD": path})
        for order in (f"{path}:{LIBRARY}", f"{LIBRARY}:{path}"):
            accelerated(ctx, server, f"with {order}", [program, server.port], {"LD_PRELOAD": order})


@case(modes=ONE)
def a_clock_that_lies(ctx):
    """libfaketime: ten days ahead and ten times as fast, and at a tenth of the speed. Our waits keep to the real clock."""
    server, program = serve(ctx), client()
    for spec in ("+10d x10", "-1d x0.1"):
        accelerated(ctx, server, f"with the clock {spec}", [launcher(), need("faketime"), "-f", spec, program, server.port])


@case(modes=ONE)
def users_of_a_file(ctx):
    """nss_wrapper answers for users and hosts, by functions of libc that it stands before."""
    server, program = serve(ctx), client()
    users = ctx.file("passwd", b"somebody:x:12345:12345::/:/bin/sh\n")
    accelerated(ctx, server, "with nss_wrapper", [launcher(), program, server.port],
                {"LD_PRELOAD": library("libnss_wrapper.so"), "NSS_WRAPPER_PASSWD": users, "NSS_WRAPPER_GROUP": users})


@case(modes=ONE)
def sanitizers(ctx):
    """ThreadSanitizer and UndefinedBehaviorSanitizer; AddressSanitizer has a case of its own (launcher.sanitized)."""
    server = serve(ctx)
    # ThreadSanitizer's runtime of GCC 12 ends at once where the kernel has moved memory further than it knows (32 random bits).
    unmoved = [need("setarch"), "-R"]
    for kind in ("thread", "undefined"):
        program = client(kind, f"-fsanitize={kind}")
        for what, command, env in (("by netacc_run", [*unmoved, launcher(), program, server.port], {}),
                                   ("by LD_PRELOAD", [*unmoved, program, server.port], {"LD_PRELOAD": LIBRARY})):
            done = accelerated(ctx, server, f"with -fsanitize={kind} {what}", command, env)
            check("WARNING" not in done.stderr and "runtime error" not in done.stderr, done.stderr[:600])


@case(modes=ONE)
def injectors(ctx):
    """A library that preloads itself into what the program starts; the program and its children run, accelerated or not."""
    server, program = serve(ctx), client()
    source = ctx.file("injector.c", INJECTOR.encode())
    path = ctx.dir / "injector.so"
    subprocess.run([need(os.environ.get("CC", "cc")), "-shared", "-fPIC", "-o", path, source], check=True, timeout=60)
    for order in (f"{path}:{LIBRARY}", f"{LIBRARY}:{path}"):
        accelerated(ctx, server, f"with {order}", [program, server.port], {"LD_PRELOAD": order, "INJECTOR": path})
    accelerated(ctx, server, "with an injector and netacc_run", [launcher(), program, server.port],
                {"LD_PRELOAD": path, "INJECTOR": path})
    # The shell's children have the injector alone, and so TCP.
    shell = subprocess.run([launcher(), "/bin/sh", "-c", f"{program} {server.port}; exit $?"], text=True, capture_output=True,
                           env=ctx.environment({"LD_PRELOAD": str(path), "INJECTOR": str(path)}), timeout=60, check=False)
    equal((shell.returncode, shell.stdout), (0, "fine\n"), "a child that lost the library")


@case(modes=ONE)
def preloaded_otherwise(ctx):
    """By the dynamic linker's own option and, in a mount namespace, by /etc/ld.so.preload, which is for every program."""
    server, program = serve(ctx), client()
    linker = library("ld-linux-*.so.2") if not os.path.exists("/lib64/ld-linux-x86-64.so.2") else "/lib64/ld-linux-x86-64.so.2"
    accelerated(ctx, server, "by ld.so --preload", [linker, "--preload", LIBRARY, program, server.port])
    # A copy of /etc, so that no program outside of the namespace sees the file.
    shutil.copytree("/etc", ctx.dir / "etc", symlinks=True)
    (ctx.dir / "etc" / "ld.so.preload").write_text(f"{LIBRARY}\n")
    script = f"mount --bind {ctx.dir}/etc /etc && exec {program} {server.port}"
    accelerated(ctx, server, "by /etc/ld.so.preload", ["unshare", "--mount", "/bin/sh", "-c", script])


@case(modes=ONE)
def tools_of_developers(ctx):
    """strace, gdb and valgrind: the program runs on under each, and is accelerated."""
    server, program = serve(ctx), client()
    trace = ctx.dir / "trace"
    accelerated(ctx, server, "under strace", [need("strace"), "-f", "-o", trace, launcher(), program, server.port])
    check("exited with 0" in trace.read_text(), "the trace has no end")
    gdb = [need("gdb"), "-nx", "-batch", "-ex", "set breakpoint pending on", "-ex", f"set environment LD_PRELOAD {LIBRARY}",
           "-ex", "break recv", "-ex", "run", "-ex", "bt", "-ex", "delete", "-ex", "continue", "--args", program, server.port]
    done = accelerated(ctx, server, "under gdb", gdb, says=("fine", "exited normally"))
    check("main" in done.stdout, f"the backtrace does not reach the program: {done.stdout[-600:]}")
    accelerated(ctx, server, "under valgrind", [launcher(), need("valgrind"), "--error-exitcode=0", program, server.port],
                limit=280)
