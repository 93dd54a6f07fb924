"""Cases with unmodified nginx and wrk."""

import os
import re
import shutil
import time

from . import proc, sides
from .case import Case, Metric, Target
from .containers import LOOPBACK

SIZE = 4096
CLIENTS = 50

# One process without a master, so that its processor time is the server's.
CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{
        listen {address}:{port};
        root {folder};
    }}
}}
"""

UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}


class KeepAlive(Case):
    name = "http"
    title = f"nginx and wrk, {CLIENTS} connections, {SIZE // 1024} KiB answers"
    metrics = (
        Metric("rps", "requests/s", "more", 0),
        Metric("p50_ms", "p50 ms", "less", 3),
        Metric("p99_ms", "p99 ms", "less", 3),
        Metric("cpu_us", "CPU us/request", "less", 2),
    )
    headline = "rps"
    seconds = (2, 1)
    place = LOOPBACK
    targets = (Target("rps", "ratio", 2),)

    def possible(self):
        lacking = [tool for tool in ("nginx", "wrk") if shutil.which(tool) is None]
        return f"{', '.join(lacking)} is not installed" if lacking else None

    def prepare(self):
        self.note("nginx: one process; wrk: one thread; CPU is that of both")
        self.servers = {side.name: self._serve(side) for side in self.sides()}

    def close(self):
        for server, _ in getattr(self, "servers", {}).values():
            server.stop()

    def _serve(self, side):
        port = self.place.free_port()
        folder = os.path.join(self.lab.scratch, f"nginx-{port}")
        os.makedirs(folder)
        with open(os.path.join(folder, "page"), "w", encoding="ascii") as page:
            page.write("x" * SIZE)
        configuration = os.path.join(folder, "nginx.conf")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(folder=folder, address=self.place.listens_on, port=port))
        # nginx drops root's rights for its workers, of which there are none.
        server = self.place.server(side).start("nginx", "-c", configuration, "-p", folder)
        deadline = time.monotonic() + proc.START_TIMEOUT
        while True:
            try:
                self.place.connect(port).close()
                return server, port
            except ConnectionError:
                if not server.running() or time.monotonic() > deadline:
                    raise server.failure("did not start") from None
                time.sleep(0.02)

    def sample(self, side):
        server, port = self.servers[side.name]
        seconds = self.lab.seconds(*self.seconds)
        command = ("wrk", "-t", 1, "-c", CLIENTS, "-d", f"{seconds}s", "--latency", f"http://{self.place.address}:{port}/page")
        done, cpu, proof = sides.serving(
            side, server.pid, lambda: self.place.client(side).run(*command, tick=self.lab.progress.tick)
        )
        return {**figures(done.output, cpu + done.cpu), **proof}


def figures(output, cpu):
    """The metrics from what wrk prints."""
    for bad in ("Socket errors", "Non-2xx"):
        if bad in output:
            raise proc.Failed(f"wrk: {next(line.strip() for line in output.splitlines() if bad in line)}")
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", output)
    count = re.search(r"(\d+) requests in", output)
    slow = {share: re.search(rf"\b{share}%\s+([0-9.]+)(us|ms|s|m)\b", output) for share in (50, 99)}
    if not (rate and count and int(count[1]) and all(slow.values())):
        raise proc.Failed(f"unexpected output of wrk: {output.strip()[-400:]}")
    return {
        "rps": float(rate[1]),
        "cpu_us": cpu / int(count[1]) * 1e6,
        **{f"p{share}_ms": float(found[1]) * UNITS[found[2]] for share, found in slow.items()},
    }


ALL = (KeepAlive,)
