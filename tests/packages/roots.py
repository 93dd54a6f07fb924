"""Clean systems: made once by debootstrap, and copied on write for each test."""

import os
import shutil
import subprocess

import host
from harness import ROOT, START_LIMIT, Failure, Skipped, check, need

ROOTS = ROOT / "build" / "roots"
# Where debootstrap is to fetch from; of itself it knows Debian's mirrors.
MIRROR = os.environ.get("NETACC_DEBIAN_MIRROR")
# Debian 11: glibc 2.31, the oldest release that Debian's mirrors still have.
OLD = "bullseye"
# Those of Ubuntu. Debian has no keyring for them, so that the certificate of the mirror stands for their signature, and
# debootstrap has no script for those that came after it, which the one of an older release makes.
UBUNTU = ("jammy", "noble")
UBUNTU_MIRROR = os.environ.get("NETACC_UBUNTU_MIRROR") or "https://archive.ubuntu.com/ubuntu"
# A release is tried on these: Debian 11, 12 and 13, and Ubuntu 22.04 and 24.04.
SUPPORTED = (OLD, "bookworm", "trixie", *UBUNTU)
PACKAGES = "redis-server,redis-tools"
# Seconds, for one system.
LIMIT = 900


def release():
    """The Debian release of this machine, for which its packages are built."""
    lines = open("/etc/os-release").read().splitlines()
    words = {k: v.strip('"') for k, _, v in (line.partition("=") for line in lines)}
    if words.get("ID") != "debian":
        raise Skipped(f"this is {words.get('PRETTY_NAME')}, and the package is one for Debian")
    return words["VERSION_CODENAME"]


def pristine(system):
    """The folder of a system as debootstrap leaves it. `system` is a release, or RELEASE+PACKAGE for one with a package more."""
    suite, _, more = system.partition("+")
    packages = f"{PACKAGES},{more}" if more else PACKAGES
    place, stamp = ROOTS / system, ROOTS / f"{system}.made"
    if stamp.exists() and stamp.read_text() == packages:
        return place
    fresh = ROOTS / f"{system}.new"
    if suite in UBUNTU:
        how, source = ["--no-check-gpg", "--components=main,universe"], [UBUNTU_MIRROR, "gutsy"]
    else:
        how, source = [], [MIRROR] if MIRROR else []
    for old in (fresh, place):
        shutil.rmtree(old, ignore_errors=True)
    ROOTS.mkdir(parents=True, exist_ok=True)
    # In namespaces of their own, its mounts and processes end with it, also where a test is killed.
    apart = [need("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run([*apart, need("debootstrap"), "--variant=minbase", f"--include={packages}", *how, suite, fresh, *source],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        shutil.rmtree(fresh, ignore_errors=True)
        raise Skipped(f"no {system} by debootstrap: {' / '.join(done.stdout.splitlines()[-2:])}")
    fresh.rename(place)
    stamp.write_text(packages)
    return place


def prepare(*suites):
    """Makes what the tests need before their time begins; a test reports itself what could not be made. Each of `suites` is a
    function that names one."""
    if os.getuid() == 0:
        for suite in suites:
            try:
                pristine(suite())
            except (Skipped, Failure, subprocess.TimeoutExpired) as problem:
                print(f"roots: {problem}", flush=True)


# The copy is an overlay; where there are none (in a container on an overlay) it is a copy. proc is the outer one, so that
# the test sees processes by the same numbers.
SETUP = """
set -e
mkdir -p "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root" 2>/dev/null || cp -a "$1/." "$2/root/"
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
ip link set lo up
echo ready
exec sleep infinity
"""


class Root:
    """A clean system with a network of its own, which ends with the test."""

    def __init__(self, ctx, suite):
        if os.getuid() != 0:
            raise Skipped("needs root, for a system of its own")
        lower = pristine(suite)
        self.ctx, self.place = ctx, ctx.dir / f"system-{suite}"
        self.place.mkdir()
        self.holder = ctx.spawn([need("unshare"), "--mount", "--net", "sh", "-c", SETUP, "sh", lower, self.place])
        host.wait_until(self._ready, START_LIMIT, f"a {suite} system")
        space = f"/proc/{self.holder.pid}/ns"
        self.within = [need("nsenter"), f"--mount={space}/mnt", f"--net={space}/net", need("chroot"),
                       str(self.place / "root")]

    def _ready(self):
        check(self.holder.running(), f"no system: {self.holder.text()}")
        return self.holder.stdout() == "ready\n"

    def environment(self):
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root",
                "DEBIAN_FRONTEND": "noninteractive"}

    def attempt(self, *argv, env=None):
        """Runs a command in it to its end; `env` is for that alone, not for what leads there."""
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        return subprocess.run([*self.within, "env", *settings, *map(str, argv)], env=self.environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def run(self, *argv, env=None):
        done = self.attempt(*argv, env=env)
        if done.returncode:
            raise Failure(f"{' '.join(map(str, argv))} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout

    def start(self, *argv):
        """Starts a command in it, as a process of the test."""
        return self.ctx.spawn(argv, within=self.within, env=self.environment() | {"NACC_LOG_PATH": "/tmp/netacc.log"})

    def path(self, path):
        """A file of it, seen from outside by way of the process that holds it."""
        return f"/proc/{self.holder.pid}/root{self.place}/root{path}"

    def put(self, source, target):
        shutil.copy(source, self.path(target))
        return target

    def text(self, path):
        with open(self.path(path), errors="replace") as f:
            return f.read()

    def there(self, path):
        return os.path.lexists(self.path(path))

    def files(self):
        """All files but those that administration itself writes."""
        skipped = r"\( -path /proc -o -path /dev -o -path /sys -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg -o -path /var/cache \)"
        return set(self.run("sh", "-c", f"find / {skipped} -prune -o ! -type d -print").split("\n"))
