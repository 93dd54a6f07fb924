"""Writes the tables at the end, and build/bench.json."""

import datetime
import json
import os
import platform
import re

from . import proc, show, stats


# The sides besides NetACC, with their titles.
OTHERS = (("tcp", "TCP"), ("unix", "UNIX socket"), ("sockmap", "sockmap"))
# Who says that a side was accelerated.
WITNESSES = {"netacc": "accelerated, as netacc_ss saw it", "sockmap": "sockmap, as its BPF programs counted"}


def demo_table(outcomes):
    """A table of the redis cases: for each the figures of TCP, UNIX sockets and NetACC, and how many times better NetACC is."""
    header = ["", "requests/s", "spread", "avg ms", "p50 ms", "p99 ms", "CPU us/request"]
    rows = []
    for outcome in outcomes:
        if rows:
            rows.append("")
        rows.append(show.bold(outcome.case.title))
        if outcome.error:
            rows.append("  failed: see below")
            continue
        others = [(side, title) for side, title in OTHERS if outcome.has(side)]
        for side, title in (*others, ("netacc", "NetACC")):
            rows.append(_demo_row(outcome, side, "  " + title))
        for side, title in others:
            better = [stats.ratio(outcome.ratio(metric, than=side)) for metric in outcome.case.metrics]
            rows.append([f"  ratio to {title}", better[0], "", *better[1:]])
    return show.table(header, rows)


def _demo_row(outcome, side, title):
    cells = []
    for metric in outcome.case.metrics:
        cells.append(stats.number(outcome.median(side, metric.key), metric.digits))
    spread = stats.percent(stats.spread(outcome.summary(side, "rps")))
    return [title, cells[0], spread, *cells[1:]]


def bench_table(outcomes):
    header = ["", "TCP", "spread", "NetACC", "spread", "ratio", "target", ""]
    others = [side for side in OTHERS[1:] if any(outcome.has(side[0]) for outcome in outcomes)]
    for _, title in others:
        header += [title, "spread", "ratio"]
    rows = []
    for outcome in outcomes:
        if rows:
            rows.append("")
        rows.append(show.bold(outcome.case.title))
        if outcome.error or outcome.skipped:
            rows.append("  failed: see below" if outcome.error else f"  skipped: {outcome.skipped}")
        if outcome.raw:
            rows += [_metric_row(outcome, metric, others) for metric in outcome.case.metrics]
    return show.table(header, rows)


def _metric_row(outcome, metric, others):
    cells = ["  " + metric.label, *_side_cells(outcome, metric, "tcp"), *_side_cells(outcome, metric, "netacc")]
    cells += _target_cells(outcome, metric)
    for side, _ in others:
        if outcome.has(side):
            cells += [*_side_cells(outcome, metric, side), stats.ratio(outcome.ratio(metric, side))]
        else:
            cells += ["", "", ""]
    return cells


def _side_cells(outcome, metric, side):
    """The median and the spread of a side."""
    found = outcome.summary(side, metric.key)
    median = stats.number(found["median"] if found else None, metric.digits)
    return [median, stats.percent(stats.spread(found, metric.digits))]


def _target_cells(outcome, metric):
    """NetACC's ratio, its target, and whether that is met."""
    target = next((t for t in outcome.case.targets if t.metric == metric.key), None)
    ratio = "" if metric.better == "info" else stats.ratio(outcome.ratio(metric))
    if target is None:
        return [ratio, "", ""]
    value = target.value(outcome)
    return [_judged(target, value, ratio), target.text(), _verdict(*outcome.met(target))]


def _judged(target, value, ratio):
    """The value that is compared with the target, unless that is the ratio itself."""
    if value is None or target.kind == "most":
        return ratio
    if target.kind == "extra":
        return f"{value:+.3f} {target.unit}"
    return f"{value:.2f}x" if target.kind == "share" else ratio


def _verdict(met, aim_met):
    return "aim met" if met and aim_met else {True: "met", False: "MISSED", None: "?"}[met]


def footer(outcomes):
    """Prints the notes, and whether the accelerated sides really were accelerated; returns False if one was not."""
    for note in dict.fromkeys(note for outcome in outcomes for note in outcome.case.notes):
        show.note(note)
    good = [_proven(outcomes, side, witness) for side, witness in WITNESSES.items()]
    for outcome in outcomes:
        if outcome.error:
            print(show.loud(f"! FAILED: {outcome.case.title}: {outcome.error}"))
    worse = [outcome for outcome in outcomes if any(fatal for _, fatal in outcome.case.findings(outcome))]
    if worse:
        show.warning(f"WORSE THAN TCP: {len(worse)} of {len(outcomes)} cases: {', '.join(outcome.case.name for outcome in worse)}")
    return all(good) and not worse and not any(outcome.error for outcome in outcomes)


