"""What happens when something goes away while messages are under way: an error in a sentence, in bounded time."""

import os
import signal

import world
from harness import check
from host import wait_until
from matrix import case
from test_verbs import pingpong_server

# Far more than there will be time for.
ENDLESS = 10_000_000
# Only turns a hang into a failure; nothing here takes a second where it works.
LIMIT = 30


def endless(ctx, what="client", **spawn):
    """A server and a client whose messages are already going back and forth."""
    server, port = pingpong_server(ctx, ctx.server_end.address)
    client = ctx.spawn([ctx.built("rdma_pingpong"), what, ctx.server_end.address, port, ENDLESS], role="client", **spawn)
    wait_until(lambda: ctx.carried("client")["rdma_sends"] > 50 or not client.running(), LIMIT, "messages are sent")
    check(client.running(), f"the client ended: {' / '.join(client.tail(4))}")
    return server, client


def failed(proc):
    """It has ended by itself, with an error that names the operation; not by a signal, not by a panic."""
    code = proc.wait(LIMIT)
    text = proc.err.read_text()
    check(code == 1 and text.startswith("rdma_pingpong: ") and len(text.splitlines()) == 1,
          f"{proc.name} ended with {code}: {text}")
    check("nothing happened" not in text, f"{proc.name} heard of nothing: {text}")
    return text.strip()


def delete(side):
    return [*world.inside(side.namespace), "rdma", "link", "delete", side.device]


@case()
def device_of_the_client_goes(ctx):
    server, client = endless(ctx)
    # The kernel's own removal has to come to an end too: it waits for the programs that use the device.
    removal = ctx.spawn(delete(ctx.client_end), role="client")
    said = failed(client)
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    check(not (world.INFINIBAND / ctx.client_end.device).exists(), "the device is still there")
    print(f"    {ctx.kind}: {said}", flush=True)
    server.kill()


@case()
def device_of_the_server_goes(ctx):
    server, client = endless(ctx)
    removal = ctx.spawn(delete(ctx.server_end), role="server")
    said = failed(server)
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    print(f"    {ctx.kind}: {said}", flush=True)
    client.kill()


@case()
def device_goes_and_the_program_stays(ctx):
    """A program that has dropped all that it had on the device does not hold up the removal by living on."""
    read_end, write_end = os.pipe()
    server, client = endless(ctx, "stay", stdin=read_end)
    removal = ctx.spawn(delete(ctx.client_end), role="client")
    check(removal.wait(LIMIT) == 0, f"rdma link delete: {removal.text()}")
    wait_until(lambda: "let go" in client.stdout(), LIMIT, "the client lets go")
    check(client.running(), f"the client ended: {' / '.join(client.tail(4))}")
    os.close(write_end)
    failed(client)
    server.kill()


@case()
def peer_is_killed(ctx):
    for victim in ("server", "client"):
        server, client = endless(ctx)
        (server if victim == "server" else client).signal(signal.SIGKILL)
        said = failed(client if victim == "server" else server)
        print(f"    {ctx.kind} {victim}: {said}", flush=True)
        ctx.mark()
