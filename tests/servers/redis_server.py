"""Starting redis for the tests, and an administrator's connection that is never accelerated."""

import contextlib

from harness import START_LIMIT, check, need
from host import wait_until
from resp import Closed, Redis


def start(ctx, *options, role="server", port=None, cwd=None, env=None, **spawn):
    program = need("redis-server")

    def argv(chosen):
        return [program, "--port", chosen, "--bind", "127.0.0.1", "::1", "--save", "", "--appendonly", "no",
                "--enable-debug-command", "yes", "--dir", str(cwd or ctx.dir), "--loglevel", "notice", *options]

    server = ctx.serve(argv, role=role, port=port, cwd=cwd, env=env, **spawn)
    with admin(server) as r:
        wait_until(lambda: r.info("persistence")["loading"] == "0", START_LIMIT, "redis has loaded its data")
    return server


@contextlib.contextmanager
def admin(server):
    r = Redis(server.port, timeout=30)
    try:
        yield r
    finally:
        r.close()


def info(server, section, key):
    with admin(server) as r:
        return r.info(section)[key]


def digest(server):
    """One number for all keys and values."""
    with admin(server) as r:
        return r.call("DEBUG", "DIGEST")


def saved(server):
    """Ask for a snapshot by a forked child and wait for its good end."""
    with admin(server) as r:
        r.call("BGSAVE")
        wait_until(lambda: r.info("persistence")["rdb_bgsave_in_progress"] == "0", 60, "BGSAVE ends")
        check(r.info("persistence")["rdb_last_bgsave_status"] == "ok", "BGSAVE failed")


def gone(server):
    try:
        with admin(server) as r:
            r.call("PING")
        return False
    except (OSError, Closed):
        return True
