"""Scores of logits against the exact posterior, with all that does not depend on the logits computed once per tile."""

import math
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import NonFinite
from bayesgeom.core.trials import Trials
from bayesgeom.models.replay.replayer import Variant
from bayesgeom.stats.information import NATS_PER_BIT, entropy_bits

METRICS = ("kl_bits", "entropy_error_bits", "correct")


@final
@dataclass(frozen=True, kw_only=True)
class Exact:
    """What the exact observer says of one tile of trials, and what the world answered."""

    answers: Int64[Tensor, " answer"]
    predictive: Float64[Tensor, "batch query_pos answer"]
    entropy_bits: Float64[Tensor, "batch query_pos"]
    labels: Int64[Tensor, "batch query_pos"]  # an index into `answers`

    @classmethod
    def of(cls, trials: Trials) -> Self:
        """Read once, used for every variant."""
        predictive = trials.at_scored(trials.predictive)
        asked = trials.at_scored(trials.labels)[..., None]
        return cls(
            answers=trials.answers,
            predictive=predictive,
            entropy_bits=entropy_bits(predictive),
            labels=(trials.answers == asked).double().argmax(-1),
        )

    def scores(
        self, logits: Float[Tensor, "batch query_pos d_vocab"], variant: Variant = ()
    ) -> Float[np.ndarray, "metric sequence position"]:
        """KL, entropy error and correctness, in float64, of probabilities renormalized over the answers.

        **Raises** `NonFinite`, naming the edits.
        """
        if not all(math.isfinite(end) for end in logits.aminmax()):  # NaN is both least and largest
            what = " and ".join(edit.label for edit in variant) or "no edit"
            raise NonFinite(f"the logits are NaN or infinite under: {what}.")
        # A softmax over the answers alone is one over all ids, renormalized; finite logits keep 0 log q = 0. Both sums
        # are taken below the largest logit, log Z less a mean, so that exponentials are taken once.
        wide = logits.index_select(-1, self.answers).double()
        largest, first = wide.max(dim=-1, keepdim=True)
        below = wide.sub_(largest)
        weights = below.exp()
        total = weights.sum(-1)
        log_total = total.log()
        kl = (log_total - torch.linalg.vecdot(self.predictive, below)) / NATS_PER_BIT - self.entropy_bits
        entropy = (log_total - torch.linalg.vecdot(weights, below) / total) / NATS_PER_BIT
        correct = (first[..., 0] == self.labels).double()
        scored: np.ndarray = torch.stack([kl, (entropy - self.entropy_bits).abs(), correct]).cpu().numpy()
        return scored


def scores_of(
    logits: Float[Tensor, "batch query_pos d_vocab"], trials: Trials
) -> Float[np.ndarray, "metric sequence position"]:
    """The scores of one batch of logits."""
    return Exact.of(trials).scores(logits)
