"""A row of `interval_coverage.py`: a statistic, and how to draw data sets whose true value is known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from bayesgeom.stats.bounds import within_bounds
from bayesgeom.stats.intervals import Interval

SIZES = (64, 256, 2_000)
FEW_SIZES = (16, 32, *SIZES)  # of rows that are also measured below 64 sequences
Ends = tuple[np.ndarray, np.ndarray, np.ndarray]  # lower and upper ends; code of each, or whether one is shown


@final
@dataclass(frozen=True)
class Row:
    """A statistic, who reports it, and how to draw `count` data sets of n sequences: their intervals and the truth."""

    name: str
    used_by: str
    measure: Callable[[int, int, np.random.Generator], tuple[Ends, float]]
    is_cheap: bool = False
    sizes: tuple[int, ...] = SIZES
    why: str = "components are not told apart"  # where a row gives no code for showing no interval
    limit: str = ""  # why no rule that sees only the sample can tell: then covering too seldom below 256 is documented
    is_at_least: bool = False  # promises at least 95 %, so that covering more often is no failure


def shown(interval: Interval) -> Ends:
    """Both ends, and the code of each interval."""
    return interval.lo, interval.hi, interval.code


def inside(value: np.ndarray, interval: Interval, bounds: tuple[float, float]) -> Ends:
    """The intervals that a report of a quantity with this range shows."""
    lo, hi, _ = within_bounds(value, interval.lo, interval.hi, bounds)
    return lo, hi, interval.code


def stacked(intervals: list[Interval]) -> Ends:
    """One interval per data set."""
    parts = zip(*(shown(own) for own in intervals), strict=True)
    lo, hi, code = (np.array([float(x) for x in part]) for part in parts)
    return lo, hi, code.astype(int)
