"""The RPM: what is in it, its life in a folder, and in a clean system, which is Debian's: there is no rpm system here,
so that the dependencies are not looked at and the linker is told of lib64 as it is there of itself.
"""

import os
import subprocess

import made
import redis_inside
from harness import ROOT, check, equal, need
from matrix import case
from roots import Root, release

NEEDS = ("before", "rpm", "system")


def rpm(*argv):
    done = subprocess.run([need("rpm"), *map(str, argv)], capture_output=True, text=True)
    check(done.returncode == 0, f"rpm {argv}: {done.stderr}")
    return done.stdout.split()


@case(modes=made.ONE)
def what_is_in_it(ctx):
    """What every RPM has at the places that RPMs have; the documentation is marked as such, the configuration too."""
    found = set(rpm("-qpl", made.rpm()))
    wanted = {f"/usr/bin/{p}" for p in made.programs() + made.scripts()} | {f"/usr/share/man/{page}" for page in made.pages()}
    for p in made.programs() + made.scripts():
        wanted |= {f"/usr/share/bash-completion/completions/{p}", f"/usr/share/zsh/site-functions/_{p}",
                   f"/usr/share/fish/vendor_completions.d/{p}.fish"}
    wanted |= {"/usr/lib64/libnetacc-preload.so", "/etc/netacc.conf", "/usr/share/netacc/grafana-netacc.json"}
    equal(sorted(wanted - found), [], "missing in the package")
    equal(sorted(f for f in found - wanted if not f.startswith("/usr/share/doc/netacc/")), [], "more in the package")
    equal(rpm("-qp", "--configfiles", made.rpm()), ["/etc/netacc.conf"], "configuration files")
    check("/usr/share/doc/netacc/DEPLOY.md" in rpm("-qp", "--docfiles", made.rpm()), "documentation")
    check("libc.so.6()(64bit)" in rpm("-qp", "--requires", made.rpm()), "it needs no glibc")


@case(modes=made.ONE)
def install_change_remove(ctx):
    root = ctx.dir / "root"
    root.mkdir()
    into = ("--root", root, "--nodeps")
    rpm(*into, "-i", made.rpm())
    out = subprocess.run([root / "usr/bin/netacc_run", "--version"], capture_output=True, text=True).stdout
    check(out.startswith("netacc_run"), out)
    equal((root / "etc/netacc.conf").read_bytes(), (ROOT / "dist/netacc.conf").read_bytes(), "the configuration")
    with open(root / "usr/lib64/libnetacc-preload.so", "rb") as held:
        (root / "etc/netacc.conf").write_text("[netacc]\nNACC_DEBUG=1\n")
        rpm(*into, "-U", "--force", made.rpm())
        check(held.read(4) == b"\x7fELF" and not same(held, root / "usr/lib64/libnetacc-preload.so"),
              "the library was written over")
    equal((root / "etc/netacc.conf").read_text(), "[netacc]\nNACC_DEBUG=1\n", "the configuration after an upgrade")
    rpm(*into, "-e", "netacc")
    check(not (root / "usr/bin/netacc_run").exists() and not (root / "usr/lib64/libnetacc-preload.so").exists(), "left")
    equal(sorted(p.name for p in (root / "etc").iterdir() if p.is_file()), ["netacc.conf.rpmsave"], "the configuration")


class Rpm:
    """This machine's rpm on a clean system, whose linker is told of lib64."""

    def __init__(self, root):
        self.root = root
        # The mounts of the system, seen from outside of it.
        self.command = [*root.within[:2], need("rpm"), "--root", root.place / "root", "--dbpath", "/tmp/rpmdb"]
        with open(root.path("/etc/ld.so.conf.d/lib64.conf"), "w") as f:
            f.write("/usr/lib64\n")

    def attempt(self, *argv):
        return subprocess.run([str(a) for a in (*self.command, *argv)], capture_output=True, text=True)

    def __call__(self, *argv):
        # Debian's rpm advises against itself on the standard error.
        done = self.attempt(*argv)
        check(done.returncode == 0, f"rpm {argv}: {done.stderr}")
        return done.stdout

    def end(self):
        self.root.run("rm", "/etc/ld.so.conf.d/lib64.conf")
        self.root.run("ldconfig")


@case(modes=made.ONE)
def install_use_upgrade_erase(ctx):
    """A whole life. A redis that was started with the library of the release before goes on through all of it."""
    root = Root(ctx, release())
    before = root.files()
    manage = Rpm(root)
    manage("--nodeps", "-i", made.only(made.BEFORE, "netacc-[0-9]*.rpm"))
    check("(before" in root.run("netacc_ss", "-v"), "the release before")
    check("libnetacc-preload.so" in root.run("ldconfig", "-p"), "the linker's cache after the installation")
    redis_inside.by_the_manual(root)
    server = redis_inside.serve(root, "netacc_run")
    redis_inside.load(root, "netacc_run")
    accepted = redis_inside.counters(root, server)["accepts_shm"]
    check(accepted >= 16, f"{accepted} connections over shared memory")
    mine = root.text("/etc/netacc.conf") + "# mine\n"
    with open(root.path("/etc/netacc.conf"), "w") as f:
        f.write(mine)

    manage("--nodeps", "-U", made.rpm())
    equal(manage("-q", "netacc").count("\n"), 1, "versions that are installed")
    check("(before" not in root.run("netacc_ss", "-v"), "the programs after the upgrade")
    equal(root.text("/etc/netacc.conf"), mine, "the configuration after the upgrade")
    # Everything else is as it was packed.
    verified = [line.split()[-1] for line in manage.attempt("-V", "--nodeps", "netacc").stdout.splitlines()]
    equal(verified, ["/etc/netacc.conf"], "what rpm finds changed")
    redis_inside.load(root, "netacc_run")
    count = redis_inside.counters(root, server)["accepts_shm"]
    check(count >= accepted + 16, f"{count} connections over shared memory after the upgrade, {accepted} before")
    check(root.run("netacc_check", "redis-server").startswith("ok "), "netacc_check")

    manage("-e", "netacc")
    check("libnetacc-preload.so" not in root.run("ldconfig", "-p"), "the linker's cache after the removal")
    equal(root.run("redis-cli", "-p", redis_inside.PORT, "ping"), "PONG\n", "the server that runs on")
    server.end()
    equal(root.text("/etc/netacc.conf.rpmsave"), mine, "the configuration after the removal")
    manage.end()
    equal(root.files() ^ before, {"/etc/netacc.conf.rpmsave"}, "what is left, and what is gone")


def same(file, path):
    return os.fstat(file.fileno()).st_ino == path.stat().st_ino
