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

NEEDS = ("rpm", "system")


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


@case(modes=made.ONE)
def use_in_a_system(ctx):
    root = Root(ctx, release())
    space = root.within[:2]  # Its mounts, from outside: rpm is this machine's.
    manage = [*space, need("rpm"), "--root", root.place / "root", "--dbpath", "/tmp/rpmdb"]
    with open(root.path("/etc/ld.so.conf.d/lib64.conf"), "w") as f:
        f.write("/usr/lib64\n")
    before = root.files()
    done = subprocess.run([*map(str, manage), "--nodeps", "-i", str(made.rpm())], capture_output=True, text=True)
    # Debian's rpm advises against itself.
    check(done.returncode == 0, f"installing it: {done.stderr}")
    root.run("ldconfig")
    check("netacc" in subprocess.run([*map(str, manage), "-qa"], capture_output=True, text=True).stdout, "rpm knows it")
    redis_inside.by_the_manual(root)
    # Everything is as it was packed; rpm says nothing then.
    verified = subprocess.run([*map(str, manage), "-V", "--nodeps", "netacc"], capture_output=True, text=True)
    equal((verified.returncode, verified.stdout), (0, ""), "what rpm finds changed")
    server = redis_inside.serve(root, "netacc_run")
    redis_inside.load(root, "netacc_run")
    check(redis_inside.counters(root, server)["accepts_shm"] > 0, "no connection over shared memory")
    check(root.run("netacc_check", "redis-server").startswith("ok "), "netacc_check")
    done = subprocess.run([*map(str, manage), "-e", "netacc"], capture_output=True, text=True)
    check(done.returncode == 0, f"erasing it: {done.stderr}")
    equal(root.run("redis-cli", "-p", redis_inside.PORT, "ping"), "PONG\n", "the server that runs on")
    root.run("ldconfig")
    equal(root.files() ^ before, set(), "what is left, and what is gone")


def same(file, path):
    return os.fstat(file.fileno()).st_ino == path.stat().st_ino
