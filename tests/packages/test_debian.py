"""The Debian package from its installation to its purge, in a clean system."""

import shutil
import subprocess

import host
import made
import redis_inside
from harness import check, equal, need
from matrix import case
from roots import Root, release

NEEDS = ("before", "deb", "system")


def dpkg(root, *argv):
    # Without it every file is flushed to the disk, although it will never be read again.
    return root.run("dpkg", "--force-unsafe-io", *argv)


def installed(ctx):
    root = Root(ctx, release())
    before = root.files()
    dpkg(root, "--install", root.put(made.deb(), "/tmp/netacc.deb"))
    return root, before


def later(ctx):
    """The package of a later version: another library, and another default in the configuration."""
    tree = ctx.dir / "later"
    run = lambda *argv: subprocess.run([str(a) for a in argv], check=True, capture_output=True)
    run(need("dpkg-deb"), "--raw-extract", made.deb(), tree)
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9."))
    sums = tree / "DEBIAN" / "md5sums"
    sums.unlink(missing_ok=True)
    for library in tree.glob("usr/lib/*/libnetacc-preload.so"):
        # The bytes lie behind what the linker reads.
        with open(library, "ab") as f:
            f.write(b"later")
    with open(tree / "etc" / "netacc.conf", "a") as f:
        f.write("# A later version's words.\n")
    run(need("dpkg-deb"), "-Znone", "--root-owner-group", "--build", tree, ctx.dir / "later.deb")
    return ctx.dir / "later.deb"


def triplet():
    return subprocess.run([need("gcc"), "-print-multiarch"], check=True, capture_output=True, text=True).stdout.strip()


def mapped(process):
    """The files of the library that a process has mapped, with the kernel's mark where they are not there any more."""
    found = {line.split(None, 5)[5] for line in host.maps(process.pid).splitlines() if "libnetacc-preload" in line}
    check(found, "the library is not mapped")
    return found


@case(modes=made.ONE)
def what_is_in_it(ctx):
    """Every program, manual page and completion that the project has, at the places that Debian has for them."""
    listed = subprocess.run([need("dpkg-deb"), "--fsys-tarfile", made.deb()], check=True, capture_output=True).stdout
    names = subprocess.run([need("tar"), "tf", "-"], input=listed, check=True, capture_output=True).stdout.decode()
    found = {name.removeprefix(".") for name in names.splitlines() if not name.endswith("/")}
    wanted = {f"/usr/bin/{p}" for p in made.programs() + made.scripts()}
    wanted |= {f"/usr/share/man/{page}.gz" for page in made.pages()}
    for p in made.programs() + made.scripts():
        wanted |= {f"/usr/share/bash-completion/completions/{p}", f"/usr/share/zsh/vendor-completions/_{p}",
                   f"/usr/share/fish/vendor_completions.d/{p}.fish"}
    wanted |= {f"/usr/lib/{triplet()}/libnetacc-preload.so", "/usr/lib64/libnetacc-preload.so", "/etc/netacc.conf", "/usr/share/doc/netacc/DEPLOY.md",
               "/usr/share/doc/netacc/examples/netacc.systemd.conf", "/usr/share/netacc/grafana-netacc.json",
               "/usr/share/lintian/overrides/netacc"}
    equal(sorted(wanted - found), [], "missing in the package")
    elsewhere = {f for f in found - wanted if not f.startswith("/usr/share/doc/netacc/")}
    equal(sorted(elsewhere), [], "in the package without a test that says why")
    for page in ("netacc_run.1", "netacc_ss.1", "netacc_check.1", "netacc_ctl.1", "netacc.conf.5", "netacc.7"):
        check(any(f.endswith(f"/{page}.gz") for f in found), f"no {page}")


