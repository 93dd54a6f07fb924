"""What Prometheus gets of us: the alert rules, the scrape job and the unit that serves the metrics."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request

import host
import monitor
from harness import ROOT, Skipped, check, equal, need
from host import wait_until
from matrix import case
from seeing import ONE, begin, run

EXAMPLES = ROOT / "dist" / "examples"


def promtool(ctx, *argv):
    done = subprocess.run([need("promtool"), *map(str, argv)], cwd=ctx.dir, capture_output=True, text=True, timeout=60)
    check(done.returncode == 0, f"promtool {argv}: {done.stdout} {done.stderr}")


@case(modes=ONE)
def rules(ctx):
    """The rules are well formed, alert when they should and only then, and use metrics that there are."""
    for file in (EXAMPLES / "netacc.rules.yml", EXAMPLES / "netacc.prometheus.yml", ROOT / "tests/ss/netacc.rules.test.yml"):
        shutil.copy(file, ctx.dir)
    promtool(ctx, "check", "rules", "netacc.rules.yml")
    promtool(ctx, "check", "config", "netacc.prometheus.yml")
    promtool(ctx, "test", "rules", "netacc.rules.test.yml")
    page = (ROOT / "man" / "netacc_ss.1").read_text()
    for name in set(re.findall(r"\bnetacc_[a-z_]+\b", (EXAMPLES / "netacc.rules.yml").read_text())) - {"netacc_ss"}:
        check(name.removesuffix("_total") in page, f"no metric {name}")


LISTENS = """
import socket, sys
one = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
one.accept()
"""


def listening(ctx, port):
    proc = ctx.spawn([sys.executable, "-c", LISTENS, port], "server")
    wait_until(lambda: "ready" in proc.stdout(), 30, "the listener")
    return proc


@case(modes=ONE, limit=180)
def a_real_prometheus(ctx):
    """Prometheus scrapes netacc_ss, and a listener that nobody finds comes to be an alert."""
    port = host.free_port()
    # The name of the rendezvous is taken by somebody else, so the listener's own reason is name-taken.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
        first = listening(ctx, port)
        [name] = [n for n, *_ in host.abstract_names() if n.endswith(f"/{port}")]
        first.kill()
        wait_until(lambda: name not in {n for n, *_ in host.abstract_names()}, 30, "the name is free")
        taken.bind("\0" + name.lstrip("@"))
        taken.listen()
        listening(ctx, port)
        exporter = begin(ctx, "--serve", "localhost:0")
        wait_until(lambda: "/metrics" in exporter.text(), 30, "it serves")
        target = re.search(r"http://(\S+)/metrics", exporter.text())[1]
        with urllib.request.urlopen(f"http://{target}/healthz", timeout=30) as health:
            equal((health.status, health.read()), (200, b"ok\n"), "/healthz")
        text = (EXAMPLES / "netacc.prometheus.yml").read_text().replace("127.0.0.1:9467", target)
        ctx.file("prometheus.yml", ("global: { scrape_interval: 1s, evaluation_interval: 1s }\n" + text).encode())
        alerts = (EXAMPLES / "netacc.rules.yml").read_text().replace("for: 5m", "for: 1s")
        ctx.file("netacc.rules.yml", alerts.encode())
        at = f"127.0.0.1:{host.free_port()}"
        ctx.spawn([need("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                   f"--web.listen-address={at}"], "tool", cwd=ctx.dir)

        def firing():
            try:
                with urllib.request.urlopen(f"http://{at}/api/v1/alerts", timeout=5) as answer:
                    found = json.load(answer)["data"]["alerts"]
            except OSError:
                return None
            return [a for a in found if a["labels"]["alertname"] == "NetaccListenerNotFound" and a["state"] == "firing"]
        [alert] = wait_until(firing, 90, "the alert")
        equal(alert["labels"]["reason"], "name-taken", "reason")


@case(modes=ONE)
def the_rights_of_the_unit(ctx):
    """A user with the unit's capabilities sees the processes of others; without them it sees none, and says so."""
    if os.getuid() != 0:
        raise Skipped("needs root, to be another user")
    port = host.free_port()
    listens = listening(ctx, port)
    unit = (EXAMPLES / "netacc-metrics.service").read_text()
    caps = re.search(r"^AmbientCapabilities=(.*)$", unit, re.M)[1].split()
    sets = ",".join("+" + cap.removeprefix("CAP_").lower() for cap in caps)
    tool = ctx.dir / "netacc_ss"
    shutil.copy(monitor.command(), tool)
    user = [need("setpriv"), "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]
    for more, seen in (([f"--inh-caps={sets}", f"--ambient-caps={sets}"], True), (["--inh-caps=-all"], False)):
        done = subprocess.run([*user, *more, tool, "--openmetrics", "-s", "all"], capture_output=True, text=True, timeout=60)
        equal(done.returncode, 0, done.stderr)
        shown = f'pid="{host.tree(listens.pid)[-1]}"' in done.stdout
        equal(shown, seen, f"the process is seen with {more}")
        hidden = int(re.search(r"^netacc_processes_unreadable (\d+)$", done.stdout, re.M)[1])
        check(seen or hidden, "what is not seen is counted")
    if shutil.which("systemd-analyze"):
        shutil.copy(EXAMPLES / "netacc-metrics.service", ctx.dir)
        text = unit.replace("/usr/bin/netacc_ss", str(tool))
        service = ctx.file("netacc-metrics.service", text.encode())
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", service], capture_output=True, text=True, timeout=60)
        check("netacc-metrics.service:" not in done.stderr, done.stderr)
