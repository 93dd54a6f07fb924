"""Medians, spread, and the format of numbers for users."""

import statistics


def summary(values):
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "rounds": len(values),
    }


def spread(summary_, digits=None):
    """Half the distance from minimum to maximum, as a share of the median; None if the
    median is shown as zero."""
    if not summary_ or not round(summary_["median"], 9 if digits is None else digits):
        return None
    return (summary_["max"] - summary_["min"]) / 2 / abs(summary_["median"])


def times_better(tcp, netacc, better):
    """How many times better NetACC is; None if a ratio has no meaning."""
    if tcp is None or netacc is None:
        return None
    good, bad = (netacc, tcp) if better == "more" else (tcp, netacc)
    return good / bad if bad > 0 else None


def number(value, digits=None):
    if value is None:
        return "-"
    if digits is None:
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0: no "-0"


def ratio(value):
    if value is None:
        return "-"
    return f"{value:,.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def percent(value):
    return "-" if value is None else f"±{value * 100:.0f}%"
