"""Runs cases round by round and keeps every raw value."""

from . import proc, sides, stats


class Outcome:
    def __init__(self, case):
        self.case = case
        self.raw = []
        self.proofs = {"netacc": sides.Proof("netacc", case.short_lived), "sockmap": sides.Proof("sockmap")}
        self.error = None
        self.skipped = None

    def add(self, index, samples):
        for side, sample in samples.items():
            values = dict(sample)
            seen = values.pop("proof", None)
            self.raw.append({"round": index + 1, "side": side, "values": values, "accepted": seen})
            if seen is not None:
                self.proofs[side].add(seen)

    def has(self, side):
        return any(r["side"] == side for r in self.raw)

    def summary(self, side, metric):
        values = [r["values"][metric] for r in self.raw if r["side"] == side]
        values = [value for value in values if value is not None]
        return stats.summary(values) if values else None

    def median(self, side, metric):
        """The value of all rounds; for a few metrics that is not the median."""
        found = self.summary(side, metric)
        return found[next((m.of for m in self.case.metrics if m.key == metric), "median")] if found else None

    # Targets ask for medians and for the sense of a metric.
    __call__ = median

    def better(self, metric):
        return next(m.better for m in self.case.metrics if m.key == metric)

    def ratio(self, metric, side="netacc", than="tcp"):
        """How many times better one side is than another; None if a ratio has no meaning."""
        if metric.better == "info":
            return None
        return stats.times_better(self.median(than, metric.key), self.median(side, metric.key), metric.better)

    def met(self, target):
        """Whether a target and its aim are met; None if that is not known."""
        if self.accelerated() not in ("yes", None):
            return None, None
        value = target.value(self)
        return target.met(value), target.aim_met(value)

    def accelerated(self, side="netacc"):
        """Whether a side was accelerated: yes, no, unknown, or None if the question does not apply."""
        if self.skipped or not self.raw:
            return None
        if side == "netacc":
            return self.proofs[side].verdict() if self.case.must_be_accelerated else None
        return self.proofs[side].verdict() if self.has(side) else None


def _so_far(outcome):
    metric = next((m for m in outcome.case.metrics if m.key == outcome.case.headline), None)
    ratio = metric and outcome.ratio(metric)
    return f", so far {stats.ratio(ratio)}" if ratio else ""


def run_case(case, lab):
    outcome = Outcome(case)
    case.lab = lab
    outcome.skipped = case.possible()
    if outcome.skipped:
        lab.progress.say(f"{case.title}: skipped, {outcome.skipped}")
        return outcome
    for name in case.others:
        if name in lab.absent:
            case.note(f"{name} is not measured: {lab.absent[name]}")
    rounds = case.rounds(lab.settings)
    try:
        lab.progress.step(f"{case.title}, {case.beginning}")
        case.prepare()
        for index in range(rounds):

            def announce(side, index=index):
                where = f"round {index + 1}/{rounds}, {side.title}"
                lab.progress.step(f"{case.title}{_so_far(outcome)}, {where}")

            outcome.add(index, case.round(index, announce))
    except proc.Failed as error:
        outcome.error = str(error)
        lab.progress.say(f"{case.title}: failed: {error}")
    finally:
        case.close()
    return outcome


def steps(case, lab):
    return 1 + (case.steps_per_round + len(case.other_sides(lab))) * case.rounds(lab.settings)
