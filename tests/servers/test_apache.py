"""Apache: workers that serve one connection each, threads, events; its children are stopped and replaced all the time."""

import hashlib
import re
import signal

import host
from harness import check, equal, need
from host import wait_until
from matrix import case

MODULES = "/usr/lib/apache2/modules"

CONF = """
ServerRoot {dir}
ServerName localhost
PidFile {dir}/apache.{port}.pid
ErrorLog {dir}/apache.{port}.err
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
Listen 127.0.0.1:{port}
DocumentRoot {dir}/www
User www-data
Group www-data
StartServers 3
KeepAliveTimeout 2
<Directory {dir}/www>
    Require all granted
</Directory>
"""


def start(ctx, mpm):
    program = need("apache2")
    www = ctx.dir / "www"
    www.mkdir(exist_ok=True)
    # The user that the workers run as must be able to get there.
    for place in (ctx.dir, www):
        place.chmod(0o755)
    sums = {}
    for size in (100, 65536):
        data = ctx.bytes(size)
        (www / f"f{size}").write_bytes(data)
        sums[f"f{size}"] = hashlib.sha256(data).hexdigest()

    def argv(port):
        text = CONF.format(dir=ctx.dir, port=port, mpm=mpm, modules=MODULES)
        return [program, "-f", ctx.file(f"apache.{port}.conf", text.encode()), "-DFOREGROUND"]

    apache = ctx.serve(argv)
    wait_until(lambda: len(host.children(apache.pid)) >= 2, 30, "workers run")
    return apache, sums


def ab(ctx, apache, *options):
    text = ctx.run([need("ab"), "-q", *options, f"http://127.0.0.1:{apache.port}/f65536"])
    # A kept connection that the server closes ab counts as a wrong length, and asks again.
    why = re.search(r"\(Connect: (\d+), Receive: (\d+), Length: \d+, Exceptions: (\d+)\)", text)
    fine = "Complete requests" in text and "Non-2xx" not in text and (not why or set(why.groups()) == {"0"})
    check(fine, f"ab reports {[line for line in text.splitlines() if 'equests' in line or 'Connect' in line]}")


def complaints(ctx, apache):
    text = (ctx.dir / f"apache.{apache.port}.err").read_text(errors="replace")
    bad = [line for line in text.splitlines() if "did not exit" in line or "exit signal" in line or ":crit]" in line]
    check(not bad, f"apache complains: {bad[:3]}")


def served(ctx, mpm):
    apache, sums = start(ctx, mpm)
    ctx.mark()
    ab(ctx, apache, "-c", 10, "-n", 2000)
    ab(ctx, apache, "-k", "-c", 10, "-n", 2000)
    ctx.prove(apache, accepts=3)
    # A reply that fits a connection's buffer: of one that does not, the event module of Apache loses the end when its
    # worker is stopped, by kernel TCP as well (seen there with SendBufferSize 65536 and 1 MiB).
    getter = ctx.client(ctx.script("http_client.py", apache.port, "again", "/f65536", sums["f65536"]))
    for _ in range(3):
        old = set(host.children(apache.pid))
        lines = len(getter.stdout())
        wait_until(lambda: len(getter.stdout()) > lines or not getter.running(), 30, "requests go on")
        apache.signal(signal.SIGUSR1)
        wait_until(lambda: host.children(apache.pid) and not old & set(host.children(apache.pid)), 60,
                   "the old workers are gone and there are new ones")
    check(getter.running(), f"the client failed: {getter.tail(4)}")
    getter.signal(signal.SIGINT)
    getter.result()
    ab(ctx, apache, "-c", 10, "-n", 1000)
    apache.end()
    complaints(ctx, apache)
    equal(apache.popen.returncode, 0, "apache's status")


@case()
def prefork(ctx):
    """A process per connection."""
    served(ctx, "prefork")


@case()
def event(ctx):
    """Threads, and one that waits for idle connections."""
    served(ctx, "event")


@case()
def worker(ctx):
    """A thread per connection."""
    served(ctx, "worker")
