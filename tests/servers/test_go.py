"""Go programs, built with cgo as `go build` does where a C compiler is there, and without it, which makes them static: their system
calls reach the library by the one function of Go's runtime that it changes. The same program in other builds, of other releases,
and some that cannot be followed."""

import os
import pathlib
import platform
import signal
import struct
import subprocess

import compiled
import monitor
import releases
from harness import PROGRAMS, Skipped, check, equal, launcher, need, wait_until
from matrix import case

# Seconds, for a case that builds, which on an empty cache takes a minute or two.
BUILDS = 400
# Since 1.24 each listener is one of MPTCP, in a program that is built as a module for that release.
MPTCP = {"GODEBUG": "multipathtcp=1"}


def build(ctx, source, product, *options, tool=None, cgo=True):
    """The path of a program of ours."""
    if platform.machine() != "x86_64":
        raise Skipped("Go programs are followed on x86-64 only")
    tool = tool or need("go")
    env = ctx.environment({"CGO_ENABLED": int(cgo), "GOCACHE": compiled.PLACE / "go-cache", "GO111MODULE": "off",
                           "GOPATH": compiled.PLACE / "go", "GOTELEMETRY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": ""})
    return compiled.make(source, product, lambda text, place: [tool, "build", *options, "-o", place / product, text], env)


def traffic(ctx, program, **env):
    server = ctx.serve(lambda port: [program, "serve", f"127.0.0.1:{port}"], env=env)

    def ask(*what, limit=120):
        return ctx.run([program, what[0], f"127.0.0.1:{server.port}", *what[1:]], limit=limit, env=env)
    return server, ask


@case(limit=BUILDS)
def traffic_of_all_kinds(ctx):
    """Connections that live long and short, HTTP over 50 and over one, and those that another program takes over."""
    all_kinds(ctx, build(ctx, "traffic.go", "traffic"))


@case(limit=BUILDS)
def static_traffic(ctx):
    """The same, of programs without libc, into which netacc_run maps the library."""
    all_kinds(ctx, build(ctx, "traffic.go", "traffic-static", cgo=False))


def all_kinds(ctx, program):
    server, ask = traffic(ctx, program, **MPTCP)
    ctx.mark()
    ask("echo", 16, 40)
    ask("churn", 16, 20)
    ask("http", 50, 20)
    ask("http", 1, 300)
    # Half of these connections may end before they are accepted.
    ctx.prove(server, accepts=200, payload=10_000_000)
    if server.accelerated:
        check("netacc" not in server.text(), f"netacc_run says {server.text()!r}")
    ask("hand")
    ctx.run([program, "alone"], env={"GOMAXPROCS": 1, **MPTCP})


@case(modes=("both", "server", "client"), limit=BUILDS)
def storm(ctx):
    """All of it at once, with programs that are started, under garbage collections and signals that preempt."""
    stormy(ctx, build(ctx, "traffic.go", "traffic"))


@case(modes=("both", "server", "client"), limit=BUILDS)
def static_storm(ctx):
    stormy(ctx, build(ctx, "traffic.go", "traffic-static", cgo=False))


def stormy(ctx, program):
    for env in ({"GOGC": 1, "GOMAXPROCS": 2}, {"GOMAXPROCS": 1}, {"GODEBUG": "asyncpreemptoff=1"}):
        server, ask = traffic(ctx, program, **env)
        ask("storm", 3)
        ctx.prove(server, accepts=20)


@case(modes=("both",), limit=BUILDS)
def builds(ctx):
    """Without symbols, without notes, position-independent, linked by the C compiler's linker; with and without cgo."""
    stripped, unnamed = ["-ldflags", "-s -w"], ["-ldflags", "-s -w -buildid="]
    for name, cgo, options in (
        ("stripped", True, stripped),
        ("unnamed", True, unnamed),
        ("pie", True, ["-buildmode=pie"]),
        ("external", True, ["-ldflags", "-linkmode=external"]),
        ("external-unnamed", True, ["-ldflags", "-s -w -buildid= -linkmode=external"]),
        ("static-stripped", False, stripped),
        ("static-unnamed", False, unnamed),
        ("static-pie", False, ["-buildmode=pie"]),
    ):
        program = build(ctx, "echo.go", f"echo-go-{name}", *options, cgo=cgo)
        server = ctx.serve(lambda port, program=program: [program, "server", port])
        ctx.run([program, "client", server.port, 40])
        ctx.prove(server, accepts=40)


