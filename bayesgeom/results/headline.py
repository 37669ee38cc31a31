"""A headline: one number as printed in tables, with one format everywhere."""

import math
from dataclasses import dataclass
from typing import Self, final

from bayesgeom.core.text import interval_text, measured_text, number_text
from bayesgeom.core.verdict import Reason

MOST = ", most"  # at the end of a baseline's name if only the largest of its draws is stored
CONSERVATIVE = "≥ 95 %: "  # before a conservative interval
MEAN = ", mean "  # before the mean of a baseline whose range decides


@final
@dataclass(frozen=True, kw_only=True)
class Headline:
    """One number with its 95 % interval and its strongest baseline.

    Args:
        metric: Field of the report, or property that computes it from others.
        label: Label in tables.
        value: The number.
        unit: Its unit, "" for none.
        low: Lower end of the interval, NaN without one.
        high: Upper end.
        baseline: Level that has to be exceeded: the far end of the strongest baseline's range if it has one, else its
            value; NaN without a baseline.
        bound: "≤ " or "≥ " where `baseline` is the end of a range, such as the largest of several draws; else "".
        baseline_name: Its name, and the other baselines: level and name, the stronger first.
        reason: Why the interval is withheld, or that it is conservative.
        verdict: Whether the interval lies beyond every baseline: "yes", "no", "undecided", or "" without baselines.
        caveat: What `verdict` does not cover, as a clause; tables mark it with *. Of a `ruling`: a remark below it.
        finding: What the number shows, in a sentence; pages open with the headlines that have one.
        place: Place of the finding among those of the report, where this is not the order of the lines: lowest first.
        detail: What the number alone does not show, in a sentence that `print(report)` shows below.
        ruling: The report's own verdict, such as "used"; pages show it instead of `verdict`.
        short_label: Label in a `repr`, and subject of the sentence on the number; "" for `label`.
    """

    metric: str
    label: str
    value: float
    unit: str = ""
    low: float = math.nan
    high: float = math.nan
    baseline: float = math.nan
    bound: str = ""
    baseline_name: str = ""
    reason: Reason = Reason.NONE
    verdict: str = ""
    caveat: str = ""
    finding: str = ""
    place: int = 0
    detail: str = ""
    ruling: str = ""
    short_label: str = ""

    @classmethod
    def computed(cls, metric: str, label: str, value: float, unit: str = "") -> Self:
        """Return a number that a report computes from its fields; it has no interval and no baseline."""
        return cls(metric=metric, label=label, value=value, unit=unit)

    def __str__(self) -> str:
        interval = f"no interval: {self.no_interval}" if self.no_interval else self.interval
        why = f" [{interval}]" if interval else ""
        baseline = f"; {'; '.join(self.baselines)}" if self.has_baseline else ""
        verdict = f"; beats every baseline: {self.verdict}" if self.verdict else ""
        verdict += f" ({self.caveat})" if self.verdict and self.caveat else ""
        ruling = f"; verdict: {self.ruling}" if self.ruling else ""
        return f"{self.label} {self.value_text}{why}{baseline}{verdict}{ruling}"

    @property
    def value_text(self) -> str:
        """The number with its unit; a dash if it is missing."""
        return measured_text(self.value, self.unit)

    @property
    def interval(self) -> str:
        """Both ends, with a mark before those of a conservative interval; "" without an interval."""
        mark = CONSERVATIVE * self.is_conservative
        return "" if math.isnan(self.low) else f"{mark}{interval_text(self.low, self.high)}"

    @property
    def no_interval(self) -> str:
        """The label of the reason why there is no interval; "" where there is one, or none is to be expected."""
        return self.reason.label if math.isnan(self.low) and self.reason != Reason.CONSERVATIVE else ""

    @property
    def is_conservative(self) -> bool:
        """Whether the interval covers more than 95 %."""
        return self.reason == Reason.CONSERVATIVE

    @property
    def has_baseline(self) -> bool:
        """Whether a baseline with a known level exists."""
        return not math.isnan(self.baseline)

    @property
    def level_text(self) -> str:
        """The level of the strongest baseline; a dash without one."""
        return f"{self.bound}{number_text(self.baseline)}"

    @property
    def baselines(self) -> list[str]:
        """Level and name of each baseline, the strongest first."""
        first, *others = self.baseline_name.split("; ")
        return [f"{self.level_text} ({first})", *others] if self.has_baseline else []
