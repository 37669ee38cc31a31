"""A headline: one number as tables print it, in one format everywhere."""

import math
from dataclasses import dataclass
from typing import final

MINUS = "−"


@final
@dataclass(frozen=True, kw_only=True)
class Headline:
    """One number with its 95 % interval and its hardest baseline.

    Args:
        metric: Field of the report.
        label: What tables call it.
        value: The number.
        unit: Its unit, "" for none.
        low: Lower end of the interval, NaN without one.
        high: Upper end.
        baseline: Level of the baseline that is hardest to beat, NaN without one.
        baseline_name: Its name, and the other baselines with their levels.
        no_interval: Why the interval is withheld; "" where it is not.
        verdict: Whether the interval lies beyond every baseline: "yes", "no", "undecided", or "" without baselines.
        finding: What the number shows, in a sentence; pages open with the headlines that have one.
        ruling: The report's own verdict, such as "used"; pages show it instead of `verdict`.
        published: What was published about it.
    """

    metric: str
    label: str
    value: float
    unit: str = ""
    low: float = math.nan
    high: float = math.nan
    baseline: float = math.nan
    baseline_name: str = ""
    no_interval: str = ""
    verdict: str = ""
    finding: str = ""
    ruling: str = ""
    published: str = ""

    def __str__(self) -> str:
        why = (
            f" [no interval: {self.no_interval}]"
            if self.no_interval
            else f" [{self.interval}]"
            if self.interval
            else ""
        )
        baseline = f"; {self.baseline_text}" if self.has_baseline else ""
        verdict = f"; beats every baseline: {self.verdict}" if self.verdict else ""
        ruling = f"; verdict: {self.ruling}" if self.ruling else ""
        return f"{self.label} {self.value_text}{why}{baseline}{verdict}{ruling}"

    @property
    def value_text(self) -> str:
        """The number with its unit; a dash where there is none."""
        return "–" if math.isnan(self.value) else f"{number_text(self.value)} {self.unit}".rstrip()

    @property
    def interval(self) -> str:
        """Both ends; "" without an interval."""
        return "" if math.isnan(self.low) else f"{number_text(self.low)} … {number_text(self.high)}"

    @property
    def has_baseline(self) -> bool:
        """Whether the level of a baseline is known."""
        return not math.isnan(self.baseline)

    @property
    def baseline_text(self) -> str:
        """The hardest baseline and its level, then the others; "" without one."""
        return f"{number_text(self.baseline)} ({self.baseline_name})" if self.has_baseline else ""

    @property
    def baselines(self) -> list[str]:
        """The same, one by one."""
        first, *others = self.baseline_name.split("; ")
        return [f"{number_text(self.baseline)} ({first})", *others] if self.has_baseline else []


def number_text(value: float, digits: int = 4) -> str:
    """Return a number with that many significant digits and a minus sign, a dash for NaN.

    Example:
        >>> number_text(0.123456), number_text(-2.0), number_text(3e-7), number_text(0.0)
        ('0.1235', '−2', '3e−7', '0')
    """
    if math.isnan(value):
        return "–"
    text = f"{value:.{digits}g}" if value else "0"
    mantissa, _, exponent = text.partition("e")
    power = f"e{int(exponent)}" if exponent else ""
    return f"{mantissa}{power}".replace("-", MINUS)