@case(modes=("both",), limit=BUILDS)
def other_releases(ctx):
    """Go 1.24, 1.25 and 1.27, with each other and with the installed one."""
    programs = [build(ctx, "echo.go", "echo-go-cgo")]
    for minor in (24, 25, 27):
        programs.append(build(ctx, "echo.go", f"echo-go-{minor}", tool=releases.go(minor)))
        programs.append(build(ctx, "echo.go", f"echo-go-static-{minor}", tool=releases.go(minor), cgo=False))
    for program, other in zip(programs, programs[1:] + programs[:1]):
        server = ctx.serve(lambda port, program=program: [program, "server", port])
        ctx.run([program, "client", server.port, 40])
        ctx.run([other, "client", server.port, 40])
        ctx.prove(server, accepts=80)


@case(limit=BUILDS)
def mixed_with_c(ctx):
    """A program whose C code makes connections too; each half uses the other's descriptors."""
    program = build(ctx, "mixed.go", "mixed-go")
    server = ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"))
    ctx.run([program, f"127.0.0.1:{server.port}"])
    ctx.prove(server, accepts=600)


@case(modes=("both",), seldom=True, limit=900)
def race_detector(ctx):
    server, ask = traffic(ctx, build(ctx, "traffic.go", "traffic-race", "-race"), GOMAXPROCS=2)
    ask("storm", 10, limit=200)
    ctx.prove(server, accepts=20)


def stays_on_tcp(ctx, program, says, **env):
    """The program works, and the monitor and the log say why it is not accelerated."""
    server = ctx.serve(lambda port: [program, "server", port], env={"NACC_LOG_LEVEL": 2, **env})
    ctx.run([program, "client", server.port, 20], env=env)
    check(says in ctx.log.read_text(), f"the log says {ctx.log.read_text()!r}")
    return server


def with_another_end(code):
    """The program, whose function for system calls sets a register to 0 by another instruction, and a nop."""
    # Up to Go 1.26, and since.
    ends = {"4889d3 48c7c100000000 c3": "4889d3 31c9 0f1f440000 c3", "4889d3 b900000000 c3": "4889d3 31c9 0f1f00 c3"}
    found = [end for end in ends if bytes.fromhex(end) in code]
    equal([code.count(bytes.fromhex(end)) for end in found], [1], "ends of the function")
    return code.replace(bytes.fromhex(found[0]), bytes.fromhex(ends[found[0]]))


@case(modes=("both",), limit=BUILDS)
def unknown_function(ctx):
    """A runtime that was changed: its function does the same by other instructions."""
    code = build(ctx, "echo.go", "echo-go-cgo").read_bytes()
    program = ctx.file("changed", with_another_end(code))
    os.chmod(program, 0o755)
    server = stays_on_tcp(ctx, program, "it is a Go program, whose function for system calls is not a known one")
    equal(monitor.show(server.pid)["sock"], [], "sockets that the library sees")
    done = subprocess.run([monitor.command(), "--explain", str(server.pid)], capture_output=True, text=True, timeout=30)
    check("not a known one" in done.stdout, f"netacc_ss says {done.stdout}{done.stderr}")
    check("not a known one" in server.text(), f"netacc_run says {server.text()!r}")


def checked(program, before=()):
    """What netacc_check says of a program."""
    check_ = pathlib.Path(launcher()).with_name("netacc_check")
    return subprocess.run([*before, check_, program], capture_output=True, text=True, timeout=30, check=False).stdout


@case(modes=("both",), limit=BUILDS)
def may_load_plugins(ctx):
    """A program that may load plugins stays on TCP, stripped or not, and each tool says why."""
    source = (PROGRAMS / "echo.go").read_text().replace('\t"os"\n', '\t"os"\n\t_ "plugin"\n')
    program = build(ctx, ctx.file("plugins.go", source.encode()), "echo-go-plugins", "-trimpath", "-ldflags", "-s -w")
    why = "it is a Go program, which may load plugins"
    server = stays_on_tcp(ctx, program, why)
    equal(monitor.show(server.pid)["sock"], [], "sockets that the library sees")
    done = subprocess.run([monitor.command(), "--explain", str(server.pid)], capture_output=True, text=True, timeout=30)
    for tool, says in (("netacc_ss", done.stdout), ("netacc_run", server.text()), ("netacc_check", checked(program))):
        check(why in says, f"{tool} says {says!r}")


def program_headers(code):
    """The type and the offset of each program header."""
    first, count = struct.unpack_from("<Q", code, 32)[0], struct.unpack_from("<H", code, 56)[0]
    return [(struct.unpack_from("<I", code, at)[0], at) for at in range(first, first + 56 * count, 56)]


