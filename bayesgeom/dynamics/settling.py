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
from bayesgeom.dynamics.rows import interval_of
from bayesgeom.dynamics.threshold_steps import NEARBY, NEVER, Steps, ThresholdStep, reached, times_later
from bayesgeom.results.tables import counted
from bayesgeom.stats.bootstrap import seed_interval

NO_INTERVAL = "cannot decide: no interval"  # the verdict on a fall
NEAR, THERE = 2.0, 0.1
MIN_SEEDS = 3


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

    @property
    def share(self) -> float:
        """The fall as a share of the rise from first snapshot to maximum; NaN for a curve that never rises."""
        return self.size / self.rise if self.rise > 0 else float("nan")

    @property
    def verdict(self) -> str:
        """The verdict: there, not there, or cannot decide."""
        if not self.rise > 0:
            return "no rise" if self.rise <= 0 else "not measured"
        if not np.isfinite([self.lo, self.hi]).all():
            return NO_INTERVAL
        if self.lo >= THERE * self.rise:
            return "there"
        return "not there" if self.hi < THERE * self.rise else "cannot decide"


FALL_RULE = (
    f"A fall is there if its 95 % interval lies above {percent_text(THERE)} of the curve's rise, and not "
    f"there if it lies "
    f"below. With {MIN_SEEDS} seeds or more, steps are chosen on the other seeds. Otherwise intervals are "
    f"over sequences."
)


def largest_fall(curve: Float[np.ndarray, " step"]) -> tuple[int, int]:
    """Return start and end of the largest fall; they are equal if the curve never falls."""
    drop = np.maximum.accumulate(curve) - curve
    end = int(np.argmax(drop))
    return int(np.argmax(curve[: end + 1])), end


def fall(curves: Float[np.ndarray, "run row step"], *, seed: int) -> Fall:
    """Return the largest fall of the mean over trainings; row 0 is the estimate, others leave a group out.

    With enough trainings, each is measured between steps chosen on the others, and the interval is Student's. With
    fewer, the interval is over sequences and covers only these trainings.
    """
    estimates = curves[:, 0]
    mean = estimates.mean(axis=0)
    if not np.isfinite(mean).all():
        unknown = float("nan")
        return Fall(start=0, end=0, size=unknown, lo=unknown, hi=unknown, rise=unknown)
    start, end = largest_fall(mean)
    rise = float(mean.max() - mean[0])
    if len(curves) >= MIN_SEEDS:
        chosen = [largest_fall(np.delete(estimates, run, axis=0).mean(axis=0)) for run in range(len(curves))]
        falls = np.array([own[a] - own[b] for own, (a, b) in zip(estimates, chosen, strict=True)])
        size, (lo, hi) = float(falls.mean()), seed_interval(falls)
    else:
        size = float(mean[start] - mean[end])
        lo, hi = interval_of((curves[:, :, start] - curves[:, :, end]).mean(axis=0), seed=seed)
        if start == end:
            lo = hi = np.zeros(())
    return Fall(start=start, end=end, size=size, lo=float(lo), hi=float(hi), rise=rise)
