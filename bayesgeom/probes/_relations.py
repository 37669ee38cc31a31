"""Masks of the positions related to a query, the weights that score attention to them, and ranks of scores.

Attention mass on related positions, the contrast of cosines, and the AUC of scores are sums over keys and rows: an
array (pattern, cosines or ranks) times weights, minus offsets. The difference of two relations' scores is therefore the
score of the difference of their weights and offsets. Scores that differ only by rounding count as ties.

References:
    Hanley & McNeil 1982 (AUC as a Mann–Whitney statistic).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

SHIFTS = (1, 2, 3)  # the other sequences: shifts along the batch, cyclic


@final
@dataclass(frozen=True, kw_only=True)
class Masks:
    """Visible and related positions, by sequence, query, key and relation."""

    related: Bool[Tensor, "batch query_pos key_pos relation"]
    visible: Bool[Tensor, "batch query_pos key_pos"]

    def of_another(self, shift: int) -> "Masks":
        """Return the relation of the sequence `shift` places before, at the same query, where it is visible here."""
        return Masks(related=self.related.roll(shift, dims=0) & self.visible[..., None], visible=self.visible)

    @cached_property
    def has_both(self) -> Bool[Tensor, "batch query_pos relation"]:
        """Return which rows see both related and unrelated positions."""
        unrelated = ~self.related & self.visible[..., None]
        return self.related.any(dim=2) & unrelated.any(dim=2)

    @property
    def is_constant(self) -> Bool[np.ndarray, " relation"]:
        """Return whether all sequences have the same related positions at the same query."""
        same: np.ndarray = (self.related == self.related[:1]).flatten(0, 2).all(dim=0).cpu().numpy()
        return same

    @property
    def difference(self) -> Float[np.ndarray, " relation"]:
        """Return the share of visible positions at which the relation of the previous sequence differs."""
        differs = (self.related != self.of_another(1).related).flatten(0, 2).sum(dim=0).double()
        share: np.ndarray = (differs / self.visible.sum()).cpu().numpy()
        return share


@final
@dataclass(frozen=True, kw_only=True)
class RelationWeights:
    """Weights of pattern, cosines and ranks whose sums over keys and rows are the numerators of the metrics.

    `offsets` are subtracted from those sums; `rows` counts the query positions that see both kinds of position.
    """

    weights: Float[Tensor, "3 batch query_key relation"]
    offsets: Float[np.ndarray, "batch 3 relation"]
    rows: Float[np.ndarray, "batch relation"]
    visible: Bool[Tensor, "batch query_pos key_pos"]


def evidence_of(masks: Masks, counted: Bool[Tensor, "batch query_pos relation"]) -> RelationWeights:
    """Return the weights of mass above uniform attention, contrast and AUC, over the rows that are counted."""
    related, visible = masks.related, masks.visible
    n_related, n_visible = related.sum(dim=2, keepdim=True).float(), visible.sum(dim=2)[..., None, None].float()
    has_both = counted[:, :, None].float()
    share, counterpart = has_both / n_related.clamp_min(1), has_both / (n_visible - n_related).clamp_min(1)
    is_related, is_unrelated = related.float(), (~related & visible[..., None]).float()
    shared = is_related * share
    # The Mann–Whitney identity: AUC = (Σ ranks of related − n(n + 1)/2) / (n m).
    weights = (is_related * has_both, shared - is_unrelated * counterpart, shared * counterpart)
    offsets = (has_both * n_related / n_visible, torch.zeros_like(has_both), (n_related + 1) / 2 * counterpart)
    return RelationWeights(
        weights=torch.stack(weights).flatten(2, 3),
        offsets=torch.stack([offset.sum(dim=(1, 2)) for offset in offsets], dim=1).double().numpy(),
        rows=counted.sum(dim=1).double().numpy(),
        visible=visible,
    )


def compared_evidence(masks: Masks) -> RelationWeights:
    """Return the evidence of the relation minus that of other sequences, over rows that count for both; summed.

    The metrics are linear in the weights and offsets, so their difference is the metric of the difference.
    """
    zero = evidence_of(masks, torch.zeros_like(masks.has_both))
    weights, offsets, rows = zero.weights, zero.offsets, zero.rows
    for shift in (shift for shift in SHIFTS if shift < len(masks.visible)):
        other = masks.of_another(shift)
        counted = masks.has_both & other.has_both
        mine, theirs = evidence_of(masks, counted), evidence_of(other, counted)
        weights, offsets = weights + mine.weights - theirs.weights, offsets + mine.offsets - theirs.offsets
        rows = rows + mine.rows
    return RelationWeights(weights=weights, offsets=offsets, rows=rows, visible=masks.visible)


def row_means(
    sums: Float[np.ndarray, "batch 3 relation layer head"],
    evidence: RelationWeights,
    weights: Float[np.ndarray, "draw batch"],
) -> Float[np.ndarray, "draw 3 relation layer head"]:
    """Return the metrics in each resample: numerators and numbers of rows are resampled together."""
    with np.errstate(invalid="ignore", divide="ignore"):
        numerator = np.tensordot(weights, sums - evidence.offsets[..., None, None], axes=1)
        return np.asarray(numerator / np.tensordot(weights, evidence.rows, axes=1)[:, None, :, None, None])


def visible_ranks(
    scores: Float[Tensor, "*batch item"],
    visible: Bool[Tensor, "*#batch item"],
    tolerance: Float[Tensor, "*#batch 1"] | float = 0.0,
) -> Float[Tensor, "*batch item"]:
    """Rank each visible score among the visible ones of its row, from 1; ties share their mean rank.

    Two scores are tied if they differ by at most the tolerance. This relation need not be transitive, so a rank is
    (number below + number below or tied + 1) / 2, with each pair compared separately. If ties are transitive, this is
    the usual mean rank. The Mann–Whitney identity holds in any case, because each pair of items contributes one point.

    Args:
        scores: On the CPU, where numpy sorts short rows several times faster than torch.
        visible: Items to rank. Values of hidden items are arbitrary.
        tolerance: Tolerance of each row; see `rounding_of_products`.

    Example:
        >>> scores = torch.tensor([[3.0, 1.0, 1.001, 2.0]])
        >>> visible_ranks(scores, torch.ones(1, 4, dtype=torch.bool), tolerance=0.01).tolist()
        [[4.0, 1.5, 1.5, 3.0]]
    """
    shown = scores.masked_fill(~visible, torch.inf)
    order = torch.from_numpy(shown.numpy().argsort(axis=-1))
    count = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    rank = torch.empty_like(shown).scatter_(-1, order, count.expand_as(shown))
    in_order = shown.gather(-1, order)
    within = torch.as_tensor(tolerance, dtype=torch.float64).expand(*shown.shape[:-1], 1)
    # Close scores are rare in a trained model, so only their rows get the slow ranking. ∞ − ∞ is NaN: no tie.
    has_tie = (in_order.diff(dim=-1) <= within).any(dim=-1)
    # In float64 adding the tolerance does not round, so ties are symmetric.
    value, sorted_value, within = shown[has_tie].double(), in_order[has_tie].double(), within[has_tie]
    below = torch.searchsorted(sorted_value, value - within, right=False)
    upto = torch.searchsorted(sorted_value, value + within, right=True)
    rank[has_tie] = ((below + upto + 1) / 2).to(rank.dtype)
    return rank


def rounding_of_products(
    lengths: Float[Tensor, "*batch item"], visible: Bool[Tensor, "*#batch item"], *, d: int, dtype: torch.dtype
) -> Float[Tensor, "*batch 1"]:
    """Bound the rounding difference of two equal products q·k in one row.

    A sum of d products in float32, in any order, has an error of at most d u Σ|q_i k_i| ≤ d u |q| |k| with u = 2^−24
    (Higham 2002, section 3.1). Entries rounded to a dtype with unit roundoff v add v |q| |k| for q and v |q| |k| for k.
    Two products differ by at most twice the sum of these errors.

    Args:
        lengths: |q| |k| of each product, in float32.
        visible: The products of a row that are compared. The largest of them determines the bound.
        d: Number of terms of a product.
        dtype: The dtype in which q and k were computed.

    Returns:
        2 (d u + 2 v) max |q| |k| for each row; 0 where nothing is visible.

    References:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, 2nd edition.
    """
    roundoff, own = torch.finfo(torch.float32).eps / 2, torch.finfo(dtype).eps / 2
    largest = lengths.masked_fill(~visible, 0.0).amax(dim=-1, keepdim=True)
    return 2 * (d * roundoff + 2 * own) * largest
