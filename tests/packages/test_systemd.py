"""The files for systemd that are installed, loaded by a systemd that is process 1 of a clean system."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import host
import made
import redis_inside
from harness import START_LIMIT, Skipped, check, need
from matrix import case
from roots import Root, release
from test_debian import dpkg

NEEDS = ("deb", "system with systemd")

EXAMPLES = "/usr/share/doc/netacc/examples"
METRICS = "http://127.0.0.1:9467/metrics"

# What a container's manager does before it executes systemd: kernel file systems, devices, and a root that is one.
BOOT = """
set -e
mount --rbind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
umount -l dev
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
for device in null zero full random urandom tty; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir outside
pivot_root . outside
umount -l outside
exec env -i container=netacc PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal --show-status=0
"""


class Cgroup:
    """A group of the second kind, below which systemd makes its own."""

    def __init__(self, name):
        mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        places = [pathlib.Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
        if not places:
            raise Skipped("no cgroup2 is mounted")
        self.place = places[0] / name

    def __enter__(self):
        try:
            self.place.mkdir()
        except OSError as error:
            raise Skipped(f"no group of its own: {error}") from None
        return self.place

    def __exit__(self, *_):
        folders = [pathlib.Path(folder) for folder, *_ in os.walk(self.place, topdown=False)]
        for folder in folders:
            host.wait_until(lambda: removed(folder), START_LIMIT, f"{folder} has no process")


def removed(folder):
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


class Booted:
    """The system after systemd has started what it starts."""

    def __init__(self, ctx, root, cgroup):
        enter = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(cgroup), *root.within[:3], need("unshare"), "--cgroup", "--pid",
                 "--mount", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", BOOT, "sh", str(root.place / "root")]
        self.holder = ctx.spawn(enter)
        try:
            self.first = host.wait_until(self._first, START_LIMIT, "systemd is executed")
            host.wait_until(lambda: self.attempt("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"), 60,
                            "systemd has booted")
        except BaseException:
            self.end()
            raise

    def _first(self):
        check(self.holder.running(), f"no systemd: {self.holder.text()}")
        return next((pid for pid in host.children(self.holder.pid) if "systemd\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()), None)

    def attempt(self, *argv, env=None):
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        return subprocess.run([need("nsenter"), "-t", str(self.first), "--all", "--root", "--wd", "env", *settings, *map(str, argv)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def run(self, *argv, env=None):
        done = self.attempt(*argv, env=env)
        check(done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}")
        return done.stdout

    def main_process(self, unit):
        """Its number within, and the user that it runs as."""
        pid = self.run("systemctl", "show", "-P", "MainPID", unit).strip()
        check(pid != "0", f"{unit} has no process: {self.run('systemctl', 'status', '--no-pager', unit)}")
        status = self.run("cat", f"/proc/{pid}/status")
        return pid, int(re.search(r"^Uid:\s+(\d+)", status, re.M)[1])

    def scrape(self):
        get = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
        done = subprocess.run([need("nsenter"), "-t", str(self.first), "--net", sys.executable, "-c", get, METRICS], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    def end(self):
        # unshare itself ignores SIGTERM; all processes of the system end with their first one.
        for pid in host.children(self.holder.pid):
            os.kill(pid, signal.SIGKILL)
        self.holder.popen.wait(START_LIMIT)


@case(modes=made.ONE, seldom=True, limit=240)
def services_of_systemd(ctx):
    """The exporter runs as a user of its own and sees a service of another user, which a drop-in starts with NetACC."""
    root = Root(ctx, f"{release()}+systemd")
    dpkg(root, "--install", root.put(made.deb(), "/tmp/netacc.deb"))
    root.run("cp", f"{EXAMPLES}/netacc-metrics.service", "/etc/systemd/system/")
    root.run("install", "-D", f"{EXAMPLES}/netacc.systemd.conf", "/etc/systemd/system/redis-server.service.d/netacc.conf")
    with Cgroup(f"netacc-test-{os.getpid()}") as cgroup:
        system = Booted(ctx, root, cgroup)
        try:
            served(system)
        finally:
            system.end()


def served(system):
    system.run("systemctl", "start", "netacc-metrics", "redis-server")
    redis, redis_user = system.main_process("redis-server")
    host.wait_until(lambda: system.attempt("redis-cli", "-p", redis_inside.PORT, "ping").stdout == "PONG\n", START_LIMIT, "redis answers")
    library = {"LD_PRELOAD": "libnetacc-preload.so"}
    system.run("redis-benchmark", "-p", redis_inside.PORT, "-n", 2000, "-c", 8, "-t", "set", "-q", env=library)
    count = json.loads(system.run("netacc_ss", "-p", redis, "-s", "cnt", "--json"))["cnt"]
    check(count["accepts_shm"] >= 8, f"connections of redis over shared memory: {count['accepts_shm']}")
    page = host.wait_until(system.scrape, START_LIMIT, f"the exporter answers: {system.run('systemctl', 'status', '--no-pager', 'netacc-metrics')}")
    check(f'netacc_process_info{{pid="{redis}",program="redis-server"' in page, f"redis is not among the metrics: {page[:2000]}")
    _, user = system.main_process("netacc-metrics")
    check(0 not in (user, redis_user) and user != redis_user, f"users of the exporter and of redis: {user}, {redis_user}")
    system.run("systemctl", "stop", "netacc-metrics")
    check(not system.scrape(), "the exporter answers after its stop")
    failed = system.run("systemctl", "--failed", "--no-legend", "--plain")
    check("netacc" not in failed and "redis" not in failed, f"services that failed: {failed}")
