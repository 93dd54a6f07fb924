"""netacc_bench between two hosts that are joined by RDMA: a connection is accelerated only if both ends are."""

import json

from harness import ROOT, check
from host import wait_until
from matrix import case

TOOL = str(ROOT / "build" / "netacc_bench")


@case(limit=400)
def matrix(ctx):
    port = ctx.port()
    ctx.next_port += 2
    server = ctx.spawn([TOOL, "server", "-p", port, "-B", "0.0.0.0"], role="server")
    wait_until(lambda: "listens on port" in server.stdout() or not server.running(), 60, "the server listens")
    check(server.running(), server.text())
    # On a busy machine the route may not be known in time, and such a connection goes by TCP.
    for _ in range(3):
        text = ctx.run([TOOL, "client", ctx.server_end.address, "-p", port, "-t", "0.2", "-r", "1", "-c", "5", "-w",
                        "round-trip,connect,requests", "--no-icmp", "--json"], limit=200, status=None)
        wrong = list(unexpected(json.loads(text)))
        if not wrong:
            return
    check(False, "; ".join(wrong))


def unexpected(found):
    for workload in found["workloads"]:
        for cell in workload["ends"]:
            way = "rdma" if cell["name"] == "both" else "tcp"
            if (cell["error"], cell["via"]) != (None, way):
                yield f"{workload['name']}, {cell['name']}: {cell['via']}, not {way}: {cell['error'] or cell['why_not']}"
