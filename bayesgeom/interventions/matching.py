"""Control subspaces with the same share of a site's variance as a given subspace.

A draw is B = qr(Λ^τ G), Λ the eigenvalues of the site's covariance in the eigenbasis and G Gaussian. τ = 0 gives a
uniform subspace, a large τ the leading principal components, a large negative τ the trailing ones. Bisection over τ
finds the target share.

Draws come from the orthogonal complement of the given subspace, at the same rank if the complement has enough variance,
else at the lowest higher rank that reaches the share. If all other directions together have too little variance, draws
come from the whole site, and the whole complement is the last control. Such draws hold a part of the given subspace and
so a part of its effect, which makes it harder to exceed them. If a subspace has so much of the variance that the draws
would all be nearly the whole site, the whole complement is the one control.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.subspaces.base import Subspace

TOLERANCE = 0.05  # relative difference to the target share that a draw may have
SAME = 1 - TOLERANCE  # share of their variance in common from which two controls count as one
HEADROOM = 1.1  # leading components must reach this multiple of the share, or all draws would be equal
_STEPS, _STEEPEST = 40, 8.0


@final
@dataclass(frozen=True, kw_only=True)
class Matched:
    """Control subspaces of one layer.

    Args:
        bases: Orthonormal columns of each control.
        share: Mean share of the site's variance of the drawn controls.
        is_matched: Whether the shares agree with the target.
        n_distinct: Number of controls that differ from one another; see `n_distinct`.
    """

    bases: tuple[Float64[Tensor, "d _"], ...]
    share: float
    is_matched: bool
    n_distinct: int


def matched_subspaces(subspace: Subspace, covariance: Float64[Tensor, "d d"], *, draws: int, seed: int) -> Matched:
    """Return subspaces with the same share of variance as `own`, within `TOLERANCE`."""
    wanted, total = subspace.variance_share(covariance), float(covariance.diagonal().sum())
    basis = subspace.basis.to(covariance)
    rest = torch.linalg.qr(basis, mode="complete").Q[:, subspace.rank :]
    if rest.shape[1] == 0:
        return Matched(bases=(basis,) * draws, share=wanted, is_matched=False, n_distinct=1)
    everything = torch.eye(subspace.width).to(covariance)
    for directions, is_whole_site in ((rest, False), (everything, True)):
        values, vectors = torch.linalg.eigh(directions.T @ covariance @ directions)
        values, vectors = values.flip(0).clamp_min(0.0) / total, vectors.flip(1)
        reached = values.cumsum(dim=0).tolist()  # by the leading components
        ranks = (rank for rank in range(subspace.rank, len(reached) + 1) if reached[rank - 1] >= HEADROOM * wanted)
        rank = next(ranks, None)
        if rank is None or (is_whole_site and draws < 2):
            continue
        drawn = tuple(directions @ vectors @ _tilted(values, wanted, rank, draws=draws - is_whole_site, seed=seed))
        shares = [Subspace("a matched subspace", basis).variance_share(covariance) for basis in drawn]
        is_close = all(abs(share - wanted) <= TOLERANCE * wanted for share in shares)
        bases = (*drawn, rest) if is_whole_site else drawn
        distinct = n_distinct(bases, covariance)
        return Matched(bases=bases, share=float(np.mean(shares)), is_matched=is_close, n_distinct=distinct)
    share = float((rest * (covariance @ rest)).sum() / total)
    has_enough = share >= (1 - TOLERANCE) * wanted
    return Matched(bases=(rest,), share=share, is_matched=has_enough, n_distinct=1)


def outside_share(vectors: Float64[Tensor, "point d"], subspace: Subspace) -> float:
    """Return the share of Σ |vector|² outside a subspace, whose projector may be oblique; NaN if all vectors are 0."""
    rest = vectors - vectors @ subspace.reads.to(vectors) @ subspace.basis.to(vectors).T
    total = float(vectors.square().sum())
    return float(rest.square().sum()) / total if total > 0 else float("nan")


def n_distinct(bases: Sequence[Float64[Tensor, "d _"]], covariance: Float64[Tensor, "d d"]) -> int:
    """Return the number of subspaces that differ from one another.

    Two subspaces count as one if each holds at least `SAME` of the other's variance.
    """
    distinct = list[Tensor]()
    for basis in bases:
        alike = (min(_contained(basis, other, covariance), _contained(other, basis, covariance)) for other in distinct)
        if not any(share >= SAME for share in alike):
            distinct.append(basis)
    return len(distinct)


def _contained(by: Float64[Tensor, "d _a"], of: Float64[Tensor, "d _b"], covariance: Float64[Tensor, "d d"]) -> float:
    """Return the share of one subspace's variance that lies in another."""
    spread, cross = of.T @ covariance @ of, by.T @ of
    return float((cross * (cross @ spread)).sum() / spread.diagonal().sum())


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
