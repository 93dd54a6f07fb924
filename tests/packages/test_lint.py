"""What distributions' own judges say of the packages. Each exception has its reason beside it, in dist/."""

import subprocess

import made
from harness import ROOT, check, need
from matrix import case

NEEDS = ("deb", "rpm")


@case(modes=made.ONE)
def lintian(ctx):
    packages = [made.deb(), made.only(made.PACKAGES, "netacc-dbgsym_*.deb")]
    done = subprocess.run([need("lintian"), "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", *packages],
                          capture_output=True, text=True)
    check(done.returncode == 0, f"{done.stdout}{done.stderr}")


@case(modes=made.ONE)
def rpmlint(ctx):
    packages = [made.rpm(), made.only(made.PACKAGES, "netacc-debuginfo-*.rpm")]
    done = subprocess.run([need("rpmlint"), "--rpmlintrc", ROOT / "dist/netacc.rpmlintrc", *packages], capture_output=True, text=True)
    check(done.returncode == 0 and " 0 errors, 0 warnings" in done.stdout, f"{done.stdout}{done.stderr}")


@case(modes=made.ONE)
def every_exception_has_a_reason(ctx):
    """The line before an exception is a comment, and each exception is still one: without it there is a complaint."""
    for file in ("netacc.lintian-overrides", "netacc.rpmlintrc"):
        before = ""
        for line in (ROOT / "dist" / file).read_text().splitlines():
            check(line.startswith("#") or before, f"{file}: no reason for {line}")
            before = line


@case(modes=made.ONE)
def systemd(ctx):
    """The unit is one that systemd loads; the program is taken from where it was built."""
    unit = (ROOT / "dist/examples/netacc-metrics.service").read_text()
    check("ExecStart=/usr/bin/netacc_ss " in unit, "the unit's program")
    file = ctx.file("netacc-metrics.service", unit.replace("/usr/bin/netacc_ss", str(ROOT / "build/netacc_ss")).encode())
    done = subprocess.run([need("systemd-analyze"), "verify", "--man=no", file], capture_output=True, text=True)
    check(done.returncode == 0 and "netacc-metrics" not in done.stderr, f"{done.stdout}{done.stderr}")
    # Ten times what systemd calls the exposure, of which 100 is the most.
    done = subprocess.run([need("systemd-analyze"), "security", "--offline=true", "--threshold=25", "--no-pager", file], capture_output=True, text=True)
    check(done.returncode == 0, f"{done.stdout[-200:]}{done.stderr}")
