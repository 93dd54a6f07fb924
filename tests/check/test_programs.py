"""Programs of every kind, judged before they are run."""

import os
import struct
import subprocess

from checking import ONE, as_nobody, ask, expect
from harness import ROOT, Skipped, check, equal, need
from matrix import case

SOURCE = b"int main(void) { return 0; }\n"


def build(ctx, name, *options, source=SOURCE):
    path = ctx.file(f"{name}.c", source)
    subprocess.run([need(os.environ.get("CC", "cc")), "-o", ctx.dir / name, path, *map(str, options)], check=True,
                   timeout=60)
    return ctx.dir / name


def judged(ctx, program, level, *parts, status=None, **extra):
    answer = ask(ctx, program, **extra)
    expect(answer.one(str(program), "acceleration"), level, *parts)
    equal(answer.status, status if status is not None else int(level in ("warn", "fail")), f"status for {program}")
    return answer


@case(modes=ONE)
def by_the_way_they_are_built(ctx):
    judged(ctx, build(ctx, "dynamic"), "ok", "possible")
    judged(ctx, build(ctx, "static", "-static"), "warn", "statically linked", "dynamically linked build")
    answer = judged(ctx, build(ctx, "musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"), "ok", "possible", "musl")
    expect(answer.one(str(ctx.dir / "musl"), "rdma"), "note", "not possible", "musl")
    old = ctx.file("ld-musl-old.so.1", b"\x7fELF")
    judged(ctx, build(ctx, "older", f"-Wl,--dynamic-linker={old}"), "warn", "older than 1.2.2", "Alpine 3.13")
    judged(ctx, build(ctx, "other", "-Wl,--dynamic-linker=/lib/ld-uClibc.so.0"), "warn", "ld-uClibc", "for glibc or musl")
    foreign = bytearray((ctx.dir / "dynamic").read_bytes())
    foreign[18:20] = struct.pack("<H", 8)  # EM_MIPS
    path = ctx.file("foreign", foreign)
    path.chmod(0o755)
    judged(ctx, path, "warn", "another architecture")


@case(modes=ONE, limit=300)
def go(ctx):
    source = ctx.file("main.go", b"package main\n\nfunc main() {}\n")
    env = ctx.environment({"GOCACHE": ctx.dir / "cache", "GO111MODULE": "off", "HOME": ctx.dir})
    subprocess.run([need("go"), "build", "-o", ctx.dir / "gopher", source], env=env, check=True, timeout=280)
    judged(ctx, ctx.dir / "gopher", "ok", "static Go program", "netacc_run")
    code = (ctx.dir / "gopher").read_bytes()
    # The function by which a thread gets its thread pointer is another one, up to Go 1.26 and since.
    for sets in map(bytes.fromhex, ("48c7c7 02100000 48c7c0 9e000000 0f05", "bf 02100000 b8 9e000000 0f05")):
        code = code.replace(sets, sets[:-2] + bytes.fromhex("cd80"))
    path = ctx.file("patched", code)
    path.chmod(0o755)
    judged(ctx, path, "warn", "Go program", "not a known one")


@case(modes=ONE)
def own_system_calls(ctx):
    """A program that waits by an instruction of its own: the number stands before it, or before the call of a function."""
    apps = ROOT / "tests" / "apps"
    source = (apps / "own_epoll.c").read_bytes()
    function = source.replace(b"static inline __attribute__((always_inline))", b"__attribute__((noinline))")
    for name, text, option in (("inlined", source, "-O1"), ("function", function, "-O1"), ("unoptimised", function, "-O0")):
        judged(ctx, build(ctx, name, option, "-pthread", f"-I{apps}", source=text), "warn", "calls ", "C library")


@case(modes=ONE)
def scripts(ctx):
    """A script is judged by its interpreter, however many stand between."""
    dynamic, static = build(ctx, "dynamic"), build(ctx, "static", "-static")

    def script(name, first):
        path = ctx.file(name, first.encode() + b"\n")
        path.chmod(0o755)
        return path
    direct = judged(ctx, script("direct", f"#!{dynamic} -x"), "ok", "possible")
    expect(direct.one(str(ctx.dir / "direct"), "program"), "ok", f"is a script; what runs is {dynamic}")
    judged(ctx, script("twice", f"#!{ctx.dir / 'direct'}"), "ok", "possible")
    judged(ctx, script("to-static", f"#!{static}"), "warn", "statically linked")
    judged(ctx, script("by-env", "#!/usr/bin/env sh"), "ok", "possible")
    judged(ctx, script("bare", "echo hello"), "ok", "possible")
    judged(ctx, script("lost", "#!/absent/interpreter"), "fail", "/absent/interpreter", "first line of the script")
    judged(ctx, script("device", "#!/dev/null"), "fail", "not a file")
    judged(ctx, script("no-env", "#!/usr/bin/env no-such-program-here"), "warn", "cannot be told")


