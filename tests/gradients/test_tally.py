"""Per-head statistics beside slow loops, and planted heads with a known answer."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from bayesgeom.core.run import Trials
from bayesgeom.gradients.capture import BIN_EDGES, LayerGradients, captured, in_float64, layer_tally
from tests.ablations.plain import TASK, lively

TRIALS = TASK.sample(5, seed=1)
CAUSAL = torch.ones(TRIALS.tokens.shape[1], TRIALS.tokens.shape[1], dtype=torch.bool).tril()


@pytest.fixture(scope="module")
def layer() -> LayerGradients:
    return captured(in_float64(lively()), TRIALS, "sampled")[1][1]


def rows(layer: LayerGradients, trials: Trials) -> list[tuple[int, int, int, np.ndarray, np.ndarray]]:
    """Every scored row: sequence, head, position, attention and advantage at the keys that it sees."""
    found = []
    for b in range(len(trials)):
        for h in range(layer.pattern.shape[1]):
            for i in trials.scored[b].nonzero()[:, 0].tolist():
                a, agree = layer.pattern[b, h, i, : i + 1].numpy(), layer.agreement[b, h, i, : i + 1].numpy()
                found.append((b, h, i, a, (a * agree).sum() - agree))
    return found


def test_correlation_is_spearmans_within_rows(layer: LayerGradients) -> None:
    found = layer_tally(layer, TRIALS, CAUSAL)
    slow: dict[tuple[int, int], list[float]] = {}
    for b, h, i, a, gain in rows(layer, TRIALS):
        if i + 1 >= 3:
            slow.setdefault((b, h), []).append(spearmanr(a, gain)[0])
    for (b, h), values in slow.items():
        assert float(found.correlation[b, h]) == pytest.approx(np.mean(values), abs=1e-12)


def test_the_baseline_pairs_attention_with_the_sequence_before(layer: LayerGradients) -> None:
    found = layer_tally(layer, TRIALS, CAUSAL)
    other = {(b, h, i): gain for b, h, i, _, gain in rows(layer, TRIALS)}
    slow: dict[tuple[int, int], list[float]] = {}
    for b, h, i, a, _ in rows(layer, TRIALS):
        if i + 1 >= 3:
            slow.setdefault((b, h), []).append(spearmanr(a, other[(b - 1) % len(TRIALS), h, i])[0])
    for (b, h), values in slow.items():
        assert float(found.other_correlation[b, h]) == pytest.approx(np.mean(values), abs=1e-12)


def test_norms_are_root_mean_squares_of_autograds_own_gradients(layer: LayerGradients) -> None:
    found = layer_tally(layer, TRIALS, CAUSAL)
    assert layer.by_score is not None
    visible = torch.ones(13, 13).tril().bool()
    size = layer.by_value.norm(dim=-1)
    torch.testing.assert_close(found.routing_norm, layer.by_score[..., visible].square().mean(-1).sqrt())
    torch.testing.assert_close(found.value_norm, size.square().mean(-1).sqrt())
    elastic = (size * layer.values.norm(dim=-1)).square().mean(-1).sqrt()
    torch.testing.assert_close(found.value_elasticity, elastic)


def test_maps_are_sums_over_sequences(layer: LayerGradients) -> None:
    found = layer_tally(layer, TRIALS, CAUSAL)
    positions = TRIALS.scored_positions()[0].tolist()
    saved, attention = torch.zeros(2, layer.pattern.shape[1], len(positions), 13).double()
    for _, h, i, a, gain in rows(layer, TRIALS):
        saved[h, positions.index(i), : i + 1] += torch.from_numpy(gain)
        attention[h, positions.index(i), : i + 1] += torch.from_numpy(a)
    seen = attention > 0
    torch.testing.assert_close(found.maps[1], attention)
    torch.testing.assert_close(found.maps[0][seen], saved[seen])


def test_bins_hold_relative_advantages_by_attention_over_uniform(layer: LayerGradients) -> None:
    found = layer_tally(layer, TRIALS, CAUSAL)
    slow = np.zeros((2, layer.pattern.shape[1], len(BIN_EDGES) + 1))
    for _, h, i, a, gain in rows(layer, TRIALS):
        if i + 1 >= 3:
            bins = np.searchsorted(BIN_EDGES, np.log2(a * (i + 1)))
            np.add.at(slow[0, h], bins, gain / np.sqrt((gain**2).mean()))
            np.add.at(slow[1, h], bins, 1)
    np.testing.assert_allclose(found.binned[:2].numpy(), slow, atol=1e-9)
    np.testing.assert_allclose(found.binned[3].numpy(), slow[1])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_head_that_attends_where_it_helps_correlates_wholly(layer: LayerGradients, sign: float) -> None:
    """Agreement planted as a monotone function of attention; the baseline is what other sequences' attention shares."""
    noise = torch.rand(layer.pattern.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    pattern = noise.masked_fill(~torch.ones(13, 13).tril().bool(), 0)
    pattern = pattern / pattern.sum(-1, keepdim=True)
    planted = dataclasses.replace(layer, pattern=pattern, agreement=-sign * pattern)
    found = layer_tally(planted, TRIALS, CAUSAL)
    torch.testing.assert_close(found.correlation, torch.full_like(found.correlation, sign))
    assert float(found.other_correlation.abs().max()) < 0.5