def _proven(outcomes, side, witness):
    """Prints whether a side was accelerated in the cases where it should be; returns False if it was not."""
    bad = [outcome for outcome in outcomes if outcome.accelerated(side) in ("no", "unknown")]
    proofs = [outcome.proofs[side] for outcome in outcomes if outcome.accelerated(side) == "yes"]
    if proofs:
        fast = sum(proof.fast for proof in proofs)
        total = fast + sum(proof.tcp for proof in proofs)
        show.note(
            f"{witness}: {fast:,.0f} of {total:,.0f} {proofs[0].unit} {proofs[0].words},"
            f" in {len(proofs)} of {len(proofs) + len(bad)} cases"
        )
    for outcome in bad:
        what = "NOT ACCELERATED" if outcome.accelerated(side) == "no" else "NOT KNOWN TO BE ACCELERATED"
        who = "" if side == "netacc" else f", {side}"
        print(show.loud(f"! {what}: {outcome.case.title}{who}: {outcome.proofs[side].sentence()}"))
    return not bad


def _first(path, pattern):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(pattern, file.read(), re.MULTILINE)
            return found[1].strip() if found else None
    except OSError:
        return None


def _version(*argv):
    try:
        return (proc.run(list(argv), timeout=10).output.strip().splitlines() or [None])[0]
    except (proc.Failed, FileNotFoundError):
        return None


def machine():
    sysctl = "/proc/sys/net/ipv4/"
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$"),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_kib": int(_first("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0),
        "load_at_start": os.getloadavg()[0],
        "tcp_tw_reuse": _first(sysctl + "tcp_tw_reuse", r"(\d+)"),
        "ip_local_port_range": _first(sysctl + "ip_local_port_range", r"(.*)"),
        "redis": _version("redis-server", "--version"),
        "iperf3": _version("iperf3", "--version"),
        "python": platform.python_version(),
    }


def machine_line(facts):
    cores = f"{facts['cores']} core{'s' if facts['cores'] != 1 else ''}"
    line = f"{facts['cpu'] or facts['architecture']}, {cores}, Linux {facts['kernel']}"
    if facts["load_at_start"] > 0.5 * (facts["cores"] or 1):
        line += f"\nThis machine is busy (load {facts['load_at_start']:.1f}): expect a large spread."
    return line


def _case_json(outcome):
    metrics = {}
    for metric in outcome.case.metrics if outcome.raw else ():
        metrics[metric.key] = {
            "label": metric.label,
            "better": metric.better,
            "tcp": outcome.summary("tcp", metric.key),
            "netacc": outcome.summary("netacc", metric.key),
            "times_better": outcome.ratio(metric),
        }
        for side, _ in OTHERS[1:]:
            if outcome.has(side):
                metrics[metric.key][side] = outcome.summary(side, metric.key)
                metrics[metric.key][f"{side}_times_better"] = outcome.ratio(metric, side)
    return {
        "name": outcome.case.name,
        "title": outcome.case.title,
        "skipped": outcome.skipped,
        "error": outcome.error,
        "notes": outcome.case.notes,
        "findings": [text for text, _ in outcome.case.findings(outcome)],
        "proof": outcome.proofs["netacc"].as_json() if outcome.accelerated() else None,
        "sockmap_proof": outcome.proofs["sockmap"].as_json() if outcome.has("sockmap") else None,
        "metrics": metrics,
        "targets": [_target_json(t, outcome) for t in outcome.case.targets] if outcome.raw else [],
        "rounds": outcome.raw,
    }


def _target_json(target, outcome):
    value = target.value(outcome)
    return {
        "metric": target.metric,
        "kind": target.kind,
        "at_least" if target.kind in ("ratio", "share") else "at_most": target.bound,
        "aim": target.aim,
        "value": value,
        "met": outcome.met(target)[0],
        "aim_met": outcome.met(target)[1],
    }


def write_json(path, facts, started, outcomes):
    """Replaces the file as a whole, after every case, so that an interrupted run leaves its results so far."""
    report = {
        "version": 1,
        "started": datetime.datetime.fromtimestamp(started, datetime.timezone.utc).isoformat(),
        "machine": facts,
        "cases": [_case_json(outcome) for outcome in outcomes],
    }
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    os.replace(fresh, path)
