"""What the installed documents and manual pages name is there, where they are installed."""

import re
import subprocess

import made
from harness import ROOT, check, equal, need
from matrix import case

NEEDS = ("deb",)

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w.*/$}])(?:/usr/share|/usr/bin|/usr/lib64|/lib64|/etc)/[\w./+-]*[\w+]")
# Files of the system, of others, or of the recipe that names them.
OTHERS = re.compile(r"""/etc/(ld\.so|systemd|libibverbs|sudoers|cron|security|hosts|init\.d|profile|environment|docker|containers|default|modprobe|
    pam|ssh|tmpfiles|apache2|redis|passwd)|/usr/bin/(redis|env|python|podman|docker|nginx)|/usr/share/common-licenses""", re.X)


def installed(ctx):
    tree = ctx.dir / "installed"
    subprocess.run([need("dpkg-deb"), "--extract", made.deb(), tree], check=True)
    return tree


def documents(tree):
    found = sorted((tree / "usr/share/doc/netacc").rglob("*.md"))
    check(len(found) > 5, f"documents: {found}")
    return found


def anchors(text):
    """The names of a document's headings, as they are linked to."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_links(path, there=lambda to: to.is_file()):
    """The links of a document that lead to nothing that is there."""
    for target in LINK.findall(re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        to = path.parent / file if file else path
        if not there(to) or anchor and anchor not in anchors(to.read_text()):
            yield f"{path.name}: {target}"


@case(modes=made.ONE)
def every_link_leads_somewhere(ctx):
    found = documents(installed(ctx))
    check(sum(len(LINK.findall(path.read_text())) for path in found) > 20, "hardly a link was found")
    equal([wrong for path in found for wrong in wrong_links(path)], [], "links that lead nowhere")


@case(modes=made.ONE)
def every_link_of_the_sources_leads_somewhere(ctx):
    found = [path for folder in (ROOT, ROOT / "docs", ROOT / "tests", ROOT / "benches") for path in folder.glob("*.md")]
    found += [path for folder in ("reference", "internals", "decisions") for path in (ROOT / "docs" / folder).glob("*.md")]
    equal([wrong for path in found for wrong in wrong_links(path, lambda to: to.exists())], [], "links that lead nowhere")


@case(modes=made.ONE)
def every_file_is_there(ctx):
    """Files that a document or a manual page says are installed."""
    tree = installed(ctx)
    texts = [(path.name, path.read_text()) for path in documents(tree)]
    for page in made.pages():
        text = subprocess.run([need("zcat"), tree / "usr/share/man" / f"{page}.gz"], check=True, capture_output=True, text=True).stdout
        texts.append((page, text.replace("\\-", "-")))
    missing = {f"{name}: {file}" for name, text in texts for file in FILE.findall(text)
               if not OTHERS.match(file) and not (tree / file.lstrip("/")).exists()
               and not (tree / "usr" / file.lstrip("/")).is_symlink()}
    equal(sorted(missing), [], "files that are named and not installed")


@case(modes=made.ONE)
def every_page_that_is_named_is_there(ctx):
    """References from one of our pages to another; the system's pages are not in the package."""
    ours = {page.partition("/")[2] for page in made.pages()}
    for page in made.pages():
        text = (ROOT / "build/man" / page.partition("/")[2]).read_text().replace("\\-", "-")
        named = {f"{name}.{section}" for name, section in re.findall(r"\b((?:netacc|run_with)[\w.]*) ?\(([1-8])\)", text)}
        equal(sorted(named - ours), [], f"pages that {page} names")


@case(modes=made.ONE)
def the_sources_are_told_apart(ctx):
    """A document that names files or commands of the sources says that these are not installed, and no manual page names any."""
    tree = installed(ctx)
    sources = re.compile(r"(?<![\w/])(?:tests|crates|scripts|benches|build|target)/\w|\bmake (?:test|bench|demo|storm|deb|rpm|dist|conformance)")
    for path in documents(tree):
        head = "\n".join(path.read_text().split("\n")[:4])
        check(not sources.search(path.read_text()) or "NetACC's sources" in head, f"{path.name} does not say what the sources are")
    for page in made.pages():
        text = (ROOT / "build/man" / page.partition("/")[2]).read_text()
        equal(sources.findall(text), [], f"what {page} names of the sources")


@case(modes=made.ONE)
def the_licences_of_what_is_linked(ctx):
    tree = installed(ctx)
    equal((tree / "usr/share/doc/netacc/NOTICE").read_bytes(), (ROOT / "NOTICE").read_bytes(), "NOTICE")
    done = subprocess.run([ROOT / "scripts/notice", "--check"], capture_output=True, text=True)
    check(done.returncode == 0, f"{done.stdout}{done.stderr}")


@case(modes=made.ONE)
def the_commit(ctx):
    """Each tool names the commit that it was built from, if that is known."""
    tree = installed(ctx)
    git = subprocess.run(["git", "describe", "--always", "--exclude=*", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    for program in made.programs():
        said = subprocess.run([tree / "usr/bin" / program, "-v"], check=True, capture_output=True, text=True).stdout
        known = re.fullmatch(rf"{program} [0-9.]+( \((\w+)(-modified)?\))?\n", said)
        check(known and (git.returncode or known[2] == git.stdout.strip()), f"{program} -v: {said!r}, git: {git.stdout!r}")
