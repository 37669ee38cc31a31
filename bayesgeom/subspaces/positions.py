"""The positions that an intervention edits, and the positions that are scored."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials

LEAST_SCORED = 5  # for editing at one position and scoring at later ones
_QUARTERS = (1, 2, 3)


@final
@dataclass(frozen=True, kw_only=True)
class Positions:
    """Edited positions: all or the scored ones; with `score_after` one, and only later positions are scored.

    With `score_after`, batches take turns to edit the scored position at one, two and three quarters of the sequence.
    """

    are_scored: bool
    score_after: bool = False

    @property
    def label(self) -> str:
        """Label in reports."""
        if self.score_after:
            return "one scored position, scored at later ones"
        return "scored positions" if self.are_scored else "all positions"

    def check(self, trials: Trials) -> None:
        """Check that enough positions are scored.

        Raises:
            InvalidArgument: `score_after` is set and fewer than `LEAST_SCORED` positions are scored.
        """
        if self.score_after and trials.n_scored < LEAST_SCORED:
            raise InvalidArgument(
                f"score_after edits one scored position and scores later ones, so the task must have at least "
                f"{LEAST_SCORED} scored positions; this one has {trials.n_scored}."
            )

    def bands(self, n_scored: int) -> tuple[str, ...]:
        """Return the names of the bands of positions over which scores are averaged, all positions first."""
        if self.score_after:
            return ("all later", "next scored", "second next")
        return ("all", "first third", "middle third", "last third")[: 4 if n_scored >= 3 else 1]

    def mask(self, trials: Trials, batch: int) -> Bool[Tensor, " pos"] | None:
        """Return the positions to edit in this batch; None means all."""
        if not self.are_scored and not self.score_after:
            return None
        mask: Tensor = trials.scored[0].clone()
        if self.score_after:
            chosen = mask.nonzero()[_index(trials.n_scored, batch), 0]
            mask = torch.zeros_like(mask)
            mask[chosen] = True
        return mask

    def weights(self, n_scored: int, batch: int) -> Float64[np.ndarray, "position band"]:
        """Return the weights that average over each band."""
        if self.score_after:
            at = _index(n_scored, batch)
            members = [np.arange(at + 1, n_scored), np.array([at + 1]), np.array([at + 2])]
        else:
            thirds = np.array_split(np.arange(n_scored), 3) if n_scored >= 3 else []
            members = [np.arange(n_scored), *thirds]
        weights = np.zeros((n_scored, len(members)))
        for band, positions in enumerate(members):
            weights[positions, band] = 1 / len(positions)
        return weights


def _index(n_scored: int, batch: int) -> int:
    """Return the index of the scored position to edit in this batch; at least two scored positions follow it."""
    quarter = _QUARTERS[batch % len(_QUARTERS)]
    return min(quarter * (n_scored - 1) // 4, n_scored - 3)
