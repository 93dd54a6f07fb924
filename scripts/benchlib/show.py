"""Shows the progress to the user, and formats the tables at the end."""

import os
import re
import shutil
import sys
import textwrap
import time


def _terminal():
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Progress:
    """One line that is rewritten on a terminal; one line per step elsewhere."""

    def __init__(self):
        self.terminal = _terminal()
        self.start = time.monotonic()
        self.total = 0
        self.done = 0
        self.text = ""

    def step(self, text):
        self.done += 1
        self.text = text
        if self.terminal:
            self.tick()
        else:
            print(self._line(), flush=True)

    def tick(self):
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write("\r\x1b[K" + self._line()[:width])
            sys.stdout.flush()

    def _line(self):
        seconds = int(time.monotonic() - self.start)
        return f"[{self.done}/{self.total}] {seconds // 60}:{seconds % 60:02d}  {self.text}"

    def clear(self):
        if self.terminal:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def say(self, text):
        """Prints a line that stays, above the progress line."""
        self.clear()
        print(text, flush=True)


def bold(text):
    return f"\x1b[1m{text}\x1b[0m" if _terminal() else text


def loud(text):
    return f"\x1b[1;31m{text}\x1b[0m" if _terminal() else text


def note(text):
    print(_wrapped("* ", text))


def warning(text):
    print(loud(_wrapped("! ", text)))


def _wrapped(mark, text):
    width = max(60, shutil.get_terminal_size((100, 24)).columns - 1)
    return textwrap.fill(text, width, initial_indent=mark, subsequent_indent="  ", break_on_hyphens=False)


def table(header, rows, left=1):
    """Prints a table with columns as wide as needed; the first `left` columns are text.
    A row that is a string spans the whole width."""
    cells = [header, *(row for row in rows if not isinstance(row, str))]
    widths = [max(_width(row[i]) for row in cells) for i in range(len(header))]

    def line(row):
        parts = []
        for i, cell in enumerate(row):
            room = " " * (widths[i] - _width(cell))
            parts.append(f"{cell}{room}" if i < left else f"{room}{cell}")
        return "  ".join(parts).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    body = [row if isinstance(row, str) else line(row) for row in rows]
    return "\n".join([bold(line(header)), rule, *body])


def _width(cell):
    """The columns that a cell takes on a terminal, where its colours take none."""
    return len(re.sub(r"\x1b\[[0-9;]*m", "", str(cell)))
