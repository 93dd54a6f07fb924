"""What is measured, and the targets; read by the measuring programs and by the one that makes the table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    unit: str
    # How many times TCP's figure: at most where less is better, at least where more is.
    targets: tuple = ()
    more: bool = False
    digits: int = 1


ROWS = (
    Row("rtt64", "round trip, 64 bytes", "us", (("rxe", 2.4), ("siw", 1.8))),
    Row("rtt4k", "round trip, 4 KiB", "us", (("rxe", 2.8), ("siw", 2.8))),
    Row("stream", "stream, 64 KiB sends", "MB/s", (("rxe", 0.2), ("siw", 0.2)), more=True),
    Row("first", "connect, the first of a process", "us", (("rxe", 7), ("siw", 7))),
    Row("first_answer", "  and one byte there and back", "us"),
    Row("new", "connect, a new queue pair", "us", (("rxe", 7), ("siw", 7))),
    Row("new_answer", "  and one byte there and back", "us"),
    Row("again", "connect, after one that has been closed", "us", (("rxe", 1.5), ("siw", 1.5))),
    Row("again_answer", "  and one byte there and back", "us"),
    Row("set50", "redis SET, 50 clients", "requests/s", (("rxe", 0.6), ("siw", 0.6)), more=True, digits=0),
    Row("cpu50", "  CPU per request", "us"),
    Row("set100", "redis SET, 100 clients", "requests/s", (("rxe", 0.6), ("siw", 0.6)), more=True, digits=0),
    Row("cpu100", "  CPU per request", "us"),
    Row("mc1", "memcached with 2 threads, 1 client", "requests/s", more=True, digits=0),
    Row("mc10", "memcached with 2 threads, 10 clients", "requests/s", more=True, digits=0),
)
# Figures that are measured together with another one.
WITH = ("cpu50", "cpu100", "first_answer", "new_answer", "again_answer")
KEYS = tuple(row.key for row in ROWS if row.key not in WITH)


@dataclass(frozen=True)
class Sizes:
    """How much of each thing is done for one figure."""

    round_trips: int
    large: int
    sends: int
    connects: int
    held: int
    # redis-benchmark's clock has more or less of its connects in it, by chance: of many requests that is a small part.
    requests: int
    rounds: int


SHORT = Sizes(round_trips=400, large=200, sends=60, connects=15, held=8, requests=2500, rounds=3)
FULL = Sizes(round_trips=1500, large=600, sends=300, connects=40, held=16, requests=16000, rounds=5)
