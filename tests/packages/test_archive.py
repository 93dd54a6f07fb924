"""dist/install.sh: what it verifies, what it keeps, what it takes away. Into folders; test_old_system has a system."""

import hashlib
import shutil
import subprocess
import tarfile

import made
from harness import ROOT, check, equal, need
from matrix import case

NEEDS = ("archive",)

SCRIPT = ROOT / "dist" / "install.sh"


class Place:
    """A copy of the release, and a folder to install it below."""

    def __init__(self, ctx):
        self.ctx, self.root = ctx, ctx.dir / "root"
        self.root.mkdir()
        self.archive = ctx.dir / made.archive().name
        for file in (made.archive(), made.archive().with_name(f"{self.archive.name}.sha256")):
            shutil.copy(file, ctx.dir)
        self.sums = self.archive.with_name(f"{self.archive.name}.sha256")

    def script(self, *argv, script=SCRIPT):
        return subprocess.run(["sh", str(script), "--root", str(self.root), *map(str, argv)], cwd=self.ctx.dir,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def good(self, *argv, **how):
        done = self.script(*argv, **how)
        check(done.returncode == 0 and done.stderr == "", f"{argv}: {done}")
        return done.stdout

    def refused(self, words, *argv, status=1, **how):
        """A message that says so, the right exit status, and nothing done."""
        before = self.files()
        done = self.script(*argv, **how)
        check(done.returncode == status and words in done.stderr, f"{argv}: {done}")
        equal(self.files(), before, "files after a refusal")

    def files(self):
        return {str(p.relative_to(self.root)): p.read_bytes() for p in self.root.rglob("*") if not p.is_dir()}

    def repack(self, change):
        """Another release: the archive with its tree changed, and the sums of that."""
        tree = self.ctx.dir / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        with tarfile.open(self.archive) as old:
            old.extractall(tree)
        top = next(tree.iterdir())
        change(top / "files")
        lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(top)}\n"
                 for p in sorted((top / "files").rglob("*")) if p.is_file()]
        (top / "SHA256SUMS").write_text("".join(lines))
        with tarfile.open(self.archive, "w:gz") as new:
            new.add(top, top.name)
        self.sums.write_text(hashlib.sha256(self.archive.read_bytes()).hexdigest() + "\n")


@case(modes=made.ONE)
def install_and_uninstall(ctx):
    p = Place(ctx)
    for prefix in ((), ("--prefix", "/usr"), ("--prefix", "/opt/netacc")):
        said = p.good(*prefix, p.archive)
        check("checksum is right" in said, said)
        folder = p.root / (prefix[1] if prefix else "/usr/local").lstrip("/")
        for program in made.programs():
            out = subprocess.run([folder / "bin" / program, "--version"], capture_output=True, text=True).stdout
            check(out.startswith(program), out)
        for page in made.pages():
            check((folder / "share" / "man" / page).is_file(), page)
        equal((p.root / "etc/netacc.conf").read_bytes(), (ROOT / "dist/netacc.conf").read_bytes(), "the configuration")
        said = p.good(*prefix, "--uninstall")
        equal(p.files(), {}, "left after --uninstall")
        p.refused("nothing to uninstall", *prefix, "--uninstall")


@case(modes=made.ONE)
def the_path_of_the_manual(ctx):
    """/lib64/libnetacc-preload.so is the library that was installed last, unless somebody else put a file there."""
    p = Place(ctx)
    folder = p.root / "usr/lib64"
    folder.mkdir(parents=True)
    (p.root / "lib64").symlink_to("usr/lib64")
    link = folder / "libnetacc-preload.so"
    for prefix in ("/usr/local", "/opt/netacc"):
        p.good("--prefix", prefix, p.archive)
        # An upgrade leaves the link as it is.
        p.good("--prefix", prefix, p.archive)
        target = str(link.readlink())
        check(target.startswith(f"{prefix}/lib/") and (p.root / target.lstrip("/")).is_file(), target)
        done = subprocess.run([p.root / prefix.lstrip("/") / "bin/run_with_netacc", "sh", "-c", 'echo "$1:$LD_PRELOAD"', "sh", "a b"],
                              capture_output=True, text=True)
        check(done.stdout.startswith("a b:") and "libnetacc-preload.so" in done.stdout, f"run_with_netacc: {done}")
    # The other one's link is not this one's to take away.
    p.good("--prefix", "/usr/local", "--uninstall")
    check(link.is_symlink(), "the link of the other installation is gone")
    p.good("--prefix", "/opt/netacc", "--uninstall")
    check(not link.is_symlink(), "the link is left")
    link.write_text("another's")
    check("kept: " in p.good(p.archive), "no word about the file that is there")
    p.good("--uninstall")
    equal(link.read_text(), "another's", "the file of somebody else")


