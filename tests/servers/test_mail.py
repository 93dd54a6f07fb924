"""Dovecot: a master that holds the listeners in its event loop and starts a program for each client, or keeps some waiting."""

import os
import pwd

import host
from harness import START_LIMIT, check, equal, need
from host import wait_until
from matrix import case

LOGINS = 12
PASSWORD = "secret"


def configuration(ctx, port, login, inherit):
    """`login`: settings of the service that takes clients; `inherit`: the programs it starts have the library as well."""
    user, home = ctx.stranger()
    owner = user or pwd.getpwuid(os.getuid())
    users = ctx.file("users", f"someone:{{PLAIN}}{PASSWORD}\n".encode())
    users.chmod(0o644)
    ctx.dir.chmod(0o755)
    # A process that does not begin as root cannot change its user.
    same = "" if user else f"default_internal_user = {owner.pw_name}\ndefault_login_user = {owner.pw_name}\n" \
        f"default_internal_group = {owner.pw_gid}\n"
    no_chroot = "" if user else "chroot =\n"
    keep = "import_environment = TZ LD_PRELOAD NACC_LOG_PATH\n" if inherit else ""
    return ctx.file("dovecot.conf", f"""
protocols = imap
listen = 127.0.0.1
base_dir = {ctx.dir}/run
state_dir = {ctx.dir}/run
log_path = {ctx.dir}/dovecot.log
ssl = no
disable_plaintext_auth = no
first_valid_uid = {owner.pw_uid}
mail_location = maildir:{home}/mail
{same}{keep}
passdb {{
  driver = passwd-file
  args = {users}
}}
userdb {{
  driver = static
  args = uid={owner.pw_uid} gid={owner.pw_gid} home={home}
}}
service imap-login {{
  {no_chroot}
  {login}
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  {no_chroot}
}}
""".encode())


def dovecot(ctx, login, inherit):
    server = ctx.serve(lambda port: [need("dovecot"), "-F", "-c", configuration(ctx, port, login, inherit)])
    wait_until(lambda: host.children(server.pid), START_LIMIT, "Dovecot's first process is there")
    clients = [ctx.client(ctx.script("imap_client.py", server.port, "someone", PASSWORD, LOGINS, ctx.random.randrange(1 << 30)))
               for _ in range(3)]
    for client in clients:
        equal(client.result().split(), ["sessions", str(LOGINS)], "what the client says")
    check(server.running(), f"the master has ended: {server.tail()}")
    log = (ctx.dir / "dovecot.log").read_text(errors="replace")
    bad = [line for line in log.splitlines() if "Panic" in line or "Fatal" in line or "epoll" in line]
    check(not bad, f"Dovecot says {bad[:3]}")


@case()
def dovecot_each(ctx):
    """A program for each client, executed at its connect; only the master has the library."""
    dovecot(ctx, "service_count = 1", False)


@case()
def dovecot_each_inherits(ctx):
    dovecot(ctx, "service_count = 1", True)


@case()
def dovecot_waiting(ctx):
    """Processes that are there before clients come and serve many of them."""
    dovecot(ctx, "service_count = 0\n  process_min_avail = 2", True)
