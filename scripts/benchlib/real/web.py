"""nginx, Apache, HAProxy, PHP-FPM, and web servers in several languages."""

import os

from . import loads
from .case import counted, distinct, levels, pairs
from .server import Server, as_root
from .site import program

NGINX = """
daemon off;
worker_processes {workers};
{user}
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    server {{
        listen {address}:{port} backlog=511 {http2};
        root {pages};
        {more}
    }}
}}
"""


class Nginx(Server):
    tools = ("nginx",)
    notes = ("web servers: pages of 1,000 bytes",)
    workers = 1
    http2 = ""

    def begin(self):
        self.port = self.nginx()

    def nginx(self, more=""):
        def argv(port):
            text = NGINX.format(
                workers=self.workers, user=as_root(f"user {self.user};"), folder=self.folder, address=self.address,
                port=port, http2=self.http2, pages=self.site.sources(), more=more,
            )  # fmt: skip
            return ["nginx", "-c", self.write(f"nginx-{port}.conf", text), "-p", self.folder, "-e", f"{self.folder}/error.log"]

        return self.start(argv)


class Nginx4(Nginx):
    workers = 4


class Nginx2(Nginx4):
    http2 = "http2"


APACHE = """
ServerRoot {folder}
ServerName localhost
DefaultRuntimeDir {folder}
PidFile {folder}/pid
ErrorLog {folder}/error.log
LoadModule mpm_{mpm}_module {modules[0]}
LoadModule authz_core_module {modules[1]}
{user}
Listen {address}:{port}
KeepAliveTimeout 5
DocumentRoot {pages}
<Directory {pages}>
    Require all granted
</Directory>
"""


class Apache(Server):
    """Apache with the numbers of processes and threads that are its defaults."""

    mpm = ""

    def begin(self):
        modules = [program(f"mod_{name}.so") for name in (f"mpm_{self.mpm}", "authz_core")]
        user = as_root(f"User {self.user}\nGroup {self.user}")

        def argv(port):
            text = APACHE.format(
                folder=self.folder, mpm=self.mpm, modules=modules, user=user, address=self.address, port=port,
                pages=self.site.sources(),
            )  # fmt: skip
            return ["apache2", "-f", self.write(f"apache-{port}.conf", text), "-DFOREGROUND"]

        self.port = self.start(argv)


class Prefork(Apache):
    mpm = "prefork"
    tools = ("apache2", "mod_mpm_prefork.so")


class Event(Apache):
    mpm = "event"
    tools = ("apache2", "mod_mpm_event.so")


HAPROXY = """
global
    maxconn 2000
    {user}
defaults
    mode http
    timeout connect 20s
    timeout client 60s
    timeout server 60s
frontend front
    bind {address}:{port}
    default_backend behind
backend behind
    server nginx {address}:{behind}
"""


class HaProxy(Nginx):
    """HAProxy with a thread per core, before nginx."""

    tools = ("haproxy", *Nginx.tools)

    def begin(self):
        behind = self.nginx()
        user = as_root(f"user {self.user}\n    group {self.user}")

        def argv(port):
            text = HAPROXY.format(user=user, address=self.address, port=port, behind=behind)
            return ["haproxy", "-db", "-f", self.write(f"haproxy-{port}.cfg", text)]

        self.port = self.start(argv)


FPM = """
[global]
error_log = {folder}/fpm.log
daemonize = no
[www]
{user}
listen = {listen}
listen.mode = 0666
pm = static
pm.max_children = 4
"""

FASTCGI = """
        location / {{
            fastcgi_pass {to};
            fastcgi_param SCRIPT_FILENAME {pages}/page.php;
            fastcgi_param REQUEST_METHOD $request_method;
        }}
"""


class Php(Nginx):
    """PHP-FPM with four children behind nginx, which makes a connection for each request."""

    tools = ("php-fpm*", *Nginx.tools)
    unix = True

    def begin(self):
        path = os.path.join(self.folder, "fpm.sock")
        user = as_root(f"user = {self.user}\ngroup = {self.user}")

        def argv(port):
            listen = path if self.side.unix else f"{self.address}:{port}"
            text = FPM.format(folder=self.folder, user=user, listen=listen)
            return [self.tools[0], "-F", "-y", self.write(f"fpm-{port}.conf", text)]

        port = self.start(argv, path=path if self.side.unix else None)
        to = f"unix:{path}" if self.side.unix else f"{self.address}:{port}"
        self.port = self.nginx(FASTCGI.format(to=to, pages=self.site.sources()))


