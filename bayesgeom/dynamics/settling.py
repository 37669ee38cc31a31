"""When something first reaches its level, which of two does first, and whether a curve falls again.

    frame_step       first snapshot whose pattern distance is at most 10 % of the first one's
    precision_step   first snapshot whose KL is at most twice the last one's
    dissociation     log2(precision_step / frame_step)

The two thresholds are not alike: a tenth of the start against twice the end. So precision is also timed by the frame's
own rule: first snapshot at which a tenth is left of the distance between the first KL and the last one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from bayesgeom.dynamics.rows import interval_of
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.stats.crossings import NEVER, SETTLED, Crossing, Steps, reached, times_later

NEAR, THERE = 2.0, 0.1
MIN_SEEDS = 3


def frame_moment(steps: Steps, distance: Float[np.ndarray, " step"]) -> Crossing:
    """Return when attention first reaches where it ends. NaN where it is there from the start."""
    return reached(steps, distance <= SETTLED * distance[0]) if distance[0] > 0 else NEVER


def precision_moment(steps: Steps, kl_bits: Float[np.ndarray, " step"]) -> Crossing:
    """Return when the error first reaches twice the last one. NaN where it was never larger."""
    return reached(steps, kl_bits <= NEAR * kl_bits[-1])


def precision_by_share(steps: Steps, kl_bits: Float[np.ndarray, " step"]) -> Crossing:
    """Return when a tenth of the error's way down is first left: the frame's rule. NaN where it did not come down."""
    way = kl_bits - kl_bits[-1]
    return reached(steps, way <= SETTLED * way[0]) if way[0] > 0 else NEVER


@final
@dataclass(frozen=True, kw_only=True)
class Dissociation:
    """log2 of one moment over another: per training, with the bounds that the spacing of snapshots leaves.

    `lo` and `hi` are Student's interval over trainings, widened by those bounds.
    """

    per_run: Float[np.ndarray, " run"]
    least: Float[np.ndarray, " run"]
    most: Float[np.ndarray, " run"]
    mean: float
    lo: float
    hi: float

    def verdict(self, *, first: str, second: str) -> str:
        """Which of the two settles first, or that it cannot be decided and why."""
        known = np.isfinite(self.per_run)
        if not known.all():
            return f"cannot decide: in {int((~known).sum())} of {len(known)} training(s) one of the two has no moment"
        if len(known) < MIN_SEEDS:
            return f"cannot decide: {len(known)} training(s), and at least {MIN_SEEDS} are needed"
        if self.lo > 0:
            return f"{first} settles first, by a factor of {2**self.mean:.3g}"
        if self.hi < 0:
            return f"{second} settles first, by a factor of {2**-self.mean:.3g}"
        return "cannot decide: the interval holds 0"


def dissociation(later: Sequence[Crossing], earlier: Sequence[Crossing]) -> Dissociation:
    """How much later, in doublings of the step, one entry per training."""
    ratios = [times_later(own, other) for own, other in zip(later, earlier, strict=True)]
    per_run, least, most = np.log2(ratios).T
    lo, hi = seed_interval(least)[0], seed_interval(most)[1]
    return Dissociation(per_run=per_run, least=least, most=most, mean=float(per_run.mean()), lo=float(lo), hi=float(hi))


@final
@dataclass(frozen=True, kw_only=True)
class Fall:
    """The largest fall of a curve after a maximum: between which steps, how far, and as a share of its rise."""

    start: int
    end: int
    size: float
    lo: float
    hi: float
    rise: float

    @property
    def share(self) -> float:
        """Of the rise from the first snapshot to the maximum; NaN for a curve that never rises."""
        return self.size / self.rise if self.rise > 0 else float("nan")

    @property
    def verdict(self) -> str:
        """There, not there, or cannot decide."""
        if not self.rise > 0:
            return "no rise" if self.rise <= 0 else "not measured"
        if not np.isfinite([self.lo, self.hi]).all():
            return "cannot decide: no interval"
        if self.lo >= THERE * self.rise:
            return "there"
        return "not there" if self.hi < THERE * self.rise else "cannot decide"


FALL_RULE = (
    f"a fall is there if its 95 % interval lies above {THERE:.0%} of the curve's rise, and not there if it lies below; "
    f"over {MIN_SEEDS} seeds or more the steps are chosen on the other seeds, else the interval is over sequences"
)


def largest_fall(curve: Float[np.ndarray, " step"]) -> tuple[int, int]:
    """Where the largest fall begins and ends; twice the same where the curve never falls."""
    drop = np.maximum.accumulate(curve) - curve
    end = int(np.argmax(drop))
    return int(np.argmax(curve[: end + 1])), end


def fall(curves: Float[np.ndarray, "run row step"], *, seed: int) -> Fall:
    """The largest fall of the mean over trainings; row 0 is the estimate, in the others a group of sequences is absent.

    With enough trainings each is measured between steps that the others chose, and the interval is Student's; else it
    is over the sequences, and speaks of these trainings alone.
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
