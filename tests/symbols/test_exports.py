"""What the library exports: exactly the checked-in list, and the list is what the source's table says."""

import symbols
from harness import check
from matrix import case


@case()
def list_and_library(ctx):
    check(symbols.LIBRARY.exists(), f"{symbols.LIBRARY} is not built")
    ctx.parts = {name: " ".join(sorted(wrong)) for name, wrong in symbols.checks().items()}
