"""A claim of the literature: its text, its criterion, the command that measures it, the result and the verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, final

from bayesgeom.core.text import number_text


class Verdict(StrEnum):
    """The result of a claim's criterion; it is also the text, such as "supported".

    Example:
        >>> Verdict("supported").name
        'SUPPORTED'
    """

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    NOT_DECIDED = "not decided"
    NOT_TESTABLE = "not testable on this task"
    NOT_TESTED = "not tested"


@final
@dataclass(frozen=True, kw_only=True)
class Number:
    """The position of a number in a report: the row of its table with these entries.

    If several rows match, `reduce` chooses the one with the smallest or the largest value, and the interval allows for
    the choice: see `bayesgeom.stats.bounds`. If `baseline` names a baseline of the estimate, the number is the level
    of that baseline: its value, or the `end` of its range. `no_interval` says why the number never has an interval; it
    is then judged by its value. Otherwise a missing interval leaves the condition open.

    `if_perfect` is for shares of right answers. If all n sequences are entirely right, the bootstrap gives no interval.
    At most 1 − 0.05^(1/n) of all sequences then hold an error, with 95 % confidence, and the lower end is 1 minus
    `if_perfect` times that. `if_perfect` is the largest number of answers in a sequence over the mean number.
    """

    name: str
    label: str
    unit: str
    probe: str
    metric: str
    variant: str | None = None
    variant_has: str | None = None
    layer: int | None = None
    head: int | None = None
    position: int | None = None
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


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """A command line and the numbers that are read from its report.

    `report` is the folder of the recorded report in a clone. `needs` names the checkpoints and trainings
    that the command loads. `minutes` is about how long it takes on one idle CPU core: processor time of 25 November
    2026 where it is not a whole number, else an earlier estimate on two cores.
    """

    name: str
    command: str
    report: str | None
    needs: Sequence[str]
    minutes: float
    numbers: Mapping[str, Number]


@final
@dataclass(frozen=True, kw_only=True)
class Condition:
    """One decidable part of a criterion: the interval of `number` lies below (above) `times` · `than`.

    `than` is a constant, the name of another number, or "baseline", the strongest baseline of the number itself. With
    `is_disjoint`, the two intervals must not overlap.
    """

    number: str
    side: Literal["below", "above"]
    than: float | str
    times: float = 1.0
    is_disjoint: bool = False

    @property
    def opposite(self) -> "Condition":
        """The condition that the interval lies on the other side of the same threshold."""
        return replace(self, side="above" if self.side == "below" else "below")


@final
@dataclass(frozen=True, kw_only=True)
class Hold:
    """A verdict that stands whatever the numbers are, with a reason that no condition can state."""

    verdict: Verdict
    reason: str


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

    @property
    def scope(self) -> str:
        """What the interval is over, as tables print it; "" for sequences."""
        is_range = self.over not in ("", "trainings", "seeds", "networks")
        return f"{'range ' * is_range}over {self.over}" if self.over else ""

    def text(self, unit: str = "") -> str:
        """Return the number with its interval and unit."""
        written = number_text(self.value)
        if not math.isnan(self.lo):
            written += f" [{number_text(self.lo)}, {number_text(self.hi)}{self.scope and f'; {self.scope}'}]"
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
    """A claim, its criterion, the commands that measure it, and the recorded measurement if there is one.

    Claims are read from files by `load`; calling the class is only needed for a claim of one's own. In the texts of
    `hold` and `why_open`, `{number}` stands for that measured number, so that text and table agree.

    Args:
        id: A letter and a number, such as "B1".
        claim: The claim as a sentence.
        source: Paper and section.
        published: The published numbers or statement.
        criterion: What supports and what contradicts the claim.
        is_criterion_later: Whether the criterion was written, or changed, after a first measurement.
        does_not_show: What a supported claim does not show.
        runs: Commands, and the numbers that are read from their reports.
        supported_if: Conditions that support the claim if all are met.
        contradicted_if: Groups of conditions. The claim is contradicted if all of one group are met.
        seeds: Number of trainings that the measurement covers; the smallest if its parts cover different numbers.
        seeds_required: Number of trainings that the criterion requires.
        trainings: The number of trainings of each part in words, if the parts differ.
        hold: A verdict that stands whatever the numbers are, with its reason.
        why_open: Why the recorded numbers decide nothing; shown while they do not.
        finding: The result as a sentence.
        shown: Names of the numbers that tables show.
        against: Name of the number, or text, that tables show as the strongest baseline.
        measured: The recorded measurement, or None.

    Example:
        >>> from examples.replication.claims import find
        >>> claim = find("B1")
        >>> claim.id, claim.seeds_required, list(claim.numbers)
        ('B1', 1, ['kl', 'error'])
    """

    id: str
    claim: str
    source: str
    published: str
    criterion: str
    is_criterion_later: bool
    does_not_show: str
    runs: Sequence[Run]
    supported_if: Sequence[Condition]
    contradicted_if: Sequence[Sequence[Condition]]
    seeds: int
    seeds_required: int
    trainings: str
    hold: Hold | None
    why_open: str
    finding: str
    shown: Sequence[str]
    against: str
    measured: Measurement | None

    @property
    def commands(self) -> list[str]:
        """The command lines that measure the claim."""
        return [run.command for run in self.runs]

    @property
    def decisive(self) -> list[Run]:
        """The runs from which numbers are read; all runs if no numbers are defined yet."""
        return [run for run in self.runs if run.numbers] or list(self.runs)

    @property
    def recordable(self) -> list[Run]:
        """The runs that define numbers and name a folder for their report."""
        return [run for run in self.runs if run.numbers and run.report is not None]

    @property
    def duration(self) -> str:
        """About how long the commands take that `reproduce` runs, if no further training exists; "" without any."""
        minutes = sum(run.minutes for run in self.recordable or self.decisive)
        if minutes < 1:
            return f"{60 * minutes:.0f} s" if minutes else ""
        return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"

    @property
    def numbers(self) -> dict[str, Number]:
        """Every number of every run, by its name."""
        return {name: number for run in self.runs for name, number in run.numbers.items()}

    @property
    def conditions(self) -> list[Condition]:
        """Every condition of the criterion: those that support, then those that contradict."""
        return [*self.supported_if, *(condition for group in self.contradicted_if for condition in group)]

    @property
    def unrecorded(self) -> list[str]:
        """Numbers that the runs define and the measurement lacks; empty if nothing was measured."""
        return [] if self.measured is None else [name for name in self.numbers if name not in self.measured.numbers]


def is_met(condition: Condition, numbers: Mapping[str, Value], *, is_point: bool = False) -> bool:
    """Return whether the whole interval of the condition's number lies on the required side of its threshold.

    A missing number meets nothing, and neither does a number without an interval unless it is judged as a point. If the
    threshold is itself a measured number, its value is used, or the near end of its interval with `is_disjoint`.

    Args:
        condition: The condition.
        numbers: The measured numbers by name.
        is_point: Whether the number is judged by its value alone.
    """
    needed = {condition.number} | ({condition.than} if isinstance(condition.than, str) else set()) - {"baseline"}
    if not needed <= numbers.keys():
        return False
    found, limit = numbers[condition.number], threshold(condition, numbers)
    if condition.side == "below":
        return (found.value if is_point else found.hi) < limit
    return (found.value if is_point else found.lo) > limit


def threshold(condition: Condition, numbers: Mapping[str, Value]) -> float:
    """Return the threshold of a condition."""
    if not isinstance(condition.than, str):
        return condition.times * condition.than
    if condition.than == "baseline":
        return condition.times * numbers[condition.number].baseline
    other = numbers[condition.than]
    if not condition.is_disjoint:
        return condition.times * other.value
    return condition.times * (other.lo if condition.side == "below" else other.hi)


def verdict(claim: Claim, numbers: Mapping[str, Value] | None = None) -> Verdict:
    """Return the verdict on a claim.

    The claim is supported if all conditions in `supported_if` are met, and contradicted if all of one group in
    `contradicted_if` are. If neither or both hold, or with fewer trainings than the criterion requires, it is not
    decided. A claim on hold has the verdict that its hold states.

    Args:
        claim: The claim.
        numbers: Numbers to judge instead of the recorded ones, by name.

    Returns:
        The verdict: `NOT_TESTED` without numbers or conditions.

    Example:
        >>> from examples.replication.claims import find
        >>> str(verdict(find("C1")))
        'not tested'
    """
    if claim.hold is not None:
        return claim.hold.verdict
    judged = claim.measured.numbers if numbers is None and claim.measured is not None else numbers
    if judged is None or not claim.supported_if:
        return Verdict.NOT_TESTED
    met = {own for own in claim.conditions if is_met(own, judged, is_point=claim.numbers[own.number].is_point)}
    is_supported = met.issuperset(claim.supported_if)
    is_contradicted = any(met.issuperset(group) for group in claim.contradicted_if)
    if claim.seeds < claim.seeds_required or is_supported == is_contradicted:
        return Verdict.NOT_DECIDED
    return Verdict.SUPPORTED if is_supported else Verdict.CONTRADICTED


def reason(claim: Claim) -> str:
    """Return why a claim has no verdict, with the measured numbers in place of their names.

    Empty if it has a verdict, or if no text says why it has none.
    """
    if claim.hold is None and verdict(claim) != Verdict.NOT_DECIDED:
        return ""
    why = claim.why_open if claim.hold is None else claim.hold.reason
    recorded = {} if claim.measured is None else claim.measured.numbers
    return why.format_map({n: recorded[n].text(of.unit) if n in recorded else "–" for n, of in claim.numbers.items()})
