"""Mean vectors of tokens, against a loop over occurrences."""

import math

import numpy as np
import torch

from bayesgeom.stats.reduction import TokenSums, occurrences, token_sums


def test_means_are_those_of_a_loop(rng: np.random.Generator) -> None:
    tokens, vectors = rng.integers(5, size=(7, 11)), rng.normal(size=(7, 11, 2, 3))
    ids, weights = (0, 3, 4, 9), rng.dirichlet(np.ones(7), size=13)
    shown = occurrences(torch.from_numpy(tokens), torch.tensor(ids))
    of_tokens = TokenSums(sums=token_sums(torch.from_numpy(vectors), shown), counts=shown.sum(dim=2))
    found = of_tokens.means(weights).numpy()
    assert found.shape == (13, 4, 2, 3)
    for draw, (item, token) in ((d, pair) for d in range(13) for pair in enumerate(ids)):
        places = [(b, p) for b in range(7) for p in range(11) if tokens[b, p] == token]
        assert shown[:, item].sum() == len(places)
        weight = math.fsum(weights[draw, b] for b, _ in places)
        total = sum(weights[draw, b] * vectors[b, p] for b, p in places)
        expected = total / weight if places else np.full((2, 3), np.nan)
        np.testing.assert_allclose(found[draw, item], expected, atol=1e-12)
