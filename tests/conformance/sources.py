"""Source packages of the installed Debian programs, fetched by apt from wherever this machine fetches its packages.

apt's own configuration is left alone: its list of places is read with `deb` turned into `deb-src`, and its index files
go to a folder of ours.
"""

import pathlib
import re
import shutil
import subprocess

from judging import BUILD, Broken

APT = BUILD / "apt"
LIMIT = 280


def source_lists():
    """The places of apt's one-line and of its deb822 files, as places of sources."""
    etc = pathlib.Path("/etc/apt")
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    lines = [line for path in lists if path.exists() for line in path.read_text().splitlines()]
    one_line = "".join(re.sub(r"^deb\s", "deb-src ", line) + "\n" for line in lines if re.match(r"deb\s", line))
    found = {"places.list": one_line} if one_line else {}
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        found[path.name] = re.sub(r"(?mi)^Types:.*$", "Types: deb-src", path.read_text())
    return found


def of_release(places, release):
    """The places of packages (`deb`, no sources) of another Debian release, without those of security fixes."""
    found = {}
    for name, text in places.items():
        if name.endswith(".sources"):
            parts = [part for part in re.split(r"\n\s*\n", text) if "debian" in part and "security" not in part]
            parts = [re.sub(r"(?mi)^Suites:.*$", f"Suites: {release}", part) for part in parts]
            found[name] = re.sub(r"(?mi)^Types:.*$", "Types: deb", "\n\n".join(parts))
        else:
            lines = [line for line in text.splitlines() if "debian" in line and "security" not in line]
            found[name] = "".join(re.sub(r"^deb-src(\s+(?:\[.*?\]\s+)?\S+\s+)\S+", rf"deb\1{release}", line) + "\n" for line in lines)
    return {name: text for name, text in found.items() if text.strip()}


def without_security(places):
    """The places without those of security fixes, some mirrors of which have the newest version's name and not its files."""
    found = {}
    for name, text in places.items():
        if name.endswith(".sources"):
            found[name] = "\n\n".join(part for part in re.split(r"\n\s*\n", text) if "security" not in part)
        else:
            found[name] = "".join(line + "\n" for line in text.splitlines() if "security" not in line)
    return {name: text for name, text in found.items() if text.strip()}


def run(argv, cwd, what):
    log = BUILD / "prepare.log"
    with open(log, "ab") as out:
        try:
            status = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                    timeout=LIMIT).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Broken(f"{what}: {error}") from None
    if status:
        end = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise Broken(f"{what} failed: {' / '.join(end)} (build/conformance/prepare.log)")


def apt(*arguments, cwd, kept=APT, lists=None):
    """Calls apt-get with these lists of places ({file: text}; the sources of this machine's if none are given), and keeps what it
    knows in a folder of its own."""
    places = kept / "places"
    shutil.rmtree(places, ignore_errors=True)
    for folder in (places, kept / "lists" / "partial", kept / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in (source_lists() if lists is None else lists).items():
        (places / name).write_text(text)
    options = {"Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": places, "Dir::State::lists": kept / "lists",
               "Dir::Cache": kept / "cache", "APT::Sandbox::User": "", "APT::Get::Only-Source": "true"}
    run(["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items()), *arguments], cwd,
        f"apt-get {arguments[0]}")


def installed(program_package):
    """(source package, its version) that an installed package was built from."""
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", program_package],
                           capture_output=True, text=True).stdout.split()
    if len(shown) != 2:
        raise Broken(f"the package {program_package} is not installed; scripts/deps conformance installs it")
    return shown


def fetch(program_package):
    """The unpacked source of an installed package, fetched unless it is there."""
    package, version = installed(program_package)
    target = BUILD / f"{package}-{version.replace(':', '_')}"
    if (target / "fetched").exists():
        return target / "source"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    apt("update", cwd=target)
    apt("source", "--download-only", f"{package}={version}", cwd=target)
    described = next(target.glob("*.dsc"))
    run(["dpkg-source", "-x", described.name, "source"], target, "dpkg-source")
    (target / "fetched").touch()
    return target / "source"
