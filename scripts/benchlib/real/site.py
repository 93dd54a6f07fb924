"""Where the servers of a run live: users, folders that these may enter, programs, and data that is made only once."""

import copy
import glob
import os
import pwd
import shutil
import tempfile

from .. import proc, sides
from . import tree

SOURCES = os.path.join(sides.ROOT, "benches", "real")
# Daemons are often missing in a user's PATH, and some programs have folders of their own. What Debian has in PATH of PostgreSQL
# are scripts that look for the program.
FURTHER = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/go/bin")
OWN_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/lib/apache2/modules")


def program(name):
    """The path of a program or of a module of Apache, or None. A name with a star stands for its newest release."""
    folders = [folder for pattern in OWN_FOLDERS for folder in sorted(glob.glob(pattern), reverse=True)]
    for folder in (*folders, *os.get_exec_path(), *FURTHER):
        found = sorted(glob.glob(os.path.join(glob.escape(folder), name)))
        if found and os.access(found[-1], os.R_OK):
            return found[-1]
    return None


def is_root():
    return os.getuid() == 0


def account(name):
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


class Site:
    """All of it lies in the scratch folder of the run. Only root starts programs as other users; anybody else starts all of
    them as himself."""

    def __init__(self, scratch):
        self.scratch = scratch
        os.chmod(scratch, 0o711)
        proc.adopt_orphans()
        self.plain = sides.Plain()
        self.kept = {}
        self.servers = {}

    def once(self, key, make):
        """What `make()` returned the first time."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def server(self, kind, side):
        """A server of this kind and side. It goes on until a server of another kind is wanted, so that rows of one server follow
        each other without a new start."""
        if any(key[0] is not kind for key in self.servers):
            self.close()
        key = (kind, side.name)
        if key not in self.servers:
            self.servers[key] = kind(self, side)
        return self.servers[key]

    def close(self):
        while self.servers:
            self.servers.popitem()[1].close()
        tree.end_orphans()

    def folder(self, user):
        """A new folder that belongs to a user, and that all may enter."""
        path = tempfile.mkdtemp(dir=self.scratch)
        os.chmod(path, 0o755)
        if is_root():
            os.chown(path, account(user).pw_uid, account(user).pw_gid)
        return path

    def side(self, side, user=None):
        """The side with programs that run as a user; without one, as the user of the run."""
        changed = copy.copy(side)
        changed.prefix = [self._open(part) for part in side.prefix]
        home = self.once(("home", user), lambda: self.folder(user or "root"))
        own = {"HOME": home, "TMPDIR": home, "NACC_LOG_PATH": f"{home}/netacc.log", "PYTHONDONTWRITEBYTECODE": "1"}
        changed.env = {**side.env, **own}
        if user and is_root():
            group = account(user).pw_gid
            # The kernel forgets the signal of a parent's death when the user changes.
            changed.prefix = [program("setpriv"), "--pdeathsig", "kill", "--reuid", user, "--regid", str(group),
                              "--init-groups", *changed.prefix]  # fmt: skip
        return changed

    def _open(self, launcher):
        """A copy of the launcher and of its library, which other users can read even if the project's folder is private."""
        library = os.path.join(os.path.dirname(launcher), "libnetacc-preload.so")
        if not os.path.exists(library):
            return launcher  # It is installed, so all users can read it.
        place = self.once(("launcher", launcher), lambda: self._copy(launcher, library))
        return os.path.join(place, os.path.basename(launcher))

    def _copy(self, *files):
        place = tempfile.mkdtemp(dir=self.scratch)
        os.chmod(place, 0o755)
        for file in files:
            shutil.copy(file, place)
        return place

    def built(self, target, *names):
        """The folder with these files, which a target of benches/real/Makefile makes."""
        out = os.path.join(sides.BUILD, "bench")

        def make():
            go = program("go") or "go"
            proc.run(["make", "-s", "-C", SOURCES, target, f"OUT={out}", f"GO={go}"], timeout=600)
            return self._copy(*(os.path.join(out, name) for name in names))

        return self.once(("built", target), make)

    def sources(self):
        """The folder with the programs that need no compiler, and with the page."""

        def make():
            place = self._copy(*(os.path.join(SOURCES, name) for name in ("app.py", "server.js", "page.php")))
            with open(os.path.join(place, "page"), "w", encoding="ascii") as page:
                page.write("x" * 1000)
            return place

        return self.once("sources", make)


def of(lab):
    """The site of a run."""
    if "site" not in lab.shared:
        lab.shared["site"] = Site(lab.scratch)
    return lab.shared["site"]
