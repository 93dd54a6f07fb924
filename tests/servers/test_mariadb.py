"""MariaDB: a thread per connection that waits in poll; a pool of threads; parallel clients; TLS."""

import hashlib
import signal

import certificate
from harness import START_LIMIT, check, equal, need
from host import wait_until
from matrix import case


def start(ctx, *options):
    user, home = ctx.stranger()
    data = home / "data"
    ctx.run([need("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db",
             "--auth-root-authentication-method=normal", "--innodb-log-file-size=8M"], role=None, user=user, cwd=home)
    key, cert = certificate.make(ctx, home, user)
    program = need("mariadbd")
    server = ctx.serve(
        lambda port: [program, "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1",
                      f"--socket={home}/mysql.sock", f"--pid-file={home}/pid", "--innodb-flush-log-at-trx-commit=0",
                      "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--skip-name-resolve",
                      f"--ssl-key={key}", f"--ssl-cert={cert}", *options],
        user=user, cwd=home, env={"NACC_LOG_PATH": home / "netacc.log"})
    wait_until(lambda: "ready for connections" in server.text() or not server.running(), START_LIMIT, "mariadbd is ready")
    sql(ctx, server, "create user tester@'127.0.0.1' identified by ''; grant all on *.* to tester@'127.0.0.1'; "
                     "create database d", role=None, login=("-uroot", f"--socket={home}/mysql.sock"))
    return server


def base(server, login=None):
    return ["--no-defaults", *(login or ("-h127.0.0.1", f"-P{server.port}", "-utester", "--protocol=tcp"))]


def sql(ctx, server, text, *options, role="client", login=None):
    """The rows, one per line, fields apart by a tab."""
    return ctx.run([need("mariadb"), *base(server, login), "-N", "-B", *options, "-e", text], role).strip()


def work(ctx, server):
    sql(ctx, server, "create table d.t(n int primary key, s longblob)")
    sums = []
    for n, size in enumerate((0, 1, 1000, 70000, 3000000)):
        data = ctx.random.randbytes(size)
        sums.append(hashlib.sha256(data).hexdigest())
        path = ctx.file("insert.sql", f"insert into d.t values ({n}, x'{data.hex()}');\n".encode())
        ctx.run([need("mariadb"), *base(server), "--max-allowed-packet=64M"], stdin=path.open("rb"))
    found = sql(ctx, server, "select sha2(s, 256) from d.t order by n")
    equal(found.split(), sums, "what the server has")
    for options in ((), ("--ssl", "--skip-ssl-verify-server-cert"), ("--compress",)):
        got = sql(ctx, server, "select hex(s) from d.t order by n", "--max-allowed-packet=64M", *options, "--raw")
        # The first row is empty.
        rows = [""] * (len(sums) - len(got.split())) + got.split()
        equal([hashlib.sha256(bytes.fromhex(r)).hexdigest() for r in rows], sums, f"what the client gets, {options}")
    check("TLS" in sql(ctx, server, "show status like 'Ssl_version'", "--ssl", "--skip-ssl-verify-server-cert"), "no TLS")


def load(ctx, server):
    """Statements of many clients at once; the sums must be right."""
    sql(ctx, server, "create table d.sums(id int primary key, v bigint) engine=innodb; "
                     "insert into d.sums values (0, 0), (1, 0), (2, 0), (3, 0)")
    for width, per in ((8, 50), (40, 5)):
        text = ctx.run([need("mariadb-slap"), *base(server), "--create-schema=d", "--no-drop",
                        f"--concurrency={width}", f"--number-of-queries={width * per}", "--query",
                        "update d.sums set v = v + 1 where id = connection_id() & 3"])
        check("Average number of seconds" in text, f"mariadb-slap says {text[-300:]}")
    equal(sql(ctx, server, "select sum(v) from d.sums"), "600", "updates counted")


@case()
def threads(ctx):
    server = start(ctx)
    ctx.mark()
    work(ctx, server)
    load(ctx, server)
    ctx.prove(server, accepts=55, payload=15_000_000)
    waiting = ctx.client([need("mariadb"), *base(server), "-e", "select sleep(600)"])
    wait_until(lambda: sql(ctx, server, "select id from information_schema.processlist where state = 'User sleep'")
               or not waiting.running(), 30, "the statement runs")
    number = sql(ctx, server, "select id from information_schema.processlist where state = 'User sleep'")
    sql(ctx, server, f"kill {number}")
    check(waiting.wait(30) != 0, "a client whose connection was killed ends well")
    waiting = ctx.client([need("mariadb"), *base(server), "-e", "select sleep(600)"])
    wait_until(lambda: sql(ctx, server, "select id from information_schema.processlist where state = 'User sleep'")
               or not waiting.running(), 30, "the statement runs")
    server.signal(signal.SIGKILL)
    check(waiting.wait(30) != 0, "a client without its server ends well")


@case(modes=("plain", "both"))
def pool_of_threads(ctx):
    """Few threads share an epoll instance for all connections."""
    server = start(ctx, "--thread-handling=pool-of-threads", "--thread-pool-size=2")
    ctx.mark()
    work(ctx, server)
    load(ctx, server)
    ctx.prove(server, accepts=55, payload=15_000_000)
