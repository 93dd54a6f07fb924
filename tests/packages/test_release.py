"""The packages of a release in clean systems of each distribution that it is for: installed, used, upgraded and removed. dist/release
has this run with what it has made (NETACC_RELEASE); else the same packages are made here.
"""

import json
import os
import runpy

import made
from harness import ROOT, Failure, Skipped, check, equal
from matrix import case
from redis_inside import by_the_manual, counters, load, serve
from roots import SUPPORTED, Root
from test_debian import dpkg
from test_debug import by_build_id
from test_rpm import Rpm

NEEDS = ("release", "systems of a release")


@case(modes=made.ONE, seldom=True, limit=900)
def what_it_is_made_of(ctx):
    """The lists of a release name everything that NOTICE does, and no folder of the machine that wrote them."""
    folder = made.RELEASE
    if "NETACC_RELEASE" not in os.environ:
        folder = ctx.dir / "lists"
        folder.mkdir()
        made.run(ROOT / "dist/sbom", folder, "1.2.3")
    found = set()
    for part in ("preload", "tools"):
        text = made.only(folder, f"netacc-{part}-*.cdx.json").read_text()
        check("file:///netacc/crates/" in text and str(ROOT.parent) not in text, f"folders in the list of {part}")
        found |= {(component["name"], component["version"]) for component in json.loads(text)["components"]}
    listed = runpy.run_path(str(ROOT / "scripts/notice"))["linked"]()
    ours = {(name, version) for name, version in listed if name in ("netacc-tools", "netacc-preload")}
    equal(sorted(listed - ours - found), [], "packages that are linked and in no list")


@case(modes=made.ONE, seldom=True, limit=60)
def its_symbols(ctx):
    by_build_id(ctx, made.RELEASE)


def used(root):
    """A server and clients, over shared memory."""
    by_the_manual(root)
    server = serve(root, "netacc_run")
    load(root, "netacc_run")
    accepted = counters(root, server)["accepts_shm"]
    check(accepted >= 16, f"{accepted} connections over shared memory")
    server.end()


def is_before(root):
    return "(before" in root.run("netacc_ss", "-v")


def package(root):
    for folder in (made.BEFORE, made.RELEASE):
        files = [root.put(made.only(folder, f"{name}_*.deb"), f"/tmp/{name}.deb") for name in ("netacc", "netacc-dbgsym")]
        dpkg(root, "--install", *files)
        equal(root.run("dpkg", "--verify", "netacc", "netacc-dbgsym"), "", "what dpkg finds changed")
        equal(is_before(root), folder == made.BEFORE, "whether it is the release before")
        used(root)
    dpkg(root, "--purge", "netacc-dbgsym", "netacc")


def archive(root):
    file = made.archive(made.RELEASE)
    for source in (file, file.with_name(f"{file.name}.sha256"), made.only(made.RELEASE, "install.sh")):
        root.put(source, f"/tmp/{source.name}")
    for _ in range(2):
        root.run("sh", "/tmp/install.sh", f"/tmp/{file.name}")
        used(root)
    root.run("sh", "/tmp/install.sh", "--uninstall")


def rpm(root):
    manage = Rpm(root)
    for folder, how in ((made.BEFORE, "-i"), (made.RELEASE, "-U")):
        manage(how, "--nodeps", *(made.only(folder, f"{name}-[0-9]*.rpm") for name in ("netacc", "netacc-debuginfo")))
        equal(is_before(root), folder == made.BEFORE, "whether it is the release before")
        used(root)
    manage("-e", "netacc-debuginfo", "netacc")
    manage.end()


def life(ctx, suite, how):
    try:
        root = Root(ctx, suite)
    except Skipped as why:
        # A release is not one that was tried in part.
        raise Failure(str(why)) if "NETACC_RELEASE" in os.environ else why
    before = root.files()
    how(root)
    equal(sorted(root.files() ^ before), [], f"left in {suite}, or gone")


def register(suite, how):
    def body(ctx):
        life(ctx, suite, how)
    body.__module__, body.__name__ = __name__, f"{how.__name__}_on_{suite}"
    case(modes=made.ONE, seldom=True, limit=240)(body)


for of in SUPPORTED:
    for kind in (package, archive, rpm):
        register(of, kind)
