"""Ranks among what a row may see, against counting."""

import numpy as np
import pytest
import torch

from bayesgeom.measurements.qk_alignment import rounding_of_products, visible_ranks


def test_ranks_equal_counting_among_the_visible(rng: np.random.Generator) -> None:
    scores = torch.from_numpy(rng.integers(4, size=(3, 5, 2, 11)).astype(np.float32))
    scores[1] = torch.from_numpy(rng.normal(size=(5, 2, 11)).astype(np.float32))
    visible = torch.from_numpy(rng.random((3, 1, 2, 11)) < 0.6)
    visible[0, 0, 0] = False
    found = visible_ranks(scores, visible)
    for index in np.ndindex(3, 5, 2):
        seen = visible[index[0], 0, index[2]].tolist()
        row = scores[index].tolist()
        among = [x for x, is_seen in zip(row, seen, strict=True) if is_seen]
        for k, is_seen in enumerate(seen):
            if is_seen:
                below, equal = sum(x < row[k] for x in among), sum(x == row[k] for x in among)
                assert float(found[index][k]) == below + (equal + 1) / 2


def test_close_scores_tie_pair_by_pair(rng: np.random.Generator) -> None:
    """Against counting, on a chain in which a ties with b and b with c, but not a with c."""
    scores = torch.from_numpy(rng.integers(7, size=(3, 5, 2, 11)).astype(np.float32))
    visible = torch.from_numpy(rng.random((3, 1, 2, 11)) < 0.6)
    tolerance = torch.from_numpy(rng.integers(3, size=(3, 5, 2, 1)).astype(np.float32))
    found = visible_ranks(scores, visible, tolerance)
    for index in np.ndindex(3, 5, 2):
        seen, row, near = visible[index[0], 0, index[2]], scores[index], float(tolerance[index])
        for k in seen.nonzero().flatten().tolist():
            others = [float(row[j]) for j in seen.nonzero().flatten().tolist() if j != k]
            below = sum(x < float(row[k]) - near for x in others)
            tied = sum(abs(x - float(row[k])) <= near for x in others)
            assert float(found[index][k]) == 1 + below + tied / 2


def test_pairs_share_one_point_so_that_auc_is_counted_exactly(rng: np.random.Generator) -> None:
    """On float32 scores and tolerances of any size: the sum over related ranks is the count over pairs."""
    scores = torch.from_numpy(rng.normal(size=(13, 17)).astype(np.float32))
    tolerance = torch.from_numpy(np.abs(rng.normal(size=(13, 1))).astype(np.float32))
    related, visible = torch.from_numpy(rng.random((13, 17)) < 0.4), torch.ones(13, 17, dtype=torch.bool)
    found = visible_ranks(scores, visible, tolerance).double()
    for row, own, near, ranks in zip(scores.double(), related, tolerance.double(), found, strict=True):
        n, gap = int(own.sum()), row[own][:, None] - row[~own][None, :]
        won = float((gap > near).sum() + 0.5 * (gap.abs() <= near).sum())
        assert float(ranks[own].sum()) - n * (n + 1) / 2 == won


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [3, 64, 1024])
def test_equal_keys_tie_whatever_the_order_of_summation(d: int, dtype: torch.dtype) -> None:
    """Every product is summed in an order of its own, of entries rounded up or down: all ranks are the middle one."""
    generator = torch.Generator().manual_seed(d)
    q, k = (torch.randn(d, generator=generator) for _ in range(2))
    half = torch.finfo(dtype).eps / 2
    noise = 1 + half * (2 * torch.rand(2, 101, d, generator=generator) - 1)
    orders = torch.stack([torch.randperm(d, generator=generator) for _ in range(101)])
    terms = (q * noise[0]) * (k * noise[1])
    scores = torch.stack([row[order].cumsum(0)[-1] for row, order in zip(terms, orders, strict=True)])[None]
    assert scores.unique().numel() > 1
    lengths, visible = torch.full((1, 101), float(q.norm() * k.norm())), torch.ones(1, 101, dtype=torch.bool)
    tolerance = rounding_of_products(lengths, visible, d=d, dtype=dtype)
    assert visible_ranks(scores, visible, tolerance).unique().tolist() == [51.0]
    assert visible_ranks(scores, visible).unique().numel() > 1, "without a tolerance, rounding is ranked"


def test_real_differences_are_ranked_and_hidden_lengths_decide_nothing() -> None:
    lengths, visible = torch.full((1, 8), 10.0), torch.tensor([[True] * 7 + [False]])
    lengths[0, 7] = 1e9
    tolerance = rounding_of_products(lengths, visible, d=64, dtype=torch.float32)
    assert 0 < float(tolerance) < 1e-5 * 10
    scores = 3.0 + 2 * tolerance * torch.arange(8)
    assert visible_ranks(scores, visible, tolerance)[0, :7].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert rounding_of_products(lengths, ~visible & False, d=64, dtype=torch.float32).item() == 0
