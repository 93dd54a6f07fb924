"""The table of the real servers, which fits a terminal of 80 columns."""

from .. import show, stats

SIDES = (("tcp", "TCP"), ("unix", "UNIX socket"), ("netacc", "NetACC"))
HEADER = ["", "requests/s", "spread", "p99 ms", "longest ms", "server us", "client us"]


def table(outcomes):
    """For each row the figures of its sides, how many times better NetACC is than TCP, and what it is worse at."""
    rows = []
    for outcome in outcomes:
        if rows:
            rows.append("")
        rows.append(show.bold(outcome.case.title))
        if outcome.error or outcome.skipped:
            rows.append("  failed: see below" if outcome.error else f"  skipped: {outcome.skipped}")
        if outcome.raw:
            rows += [_row(outcome, side, title) for side, title in SIDES if outcome.has(side)]
            rows.append(_ratios(outcome))
            rows += [show.loud(f"  ! {text}") for text, _ in outcome.case.findings(outcome)]
    return show.table(HEADER, rows)


def _row(outcome, side, title):
    rate, *others = [stats.number(outcome.median(side, metric.key), metric.digits) for metric in outcome.case.metrics]
    return [f"  {title}", rate, stats.percent(stats.spread(outcome.summary(side, "rps"))), *others]


def _ratios(outcome):
    rate, *others = [stats.ratio(outcome.ratio(metric)) for metric in outcome.case.metrics]
    return ["  ratio", show.loud(rate) if (outcome.ratio(outcome.case.metrics[0]) or 1) < 1 else rate, "", *others]
