"""The tables at the end, and the report as it is written down."""

import rows
from benchlib import show, stats

VERSION = 1
HEADER = ["", "median", "spread", "of TCP", "target", ""]
COUNTED = {"rtt64": "a round trip of 64 bytes", "rtt4k": "a round trip of 4 KiB", "stream": "64 KiB of a stream"}
CALLS = (("sends", "sends"), ("receives", "receives"), ("polls", "polls"), ("empty_polls", "empty"), ("arms", "arms"),
         ("events", "events"), ("system_calls", "system calls"))


def report(found):
    """Summaries and ratios from what the machine has measured."""
    figures = {}
    for row in rows.ROWS:
        measured = found["figures"].get(row.key, {})
        summaries = {side: stats.summary(values) | {"values": values} for side, values in measured.items()}
        tcp = summaries.get("tcp", {}).get("median")
        for summary in summaries.values():
            summary["of_tcp"] = summary["median"] / tcp if tcp else None
        figures[row.key] = summaries
    counts = {side: {job: {role: _per_unit(counted) for role, counted in roles.items()} for job, roles in jobs.items()}
              for side, jobs in found["counts"].items()}
    return {"version": VERSION, "short": found["short"], "sides": found["sides"], "figures": figures,
            "calls_per_message": counts, "why_not": found["why_not"]}


def _per_unit(counted):
    def share(number):
        return round(number / counted["units"], 3)
    return {name: share(counted[name]) for name, _ in CALLS} | {
        "by_name": {name: share(n) for name, n in sorted(counted["by_name"].items(), key=lambda item: -item[1])}}


def _cells(row, side, summary):
    ratio = summary["of_tcp"]
    wanted = dict(row.targets).get(side["kind"]) if side["name"] == "NetACC" else None
    cells = ["  " + side["title"], stats.number(summary["median"], row.digits), stats.percent(stats.spread(summary)),
             "-" if ratio is None or side["name"] == "TCP" else f"{ratio:.2f}"]
    if wanted is None or ratio is None:
        return [*cells, "", ""]
    met = ratio >= wanted if row.more else ratio <= wanted
    return [*cells, f"{'>=' if row.more else '<='} {wanted:g}", "met" if met else "MISSED"]


def _figures(report):
    lines = []
    for row in rows.ROWS:
        summaries = report["figures"][row.key]
        if summaries:
            lines += [""] * bool(lines) + [show.bold(f"{row.title}, {row.unit}")]
            lines += [_cells(row, side, summaries[side["key"]]) for side in report["sides"] if side["key"] in summaries]
    return lines


def _counts(report):
    lines, titles = [], {side["key"]: side["title"] for side in report["sides"]}
    for job, what in COUNTED.items():
        lines += [""] * bool(lines) + [show.bold(f"at one end, for {what}")]
        for side, jobs in report["calls_per_message"].items():
            for role, counted in jobs.get(job, {}).items():
                lines.append([f"  {titles[side]}, {role}", *(f"{counted[name]:.2f}" for name, _ in CALLS)])
    return lines


def print_tables(report):
    if any(report["figures"].values()):
        print(show.table(HEADER, _figures(report)))
    if report["calls_per_message"]:
        print()
        print(show.table(["", *(title for _, title in CALLS)], _counts(report)))
    print()
    show.note("medians of interleaved rounds on one processor whose clock counts instructions; spread: half the way from the "
              "lowest to the highest round; of TCP: the figure in relation to kernel TCP over the same link")
    show.note("verbs: rdma_pingpong, the device's own limit for messages of 60 and 4,000 bytes; CPU is all work of the machine, "
              "both ends and the devices")
    show.note("connect: the call alone, without socket(); a new queue pair: of a process that has had one, with "
              "NACC_SOR_CONN_PER_QP=1; NetACC's returns before its queue pair is there, and to a server that it knows before "
              "the server has answered: the byte there and back, from the same moment, has what then takes place")
    for side, reasons in report["why_not"].items():
        for what, why in reasons.items():
            show.note(f"not measured, {side}, {what}: {why}")
