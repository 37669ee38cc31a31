"""When a curve reaches a fixed threshold, which of two curves does so first, and whether a curve falls again.

    frame_step       first snapshot whose pattern distance is at most 10 % of the first one's
    precision_step   first snapshot whose KL is at most twice the last one's
    dissociation     log2(precision_step / frame_step)

The two thresholds are not comparable: a tenth of the start against twice the end. So precision is also measured by the
frame's rule: the first snapshot at which a tenth of the distance between first and last KL remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.numbers import percent_text
from bayesgeom.dynamics.threshold_steps import NEARBY, NEVER, Steps, ThresholdStep, reached, times_later
from bayesgeom.results.tables import counted
from bayesgeom.stats.bootstrap import seed_interval

NEAR, THERE = 2.0, 0.1
MIN_SEEDS = 3
NO_INTERVAL = f"cannot decide: fewer than {MIN_SEEDS} trainings"  # the verdict on a fall
NO_FALL = "no fall in the trainings that choose its steps"  # a verdict


def frame_moment(steps: Steps, distance: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return when the attention distance first falls to a tenth of its first value; NaN if it starts at 0."""
    return reached(steps, distance <= NEARBY * distance[0]) if distance[0] > 0 else NEVER


def precision_moment(steps: Steps, kl_bits: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return when the error first falls to twice its last value; NaN if it was never larger."""
    return reached(steps, kl_bits <= NEAR * kl_bits[-1])


def precision_by_share(steps: Steps, kl_bits: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return when a tenth of the error's decrease first remains (the frame's rule); NaN without a decrease."""
    way = kl_bits - kl_bits[-1]
    return reached(steps, way <= NEARBY * way[0]) if way[0] > 0 else NEVER


@final
@dataclass(frozen=True, kw_only=True)
class Dissociation:
    """log2 of the ratio of two steps per training, with bounds from the spacing of snapshots.

    `lo` and `hi` are Student's interval over trainings, widened by those bounds.
    """

    per_run: Float[np.ndarray, " run"]
    least: Float[np.ndarray, " run"]
    most: Float[np.ndarray, " run"]
    mean: float
    lo: float
    hi: float

    def verdict(self, *, first: str, second: str) -> str:
        """Return which of the two is first, or "cannot decide" with the reason."""
        known, trainings = np.isfinite(self.per_run), counted(len(self.per_run), "training")
        if not known.all():
            return f"cannot decide: in {int((~known).sum())} of {trainings} one of the two has no moment"
        if len(known) < MIN_SEEDS:
            return f"cannot decide: {trainings}, and at least {MIN_SEEDS} are needed"
        if self.lo > 0:
            return f"{first} is first, by a factor of {2**self.mean:.3g}"
        if self.hi < 0:
            return f"{second} is first, by a factor of {2**-self.mean:.3g}"
        return "cannot decide: the interval holds 0"


def dissociation(later: Sequence[ThresholdStep], earlier: Sequence[ThresholdStep]) -> Dissociation:
    """Return the log2 ratio of two steps, one entry per training."""
    ratios = [times_later(own, other) for own, other in zip(later, earlier, strict=True)]
    per_run, least, most = np.log2(ratios).T
    lo, hi = seed_interval(least)[0], seed_interval(most)[1]
    return Dissociation(per_run=per_run, least=least, most=most, mean=float(per_run.mean()), lo=float(lo), hi=float(hi))


@final
@dataclass(frozen=True, kw_only=True)
class Fall:
    """The largest fall of a curve after a maximum: its steps, size, and the preceding rise."""

    start: int
    end: int
    size: float
    lo: float
    hi: float
    rise: float
    is_divided: bool = False  # whether other trainings chose the steps

    @property
    def share(self) -> float:
        """The fall as a share of the rise from first snapshot to maximum; NaN for a curve that never rises."""
        return self.size / self.rise if self.rise > 0 else float("nan")

    @property
    def verdict(self) -> str:
        """The verdict: there, not there, or why it cannot be decided."""
        if not self.rise > 0:
            return "no rise" if self.rise <= 0 else "not measured"
        if not np.isfinite([self.lo, self.hi]).all():
            return NO_FALL if self.is_divided and self.start == self.end else NO_INTERVAL
        if self.lo >= THERE * self.rise:
            return "there"
        return "not there" if self.hi < THERE * self.rise else "cannot decide"


FALL_RULE = (
    f"A fall is there if its 95 % interval lies above {percent_text(THERE)} of the curve's rise, and not "
    f"there if it lies below. The first half of the trainings chooses its steps, the others measure it between them, "
    f"on the same sequences. With fewer than {MIN_SEEDS} trainings there is no interval."
)


def largest_fall(curve: Float[np.ndarray, " step"]) -> tuple[int, int]:
    """Return start and end of the largest fall; they are equal if the curve never falls."""
    drop = np.maximum.accumulate(curve) - curve
    end = int(np.argmax(drop))
    return int(np.argmax(curve[: end + 1])), end


def fall(curves: Float[np.ndarray, "run step"]) -> Fall:
    """Return the largest fall: between the steps at which the first half of the trainings falls most, in the others.

    The interval is Student's over these others. Steps that are chosen on what is measured give intervals that cover
    too seldom on planted curves: 69 to 82 % over the sequences of one training, 89 to 94 % over trainings if each is
    measured between steps chosen on all others (`benchmarks/interval_coverage.py --rows "largest fall"`). With too few
    trainings to divide, all of them choose and measure, and there is no interval.
    """
    unknown, mean = float("nan"), curves.mean(axis=0)
    if not np.isfinite(mean).all():
        return Fall(start=0, end=0, size=unknown, lo=unknown, hi=unknown, rise=unknown)
    measured = measuring(curves)
    is_divided = len(measured) < len(curves)
    start, end = largest_fall(curves[: -len(measured)].mean(axis=0) if is_divided else mean)
    falls = measured[:, start] - measured[:, end]
    lo, hi = map(float, seed_interval(falls)) if is_divided and start < end else (unknown, unknown)
    rise, size = float(mean.max() - mean[0]), float(falls.mean())
    return Fall(start=start, end=end, size=size, lo=lo, hi=hi, rise=rise, is_divided=is_divided)


def measuring(curves: Float[np.ndarray, "run *rest"]) -> Float[np.ndarray, "measured *rest"]:
    """Return the trainings that measure a fall: all but the first half, or all if they are too few to divide."""
    return curves[len(curves) // 2 :] if len(curves) >= MIN_SEEDS else curves
