"""A claim of the literature: what it says, when it counts as supported, which command measures it, what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, final


class Verdict(StrEnum):
    """What the measurement says about a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    NOT_DECIDED = "not decided"
    NOT_TESTABLE = "not testable on this task"
    NOT_TESTED = "not tested"


@final
@dataclass(frozen=True, kw_only=True)
class Number:
    """Where a number stands in a report: the row of its table with these entries.

    Where several rows match, `reduce` chooses the one with the smallest or the largest value. `baseline` names a
    baseline of the estimate whose level is the number instead, and `end` which one: its value, or an end of its range.
    `is_point`: the number is judged by its value, because it has no interval by its nature. Without it, a missing
    interval decides nothing.
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
    is_point: bool = False
    tolerance: float = 1e-3


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """A command line and the numbers that are read from its report.

    `report` is the folder in the source repository that holds the report as it was recorded; `needs` names the
    checkpoints and trainings that the command loads; `minutes` is how long it takes on two CPU cores.
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

    `than` is a constant, the name of another number, or "baseline", the strongest baseline of the number itself. The
    condition fails where the interval lies on the other side of `fails_times` · `than`; by default that is the same
    threshold. Between two thresholds it is open.
    """

    number: str
    side: Literal["below", "above"]
    than: float | str
    times: float = 1.0
    fails_times: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Hold:
    """Why a claim has a verdict that its numbers alone do not give."""

    verdict: Verdict
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class Value:
    """A measured number: its 95 % interval and its strongest baseline are NaN where there is none."""

    value: float
    lo: float
    hi: float
    baseline: float


@final
@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a run's numbers come from."""

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

    `seeds` counts the trainings that the measurement covers, `seeds_required` those that the criterion asks for.
    `is_criterion_later` is true where the claim had been measured before its criterion was written down.
    """

    id: str
    claim: str
    source: str
    published: str
    criterion: str
    is_criterion_later: bool
    does_not_show: str
    runs: Sequence[Run]
    conditions: Sequence[Condition]
    seeds: int
    seeds_required: int
    hold: Hold | None
    finding: str
    shown: Sequence[str]
    against: str
    in_readme: int
    measured: Measurement | None

    @property
    def commands(self) -> list[str]:
        """The command lines that measure the claim."""
        return [run.command for run in self.runs]

    @property
    def numbers(self) -> dict[str, Number]:
        """Every number of every run, by its name."""
        return {name: number for run in self.runs for name, number in run.numbers.items()}

    @property
    def unrecorded(self) -> list[str]:
        """Numbers that the runs define and the measurement lacks; empty where nothing was measured."""
        return [] if self.measured is None else [name for name in self.numbers if name not in self.measured.numbers]
