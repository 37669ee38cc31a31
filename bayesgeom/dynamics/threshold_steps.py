"""Find from which snapshot on the distance to the last snapshot stays within a tenth of the first distance.

The last snapshot does not count, because its distance is 0 by definition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

NEARBY = 0.1  # share of the first distance
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


def stable(steps: Steps, distance: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return the first snapshot before the last one from which on a distance is at most a tenth of its first value.

    Args:
        steps: Training step of every snapshot.
        distance: The distance to the last snapshot, which is 0 there by definition. NaN counts as far.

    Returns:
        The snapshot; `NEVER` if the distance is within a tenth from the start. If only the last snapshot is within a
        tenth, the step is NaN and `before` is the second-to-last snapshot.

    Example:
        >>> stable((0, 10, 20, 40, 80), np.array([1.0, 0.05, 0.5, 0.08, 0.0]))
        ThresholdStep(step=40.0, before=20.0)
    """
    far = np.flatnonzero(~(distance[:-1] <= NEARBY * distance[0]))
    if len(far) == 0:
        return NEVER
    step, before = steps[far[-1] + 1], max(steps[far[-1]], 1)
    return ThresholdStep(step=float("nan") if step == steps[-1] else float(step), before=float(before))


def times_later(later: ThresholdStep, earlier: ThresholdStep) -> tuple[float, float, float]:
    """Return the ratio of two steps, with the bounds that the spacing of snapshots allows."""
    return later.step / earlier.step, later.before / earlier.step, later.step / earlier.before
