"""The RPM: what is in it, and its life in a folder; there is no system with rpm here to install it in."""

import os
import subprocess

import made
from harness import ROOT, check, equal, need
from matrix import case


def rpm(*argv):
    done = subprocess.run([need("rpm"), *map(str, argv)], capture_output=True, text=True)
    check(done.returncode == 0, f"rpm {argv}: {done.stderr}")
    return done.stdout.split()


@case(modes=made.ONE)
def what_is_in_it(ctx):
    """What every RPM has at the places that RPMs have; the documentation is marked as such, the configuration too."""
    found = set(rpm("-qpl", made.rpm()))
    wanted = {f"/usr/bin/{p}" for p in made.programs()} | {f"/usr/share/man/{page}" for page in made.pages()}
    for p in made.programs():
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


def same(file, path):
    return os.fstat(file.fileno()).st_ino == path.stat().st_ino
