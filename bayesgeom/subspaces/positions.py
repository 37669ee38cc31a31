"""At which positions an intervention acts, and at which it is scored."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.trials import Trials

LEAST_SCORED = 5  # for editing at one position and scoring at later ones
_QUARTERS = (1, 2, 3)


@final
@dataclass(frozen=True, kw_only=True)
class Positions:
    """Acts at all positions or at the scored ones; with `score_after` at one scored position, scored at later ones.

    Tiles of sequences take the scored positions at one, two and three quarters of the sequence in turn.
    """

    are_scored: bool
    score_after: bool = False

    @property
    def label(self) -> str:
        """What reports call it."""
        if self.score_after:
            return "one scored position, scored at later ones"
        return "scored positions" if self.are_scored else "all positions"

    def check(self, trials: Trials) -> None:
        """**Raises** `InvalidArgument` where too few positions are scored for an edit at one and scores after it."""
        if self.score_after and trials.n_scored < LEAST_SCORED:
            raise InvalidArgument(
                f"score_after edits one scored position and scores later ones: it takes a task with at least "
                f"{LEAST_SCORED} scored positions, this one has {trials.n_scored}."
            )

    def bands(self, n_scored: int) -> tuple[str, ...]:
        """Names of the bands of positions that scores are averaged over, all first."""
        if self.score_after:
            return ("all later", "next scored", "second next")
        return ("all", "first third", "middle third", "last third")[: 4 if n_scored >= 3 else 1]

    def mask(self, trials: Trials, tile: int) -> Bool[Tensor, " pos"] | None:
        """Where to act in this tile; None is everywhere."""
        if not self.are_scored and not self.score_after:
            return None
        mask: Tensor = trials.scored[0].clone()
        if self.score_after:
            chosen = mask.nonzero()[_index(trials.n_scored, tile), 0]
            mask = torch.zeros_like(mask)
            mask[chosen] = True
        return mask

    def weights(self, n_scored: int, tile: int) -> Float64[np.ndarray, "position band"]:
        """Weights that average over each band."""
        if self.score_after:
            at = _index(n_scored, tile)
            members = [np.arange(at + 1, n_scored), np.array([at + 1]), np.array([at + 2])]
        else:
            thirds = np.array_split(np.arange(n_scored), 3) if n_scored >= 3 else []
            members = [np.arange(n_scored), *thirds]
        weights = np.zeros((n_scored, len(members)))
        for band, positions in enumerate(members):
            weights[positions, band] = 1 / len(positions)
        return weights


def _index(n_scored: int, tile: int) -> int:
    """Which scored position is edited in this tile; at least two are scored after it."""
    quarter = _QUARTERS[tile % len(_QUARTERS)]
    return min(quarter * (n_scored - 1) // 4, n_scored - 3)
