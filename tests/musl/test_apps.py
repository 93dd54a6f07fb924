"""The small programs of tests/apps, built with musl: accelerated, and promoted while they run. On kernel TCP they say something
about musl, and nothing about NetACC."""

import made
import programs
from matrix import case


def registered(name):
    def small_program(world):
        made.app(name)
        programs.run(name, world.mode, built=made.APPS)

    small_program.__name__ = name
    case(modes=("netacc", "tcp-first"), limit=programs.LIMIT + 10)(small_program)


for name in made.names():
    registered(name)
