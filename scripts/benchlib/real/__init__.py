"""Real servers in production's shape: several processes, users of their own, the loads that their own tools make."""

from . import databases, small, web
from .case import Real
from .report import table

__all__ = ("Real", "all_cases", "table")


def all_cases():
    return [*databases.cases(), *web.cases(), *small.cases()]
