"""A claim of the literature: what it states, the tests of each network, and the one rule that gives its verdict.

A test compares the 95 % interval of a number with a threshold. It *holds* if the whole interval lies on the stated
side, *does not hold* if it lies on the other side, and is *at the threshold* in between. Tests of one network are
joined, then networks by the claim's quantifier, then readings: `verdict` is the only rule.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, final

from bayesgeom.core.text import number_text


class Verdict(StrEnum):
    """What the numbers say about a network or a claim; it is also the text, such as "does not hold".

    `PARTLY` is of a claim on every network whose networks differ: its text counts them, as in "holds in 2 of 3".
    `IDENTITY` is of a claim that holds for every network, by arithmetic.

    Example:
        >>> Verdict("does not hold").name
        'FAILS'
    """

    HOLDS = "holds"
    IDENTITY = "an identity"
    FAILS = "does not hold"
    AT_THRESHOLD = "at the threshold"
    NOT_IDENTIFIED = "not identified"
    NO_DATA = "no data"
    PARTLY = "holds in part"
    DEPENDS = "depends on the reading"


# The first verdict that occurs decides. A claim that no known network meets is not refuted by one without data.
_ALL = (Verdict.FAILS, Verdict.NO_DATA, Verdict.NOT_IDENTIFIED, Verdict.AT_THRESHOLD, Verdict.HOLDS)
_ORDER = (Verdict.HOLDS, Verdict.FAILS, Verdict.AT_THRESHOLD, Verdict.NOT_IDENTIFIED)  # in which a text counts them
_ANY = (Verdict.HOLDS, Verdict.NO_DATA, Verdict.NOT_IDENTIFIED, Verdict.AT_THRESHOLD, Verdict.FAILS)


@final
@dataclass(frozen=True, kw_only=True)
class Number:
    """The position of a number in a report: the row of its table with these entries.

    If several rows match, `reduce` chooses the one with the smallest or the largest value, and the interval allows for
    the choice: see `bayesgeom.stats.bounds`. `from_layer` and `from_position` restrict the rows. If `baseline` names a
    baseline of the estimate, the number is the level of that baseline: its value, or the `end` of its range.
    `no_interval` says why the number never has an interval; it is then judged by its value. A number whose interval is
    withheld gives no data.

    `if_perfect` is for shares of right answers. If all n sequences are entirely right, the bootstrap gives no interval.
    At most 1 − 0.05^(1/n) of all sequences then hold an error, with 95 % confidence, and the lower end is 1 minus
    `if_perfect` times that. `if_perfect` is the largest number of answers in a sequence over the mean number.
    """

    name: str
    label: str
    probe: str
    metric: str
    unit: str = ""
    variant: str | None = None
    variant_has: str | None = None
    layer: int | None = None
    head: int | None = None
    position: int | None = None
    from_layer: int = 0
    from_position: int = 0
    reduce: Literal["only", "min", "max"] = "only"
    baseline: str = ""
    end: Literal["value", "low", "high"] = "value"
    baseline_label: str = ""
    no_interval: str = ""
    if_perfect: float = 0.0
    tolerance: float = 1e-3

    @property
    def is_point(self) -> bool:
        """Whether the number is judged by its value, because it never has an interval."""
        return bool(self.no_interval)

    @property
    def title(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """A command line and the numbers that are read from its report.

    `report` is the folder of the recorded report in a clone. `needs` names the checkpoints and trainings
    that the command loads. `minutes` is about how long it takes on one idle CPU core. Without a command, no command
    measures these numbers yet.
    """

    name: str
    command: str = ""
    report: str | None = None
    needs: Sequence[str] = ()
    minutes: float = 1.0
    numbers: Mapping[str, Number] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class Condition:
    """One decidable part of a claim: the interval of `number` lies below (above) `times` · `than`.

    `than` is a constant, the name of another number, or "baseline", the strongest baseline of the number itself. The
    interval of another number counts: two that overlap are at the threshold. A threshold of at least `most`, the
    largest value that the number can have, leaves no room: *not identified*. So is a comparison with a single untrained
    network (`is_single`), on which no *holds* rests.
    """

    number: str
    side: Literal["below", "above"]
    than: float | str
    times: float = 1.0
    most: float = math.inf
    is_single: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """One network of a claim, under one reading, with tests that must all hold.

    `part` names the layer or domain where several cases belong to one network; `size` says what differs from the
    published network, which does not change the verdict. `is_searched`: three trainings at the same budget, and a sweep
    of learning rates with as many trials as for other architectures, which a failure needs to be shown.
    """

    network: str
    tests: Sequence[Condition]
    reading: str = ""
    part: str = ""
    size: str = ""
    is_searched: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Value:
    """A measured number with its 95 % interval and its strongest baseline; NaN for those that do not exist.

    `why_not` is the reason why it has no interval, "" if it has one or never has one. `over` names what the interval is
    over, "" for sequences. Over sequences, trainings, seeds and networks it is a confidence interval, else a range.
    """

    value: float
    lo: float
    hi: float
    baseline: float
    why_not: str = ""
    over: str = ""

    def text(self, unit: str = "") -> str:
        """Return the number with its interval and unit."""
        written = number_text(self.value)
        if not math.isnan(self.lo):
            is_range = self.over not in ("", "trainings", "seeds", "networks")
            over = f"; {'range ' * is_range}over {self.over}" if self.over else ""
            written += f" [{number_text(self.lo)}, {number_text(self.hi)}{over}]"
        return f"{written} {unit}".strip()


@final
@dataclass(frozen=True, kw_only=True)
class Origin:
    """The model, sample size and seed behind a run's numbers."""

    model: str
    weights_hash: str
    n: int
    seed: int


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The recorded numbers of a claim, with the day and the machine on which they were recorded."""

    date: str
    machine: str
    numbers: Mapping[str, Value]
    origins: Mapping[str, Origin]


@final
@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, its tests, the commands that measure it, and the recorded measurement if there is one.

    Claims are read from files by `load`; calling the class is only needed for a claim of one's own.

    Args:
        id: A letter and a number, such as "B1".
        claim: The claim as a sentence.
        source: Paper and section.
        published: The published numbers or statement.
        quantifier: "some …": one network is enough; "every …": each has to hold.
        cases: Networks and readings, with their tests.
        parts: How the cases of one network are joined: every one has to hold, or some one.
        runs: Commands, and the numbers that are read from their reports.
        is_of_failure: Whether it says that an architecture fails. A network for which it holds then has no data unless
            its case is searched; one training is enough to show a success.
        remark: What the verdict alone would hide, in a few words; it ends the claim's sentence.
        is_identity: Whether arithmetic makes it hold for every network, so that its numbers check the measurement.
        is_later: Whether its criterion was changed when its numbers were known.
        measured: The recorded measurement, or None.

    Example:
        >>> from examples.replication.claims import find
        >>> claim = find("B1")
        >>> claim.id, claim.quantifier, [case.network for case in claim.cases]
        ('B1', 'some transformer', ['`bijection-v20`'])
    """

    id: str
    claim: str
    source: str
    published: str
    quantifier: str
    cases: Sequence[Case]
    parts: Literal["every", "some"] = "every"
    runs: Sequence[Run] = ()
    is_of_failure: bool = False
    remark: str = ""
    is_identity: bool = False
    is_later: bool = False
    measured: Measurement | None = None

    @property
    def is_universal(self) -> bool:
        """Whether every network has to hold."""
        return self.quantifier.startswith("every ")

    @property
    def fails_if(self) -> str:
        """How the claim could fail."""
        kind = self.quantifier.partition(" ")[2]
        which = f"of one {kind}" if self.is_universal else f"of each {kind}"
        return f"an interval {which} lies on the other side of its threshold"

    @property
    def recordable(self) -> list[Run]:
        """The runs that define numbers and name a folder for their report."""
        return [run for run in self.runs if run.numbers and run.report is not None]

    @property
    def duration(self) -> str:
        """About how long the commands take that `reproduce` runs, if no further training exists; "" without any."""
        minutes = sum(run.minutes for run in self.recordable or self.runs if run.command)
        if minutes < 1:
            return f"{60 * minutes:.0f} s" if minutes else ""
        return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"

    @property
    def numbers(self) -> dict[str, Number]:
        """Every number of every run, by its name."""
        return {name: number for run in self.runs for name, number in run.numbers.items()}

    @property
    def unrecorded(self) -> list[str]:
        """Numbers that the runs define and the measurement lacks; empty if nothing was measured."""
        return [] if self.measured is None else [name for name in self.numbers if name not in self.measured.numbers]


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A verdict, and how many of the claim's networks have each verdict if it is about several networks."""

    verdict: Verdict
    counts: Mapping[Verdict, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.verdict != Verdict.PARTLY:
            return str(self.verdict)
        known = sum(n for own, n in self.counts.items() if own != Verdict.NO_DATA)
        first, *others = [own for own in _ORDER if self.counts.get(own)]
        rest = "".join(f", {own} in {self.counts[own]}" for own in others if own != Verdict.FAILS)
        return f"{first} in {self.counts[first]} of {known}{rest}"


def threshold(test: Condition, numbers: Mapping[str, Value]) -> tuple[float, float]:
    """Return the ends of a test's threshold: equal for a constant and a level, NaN if it is not known.

    Example:
        >>> threshold(Condition(number="kl", side="below", than=2.0, times=0.5), {})
        (1.0, 1.0)
    """
    if not isinstance(test.than, str):
        ends = [test.than, test.than]
    elif test.than == "baseline":
        ends = [numbers[test.number].baseline] * 2 if test.number in numbers else [math.nan] * 2
    elif test.than in numbers:
        other = numbers[test.than]
        ends = [other.value, other.value] if math.isnan(other.lo) else [other.lo, other.hi]
    else:
        ends = [math.nan, math.nan]
    low, high = sorted(test.times * end for end in ends)
    return low, high


def judged(test: Condition, numbers: Mapping[str, Value], *, is_point: bool = False) -> Verdict:
    """Return the verdict of one test.

    Args:
        test: The test.
        numbers: The measured numbers by name.
        is_point: Whether the number is judged by its value alone.

    Example:
        >>> kl = Value(value=0.5, lo=0.4, hi=0.6, baseline=1.0)
        >>> [str(judged(Condition(number="kl", side="below", than=x), {"kl": kl})) for x in (0.7, 0.5, 0.3)]
        ['holds', 'at the threshold', 'does not hold']
    """
    own, (least, most) = numbers.get(test.number), threshold(test, numbers)
    if own is None or math.isnan(least):
        return Verdict.NO_DATA
    low, high = (own.value, own.value) if is_point else (own.lo, own.hi)
    if math.isnan(low):
        return Verdict.NO_DATA
    if test.is_single or (test.side == "above" and most >= test.most):
        return Verdict.NOT_IDENTIFIED
    is_below, is_above = high < least, low > most
    if not (is_below or is_above):
        return Verdict.AT_THRESHOLD
    return Verdict.HOLDS if is_below == (test.side == "below") else Verdict.FAILS


def rows(claim: Claim, numbers: Mapping[str, Value] | None = None) -> Iterator[tuple[Case, Condition, Verdict]]:
    """Return every test of a claim with its verdict, in the order of the cases; `numbers` as for `verdict`."""
    known = _numbers(claim, numbers)
    for case in claim.cases:
        found = [judged(test, known, is_point=claim.numbers[test.number].is_point) for test in case.tests]
        is_shown = case.is_searched or not claim.is_of_failure or {*found} != {Verdict.HOLDS}
        for test, own in zip(case.tests, found, strict=True):
            yield case, test, own if is_shown else Verdict.NO_DATA


def by_part(claim: Claim, numbers: Mapping[str, Value] | None = None) -> dict[tuple[str, str], dict[str, Verdict]]:
    """Return the verdict of each part of every reading and network: all its tests have to hold."""
    tests: dict[tuple[str, str], dict[str, list[Verdict]]] = {}
    for case, _, own in rows(claim, numbers):
        tests.setdefault((case.reading, case.network), {}).setdefault(case.part, []).append(own)
    return {place: {part: weakest(own) for part, own in parts.items()} for place, parts in tests.items()}


def by_network(claim: Claim, numbers: Mapping[str, Value] | None = None) -> dict[tuple[str, str], Verdict]:
    """Return the verdict of every reading and network, whose parts are joined by the claim's `parts`."""
    order = _ALL if claim.parts == "every" else _ANY
    return {place: _first(order, list(parts.values())) for place, parts in by_part(claim, numbers).items()}


def deciding(claim: Claim) -> list[tuple[Case, Condition, Verdict]]:
    """Return the recorded rows; of a network that needs some one part, only those of the part that decides."""
    found, networks, chosen = list(rows(claim)), by_network(claim), by_part(claim)
    if claim.parts == "every":
        return found
    part = {
        place: next(name for name, own in parts.items() if own == networks[place]) for place, parts in chosen.items()
    }
    return [row for row in found if row[0].part == part[row[0].reading, row[0].network]]


def verdict(claim: Claim, numbers: Mapping[str, Value] | None = None) -> Outcome:
    """Return the verdict on a claim: the one rule for all claims.

    Networks without data do not count. A claim on *some* network holds if one does, and does not hold if none does. A
    claim on *every* network holds if all do, does not hold if none does, and else says in how many it holds. Readings
    that give different verdicts give *depends on the reading*.

    Args:
        claim: The claim.
        numbers: Numbers to judge instead of the recorded ones, by name.

    Returns:
        The verdict; `NO_DATA` without numbers.

    Example:
        >>> from examples.replication.claims import find
        >>> str(verdict(find("C1")))
        'does not hold'
    """
    readings: dict[str, list[Verdict]] = {}
    for (reading, _), own in by_network(claim, numbers).items():
        readings.setdefault(reading, []).append(own)
    found = [_over_networks(claim, own) for own in readings.values()]
    known = [own for own in found if own.verdict != Verdict.NO_DATA]
    if not known:
        return found[0]
    if claim.is_identity and {own.verdict for own in known} == {Verdict.HOLDS}:
        return Outcome(verdict=Verdict.IDENTITY)
    return known[0] if len(set(map(str, known))) == 1 else Outcome(verdict=Verdict.DEPENDS)


def _over_networks(claim: Claim, verdicts: Sequence[Verdict]) -> Outcome:
    counts = Counter(verdicts)
    known = [own for own in verdicts if own != Verdict.NO_DATA]
    if not known:
        return Outcome(verdict=Verdict.NO_DATA, counts=counts)
    if not claim.is_universal:
        return Outcome(verdict=_first(_ANY, known), counts=counts)
    return Outcome(verdict=known[0] if len(set(known)) == 1 else Verdict.PARTLY, counts=counts)


def weakest(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of what has to hold as a whole: one that fails decides, else one without data."""
    return _first(_ALL, verdicts)


def _first(order: Sequence[Verdict], verdicts: Sequence[Verdict]) -> Verdict:
    return next(own for own in order if own in verdicts)


def _numbers(claim: Claim, numbers: Mapping[str, Value] | None) -> Mapping[str, Value]:
    recorded = {} if claim.measured is None else claim.measured.numbers
    return recorded if numbers is None else numbers
