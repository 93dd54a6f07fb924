"""CPython's own tests of sockets and of what is built on them, one by one."""

import json
import pathlib
import subprocess
import sys

from judging import Broken, Outcome

DRIVER = pathlib.Path(__file__).resolve().parent / "programs" / "cpython_cases.py"

# Not TCP, and hanging where a hypervisor half answers.
ELSEWHERE = ("VSOCK",)
LIMIT = 600


class CPython:
    name = "cpython"
    chained = False
    units = ("test_socket", "test_selectors", "test_epoll", "test_poll", "test_select", "test_asyncio",
             "test_socketserver", "test_ssl", "test_httplib", "test_httpservers", "test_ftplib", "test_smtplib",
             "test_urllib2_localnet")
    subset = ("test_socket", "test_selectors", "test_epoll", "test_select", "test_socketserver",
              "test_httplib", "test_httpservers", "test_ftplib", "test_smtplib", "test_urllib2_localnet")

    def __init__(self):
        self.python = next((p for p in ("/usr/bin/python3", sys.executable) if self.has_tests(p)), None)
        if not self.python:
            raise Broken("no python3 has the package `test`; scripts/deps conformance installs it")

    @staticmethod
    def has_tests(python):
        try:
            return subprocess.run([python, "-c", "import test.test_socket"], capture_output=True).returncode == 0
        except OSError:
            return False

    def listed(self, unit):
        code = ("import sys, unittest, importlib\n"
                "def ids(s):\n"
                "    for t in s:\n"
                "        yield from ids(t) if isinstance(t, unittest.TestSuite) else (t.id(),)\n"
                "m = importlib.import_module('test.' + sys.argv[1])\n"
                "print('\\n'.join(ids(unittest.defaultTestLoader.loadTestsFromModule(m))))")
        text = subprocess.run([self.python, "-c", code, unit], capture_output=True, text=True).stdout
        return [t for t in text.split("\n") if t and not any(word in t for word in ELSEWHERE)]

    def run(self, unit, world, only=None):
        """A test that hangs or ends the process is noted, and the rest is run in a new one."""
        left = list(only) if only else self.listed(unit)
        found = {}
        while left:
            results, wanted = world.dir / "results", world.dir / "wanted"
            results.write_text("")
            wanted.write_text("\n".join(left))
            status, output = world.run([self.python, str(DRIVER), str(results), unit, str(wanted)], LIMIT)
            records = [json.loads(line) for line in results.read_text().splitlines() if line.endswith("}")]
            running = None
            for record in records:
                found[record["test"]] = Outcome(record["state"], record["detail"])
                running = record["test"] if record["state"] == "started" else None
            if running:
                how = "hang" if "Timeout (" in output or status is None else f"ended with {status}"
                found[running] = Outcome(how, output[-3000:])
            ended = found.pop("", None)
            before = len(left)
            left = [t for t in left if t not in found]
            if ended or len(left) == before:
                break
        for test in left:
            found[test] = Outcome("missing", output[-2000:])
        return found
