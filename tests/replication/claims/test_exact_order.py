"""The sentence of claim G5 on exact posteriors: the order of their main direction depends on a constant."""

import numpy as np
import torch

from bayesgeom.stats.manifold import cloud_statistics, shuffled_scale
from bayesgeom.tasks.bijection import Bijection
from examples.replication.claims.loading import find

WITHIN = "partial_spearman"


def test_log_posteriors_are_ordered_by_entropy_and_without_their_mean_they_are_not() -> None:
    trials = Bijection(n_values=20, n_pairs=19, repeats=True).sample(128, seed=0)
    level = trials.scored_positions().numpy()
    exact = trials.predictive.numpy().astype(np.float64)[np.arange(128)[:, None], level]
    entropy = -(exact * np.log2(np.where(exact > 0, exact, 1))).sum(-1)
    scale = shuffled_scale(entropy.round(9), level, shuffles=10, seed=0)
    for floor in (1e-3, 1e-9):
        log = np.log2(np.maximum(exact, floor))
        of_log, centered = (
            cloud_statistics(torch.from_numpy(own).flatten(0, 1), scale).relation[WITHIN]
            for own in (log, log - log.mean(axis=-1, keepdims=True))
        )
        assert of_log[0] > 0.9 > 0.1 > of_log[1:].mean()
        assert centered[0] < 0.1
    assert "With their mean over values removed" in find("G5").does_not_show
