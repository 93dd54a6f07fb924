"""Which file of a crate imports which, as the sources say: `use` declarations and paths that begin with `crate` or `super`."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)
TESTS = re.compile(r"#\[cfg\((?:test|all\(test[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{")
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def code(text):
    """The text without comments, strings and unit tests."""
    text = STRING.sub('""', COMMENT.sub("", text))
    while found := TESTS.search(text):
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        text = text[: found.start()] + text[at:]
    return text


def split(tree):
    """The parts of a use tree between its outermost commas."""
    depth, part = 0, ""
    for c in tree:
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == "," and not depth:
            yield part
            part = ""
        else:
            part += c
    if part.strip():
        yield part


def expand(tree, before=""):
    """The paths of a use tree."""
    tree = re.sub(r"\s+as\s+\w+", "", tree).strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        yield before + tree
        return
    for part in split(rest.rsplit("}", 1)[0]):
        yield from expand(part, before + head)


class Crate:
    """`imports`: {file: files of the crate that it imports}, all relative to its `src`."""

    def __init__(self, folder):
        self.name = folder.name
        self.source = folder / "src"
        # A program of several files is a crate of its own.
        self.files = {p.relative_to(self.source) for p in self.source.rglob("*.rs") if "bin" not in p.relative_to(self.source).parts}
        self.modules = {self.module(f): f for f in self.files}
        self.imports = {f: set(self.of(f)) for f in self.files}

    @staticmethod
    def module(file):
        parts = file.with_suffix("").parts
        return parts[:-1] if parts[-1] in ("mod", "lib") else parts

    def of(self, file):
        text = code((self.source / file).read_text())
        here = self.module(file)
        inside = here if file.name in ("mod.rs", "lib.rs") else here
        paths = set(PATH.findall(text))
        for tree in USE.findall(text):
            paths.update(expand(tree))
        for path in paths:
            names = [n.strip() for n in path.split("::")]
            if names[0] == "crate":
                at = tuple(names[1:])
            elif names[0] == "super":
                at = inside
                while names and names[0] == "super":
                    at, names = at[:-1], names[1:]
                at += tuple(names)
            elif names[0] == "self":
                at = here + tuple(names[1:])
            else:
                continue
            # The longest part that names a module; the rest is what is in it. The crate's root is not one of the files.
            while at and at not in self.modules:
                at = at[:-1]
            if at and self.modules[at] != file:
                yield self.modules[at]

    def circles(self):
        """The sets of files that import each other, largest first."""
        index, low, stack, found = {}, {}, [], []

        def visit(v):
            # Tarjan's algorithm. No crate has as many files as Python has levels of calls.
            index[v] = low[v] = len(index)
            stack.append(v)
            for w in self.imports[v]:
                if w not in index:
                    visit(w)
                    low[v] = min(low[v], low[w])
                elif w in stack:
                    low[v] = min(low[v], index[w])
            if low[v] == index[v]:
                at = stack.index(v)
                found.append(set(stack[at:]))
                del stack[at:]

        for v in sorted(self.files):
            if v not in index:
                visit(v)
        return sorted((c for c in found if len(c) > 1), key=len, reverse=True)


def crates():
    return {p.parent.name: Crate(p.parent) for p in sorted((ROOT / "crates").glob("*/Cargo.toml"))}
