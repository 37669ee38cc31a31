"""Ranks within rows of which only a part may be seen."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesgeom.geometry.correlation import ranks


def visible_ranks(
    scores: Float[Tensor, "*batch item"], visible: Bool[Tensor, "*#batch item"]
) -> Float[Tensor, "*batch item"]:
    """Rank of each visible score among the visible ones of its row, from 1; ties share their mean rank.

    On the CPU, where numpy sorts short rows several times faster than torch. What stands at hidden items means nothing.
    """
    shown = scores.masked_fill(~visible, torch.inf)
    order = torch.from_numpy(shown.numpy().argsort(axis=-1))
    count = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    rank = torch.empty_like(shown).scatter_(-1, order, count.expand_as(shown))
    # Equal scores are rare in a trained model, and only their rows pay for a careful ranking. ∞ − ∞ is NaN: no tie.
    has_tie = (shown.gather(-1, order).diff(dim=-1) == 0).any(dim=-1)
    rank[has_tie] = torch.as_tensor(ranks(shown[has_tie].T.numpy()).T, dtype=rank.dtype)
    return rank
