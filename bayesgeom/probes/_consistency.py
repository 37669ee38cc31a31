"""Agreement of attention with the posterior over hypotheses: Σ_h min(attention on token h, belief in h).

`SUMS` are the numbers per sequence that a pass computes. `agreement_of` reads the consistency from them.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesgeom.core.run import PATTERN, Trials
from bayesgeom.core.verdict import Verdict
from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.reduction import Reduction

HYPOTHESES = "hypotheses"


def _has_hypotheses(trials: Trials) -> bool:
    """Whether one token stands for each entry of the belief."""
    return len(trials.token_sets.get(HYPOTHESES, ())) == trials.belief.shape[2] > 0


def _sums(
    pattern: Float[Tensor, "batch head query_pos key_pos"], trials: Trials, rows: slice
) -> Float[Tensor, "batch head column"]:
    """Return the mean entropy in bits and the sum of its shares of the maximum.

    With hypotheses, columns follow for the mean consistency with another sequence, then that of every query.
    """
    entropy, most = entropy_bits(pattern.float()), trials.rows(rows).visible().sum(dim=-1).float().log2()
    share = torch.where(most > 0, 1 / most, 0.0)[:, None]
    columns = [entropy.mean(dim=-1, keepdim=True), (entropy * share).sum(dim=-1, keepdim=True)]
    if _has_hypotheses(trials):
        # Exchanging the belief instead of the attention moves far less data. No sequence is its own other.
        tokens, belief = _tokens_and_belief(trials, pattern.dtype)
        of_others = (own.roll(-1, dims=0)[rows] for own in (tokens, belief))
        shuffled, found = (_met(pattern, *own) for own in (of_others, (tokens[rows], belief[rows])))
        columns += [shuffled.mean(dim=1)[..., None], found.transpose(1, 2)]
    return torch.cat(columns, dim=-1)


def _tokens_and_belief(
    trials: Trials, dtype: torch.dtype
) -> tuple[Float[Tensor, "batch key_pos hypothesis"], Float[Tensor, "batch query_pos hypothesis"]]:
    hypotheses = trials.token_sets[HYPOTHESES]
    return (trials.tokens[..., None] == hypotheses).to(dtype), trials.at_scored(trials.belief).to(dtype)


def _met(
    pattern: Float[Tensor, "batch head query_pos key_pos"],
    tokens: Float[Tensor, "batch key_pos hypothesis"],
    belief: Float[Tensor, "batch query_pos hypothesis"],
) -> Float[Tensor, "batch query_pos head"]:
    """Σ_h min(attention on the tokens of h, belief in h)."""
    on_tokens = (pattern.flatten(1, 2) @ tokens).unflatten(1, pattern.shape[1:3])  # one product per sequence
    return torch.minimum(on_tokens, belief[:, None]).sum(dim=-1).transpose(1, 2).contiguous()


SUMS = Reduction(
    "entropy and consistency of attention",
    PATTERN,
    _sums,
    lambda spec, trials: spec.n_heads * (3 + trials.n_scored if _has_hypotheses(trials) else 2),
)


@final
@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Σ_h min(attention, belief) per row; its mean for exchanged and uniform attention, and its maximum."""

    found: Float[np.ndarray, "batch layer query_pos head"]
    shuffled: Float[np.ndarray, "batch layer head"]
    uniform: float
    ceiling: float
    is_identified: bool
    note: str


def agreement_of(
    sums: Float[np.ndarray, "batch layer head column"], trials: Trials, visible: Bool[Tensor, "batch query_pos key_pos"]
) -> Agreement:
    """Read the consistency from the columns of `SUMS` that follow the entropy."""
    if not _has_hypotheses(trials):
        nothing = np.full((*sums.shape[:2], trials.n_scored, sums.shape[2]), np.nan)
        return Agreement(
            found=nothing,
            shuffled=nothing[:, :, 0],
            uniform=np.nan,
            ceiling=np.nan,
            is_identified=False,
            note=str(Verdict.NOT_MEASURED),
        )
    is_token, belief = _tokens_and_belief(trials, torch.float32)
    seen = visible.float() @ is_token
    wanted = torch.where(visible, belief @ is_token.mT, 0)  # the posterior of the token at each visible position
    varies = bool((wanted != wanted[:1]).any())
    ceiling = float((belief * (seen > 0)).sum(dim=-1).mean())
    return Agreement(
        found=np.moveaxis(sums[..., 1:], 3, 2),
        shuffled=sums[..., 0],
        uniform=float(torch.minimum(seen / visible.sum(dim=-1, keepdim=True), belief).sum(dim=-1).mean()),
        ceiling=ceiling,
        is_identified=varies,
        note=str(Verdict.UNDEFINED) if ceiling == 0 else "" if varies else str(Verdict.NOT_IDENTIFIED),
    )
