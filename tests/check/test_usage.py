"""Options, what is printed on a terminal, and what cannot be used."""

import json
import os
import re
import shutil
import subprocess

import terminals
from checking import HOSTS, ONE, ask, expect, run, tool
from harness import ROOT, check, equal
from matrix import case

ENA = HOSTS / "ec2-ena.json"
VIF = HOSTS / "ec2-vif.json"


@case(modes=ONE)
def options(ctx):
    text = run(ctx, "-h")
    equal((text.status, text.err), (0, ""), "help")
    for option in ("-i", "-a", "-f", "--drivers", "--rules", "--facts", "--record", "--json", "-q", "--verbose", "--fail-on",
                   "--color", "-h", "-v", "Exit status"):
        check(option in text.out, f"the help does not show {option}")
    check(re.fullmatch(r"netacc_check \d+\.\d+\.\d+( \([0-9a-f]+(-modified)?\))?\n", run(ctx, "-v").out), "version")
    for wrong in (["-Z"], ["--fail-on", "bad"], ["--facts"], ["--facts", ENA, "ls"], ["--record", "--json"],
                  ["-i"], ["a:99999"], ["::1:80"], ["localhost:"], ["localhost:80", "more"]):
        answer = run(ctx, *wrong)
        equal((answer.status, answer.out), (2, ""), f"status and output for {wrong}")
        check(answer.err.strip(), f"nothing is said of {wrong}")


@case(modes=ONE)
def levels(ctx):
    """What is shown and what counts."""
    def status(host, level):
        return run(ctx, "--facts", host, "--fail-on", level).status
    equal([status(ENA, x) for x in ("ok", "note", "warn", "fail")], [1, 1, 0, 0], "a host with notes")
    equal([status(VIF, x) for x in ("note", "warn", "fail")], [1, 1, 1], "a host with failures")
    quiet = run(ctx, "-q", "--facts", ENA)
    equal((quiet.status, quiet.out), (0, ""), "quiet where nothing is to be done")
    quiet = run(ctx, "-q", "--facts", VIF)
    first = [line.split()[0] for line in quiet.out.splitlines()]
    equal(set(first), {"warn", "fail", "why:", "do:"}, "quiet")
    plain, verbose = run(ctx, "--facts", ENA).out, run(ctx, "--verbose", "--facts", ENA).out
    check("why: " not in plain and "why: " in verbose, "reasons of notes")
    check(re.search(r"^20 ok, 2 note, 0 warn, 0 fail$", plain, re.M), f"the sum: {plain[-60:]}")


@case(modes=ONE)
def json_names(ctx):
    whole = json.loads(ask(ctx, "--facts", VIF).out)
    equal(sorted(whole), ["counts", "findings", "worst"], "names")
    equal(whole["worst"], "fail", "worst")
    equal(sorted(whole["counts"]), ["fail", "note", "ok", "warn"], "counts")
    for finding in whole["findings"]:
        equal(sorted(finding), ["check", "do", "level", "subject", "text", "why"], "names of a finding")
    check(sum(whole["counts"].values()) == len(whole["findings"]), "the counts add up")


def on_terminal(ctx, columns, *argv, **env):
    """What the tool writes to a terminal of `columns` columns."""
    terminal = terminals.Terminal(columns)
    environment = ctx.environment({"TERM": "xterm", **env})
    child = subprocess.Popen([tool(), *map(str, argv)], stdin=subprocess.DEVNULL, stdout=terminal.slave,
                             stderr=subprocess.STDOUT, env=environment)
    text = terminal.text()
    child.wait(30)
    return text


@case(modes=ONE)
def terminal(ctx):
    """Colours and folded lines on a terminal only; NO_COLOR and --color are heard."""
    piped = run(ctx, "--facts", VIF)
    check("\x1b" not in piped.out and max(map(len, piped.out.splitlines())) > 120, "a pipe gets plain, whole lines")
    shown = on_terminal(ctx, 80, "--facts", VIF)
    check("\x1b[33mwarn\x1b[0m" in shown, f"no colours: {shown[:100]!r}")
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    wide = [line for line in bare.splitlines() if len(line) > 80]
    check(not wide, f"wider than the terminal: {wide[:3]}")
    equal("".join(bare.split()), "".join(piped.out.split()), "words")
    check("\x1b" not in on_terminal(ctx, 80, "--facts", VIF, NO_COLOR="1"), "NO_COLOR")
    check("\x1b" in on_terminal(ctx, 80, "--facts", VIF, NO_COLOR=""), "an empty NO_COLOR says nothing")
    check("\x1b" not in on_terminal(ctx, 80, "--facts", VIF, TERM="dumb"), "a dumb terminal")
    check("\x1b" not in on_terminal(ctx, 80, "--color=never", "--facts", VIF), "--color=never")
    check("\x1b[1;31mfail\x1b[0m" in run(ctx, "--color=always", "--facts", VIF).out, "--color=always")


