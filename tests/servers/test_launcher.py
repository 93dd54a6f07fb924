"""netacc_run given what it cannot use: a clear message, the right exit status, and the program still runs."""

import os
import stat
import subprocess
import sys

import compiled
from harness import ROOT, check, equal, launcher, need
from matrix import case

ONE = ("server",)


def run(ctx, *argv, env=None):
    """The launcher itself, with what it prints and how it ends."""
    check(os.access(launcher(), os.X_OK), f"the launcher {launcher()} is not there")
    return subprocess.run([launcher(), *map(str, argv)], env=ctx.environment(env), cwd=ctx.dir,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def program(ctx, name, source, *options):
    path = ctx.file(f"{name}.c", source.encode())
    compiler = need(os.environ.get("CC", "cc"))
    subprocess.run([compiler, "-o", ctx.dir / name, path, *options], check=True, timeout=60)
    return ctx.dir / name


def python(code):
    return [sys.executable, "-c", code]


@case(modes=ONE)
def exit_status(ctx):
    """Status, output and signals of the program come through untouched."""
    done = run(ctx, *python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(23)"))
    equal((done.returncode, done.stdout, done.stderr), (23, "out\n", "err\n"), "status and output")
    equal(run(ctx, *python("import os; os.kill(os.getpid(), 9)")).returncode, -9, "death by a signal")
    done = run(ctx, *python("import sys; print(sys.argv[1:])"), "-v", "--help", "a b", "")
    equal(done.stdout, "['-v', '--help', 'a b', '']\n", "the program's own options")


@case(modes=ONE)
def usage(ctx):
    text = run(ctx, "-h")
    equal(text.returncode, 0, "status of -h")
    for option in ("-f", "-p", "-t", "-s", "-F", "-d", "-T", "-P", "-A", "-i", "-h", "-v"):
        check(f"{option} " in text.stdout or f"{option}," in text.stdout, f"-h does not show {option}")
    version = run(ctx, "-v")
    check(version.returncode == 0 and any(c.isdigit() for c in version.stdout), f"-v prints {version.stdout!r}")
    for wrong in (("-Z",), ("-t",), ("-t", "many", "true"), ("-s", "-5", "true"), ()):
        done = run(ctx, *wrong)
        check(done.returncode not in (0, 127) and done.stderr.strip(),
              f"options {wrong}: status {done.returncode}, message {done.stderr!r}")
        check("panicked" not in done.stderr, f"options {wrong}: {done.stderr}")


@case(modes=ONE)
def missing_program(ctx):
    """As a shell has it: 127 for what is not there, 126 for what cannot be run."""
    for name in ("no-such-program-here", ctx.dir / "no-such-file"):
        done = run(ctx, name)
        equal(done.returncode, 127, f"status for {name}")
        check(str(name) in done.stderr, f"the message does not name the program: {done.stderr!r}")
    plain = ctx.file("plain", b"text")
    plain.chmod(0o644)
    for path in (plain, ctx.dir):
        done = run(ctx, path)
        equal(done.returncode, 126, f"status for {path}")
        check(str(path) in done.stderr, f"the message does not name the program: {done.stderr!r}")


@case(modes=ONE)
def static_program(ctx):
    path = program(ctx, "static", '#include <stdio.h>\nint main(void) { puts("ran"); return 5; }\n', "-static")
    done = run(ctx, path)
    equal((done.returncode, done.stdout), (5, "ran\n"), "a static program runs all the same")
    check("static" in done.stderr.lower(), f"nothing is said about the static program: {done.stderr!r}")


@case(modes=ONE)
def setuid_program(ctx):
    path = program(ctx, "setuid", '#include <stdio.h>\nint main(void) { puts("ran"); return 6; }\n')
    path.chmod(path.stat().st_mode | stat.S_ISUID)
    done = run(ctx, path)
    equal((done.returncode, done.stdout), (6, "ran\n"), "a set-user-id program runs all the same")
    # For its owner the loader ignores nothing, so a warning is owed only to others.
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)
        path.chmod(0o4755)
        done = run(ctx, path)
        equal((done.returncode, done.stdout), (6, "ran\n"), "a set-user-id program runs all the same")
        check("setuid" in done.stderr.lower() or "set-user-id" in done.stderr.lower(),
              f"nothing is said about the set-user-id program: {done.stderr!r}")


@case(modes=ONE)
def script_program(ctx):
    """A script is run by its interpreter, with the library in it."""
    path = ctx.file("script", b"#!/bin/sh\necho \"$1\"; grep -c libnetacc /proc/self/maps\n")
    path.chmod(0o755)
    done = run(ctx, path, "word")
    lines = done.stdout.split()
    check(len(lines) == 2 and lines[0] == "word" and int(lines[1]) > 0,
          f"the script printed {done.stdout!r} {done.stderr!r}")


@case(modes=ONE)
def preload_kept(ctx):
    """Another preloaded library stays, and comes after ours or before, but comes."""
    other = program(ctx, "other.so", '__attribute__((constructor)) static void f(void) {}\n', "-shared", "-fPIC")
    done = run(ctx, *python("print(open('/proc/self/maps').read())"), env={"LD_PRELOAD": other})
    equal(done.returncode, 0, "status")
    check("other.so" in done.stdout and "libnetacc" in done.stdout, "one of the two libraries is missing")


@case(modes=ONE)
def ld_preload(ctx):
    """Without the launcher: LD_PRELOAD of the library itself."""
    library = ROOT / "build" / "libnetacc-preload.so"
    check(library.exists(), f"{library} is not there")
    text = ctx.run(python("print(open('/proc/self/maps').read())"), role=None, env={"LD_PRELOAD": library})
    check("libnetacc" in text, "the library is not in the program")


def with_config(ctx, text, name="netacc.conf"):
    path = ctx.file(name, text.encode())
    # A socket, because a program without one has no reason to read a configuration.
    code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('ran')"
    return path, run(ctx, "-f", path, *python(code))


def said(ctx, done):
    log = ctx.log.read_text(errors="replace") if ctx.log.exists() else ""
    return done.stderr + log


@case(modes=ONE)
def config_missing(ctx):
    code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('ran')"
    for path in (ctx.dir / "not-there.conf", ctx.dir):
        done = run(ctx, "-f", path, *python(code))
        equal((done.returncode, done.stdout), (2, ""), f"-f {path}")
        check(str(path) in done.stderr, f"nothing is said about {path}: {done.stderr!r}")
        # A variable may be set for programs for which the file is not there.
        done = run(ctx, *python(code), env={"NACC_CONFIG_FILE": path})
        equal((done.returncode, done.stdout), (0, "ran\n"), f"the program under configuration {path}")
        check(str(path) in said(ctx, done), f"nothing is said about {path}: {said(ctx, done)!r}")


@case(modes=ONE)
def config_wrong(ctx):
    """Each mistake is reported with file and line, and the program runs on with the default."""
    lines = {
        "NACC_SOR_IO_THREADS=many": "NACC_SOR_IO_THREADS",
        "NACC_CONNECT_RDMA_PERCENT=101": "100",
        "NACC_NO_SUCH_KEY=1": "NACC_NO_SUCH_KEY",
        "NACC_LOG_LEVEL=9": "5",
        "this is not a setting": "",
    }
    text = "[netacc]\n" + "\n".join(lines) + "\n"
    path, done = with_config(ctx, text)
    equal((done.returncode, done.stdout), (0, "ran\n"), "the program under a wrong configuration")
    message = said(ctx, done)
    for number, wanted in enumerate(lines.values(), start=2):
        fits = [m for m in message.splitlines() if f"{path}:{number}" in m or (path.name in m and f"line {number}" in m)]
        check(fits and wanted in " ".join(fits), f"line {number} is not reported with {wanted!r}: {message[:600]!r}")


@case(modes=ONE)
def config_garbage(ctx):
    for name, data in (("binary", ctx.bytes(5000)), ("long", b"NACC_LOG_PATH=" + b"x" * 300000), ("empty", b""),
                       ("zeros", bytes(4096)), ("open-quote", b'[netacc]\nNACC_LOG_PATH="/tmp/x\n')):
        path = ctx.file(name, data)
        done = run(ctx, "-f", path, *python("import socket; socket.socket(); print('ran')"))
        equal((done.returncode, done.stdout), (0, "ran\n"), f"the program under a configuration of kind {name}")
        check("panicked" not in done.stderr, done.stderr[:300])


@case()
def sanitized(ctx):
    """A program with AddressSanitizer starts, is accelerated, and so is one that a script starts."""
    def build(source, place):
        return [need(os.environ.get("CC", "cc")), "-g", "-fsanitize=address", "-o", place / "sanitized", source]

    client = compiled.make("sanitized.c", "sanitized", build)
    server = ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"))
    ctx.mark()
    for command in ([client, server.port], ["/bin/sh", "-c", f"{client} {server.port}; exit $?"]):
        equal(ctx.run(command), "fine\n", "what the program says")
    ctx.prove(server, accepts=40)