@case(modes=("both",), limit=BUILDS)
def wrong_headers(ctx):
    """What neither the kernel nor the loader reads may be wrong; a program that cannot begin ends as without NetACC."""
    cgo = bytearray(build(ctx, "echo.go", "echo-go-cgo").read_bytes())
    dynamic = next(struct.unpack_from("<Q", cgo, at + 8)[0] for kind, at in program_headers(cgo) if kind == 2)
    sizes = [at for at in range(dynamic, dynamic + 640, 16) if struct.unpack_from("<Q", cgo, at)[0] == 10]
    struct.pack_into("<Q", cgo, sizes[0] + 8, 1 << 40)
    static = build(ctx, "echo.go", "echo-go-static", cgo=False).read_bytes()
    itself, nowhere = bytearray(static), bytearray(static)
    struct.pack_into("<Q", itself, next(at for kind, at in program_headers(static) if kind == 6) + 16, 0x67 << 48)
    struct.pack_into("<Q", nowhere, 24, 0x1000_0000)
    for name, code in (("names", cgo), ("itself", itself)):
        program = ctx.file(name, bytes(code))
        os.chmod(program, 0o755)
        server = ctx.serve(lambda port, program=program: [program, "server", port])
        ctx.run([program, "client", server.port, 40])
        ctx.prove(server, accepts=40)
    program = ctx.file("nowhere", bytes(nowhere))
    os.chmod(program, 0o755)
    done = subprocess.run([launcher(), program], capture_output=True, timeout=30, check=False)
    equal((done.returncode, done.stderr), (-signal.SIGSEGV, b""), "how it ends")


@case(modes=("both",), limit=BUILDS)
def static_with_unknown_function(ctx):
    """A static program whose function is another one, and one that has a C library linked into it: each runs plain."""
    code = build(ctx, "echo.go", "echo-go-static", cgo=False).read_bytes()
    changed = ctx.file("changed", with_another_end(code))
    os.chmod(changed, 0o755)
    linked = build(ctx, "mixed.go", "mixed-go-static", "-ldflags", "-linkmode=external -extldflags=-static")
    server = ctx.serve(lambda port: [changed, "server", port])
    ctx.run([changed, "client", server.port, 20])
    check("not a known one" in server.text(), f"netacc_run says {server.text()!r}")
    check(not mapped(server.pid), "the library is in a program that it cannot follow")
    server = ctx.serve(lambda port: ctx.script("echo_server.py", port, "epoll"))
    client = ctx.client([linked, f"127.0.0.1:{server.port}"])
    client.result(60)
    check("with a C library linked into it" in client.text(), f"netacc_run says {client.text()!r}")