@case(modes=ONE)
def recordings_that_cannot_be_used(ctx):
    whole = VIF.read_bytes()
    for name, data, wanted in (
            ("cut", whole[:len(whole) // 2], "it is cut off"), ("empty", b"", "it is cut off"),
            ("binary", ctx.bytes(3000), "no recording"), ("other", b"{\"a\": 1}", "unknown field `a`"),
            ("newer", whole.replace(b'"format": 1', b'"format": 9'), "\"format\" is 9; allowed: 1"),
            ("deep", b"[" * 100000, "no recording"), ("long", b" " * (5 << 20), "longer than")):
        path = ctx.file(name, data)
        answer = run(ctx, "--facts", path)
        equal((answer.status, answer.out), (2, ""), f"status and output for a file that is {name}")
        check(str(path) in answer.err and wanted in answer.err, f"{name}: {answer.err}")
    for path in (ctx.dir / "absent", ctx.dir):
        answer = run(ctx, "--facts", path)
        equal(answer.status, 2, f"status for {path}")
        check(str(path) in answer.err, answer.err)


@case(modes=ONE)
def tables_of_drivers(ctx):
    """A user's own table is used; a wrong one is reported with file and line."""
    mine = ctx.file("mine", b"[ena]\nname = ours\nkind = physical\nlevel = fail\nwhy = it is red\ndo = paint it\n")
    answer = ask(ctx, "--drivers", mine, "-i", "ens5", "--facts", ENA)
    equal(answer.status, 1, "status")
    expect(answer.one("ens5", "driver"), "fail", "ours (physical)", "it is red", "paint it")
    wrong = ctx.file("wrong", b"[ena]\nlevel = good\ncolour = red\n")
    answer = run(ctx, "--drivers", wrong)
    equal((answer.status, answer.out), (2, ""), "a wrong table")
    check(f"{wrong}:2: level: \"good\"; allowed: ok, note, warn, fail" in answer.err, answer.err)
    check(f"{wrong}:3: unknown key \"colour\"" in answer.err, answer.err)
    for path in (ctx.dir / "absent", ctx.dir, ctx.file("binary", b"\xff\xfe\0" * 99)):
        answer = run(ctx, "--drivers", path)
        equal(answer.status, 2, f"status for {path}")
        check(str(path) in answer.err, answer.err)


@case(modes=ONE)
def configuration(ctx):
    """The file that the library would read is checked; a wrong one is a warning."""
    wrong = ctx.file("wrong.conf", b"[netacc]\nNACC_NO_SUCH=1\nNACC_ENABLE_RDMA_DEFAULT=0\n")
    found = ask(ctx, "-f", wrong).all("host", "config")
    equal([f["level"] for f in found], ["warn", "warn"], "levels")
    check(f"{wrong}:2: NACC_NO_SUCH: unknown key" in found[0]["text"], found[0])
    check(f"NACC_ENABLE_RDMA_DEFAULT=0 ({wrong}:3)" in found[1]["text"], found[1])
    for name, why in (("absent", "No such file"), (".", "not a regular file")):
        answer = ask(ctx, "-f", ctx.dir / name)
        equal((answer.status, answer.out), (2, ""), f"a mistyped -f {name}")
        check(f"netacc_check: -f: {ctx.dir / name}: {why}" in answer.err, answer.err)
    named = ask(ctx, "ls", env={"NACC_CONFIG_FILE": ctx.dir / "absent"})
    expect(named.one("host", "config"), "warn", "absent: No such file", "defaults")
    answer = ask(ctx, env={"NACC_CONNECT_RDMA_PERCENT": 30})
    check(any("30 % of connections" in f["text"] and "(environment)" in f["text"] for f in answer.all("host", "config")),
          answer.out)


@case(modes=ONE)
def the_place_of_the_library(ctx):
    """make install finds the linker's folder without a compiler, and a place where the linker does not look is named."""
    asked = subprocess.run(["make", "-s", "-C", ROOT, "CC=/nonexistent", "--eval", "place: ; @echo $(LIBDIR)", "place"],
                           capture_output=True, text=True, timeout=60, env=os.environ | {"MAKEFLAGS": ""})
    own = f"/usr/lib/{os.uname().machine}-linux-gnu"
    check(asked.stdout.strip() == own or not os.path.isdir(own), f"{asked.stdout} {asked.stderr}")
    for folder in ("bin", "lib64"):
        (ctx.dir / folder).mkdir()
    shutil.copy(tool(), ctx.dir / "bin" / "netacc_check")
    shutil.copy(ROOT / "build" / "libnetacc-preload.so", ctx.dir / "lib64")
    os.environ["NETACC_CHECK"] = str(ctx.dir / "bin" / "netacc_check")
    expect(ask(ctx).one("host", "library"), "warn", f"{ctx.dir}/lib64/", "does not find it by its name", "ldconfig")


@case(modes=ONE)
def output_that_nobody_takes(ctx):
    with open("/dev/full", "w") as full:
        done = subprocess.run([tool(), "--facts", ENA], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    equal(done.returncode, 2, "status with a full disk")
    check("the output cannot be written" in done.stderr, done.stderr)
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([tool(), "--facts", ENA], stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write_end)
    equal((done.returncode, done.stderr), (0, ""), "a reader that has seen enough")
