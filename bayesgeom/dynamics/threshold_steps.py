"""Find when a curve over training snapshots first reaches a level, and when it stays there.

reached    the first snapshot at which a condition holds, even if it fails later
settled    the first snapshot after which at most a tenth of the first distance is left
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float

SETTLED = 0.1  # share of the first distance
Steps = Sequence[int]


@final
@dataclass(frozen=True)
class ThresholdStep:
    """The first snapshot at which a condition holds, and the one before: the change lies between them.

    `step` is NaN if the condition never holds; `before` is NaN if it is unknown.
    """

    step: float
    before: float


NEVER = ThresholdStep(float("nan"), float("nan"))


def reached(steps: Steps, holds: Bool[np.ndarray, " step"]) -> ThresholdStep:
    """Return the first snapshot at which a condition holds; `NEVER` if it never holds, or holds from the start.

    Example:
        >>> reached((0, 10, 20, 40), np.array([False, False, True, False]))
        ThresholdStep(step=20.0, before=10.0)
    """
    found = np.flatnonzero(holds)
    if len(found) == 0 or found[0] == 0:
        return NEVER
    return ThresholdStep(float(steps[found[0]]), float(max(steps[found[0] - 1], 1)))


def settled(steps: Steps, distance: Float[np.ndarray, " step"], *, counts_last: bool) -> ThresholdStep:
    """Return the first snapshot after which a distance stays at most a tenth of its first value.

    Args:
        steps: Training step of every snapshot.
        distance: A distance over these snapshots, such as that to the last one. NaN counts as far.
        counts_last: Whether a distance may settle at the last snapshot. A distance *to* the last snapshot is 0 there
            by definition. Without `counts_last` the step is then NaN and `before` is the second-to-last snapshot.

    Returns:
        The snapshot; `NEVER` if the distance is within a tenth from the start.

    Example:
        >>> settled((0, 10, 20, 40, 80), np.array([1.0, 0.05, 0.5, 0.08, 0.0]), counts_last=True)
        ThresholdStep(step=40.0, before=20.0)
    """
    outside = np.flatnonzero(~(distance[: None if counts_last else -1] <= SETTLED * distance[0]))
    if len(outside) == 0:
        return NEVER
    at = int(outside[-1])
    is_open = at + (1 if counts_last else 2) == len(steps)
    return ThresholdStep(step=float("nan") if is_open else float(steps[at + 1]), before=float(max(steps[at], 1)))


def times_later(later: ThresholdStep, earlier: ThresholdStep) -> tuple[float, float, float]:
    """Return the ratio of two steps, with the bounds that the spacing of snapshots allows."""
    return later.step / earlier.step, later.before / earlier.step, later.step / earlier.before
