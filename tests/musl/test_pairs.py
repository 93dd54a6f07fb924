"""A server and a client of the two libcs: each checks all that it gets."""

import made
from matrix import case


def both_ends(ctx, server, client):
    expect = {"NETACC_SS": made.ROOT / "build" / "netacc_ss"} | ({"NETACC_EXPECT": "shm"} if ctx.mode == "both" else {})
    serving = ctx.serve(lambda port: [made.pair(server), "serve", port], env=expect)
    asking = ctx.client([made.pair(client), "connect", serving.port], env=expect)
    asking.result()
    serving.result()


@case()
def musl_with_musl(ctx):
    both_ends(ctx, "musl", "musl")


@case()
def musl_serves_glibc(ctx):
    both_ends(ctx, "musl", "glibc")


@case()
def glibc_serves_musl(ctx):
    both_ends(ctx, "glibc", "musl")
