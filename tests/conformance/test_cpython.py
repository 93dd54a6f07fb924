"""CPython's own tests of sockets and of what is built on them.

A test counts if it passes here on kernel TCP; it must then pass accelerated, at both ends.
"""

import judges

judges.register(judges.CPython, __name__)
