"""Completions, requested as users do it: by the Tab key, in the shells themselves."""

import os
import pty
import select
import signal
import subprocess
import time

import made
from harness import ROOT, START_LIMIT, Failure, check, equal, need
from matrix import case

NEEDS = ()

FOLDER = ROOT / "build" / "completions"


class Bash:
    """An interactive bash on a terminal, with the completions of Debian and ours."""

    def __init__(self, ctx):
        start = ctx.file("bashrc", b"""
PS1='> '; PATH="$PWD/bin:$PATH"; bind 'set bell-style none'; bind 'set enable-bracketed-paste off'
bind 'set show-all-if-ambiguous on'; bind 'set completion-query-items 0'; bind 'set page-completions off'
. /usr/share/bash-completion/bash_completion
""" + b"".join(b". %s\n" % os.fsencode(p) for p in sorted((FOLDER / "bash").iterdir())))
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(ctx.dir)
            os.execv(need("bash"), ["bash", "--noprofile", "--rcfile", str(start), "-i"])
        self.pid = pid
        self.text = ""
        self.heard("> ")

    def heard(self, words):
        end = time.monotonic() + START_LIMIT
        while words not in self.text:
            if not select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
                raise Failure(f"bash does not say {words!r}: {self.text!r}")
            self.text += os.read(self.terminal, 4096).decode(errors="replace")
        said, self.text = self.text, ""
        return said

    def completed(self, line, words):
        """`words` come after the key was pressed behind `line`."""
        os.write(self.terminal, line.encode() + b"\t")
        said = self.heard(words)
        # Clears the line.
        os.write(self.terminal, b"\x15\x0becho d\\one\n")
        # With the prompt: what is typed before bash reads again would be edited by the terminal, not by bash.
        self.heard("\ndone\r\n> ")
        return said

    def end(self):
        # A signal that comes just before bash waits for a key would be handled after the key.
        os.close(self.terminal)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@case(modes=made.ONE)
def in_bash(ctx):
    (ctx.dir / "bin").mkdir()
    command = ctx.file("bin/netacc-test-command", b"#!/bin/sh\n")
    command.chmod(0o755)
    ctx.file("settings-of-mine.conf", b"")
    ctx.file("bin/netacc_ctl", b"""#!/bin/sh
printf 'Pid   Program    State\\n4321  a-service  on\\n4322  $(touch${IFS}wrong)  on\\n4323  `touch\\twrong`  on\\n'
""").chmod(0o755)
    bash = Bash(ctx)
    try:
        press_the_key(bash)
    finally:
        bash.end()
    check(not (ctx.dir / "wrong").exists(), "the name of a process was executed")


def press_the_key(bash):
    bash.completed("netacc_run -f settings-of", "-mine.conf")
    bash.completed("netacc_run netacc-test-c", "ommand")
    bash.completed("netacc_run -p 4 -T netacc-test-c", "ommand")
    # From the command on it is the command's own completion: what an option of ours looks like is none.
    bash.completed("netacc_run netacc_ss --js", "on ")
    bash.completed("netacc_ss --js", "on ")
    bash.completed("netacc_ss -s so", "ck")
    bash.completed("netacc_check --fail-on fa", "on fail")
    bash.completed("netacc_ctl stat", "us ")
    bash.completed("run_with_netacc netacc-test-c", "ommand")
    bash.completed("netacc_ss -s sock state li", "sten")
    # netacc_ctl as it may answer on a host with other users: a name is a name, and never a command.
    for line in ("netacc_ctl off a-serv", "netacc_ss a-serv", "netacc_ss -p a-serv"):
        check("wrong" not in bash.completed(line, "ice"), line)
    bash.completed("netacc_ctl -w 3 status 43", "21")
    bash.completed("netacc_check netacc-test-c", "ommand")


@case(modes=made.ONE)
def in_fish(ctx):
    """fish says what it would offer."""
    (ctx.dir / "bin").mkdir()
    command = ctx.file("bin/netacc-test-command", b"#!/bin/sh\n")
    command.chmod(0o755)
    for line, wanted in (("netacc_ss --js", "--json"), ("netacc_run -p 4 netacc-test-c", "netacc-test-command"),
                         ("netacc_run netacc_ss --js", "--json"), ("netacc_check --fail-on fa", "fail"),
                         ("netacc_ctl of", "off"), ("netacc_ctl off al", "all"), ("netacc_ss -s sock state li", "listen"),
                         ("run_with_netacc netacc-test-c", "netacc-test-command")):
        script = "".join(f"source {p};" for p in sorted((FOLDER / "fish").iterdir())) + f"complete -C '{line}'"
        done = subprocess.run([need("fish"), "--no-config", "-c", script], capture_output=True, text=True,
                              cwd=ctx.dir, env=os.environ | {"HOME": str(ctx.dir), "PATH": f"{ctx.dir}/bin:{os.environ['PATH']}"})
        offers = [offer.split("\t")[0] for offer in done.stdout.splitlines()]
        check(wanted in offers, f"{line}: {offers} {done.stderr}")


@case(modes=made.ONE)
def in_zsh(ctx):
    """zsh takes them as completions of our programs, and finds no mistake in them."""
    for program in made.programs() + made.scripts():
        done = subprocess.run([need("zsh"), "-f", "-n", FOLDER / "zsh" / f"_{program}"], capture_output=True, text=True)
        equal((done.returncode, done.stderr), (0, ""), program)
    script = f"fpath=({FOLDER}/zsh $fpath); autoload -Uz compinit; compinit -D -u; print -l ${{(k)_comps[(I)*netacc*]}}"
    done = subprocess.run([need("zsh"), "-f", "-c", script], capture_output=True, text=True, cwd=ctx.dir)
    equal(sorted(done.stdout.split()), sorted(made.programs() + made.scripts()), f"programs that zsh completes {done.stderr}")
