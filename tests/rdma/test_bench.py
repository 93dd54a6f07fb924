"""netacc_bench between two hosts that are joined by RDMA: only where both ends are accelerated is a connection."""

import json

from harness import ROOT, check, equal
from host import wait_until
from matrix import case

TOOL = str(ROOT / "build" / "netacc_bench")


@case(limit=240)
def matrix(ctx):
    port = ctx.port()
    ctx.next_port += 2
    server = ctx.spawn([TOOL, "server", "-p", port, "-B", "0.0.0.0"], role="server")
    wait_until(lambda: "listens on port" in server.stdout() or not server.running(), 60, "the server listens")
    check(server.running(), server.text())
    text = ctx.run([TOOL, "client", ctx.server_end.address, "-p", port, "-t", "0.2", "-r", "1", "-c", "5", "-w",
                    "round-trip,connect,requests", "--no-icmp", "--json"], limit=200, status=None)
    found = json.loads(text)
    for workload in found["workloads"]:
        for cell in workload["ends"]:
            where = f"{workload['name']}, {cell['name']}: {cell['error'] or cell['why_not']}"
            equal((cell["error"], cell["via"]), (None, "rdma" if cell["name"] == "both" else "tcp"), where)
