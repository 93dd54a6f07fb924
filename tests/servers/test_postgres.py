"""PostgreSQL: a process per connection, forked after the accept; pgbench, TLS, COPY, replication, dying backends."""

import glob
import os
import pathlib
import shutil
import signal

import certificate
import host
from harness import START_LIMIT, check, equal, need
from host import wait_until
from matrix import case

MB = 1 << 20


def program(name):
    """Debian keeps the server's programs in a folder of each version."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else need(name)


def start(ctx):
    user, home = ctx.stranger()
    data = home / "data"
    ctx.run([program("initdb"), "-D", data, "-U", "tester", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"],
            role=None, user=user, cwd=home)
    key, cert = certificate.make(ctx, home, user)
    settings = {
        "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "ssl": "on",
        "ssl_key_file": key, "ssl_cert_file": cert, "max_connections": 60, "shared_buffers": "32MB",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    server = ctx.serve(lambda port: [program("postgres"), "-D", data, "-p", port, *options],
                       user=user, cwd=home, env={"NACC_LOG_PATH": home / "netacc.log"})
    wait_until(lambda: "ready to accept" in server.text() or not server.running(), START_LIMIT, "postgres is ready")
    return server


def environment(server, **extra):
    return {"PGHOST": "127.0.0.1", "PGPORT": server.port, "PGUSER": "tester", "PGDATABASE": "postgres",
            "PGCONNECT_TIMEOUT": 30, "PGSSLMODE": "disable", **extra}


def psql(ctx, server, sql, status=0, role="client", **extra):
    """The rows, one per line, fields apart by a bar."""
    return ctx.run([program("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql], role, status=status,
                   env=environment(server, **extra)).strip()


def pgbench(ctx, server, *options, **extra):
    return ctx.run([program("pgbench"), *options], env=environment(server, **extra))


def begin(ctx, server, sql):
    """A client whose statement runs on the server; its process there."""
    client = ctx.client([program("psql"), "-X", "-A", "-t", "-c", sql], env=environment(server))
    pid = wait_until(lambda: not client.running() or psql(
        ctx, server, "select pid from pg_stat_activity where wait_event = 'PgSleep'", role=None),
        START_LIMIT, "the statement runs")
    check(client.running(), f"psql ended: {client.tail(3)}")
    return client, int(pid)


@case()
def transactions(ctx):
    """pgbench by several clients, on lasting connections, a connection per transaction, and with TLS."""
    server = start(ctx)
    ctx.mark()
    pgbench(ctx, server, "-i", "-q", "-s", "2")
    count = psql(ctx, server, "select count(*), sum(aid) from pgbench_accounts")
    equal(count, "200000|20000100000", "accounts made by COPY")
    done = 0
    for options, extra in ((("-c", "8", "-j", "2", "-t", "40"), {}),
                           (("-c", "4", "-j", "2", "-t", "40", "-M", "prepared"), {}),
                           (("-c", "4", "-j", "4", "-t", "10", "-C"), {}),
                           (("-c", "4", "-j", "2", "-t", "40"), {"PGSSLMODE": "require"}),
                           (("-c", "2", "-j", "2", "-t", "5", "-C"), {"PGSSLMODE": "require"})):
        text = pgbench(ctx, server, "-n", *options, **extra)
        wanted = int(options[1]) * int(options[5])
        check(f"actually processed: {wanted}/{wanted}" in text, f"pgbench {options} says {text.splitlines()[-9:]}")
        done += wanted
    sums = psql(ctx, server, "select (select count(*) from pgbench_history), (select sum(delta) from pgbench_history) = "
                "(select sum(abalance) from pgbench_accounts), (select sum(delta) from pgbench_history) = "
                "(select sum(bbalance) from pgbench_branches)")
    equal(sums, f"{done}|t|t", "history and balances")
    equal(psql(ctx, server, "select ssl from pg_stat_ssl where pid = pg_backend_pid()", PGSSLMODE="require"), "t", "TLS")
    ctx.prove(server, accepts=60, payload=15 * MB)


@case()
def copies(ctx):
    """COPY in and out, plain and with TLS; a dump; a streamed base backup."""
    server = start(ctx)
    rows = "".join(f"{n}\t{ctx.random.randbytes(ctx.random.randrange(1, 400)).hex()}\n" for n in range(20000))
    given = ctx.file("rows", rows.encode())
    psql(ctx, server, "create table t(n int, text text)")
    ctx.mark()
    for mode in ("disable", "require"):
        got = ctx.dir / f"got-{mode}"
        psql(ctx, server, "truncate t", PGSSLMODE=mode)
        psql(ctx, server, f"\\copy t from '{given}'", PGSSLMODE=mode)
        psql(ctx, server, f"\\copy (select * from t order by n) to '{got}'", PGSSLMODE=mode)
        check(got.read_bytes() == given.read_bytes(), f"what was copied out differs, sslmode {mode}")
    ctx.prove(server, accepts=6, payload=8 * MB)
    dump = ctx.run([program("pg_dump"), "-t", "t", "--data-only"], env=environment(server))
    equal(sorted(line for line in dump.splitlines() if "\t" in line), sorted(rows.splitlines()), "the dump")
    backup = ctx.dir / "backup"
    ctx.run([program("pg_basebackup"), "-D", backup, "-X", "stream", "-c", "fast"], env=environment(server))
    ctx.run([program("pg_verifybackup"), backup], role=None)
    shutil.rmtree(backup)


@case()
def ended_statements(ctx):
    """A statement cancelled by its client, a backend asked to end, a backend killed: each client hears of it."""
    server = start(ctx)
    client, _ = begin(ctx, server, "select pg_sleep(600)")
    # psql asks over another connection, which it makes in its signal handler.
    client.signal(signal.SIGINT)
    equal(client.wait(30), 1, f"status of a cancelled psql ({client.tail(2)})")
    check("canceling statement" in client.text(), f"psql says {client.tail(2)}")

    client, pid = begin(ctx, server, "select pg_sleep(600)")
    psql(ctx, server, f"select pg_terminate_backend({pid})", role=None)
    check(client.wait(30) != 0 and "terminating connection" in client.text(), f"psql says {client.tail(2)}")

    client, pid = begin(ctx, server, "select pg_sleep(600)")
    other = ctx.client([program("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-c", "select 1 as one", "-c",
                        "select pg_sleep_for('10 min')"], env=environment(server))
    wait_until(lambda: "one" in other.stdout() or not other.running(), 30, "the other client is connected")
    ctx.prove(server, accepts=3)
    os.kill(pid, signal.SIGKILL)
    # The postmaster then ends all others and starts afresh.
    for proc in (client, other):
        check(proc.wait(30) != 0, f"psql ended well without its backend: {proc.tail(2)}")
        check("connection to server was lost" in proc.text() or "terminating connection" in proc.text(),
              f"psql says {proc.tail(3)}")
    wait_until(lambda: server.text().count("ready to accept") == 2, START_LIMIT, "postgres has recovered")
    equal(psql(ctx, server, "select 6 * 7"), "42", "after the recovery")
    check(host.children(server.pid), "the postmaster has children")


@case(modes=("both",))
def client_killed(ctx):
    """The backend of a killed client ends by itself when it next touches the connection."""
    server = start(ctx)
    client, pid = begin(ctx, server, "select pg_sleep(1), repeat('x', 1000000)")
    ctx.prove(server)
    client.kill()
    wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), 30, "the backend is gone")
    wait_until(lambda: psql(ctx, server, "select count(*) from pg_stat_activity where backend_type = 'client backend'")
               == "1", 30, "no other backend is left")
