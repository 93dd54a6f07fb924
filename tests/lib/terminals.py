"""A terminal for a program under test, and what it was given."""

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
        """All that is written until the last program has closed it."""
        os.close(self.slave)
        text = b""
        while True:
            try:
                part = os.read(self.master, 65536)
            except OSError:
                break  # The terminal's last user is gone.
            if not part:
                break
            text += part
        os.close(self.master)
        return text.decode().replace("\r\n", "\n")
