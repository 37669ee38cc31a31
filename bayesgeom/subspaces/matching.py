"""Control subspaces with the same share of a site's variance as a given subspace.

A draw is B = qr(Λ^τ G), Λ the eigenvalues of the site's covariance in the eigenbasis and G Gaussian. τ = 0 gives a
uniform subspace, a large τ the leading principal components, a large negative τ the trailing ones. Bisection over τ
finds the target share. Draws come from the orthogonal complement of the given subspace, at the same rank if the
complement has enough variance, else at the lowest higher rank that reaches the share. If all other directions together
have less variance, no control can match: the whole complement is used instead and is not called matched.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.subspaces.subspace import Subspace

TOLERANCE = 0.05  # relative difference to the target share that a draw may have
HEADROOM = 1.1  # leading components must reach this multiple of the share, or all draws would be equal
WHOLE, NONE = "whole complement", "not matched"
_STEPS, _STEEPEST = 40, 8.0


@final
@dataclass(frozen=True, kw_only=True)
class Matched:
    """Control subspaces of one layer; `by` is how they were drawn, `is_matched` whether the shares agree."""

    bases: Float64[Tensor, "draw d rank"]
    share: float
    by: str
    is_matched: bool

    @property
    def rank(self) -> int:
        """Dimensions of each subspace."""
        return self.bases.shape[2]

    @property
    def n_distinct(self) -> int:
        """Number of different subspaces. The whole complement is one, however often its effect is counted."""
        is_one = len(self.bases) > 1 and bool((self.bases == self.bases[:1]).all())
        return 1 if is_one else len(self.bases)


def matched_subspaces(own: Subspace, covariance: Float64[Tensor, "d d"], *, draws: int, seed: int) -> Matched:
    """Return subspaces with the same share of variance as `own`, within `TOLERANCE`."""
    wanted, total = own.variance_share(covariance), float(covariance.diagonal().sum())
    rest = torch.linalg.qr(own.basis.to(covariance), mode="complete").Q[:, own.rank :]
    if rest.shape[1] == 0:
        return Matched(bases=own.basis.to(covariance).expand(draws, -1, -1), share=wanted, by=NONE, is_matched=False)
    values, vectors = torch.linalg.eigh(rest.T @ covariance @ rest)
    values, vectors = values.flip(0).clamp_min(0.0) / total, vectors.flip(1)
    rank = _least_rank(values, HEADROOM * wanted, own.rank)
    if rank is None:
        share = float(values.sum())
        has_enough = share >= (1 - TOLERANCE) * wanted
        return Matched(bases=rest.expand(1, -1, -1), share=share, by=WHOLE, is_matched=has_enough)
    bases = rest @ vectors @ _tilted(values, wanted, rank, draws=draws, seed=seed)
    shares = (bases * (covariance @ bases)).sum(dim=(1, 2)) / total
    is_close = bool(((shares - wanted).abs() <= TOLERANCE * wanted).all())
    by = "complement" if rank == own.rank else f"complement, rank {rank}"
    return Matched(bases=bases, share=float(shares.mean()), by=by if is_close else NONE, is_matched=is_close)


def _least_rank(values: Float64[Tensor, " d"], share: float, rank: int) -> int | None:
    """Return the lowest rank ≥ `rank` whose leading components reach the share, or None."""
    reached = values.cumsum(dim=0)
    for candidate in range(rank, len(values) + 1):
        if float(reached[candidate - 1]) >= share:
            return candidate
    return None


def _tilted(
    values: Float64[Tensor, " d"], wanted: float, rank: int, *, draws: int, seed: int
) -> Float64[Tensor, "draw d rank"]:
    """Return orthonormal columns in the eigenbasis, with τ of each draw chosen to reach the target share."""
    gaussian = torch.from_numpy(np.random.default_rng(seed).normal(size=(draws, len(values), rank))).to(values)
    logs = (values / values[0]).clamp_min(1e-12).log()
    low, high = (torch.full((draws, 1, 1), end).to(values) for end in (-_STEEPEST, _STEEPEST))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        bases = torch.linalg.qr(_scaled(logs[:, None] * middle) * gaussian).Q
        is_low = ((bases.square() * values[:, None]).sum(dim=(1, 2)) < wanted)[:, None, None]
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    final_bases: Tensor = torch.linalg.qr(_scaled(logs[:, None] * (low + high) / 2) * gaussian).Q
    return final_bases


def _scaled(logs: Float64[Tensor, "draw d 1"]) -> Float64[Tensor, "draw d 1"]:
    """Return exp with the largest factor of each draw 1 and a lower limit, so that no column vanishes."""
    return (logs - logs.amax(dim=1, keepdim=True)).clamp_min(-60.0).exp()
