"""Tests netacc-verbs alone, with its programs on both hosts."""

import re

from harness import check, equal
from host import wait_until
from matrix import case

LARGE = 4000


def pingpong_server(ctx, address):
    """Starts a server on a port that the kernel chooses."""
    server = ctx.spawn([ctx.built("rdma_pingpong"), "server", address], role="server")
    found = wait_until(lambda: re.search(r"^port (\d+)$", server.stdout(), re.M) or not server.running(), 30,
                       "the server says its port")
    check(found is not True, f"the server ended: {' / '.join(server.tail(4))}")
    return server, found[1]


@case()
def pingpong(ctx):
    """The programs make round trips with inline sends, then send a stream that needs credits, and compare the contents."""
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


def cargo_test(ctx, program, *arguments):
    """Runs one of cargo's test programs on the server's device, and returns its output."""
    return passed(ctx.run([ctx.built(program), "--test-threads=1", *arguments], role="server", limit=150, status=None,
                          env={"NETACC_RDMA_ADDRESS": ctx.server_end.address}))


def passed(text):
    """Checks that all tests of such a program have passed, and returns how many."""
    failed = re.findall(r"^test (\S+) \.\.\. FAILED$", text, re.M)
    done = re.search(r"^test result: ok\. (\d+) passed", text, re.M)
    check(done and not failed, f"{', '.join(failed) or 'did not end well'}\n{text[-3000:]}")
    return int(done[1])


@case(limit=180)
def on_a_device(ctx):
    """Runs crates/netacc-verbs/tests/device, with both ends in one process."""
    check(cargo_test(ctx, "verbs-device", "--ignored") > 20, "some tests did not run")
    ctx.prove(50, sender="server", receiver="server")


@case()
def loads(ctx):
    """Runs crates/netacc-verbs/tests/load.rs on a host with a device, where the libraries are loaded."""
    equal(cargo_test(ctx, "verbs-load"), 1, "tests")
