"""dist/release makes nothing of a commit that is no release, and says in one sentence what is wrong with it."""

import shutil
import subprocess

import made
from harness import ROOT, check, equal, need
from matrix import case

NEEDS = ()

COMPILER = (ROOT / "dist/compiler").read_text()


class Project:
    """A repository with what dist/release reads before it makes something."""

    def __init__(self, ctx):
        self.place = ctx.dir / "project"
        (self.place / "dist").mkdir(parents=True)
        shutil.copy(ROOT / "dist/release", self.place / "dist")
        self.git("init", "--quiet")
        self.write("dist/compiler", COMPILER)
        self.write("Cargo.toml", '[workspace.package]\nversion = "0.1.0"\n')
        self.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-30\n\n- All of it.\n")
        self.commit()

    def git(self, *argv):
        subprocess.run([need("git"), "-c", "user.name=a", "-c", "user.email=a@example.invalid", *argv], cwd=self.place, check=True,
                       capture_output=True)

    def write(self, name, text):
        (self.place / name).write_text(text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a")

    def refused(self, words, how):
        done = subprocess.run(["sh", "dist/release", how], cwd=self.place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        check(done.returncode == 1 and done.stderr.count("\n") == 1 and done.stderr.startswith("dist/release: ") and words in done.stderr,
              f"{how}, {words}: {done}")
        equal([p.name for p in self.place.glob("build*")], [], "made in spite of a refusal")


@case(modes=made.ONE)
def no_release(ctx):
    project = Project(ctx)
    done = subprocess.run(["sh", "dist/release"], cwd=project.place, capture_output=True, text=True)
    check(done.returncode == 2 and "usage: dist/release" in done.stderr, f"without an argument: {done}")
    project.refused("the tag v0.1.0: there is none", "v0.1.0")
    project.git("tag", "v0.1.0")
    project.refused("the tag v0.1.0: it names no author", "v0.1.0")
    project.git("tag", "--annotate", "--message", "a", "v0.2.0")
    project.refused("the version in Cargo.toml: 0.1.0", "v0.2.0")
    project.git("tag", "--annotate", "--force", "--message", "a", "v0.1.0")
    (project.place / "dist/release").open("a").write("\n")
    project.refused("the working tree: dist/release is not committed", "v0.1.0")
    project.refused("the working tree: dist/release is not committed", "--dry-run")
    project.git("checkout", "dist/release")
    project.write("a new file", "")
    project.refused("the working tree: ", "v0.1.0")
    (project.place / "a new file").unlink()
    for text, words in (("# Changelog\n\n## [Unreleased]\n\n- All of it.\n", 'CHANGELOG.md: it has no heading "## [0.1.0] - '),
                        ("# Changelog\n\n## [0.1.0] - soon\n", 'CHANGELOG.md: it has no heading "## [0.1.0] - '),
                        ("# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.1.0] - 2026-11-30\n", 'CHANGELOG.md: "- New." stands under')):
        project.write("CHANGELOG.md", text)
        project.commit()
        project.refused(words, "--dry-run")
        project.git("tag", "--annotate", "--force", "--message", "a", "v0.1.0")
        project.refused(words, "v0.1.0")
    # A tag is judged by what it holds, and not by the commits after it.
    project.write("CHANGELOG.md", "# Changelog\n\n## [0.1.0] - 2026-11-30\n" + "- More than a pipe holds.\n" * 9000)
    project.write("dist/compiler", "1.0.0\n")
    project.commit()
    project.refused(words, "v0.1.0")
    project.refused("the compiler: releases are built with rustc 1.0.0", "--dry-run")
