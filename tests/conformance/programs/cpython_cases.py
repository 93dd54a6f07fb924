"""cpython_cases.py RESULTS MODULE [LIST]: CPython's own tests of one module, a line of JSON for each.

Runs in the interpreter that is judged. A line `started` comes before each test, so that the reader knows which test
hung or took the process with it. LIST is a file with the names of the tests to run; without it all of them.
"""

import faulthandler
import importlib
import json
import os
import sys
import tempfile
import unittest

# Time limit (s) of a test: generous, since it only turns a hang into a traceback.
LIMIT = 40


class Lines(unittest.TestResult):
    def __init__(self, path):
        super().__init__()
        self.out = open(path, "a", buffering=1)
        self.state, self.detail = "ok", ""

    def say(self, test, state, detail=""):
        self.out.write(json.dumps({"test": test.id(), "state": state, "detail": detail}) + "\n")

    def startTest(self, test):
        super().startTest(test)
        self.state, self.detail = "ok", ""
        self.say(test, "started")
        faulthandler.dump_traceback_later(LIMIT, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        self.say(test, self.state, self.detail)
        super().stopTest(test)

    def bad(self, test, error):
        text = self._exc_info_to_string(error, test)
        # Fixtures of a class or module are no test: what they spoil is missing and thereby seen.
        if not isinstance(test, unittest.TestCase):
            self.say(test, "fail", text)
        self.state, self.detail = "fail", text

    def addError(self, test, error):
        self.bad(test, error)

    def addFailure(self, test, error):
        self.bad(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None and self.state != "fail":
            self.bad(test, error)

    def addSkip(self, test, reason):
        if self.state == "ok":
            self.state, self.detail = "skip", reason
        if not isinstance(test, unittest.TestCase):
            self.say(test, "skip", reason)

    def addUnexpectedSuccess(self, test):
        self.state, self.detail = "fail", "unexpected success"


def chosen(suite, wanted):
    """The same suite with the wanted tests only; classes stay together, so that fixtures run once."""
    kept = unittest.TestSuite()
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            kept.addTest(chosen(entry, wanted))
        elif entry.id() in wanted:
            kept.addTest(entry)
    return kept


def main():
    results, module = os.path.abspath(sys.argv[1]), sys.argv[2]
    wanted = set(open(sys.argv[3]).read().split("\n")) if len(sys.argv) > 3 else None
    faulthandler.enable()
    from test import support
    # No test may ask for the Internet. This one calls loopback a network.
    support.use_resources = ["network"] if module == "test_socketserver" else []
    # The tests of the standard library write into their current folder.
    os.chdir(tempfile.mkdtemp(dir="."))
    loaded = importlib.import_module(f"test.{module}")
    suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
    if wanted is not None:
        suite = chosen(suite, wanted)
    result = Lines(results)
    suite.run(result)
    result.out.write(json.dumps({"test": "", "state": "end", "detail": ""}) + "\n")
    result.out.close()
    # A thread that a failed test left behind must not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


main()