@case(modes=made.ONE)
def install_use_upgrade_remove_purge(ctx):
    """A whole life. A redis that was started with the first library goes on through all of it."""
    root, before = installed(ctx)
    equal(root.run("dpkg", "--verify", "netacc"), "", "what dpkg finds changed")
    equal(root.attempt("true", env={"LD_PRELOAD": "libnetacc-preload.so"}).stderr, "", "the linker on the bare name")
    check("libnetacc-preload.so" in root.run("ldconfig", "-p"), "the linker's cache after the installation")
    for program in made.programs():
        check(root.run(program, "--version").startswith(program), program)
    redis_inside.by_the_manual(root)

    server = redis_inside.serve(root, "netacc_run")
    redis_inside.load(root, "netacc_run")
    accepted = redis_inside.counters(root, server)["accepts_shm"]
    check(accepted >= 16, f"{accepted} connections over shared memory")

    # The administrator's configuration and the running redis' library outlive an upgrade.
    mine = root.text("/etc/netacc.conf") + "# mine\n"
    with open(root.path("/etc/netacc.conf"), "w") as f:
        f.write(mine)
    library = mapped(server)
    equal([p for p in library if "(deleted)" in p], [], "the library of redis before the upgrade")
    dpkg(root, "--force-confold", "--install", root.put(later(ctx), "/tmp/later.deb"))
    equal(root.text("/etc/netacc.conf"), mine, "the configuration after an upgrade")
    equal([p for p in mapped(server) if "(deleted)" not in p], [], "the new library in the old redis")
    redis_inside.load(root, "netacc_run")
    count = redis_inside.counters(root, server)["accepts_shm"]
    check(count >= accepted + 16, f"{count} connections over shared memory after the upgrade, {accepted} before")

    # Removed: new programs are plain ones, redis goes on, the configuration stays.
    shutil.copy(root.path("/usr/bin/netacc_ss"), root.path("/tmp/netacc_ss"))
    dpkg(root, "--remove", "netacc")
    equal(root.text("/etc/netacc.conf"), mine, "the configuration after a removal")
    gone = ["/usr/bin/netacc_run", f"/usr/lib/{triplet()}/libnetacc-preload.so"]
    equal([path for path in gone if root.there(path)], [], "left after a removal")
    check("libnetacc-preload.so" not in root.run("ldconfig", "-p"), "the linker's cache after the removal")
    redis_inside.load(root)
    check(redis_inside.counters(root, server, "/tmp/netacc_ss")["accepts_tcp"] >= 16, "plain clients of the redis that runs on")
    # A program whose environment still names the library gets the linker's word about it, and runs.
    left = root.attempt("echo", "runs", env={"LD_PRELOAD": "libnetacc-preload.so"})
    check(left.stdout == "runs\n" and "cannot be preloaded" in left.stderr, f"{left}")

    dpkg(root, "--purge", "netacc")
    server.end()
    equal(sorted(root.files() - before), [], "left after a purge")
    equal(sorted(before - root.files()), [], "gone with a purge")


@case(modes=made.ONE)
def a_changed_default_asks_nobody_who_changed_nothing(ctx):
    root, _ = installed(ctx)
    dpkg(root, "--install", root.put(later(ctx), "/tmp/later.deb"))
    check(root.text("/etc/netacc.conf").endswith("# A later version's words.\n"), "the configuration was not renewed")


@case(modes=made.ONE)
def from_the_release_before(ctx):
    """With its symbols, which belong to that version alone. A redis of the release before and clients of this one go together."""
    root = Root(ctx, release())
    before = root.files()
    put = lambda folder, name: root.put(made.only(folder, f"{name}_*.deb"), f"/tmp/{name}.deb")
    dpkg(root, "--install", put(made.BEFORE, "netacc"), put(made.BEFORE, "netacc-dbgsym"))
    check("(before" in root.run("netacc_ss", "-v"), "the release before")
    server = redis_inside.serve(root, "netacc_run")
    dpkg(root, "--install", put(made.PACKAGES, "netacc"), put(made.PACKAGES, "netacc-dbgsym"))
    check("(before" not in root.run("netacc_ss", "-v"), "the programs after the upgrade")
    equal(root.run("dpkg", "--verify", "netacc", "netacc-dbgsym"), "", "what dpkg finds changed")
    redis_inside.load(root, "netacc_run")
    accepted = redis_inside.counters(root, server)["accepts_shm"]
    check(accepted >= 16, f"{accepted} connections over shared memory")
    server.end()
    dpkg(root, "--purge", "netacc-dbgsym", "netacc")
    equal(sorted(root.files() ^ before), [], "what is left, and what is gone")