class Program(Server):
    """A server that is one command, which runs as the user from its start."""

    notes = Nginx.notes

    def command(self, port):
        raise NotImplementedError

    def begin(self):
        self.port = self.start(self.command, user=self.user)


class Gunicorn(Program):
    """gunicorn with two workers that serve one connection each."""

    tools = ("gunicorn",)

    def command(self, port):
        return ["gunicorn", "-w", 2, "-b", f"{self.address}:{port}", "--chdir", self.site.sources(), "--worker-tmp-dir",
                self.folder, "app:wsgi"]  # fmt: skip


class Uvicorn(Program):
    tools = ("uvicorn",)

    def command(self, port):
        return ["uvicorn", "--app-dir", self.site.sources(), "--host", self.address, "--port", port, "--log-level", "warning",
                "app:asgi"]  # fmt: skip


class Node(Program):
    tools = ("node",)
    workers = ()

    def command(self, port):
        return ["node", os.path.join(self.site.sources(), "server.js"), port, *self.workers]


class NodeCluster(Node):
    workers = (2,)


class Java(Program):
    tools = ("java", "javac", "make")

    def command(self, port):
        # By default its answers wait for the client's acknowledgement, forty milliseconds.
        return ["java", "-Dsun.net.httpserver.nodelay=true", "-cp", self.site.built("java", "Server.class"), "Server", port]


class Go(Program):
    tools = ("go", "make")

    def command(self, port):
        return [os.path.join(self.site.built("go", "server-go"), "server-go"), port]


def cases():
    one, cores, four, sixteen = levels()
    levels_of = (("1", "one worker", Nginx, distinct(one, cores, four, sixteen)),
                 ("4", "four workers", Nginx4, distinct(four, sixteen)))  # fmt: skip
    kept = []
    for name, title, server, counts in levels_of:
        kept += [(f"nginx-{name}-{n}", f"nginx, {title}, {counted(n, 'connection')}", server, loads.Wrk(n)) for n in counts]
    for name, title, server in (("prefork", "Apache prefork", Prefork), ("event", "Apache event", Event)):
        kept += [(f"{name}-{n}", f"{title}, ab -k, {n} connections", server, loads.Ab(n, keep=True)) for n in (8, 32)]
    kept += [(f"haproxy-{n}", f"HAProxy before nginx, {counted(n, 'connection')}", HaProxy, loads.Wrk(n)) for n in (1, 8)]
    kept += [
        ("h2-8", "nginx, HTTP/2, 8 connections", Nginx2, loads.H2load(8, 4)),
        ("java-8", "Java, 8 connections", Java, loads.Wrk(8)),
        ("go-8", "Go, 8 connections", Go, loads.Wrk(8)),
    ]
    each = [
        ("gunicorn-8", "gunicorn, a connection per request", Gunicorn, loads.Ab(8, keep=False)),
        ("uvicorn-8", "uvicorn, a connection per request", Uvicorn, loads.Ab(8, keep=False)),
        ("node-8", "Node, a connection per request", Node, loads.Ab(8, keep=False)),
        ("node-cluster-8", "Node cluster, a connection per request", NodeCluster, loads.Ab(8, keep=False)),
        ("php-4", "PHP-FPM behind nginx, 4 connections", Php, loads.Ab(4, keep=True, most=12_000)),
    ]
    usual = {"prefork-8": False}
    # A listener whose connections are all passed on is the kernel's, and so is the queue of a server all of whose workers are
    # busy.
    may_be_tcp = {"prefork-8", "prefork-32", "node-cluster-8", "php-4"}
    rows = [(row, {"usual": usual.get(row[0])}) for row in kept] + [(row, {"fresh": True}) for row in each]
    return pairs((row, options | {"may_be_tcp": row[0] in may_be_tcp}) for row, options in rows)
