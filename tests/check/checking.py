"""netacc_check as the tests use it."""

import json
import os
import pathlib
import shutil
import subprocess

from harness import ROOT, check

HOSTS = pathlib.Path(__file__).resolve().parent / "hosts"
# Nothing here is about which end is accelerated; a test that starts an accelerated server says so by its role.
ONE = ("server",)


def tool():
    return os.environ.get("NETACC_CHECK") or str(ROOT / "build" / "netacc_check")


class Answer:
    """What was printed and how it ended."""

    def __init__(self, done):
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        check("panicked" not in self.err, self.err)

    def findings(self):
        return json.loads(self.out)["findings"]

    def one(self, subject, name):
        """The only finding of a check."""
        found = self.all(subject, name)
        check(len(found) == 1, f"{subject} {name}: {found or self.out or self.err}")
        return found[0]

    def all(self, subject, name):
        return [f for f in self.findings() if f["subject"] == subject and f["check"] == name]


def run(ctx, *argv, env=None, within=(), **extra):
    """Runs the program as given, without this machine's configuration files."""
    none = ctx.dir / "empty.conf"
    none.write_text("[netacc]\n")
    env = ctx.environment({"NACC_CONFIG_FILE": none, **(env or {})})
    env.pop("NACC_LOG_PATH")
    command = [*map(str, within), tool(), *map(str, argv)]
    return Answer(subprocess.run(command, env=env, cwd=ctx.dir, stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, timeout=60, **extra))


def ask(ctx, *argv, **extra):
    return run(ctx, "--json", *argv, **extra)


def as_nobody(ctx):
    """Arguments for `run` as another user: the tool must lie where that user can read it."""
    place = ctx.dir / "tool"
    place.mkdir(exist_ok=True)
    shutil.copy(tool(), place / "netacc_check")
    return {"user": 65534, "group": 65534, "extra_groups": []}, str(place / "netacc_check")


def expect(found, level, *parts):
    check(found["level"] == level, f"{level} instead of: {found}")
    text = " ".join(found[k] or "" for k in ("text", "why", "do"))
    for part in parts:
        check(part in text, f"{part!r} is not in: {found}")