@case(modes=ONE)
def io_uring(ctx):
    """liburing by DT_NEEDED, directly and by way of a library."""
    ring = build(ctx, "liburing.so.2", "-shared", "-fPIC", "-Wl,-soname,liburing.so.2", source=b"int ring;\n")
    needs = ("-Wl,--no-as-needed", f"-Wl,-rpath,{ctx.dir}")
    direct = judged(ctx, build(ctx, "direct", *needs, ring), "ok", "possible")
    expect(direct.one(str(ctx.dir / "direct"), "io_uring"), "note", "it needs liburing.so.2",
           "switch io_uring off")
    # A name with a slash is found without the linker's cache, which a test must not write to.
    middle = build(ctx, "libmiddle.so", "-shared", "-fPIC", f"-Wl,-soname,{ctx.dir}/libmiddle.so", *needs, ring,
                   source=b"int middle;\n")
    further = judged(ctx, build(ctx, "further", *needs, middle), "ok", "possible")
    expect(further.one(str(ctx.dir / "further"), "io_uring"), "note", "libmiddle.so needs liburing.so.2")


@case(modes=ONE)
def privileges(ctx):
    """Set-user-ID, set-group-ID and capabilities, for users whose privileges they raise and for others."""
    if os.getuid() != 0:
        raise Skipped("needs root, to make programs of other users")
    other, tool = as_nobody(ctx)
    raised = {"setuid": 0o4755, "setgid": 0o2755, "capable": 0o755}
    for name, mode in raised.items():
        path = build(ctx, name)
        path.chmod(mode)
    # A capability set of version 2 with CAP_NET_BIND_SERVICE, permitted and effective.
    os.setxattr(ctx.dir / "capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
    os.environ["NETACC_CHECK"] = tool
    judged(ctx, ctx.dir / "setuid", "warn", "set-user-ID", **other)
    judged(ctx, ctx.dir / "setgid", "warn", "set-group-ID", **other)
    judged(ctx, ctx.dir / "capable", "warn", "file capabilities", "AmbientCapabilities", **other)
    judged(ctx, build(ctx, "plain"), "ok", "possible", **other)
    secret = build(ctx, "secret")
    secret.chmod(0o711)
    judged(ctx, secret, "note", "cannot be told", "as a user who may read it", **other)
    mine = judged(ctx, ctx.dir / "setuid", "ok", "possible")
    expect(mine.one(str(ctx.dir / "setuid"), "privileges"), "note", "for others the loader drops LD_PRELOAD")


@case(modes=ONE)
def what_is_no_program(ctx):
    for name, why in (("no-such-program-here", "command not found"), (ctx.dir / "absent", "no such file"),
                      (ctx.dir, "it is a directory"), (ctx.file("plain", b"text"), "no permission to execute it"),
                      ("", "command not found")):
        answer = ask(ctx, name)
        equal(answer.status, 1, f"status for {name!r}")
        expect(answer.one(str(name) or '""', "program"), "fail", why, "HOST:PORT")
    cut = ctx.file("cut", build(ctx, "whole").read_bytes()[:40])
    cut.chmod(0o755)
    check(ask(ctx, cut).status in (0, 1), "an ELF file that is cut off")


@case(modes=ONE)
def names_and_arguments(ctx):
    """Looked up in PATH; what follows is the program's own; a colon in a name is none of a port."""
    odd = build(ctx, "a:1")
    answer = ask(ctx, "a:1", env={"PATH": f"{ctx.dir}:{os.environ['PATH']}"})
    expect(answer.one("a:1", "acceleration"), "ok", "possible")
    expect(ask(ctx, odd, "-q", "--json", "--port", "1").one(str(odd), "acceleration"), "ok")
    off = ask(ctx, odd, env={"NACC_ENABLE_RDMA_DEFAULT": 0})
    equal(off.status, 1, "status where the configuration leaves it on TCP")
    expect(off.all("host", "config")[-1], "warn", "NACC_ENABLE_RDMA_DEFAULT=0 (environment)")
