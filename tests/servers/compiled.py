"""Our own programs in languages that are compiled, built once and kept in build/tests/servers."""

import subprocess

from harness import PROGRAMS, ROOT, Failure

PLACE = ROOT / "build" / "tests" / "servers"


def make(source, product, argv, env=None):
    """The path of `product`, made from `source` by `argv(source, place)` unless it is newer."""
    source, result = PROGRAMS / source, PLACE / product
    if not result.exists() or result.stat().st_mtime < source.stat().st_mtime:
        PLACE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([str(a) for a in argv(source, PLACE)], env=env, capture_output=True, text=True, timeout=280)
        if done.returncode:
            raise Failure(f"{source.name} is not compiled: {done.stderr.strip()[-600:]}")
        result.touch()
    return result