@case(modes=made.ONE)
def what_is_not_the_release_is_refused(ctx):
    p = Place(ctx)
    right = p.sums.read_text()
    p.sums.write_text("0" * 64 + "\n")
    p.refused("its checksum is", p.archive)
    p.sums.write_text("")
    p.refused("its checksum is", p.archive)
    p.sums.unlink()
    p.refused("is missing: fetch it", p.archive)
    p.good("--sha256", right.split()[0], p.archive)
    p.refused("its checksum is", "--sha256", "abc", p.archive)
    p.sums.write_text(right)
    with open(p.archive, "r+b") as f:
        f.seek(1000)
        was = f.read(1)[0]
        f.seek(1000)
        # Any fixed byte would be there already in one archive of 256.
        f.write(bytes([was ^ 1]))
    p.refused("is damaged", p.archive)
    p.refused("no such file", ctx.dir / "netacc-none.tar.gz")


@case(modes=made.ONE)
def wrong_usage(ctx):
    p = Place(ctx)
    for argv in (["--prefix"], ["--prefix", "usr", p.archive], ["--colour"], [p.archive, p.archive],
                 ["--uninstall", p.archive], []):
        p.refused("see install.sh --help" if argv else "no archive was named", *argv, status=2)
    check("--uninstall" in p.good("--help"), "no help")


@case(modes=made.ONE)
def an_unpacked_archive(ctx):
    """The script that lies in it installs from there, and sees what was changed."""
    p = Place(ctx)
    with tarfile.open(p.archive) as archive:
        archive.extractall(ctx.dir / "unpacked")
    top = next((ctx.dir / "unpacked").iterdir())
    p.good(script=top / "install.sh")
    check((p.root / "usr/local/bin/netacc_run").is_file(), "nothing was installed")
    with open(top / "files/usr/bin/netacc_run", "ab") as f:
        f.write(b"x")
    p.refused("netacc_run was changed after the release", script=top / "install.sh")


@case(modes=made.ONE)
def an_upgrade(ctx):
    """An unchanged configuration is renewed, a changed one is kept; files that are no longer installed are removed."""
    p = Place(ctx)
    p.good(p.archive)
    library = next((p.root / "usr/local/lib").rglob("libnetacc-preload.so"))
    held = open(library, "rb")
    old = held.read()

    def newer(files):
        (files / "usr/share/doc/netacc/COMPATIBILITY.md").unlink()
        (files / "usr/share/doc/netacc/NEWS").write_text("new\n")
        for file in ("usr/lib/libnetacc-preload.so", "etc/netacc.conf"):
            with open(files / file, "ab") as f:
                f.write(b"# newer\n")

    p.repack(newer)
    p.good(p.archive)
    documents = p.root / "usr/local/share/doc/netacc"
    check((documents / "NEWS").is_file() and not (documents / "COMPATIBILITY.md").exists(), "documents")
    held.seek(0)
    check(held.read() == old and library.read_bytes() == old + b"# newer\n", "the library was not replaced by rename")
    conf = p.root / "etc/netacc.conf"
    check(conf.read_text().endswith("# newer\n"), "the configuration that nobody changed")

    conf.write_text("[netacc]\nNACC_DEBUG=1\n")
    check("kept: " in p.good(p.archive), "no word about the configuration")
    check("kept, because it was changed" in p.good("--uninstall"), "no word about the configuration")
    equal(p.files(), {"etc/netacc.conf": b"[netacc]\nNACC_DEBUG=1\n"}, "left after --uninstall")


@case(modes=made.ONE)
def what_others_installed_is_left_alone(ctx):
    p = Place(ctx)
    program = p.root / "usr/bin/netacc_run"
    program.parent.mkdir(parents=True)
    program.write_text("a package's")
    p.refused("not from this script", "--prefix", "/usr", p.archive)


@case(modes=made.ONE)
def scripts_are_clean(ctx):
    scripts = [SCRIPT, *(ROOT / "dist" / name for name in made.scripts()), ROOT / "dist/debian", ROOT / "scripts/zig-cc",
               *(ROOT / "scripts" / name for name in ("glibc-needed", "deps", "rustflags")),
               *(ROOT / "dist" / name for name in ("debian-dbgsym", "split-debug"))]
    done = subprocess.run([need("shellcheck"), *scripts], capture_output=True, text=True)
    check(done.returncode == 0, done.stdout)
