"""A terminal for a program under test, which records the output."""

import fcntl
import os
import pty
import struct
import termios


class Terminal:
    """Give `slave` to the program, then ask for `text()`."""

    def __init__(self, columns=80, rows=24):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def text(self):
        """Everything that is written until the last program has closed the terminal."""
        os.close(self.slave)
        text = b""
        while True:
            try:
                part = os.read(self.master, 65536)
            except OSError:
                break  # The last program has closed the terminal.
            if not part:
                break
            text += part
        os.close(self.master)
        return text.decode().replace("\r\n", "\n")
