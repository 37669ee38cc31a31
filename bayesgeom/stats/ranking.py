"""Ranks among the visible items of each row; scores that differ only by rounding count as ties."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


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
