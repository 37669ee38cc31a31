"""Ranks among what a row may see, against counting."""

import numpy as np
import torch

from bayesgeom.geometry.ranking import visible_ranks


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


def test_ranks_leave_the_scores_alone() -> None:
    scores = torch.tensor([[3.0, 1.0, 1.0, 2.0]])
    before = scores.clone()
    assert visible_ranks(scores, torch.tensor([[True, True, True, False]])).tolist()[0][:3] == [3.0, 1.5, 1.5]
    assert torch.equal(scores, before)
