"""Scores of logits against the exact posterior; what does not depend on the logits is computed once per batch."""

import math
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import NonFinite
from bayesgeom.core.run import Trials
from bayesgeom.models.base import Variant
from bayesgeom.stats.information import NATS_PER_BIT, entropy_bits

METRICS = ("kl_bits", "entropy_error_bits", "correct")


@final
@dataclass(frozen=True, kw_only=True)
class Exact:
    """Exact predictive distribution, its entropy and the labels of one batch of sequences."""

    answers: Int64[Tensor, " answer"]
    predictive: Float64[Tensor, "batch query_pos answer"]
    entropy_bits: Float64[Tensor, "batch query_pos"]
    labels: Int64[Tensor, "batch query_pos"]  # an index into `answers`

    @classmethod
    def of(cls, trials: Trials) -> Self:
        """Return the exact values of a batch, computed once for all variants."""
        predictive = trials.at_scored(trials.predictive)
        drawn = trials.at_scored(trials.labels)[..., None]
        return cls(
            answers=trials.answers,
            predictive=predictive,
            entropy_bits=entropy_bits(predictive),
            labels=(trials.answers == drawn).double().argmax(-1),
        )

    def scores(
        self, logits: Float[Tensor, "batch query_pos d_vocab"], variant: Variant = ()
    ) -> Float[np.ndarray, "metric sequence position"]:
        """Return KL, entropy error and correctness, in float64, of probabilities renormalized over the answers.

        Raises:
            NonFinite: A logit is NaN or infinite; the error names the edits.
        """
        if not all(math.isfinite(end) for end in logits.aminmax()):  # NaN is both least and largest
            what = " and ".join(edit.label for edit in variant) or "no edit"
            raise NonFinite(f"the logits are NaN or infinite under: {what}. Check the weights and the edit.")
        # A softmax over the answers is the softmax over all ids, renormalized; finite logits keep 0 log q = 0. Both
        # sums subtract the largest logit first, so the exponentials are computed once.
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
    """Return the scores of one batch of logits."""
    return Exact.of(trials).scores(logits)
