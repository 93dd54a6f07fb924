"""The form of every case: what is measured, on which side, and which figure it should reach."""

from dataclasses import dataclass

from . import proc, sides, stats
from .sockmap import Sockmap

# Sides that a run may have besides TCP and NetACC.
OTHERS = {"unix": sides.UnixSocket, "sockmap": Sockmap}


@dataclass(frozen=True)
class Metric:
    key: str
    label: str
    better: str = "less"  # more, less, or info: shown, but neither good nor bad
    digits: int | None = None
    of: str = "median"  # which value of all rounds stands for them: median, min, max


@dataclass(frozen=True)
class Target:
    """A figure to reach. `kind` says what `bound` and `aim` limit:

    ratio   how many times better than TCP NetACC must at least be
    most    the largest permitted value of NetACC
    extra   the largest permitted difference of NetACC's value and TCP's
    share   the least quotient of NetACC's values of this metric and of the metric `of`
    """

    metric: str
    kind: str
    bound: float
    aim: float | None = None
    unit: str = ""
    of: str = ""

    def value(self, medians):
        """The value to compare with the target, from `medians(side, metric)`, which returns a number or None."""
        netacc, tcp = medians("netacc", self.metric), medians("tcp", self.metric)
        if netacc is None or (tcp is None and self.kind in ("ratio", "extra")):
            return None
        if self.kind == "most":
            return netacc
        if self.kind == "extra":
            return netacc - tcp
        if self.kind == "share":
            whole = medians("netacc", self.of)
            return netacc / whole if whole else None
        return stats.times_better(tcp, netacc, medians.better(self.metric))

    def _upper(self):
        return self.kind in ("most", "extra")

    def _reached(self, value, figure):
        if value is None or figure is None:
            return None
        return value <= figure if self._upper() else value >= figure

    def met(self, value):
        return self._reached(value, self.bound)

    def aim_met(self, value):
        return self._reached(value, self.aim)

    def text(self):
        def show(number):
            if self.kind in ("ratio", "share"):
                return f"{number:g}x"
            plus = "+" if self.kind == "extra" else ""
            return f"{plus}{number:g}{' ' + self.unit if self.unit else ''}"

        return ("<= " if self._upper() else ">= ") + show(self.bound)


@dataclass
class Settings:
    quick: bool = False
    rounds: int | None = None
    others: tuple = ()  # the names of OTHERS that are measured too, in the cases that have them


class Lab:
    """The objects that all cases share: the sides, a scratch folder, the settings, the progress line. `absent` has the reasons why
    this machine does not have a side."""

    def __init__(self, scratch, settings, progress):
        self.sides = (sides.Plain(), sides.Accelerated())
        self.others, self.absent = {}, {}
        self.shared = {}  # what cases leave to those that come later in the run; each has a method close
        for name in settings.others:
            try:
                self.others[name] = OTHERS[name]()
            except proc.Failed as error:
                self.absent[name] = " ".join(str(error).split())
        self.scratch = scratch
        self.settings = settings
        self.progress = progress

    def seconds(self, usual, quick):
        return quick if self.settings.quick else usual

    def close(self):
        for thing in (*self.shared.values(), *self.others.values()):
            thing.close()


class Case:
    """One comparison. A round measures each side once, and each side begins in its turn."""

    name = ""
    title = ""
    metrics = ()
    targets = ()
    usual_rounds = 5
    quick_rounds = 2
    headline = None  # the metric the progress line shows
    must_be_accelerated = True
    short_lived = 0  # connections of a round that end too soon to leave TCP
    steps_per_round = 2
    beginning = "preparing"  # what the progress line says before the first round
    others = ()  # the names of OTHERS that can be further sides
    seldom = False  # whether it runs only if it is asked for by its name

    def __init__(self):
        self.lab = None
        self.notes = []

    def rounds(self, settings):
        return settings.rounds or (self.quick_rounds if settings.quick else self.usual_rounds)

    def sides(self):
        return (*self.lab.sides, *self.other_sides(self.lab))

    def other_sides(self, lab):
        return [lab.others[name] for name in self.others if name in lab.others]

    def possible(self):
        """None, or the reason why this machine cannot run the case."""
        return None

    def prepare(self):
        pass

    def close(self):
        pass

    def sample(self, side):
        """Makes one measurement and returns a dict of metric values, with the observation of the watch as `proof`."""
        raise NotImplementedError

    def round(self, index, announce):
        order = self.sides()
        first = index % len(order)
        samples = {}
        for side in (*order[first:], *order[:first]):
            announce(side)
            samples[side.name] = self.sample(side)
        return samples

    def findings(self, outcome):
        """(text, whether the run fails because of it) for each result that a reader must not overlook."""
        return ()

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