def mapped(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return "libnetacc" in maps.read()


@case(modes=("both",), limit=BUILDS)
def static_without_tracing(ctx):
    """Where a filter forbids to trace, as in some containers, or ends who writes to another process's memory, the program runs plain."""
    program = build(ctx, "echo.go", "echo-go-static", cgo=False)
    for call, says in (("ptrace", "may not be traced"), ("process_vm_writev", "runs without NetACC")):
        forbid = ctx.script("without_call.py", call)
        server = ctx.serve(lambda port, forbid=forbid: [program, "server", port], within=forbid)
        check(says in server.text(), f"netacc_run says {server.text()!r}")
        check(not mapped(server.pid), "the library is there")
        check("not possible here" in checked(program, forbid), f"netacc_check says {checked(program, forbid)!r}")
        ctx.run([program, "client", server.port, 40], within=forbid)
        ctx.run([program, "client", server.port, 40])


@case(modes=("both",), limit=BUILDS)
def static_begins_as_without(ctx):
    """What a static program finds when it begins is what it finds without the launcher, and it ends as it does then."""
    program = build(ctx, "begins.go", "begins-static", cgo=False)
    ignores = ctx.script("ignoring.py")
    for before in ([], ignores):
        plain = subprocess.run([*before, str(program), "a", "b c", ""], capture_output=True, timeout=30, check=False)
        ours = subprocess.run([*before, launcher(), str(program), "a", "b c", ""], capture_output=True, timeout=30, check=False)
        equal(ours.returncode, 7, "the status")
        equal(ours.stderr, b"", "what netacc_run says")
        equal(ours.stdout.decode(), plain.stdout.decode(), "what the program finds")


WAYS = ("execve", "execv", "execvp", "fexecve", "syscall", "execveat", "vfork", "shell")


@case(modes=("both",), limit=BUILDS)
def static_children(ctx):
    """Static programs that accelerated programs start: in each way nobody sees a difference, but that the library is there."""
    static = build(ctx, "traffic.go", "traffic-static", cgo=False)
    begins = build(ctx, "begins.go", "begins-static", cgo=False)
    said = {}
    for before in ([], [launcher()]):
        folder = ctx.dir / f"executes-{len(before)}"
        folder.mkdir()
        argv = [*before, *ctx.script("executes.py", folder, static, begins)]
        done = subprocess.run(argv, env=ctx.environment({"LANG": "C"}), capture_output=True, text=True, timeout=120, check=False)
        equal((done.returncode, done.stderr), (7, ""), "how it ends")
        lines = [line for line in done.stdout.splitlines() if not line.startswith("PPid:")]
        count = len(WAYS) + 2
        mapped = {way: is_there == "True" for way, is_there in (line.rsplit(" ", 1) for line in lines[:count])}
        equal(mapped, dict.fromkeys(WAYS, bool(before)) | {"no environment": False, "raises privileges": False}, "where the library is")
        said[len(before)] = lines[count:]
    equal(said[1], said[0], "what a program finds that replaces an accelerated one")


@case(modes=("both",), limit=BUILDS)
def static_children_of_go(ctx):
    """Static programs that Go programs start get the library, and nothing else is different."""
    static = build(ctx, "starts.go", "starts-static", cgo=False)
    begins = build(ctx, "begins.go", "begins-static", cgo=False)
    for parent in (static, build(ctx, "starts.go", "starts")):
        said = []
        for before in ([], [launcher()]):
            done = subprocess.run([*before, parent, "run", static, begins], env=ctx.environment({"LANG": "C"}), capture_output=True,
                                  text=True, timeout=120, check=False)
            equal((done.returncode, done.stderr), (0, ""), "how it ends")
            said.append([line for line in done.stdout.splitlines() if not line.startswith("PPid:")])
        plain, ours = said
        # The helper cannot see who the child is where /proc belongs to another namespace of processes.
        equal([line for line in ours if "false[" in line],
              ["namespace false[exit status 7]", "another user false[exit status 7]"], "children without the library")
        equal([line.replace("true[", "false[") for line in ours], plain, "what they say")


@case(modes=("both",), limit=BUILDS)
def static_children_accelerated(ctx):
    """A shell starts server and client; each is accelerated. Where a filter forbids to trace, they run plain and say nothing."""
    program = build(ctx, "echo.go", "echo-go-static", cgo=False)
    shell = ["sh", "-c", 'exec "$@"', "sh"]
    server = ctx.serve(lambda port: [*shell, program, "server", port])
    ctx.run([*shell, program, "client", server.port, 40])
    ctx.prove(server, accepts=40)
    for call in ("ptrace", "process_vm_writev"):
        forbid = ctx.script("without_call.py", call)
        server = ctx.serve(lambda port, forbid=forbid: [*shell, program, "server", port], within=forbid)
        ctx.run([*shell, program, "client", server.port, 40], within=forbid)
        equal(server.text(), "", "what the server's launcher says")
        check(not mapped(server.pid), "the library is there")


@case(modes=("both",), limit=BUILDS)
def static_peer_is_killed(ctx):
    """One side is killed: the other one's connections end, and a new process takes the place."""
    program = build(ctx, "traffic.go", "traffic-static", cgo=False)
    for _ in range(3):
        server, ask = traffic(ctx, program)
        waits = ctx.client([program, "held", f"127.0.0.1:{server.port}", 20])
        wait_until(lambda waits=waits: "held" in waits.text(), 30, "the client holds its connections")
        check(monitor.accepts_shm([server.pid]) >= 20, "the connections are over shared memory")
        server.kill()
        waits.result(30)
        server, ask = traffic(ctx, program)
        waits = ctx.client([program, "held", f"127.0.0.1:{server.port}", 20])
        wait_until(lambda waits=waits: "held" in waits.text(), 30, "the client holds its connections")
        waits.kill()
        ask("echo", 4, 10)


@case(modes=("both",), limit=BUILDS)
def switched_off(ctx):
    """NACC_ENABLE_GO=0, in the environment and in the configuration file."""
    program = build(ctx, "echo.go", "echo-go-cgo")
    conf = ctx.file("netacc.conf", b"[netacc]\nNACC_ENABLE_GO=0\nNACC_LOG_LEVEL=2\n")
    server = stays_on_tcp(ctx, program, "NACC_ENABLE_GO=0", NACC_CONFIG_FILE=conf)
    answer = monitor.show(server.pid)
    equal({s["reason"] for s in answer["sock"]}, {"go"}, f"the reason of its sockets ({answer})")
    ctx.log.unlink()
    server = ctx.serve(lambda port: [program, "server", port], env={"NACC_ENABLE_GO": 0, "NACC_LOG_LEVEL": 2})
    ctx.run([program, "client", server.port, 20])
    check("NACC_ENABLE_GO=0" in ctx.log.read_text(), f"the log says {ctx.log.read_text()!r}")
    equal(monitor.show(server.pid)["sock"], [], "sockets that the library sees")
    static = build(ctx, "echo.go", "echo-go-static", cgo=False)
    server = stays_on_tcp(ctx, static, "NACC_ENABLE_GO=0", NACC_ENABLE_GO=0)
    equal(monitor.show(server.pid)["sock"], [], "sockets that the library sees")
