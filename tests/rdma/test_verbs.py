"""netacc-verbs by itself: its programs on both hosts."""

import re

from harness import check
from host import wait_until
from matrix import case

LARGE = 4000


def pingpong_server(ctx, address):
    """A server on a port that the kernel has chosen."""
    server = ctx.spawn([ctx.built("rdma_pingpong"), "server", address], role="server")
    found = wait_until(lambda: re.search(r"^port (\d+)$", server.stdout(), re.M) or not server.running(), 30,
                       "the server says its port")
    check(found is not True, f"the server ended: {' / '.join(server.tail(4))}")
    return server, found[1]


@case()
def pingpong(ctx):
    """Round trips inline, then a stream that needs credits; contents compared by the programs."""
    for address in (ctx.server_end.address, ctx.server_end.address6):
        server, port = pingpong_server(ctx, address)
        ctx.mark()
        text = ctx.run([ctx.built("rdma_pingpong"), "client", address, port, 200, 200])
        server.result()
        print(f"    {ctx.kind} {address}: {'; '.join(text.splitlines())}", flush=True)
        check(f"connected on {ctx.client_end.device}" in text, text)
        ctx.prove(200 + 200, 200 * LARGE)
        ctx.prove(200, sender="server")
        check(int(re.search(r"waited for credits (\d+)", text)[1]) > 0, f"credits were never short: {text}")
        check(int(re.search(r"sent (\d+) inline", text)[1]) >= 200, text)
