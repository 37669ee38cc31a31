"""What a monitor measures: beside slow twins, and with planted values; nothing of the model is disturbed."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from bayesgeom.measurements.calibration import Calibration
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.monitor import report as measures
from bayesgeom.monitor.report import APART, chance_levels, measured, undisturbed
from bayesgeom.stats.information import total_variation
from bayesgeom.stats.overlap import chance_overlap
from tests.ablations.plain import TASK, lively, n_hooks

TRIALS = TASK.sample(9, seed=0)


@pytest.fixture(scope="module")
def model() -> HookedModel:
    return lively()


@pytest.fixture(scope="module")
def found(model: HookedModel) -> measures.Measures:
    return measured(model, TRIALS, seed=0)


def keys(model: HookedModel) -> torch.Tensor:
    """Layer-0 keys of the hypotheses, by hand: embedding, norm, W_K."""
    module = model.module
    with torch.no_grad():
        rows = module.blocks[0].ln1(module.embed(TRIALS.token_sets["hypotheses"]))  # type: ignore[operator, union-attr, index]
        flat = module.blocks[0].attn.W_K(rows)  # type: ignore[operator, union-attr, index]
    return flat.reshape(len(rows), 5, 6).transpose(0, 1).double()


def test_orthogonality_and_coverage_are_loops_over_pairs(model: HookedModel, found: measures.Measures) -> None:
    for head, frame in enumerate(keys(model)):
        n, cosines, covered = len(frame), [], 0
        rest = frame - frame.mean(0)
        for i in range(n):
            near = [float(torch.cosine_similarity(rest[i], rest[j], dim=0)) for j in range(n) if j != i]
            covered += max(near) < APART
            cosines += [float(torch.cosine_similarity(frame[i], frame[j], dim=0)) ** 2 for j in range(n) if j != i]
        assert found.key_orthogonality[0, head] == pytest.approx(1 - math.sqrt(np.mean(cosines)), abs=1e-5)
        assert found.coverage[0, head] == pytest.approx(covered / n)


def test_kl_is_calibrations(model: HookedModel, found: measures.Measures) -> None:
    run = model.run([TRIALS], baseline_predictives=TASK.baseline_predictives)
    report = Calibration().measure(run)
    assert found.kl_bits.mean() == pytest.approx(float(report.kl_bits), abs=1e-6)
    assert len(found.kl_bits) == 9
    assert found.summary()["kl_bits"] == pytest.approx(float(report.kl_bits), abs=1e-6)


def test_attention_entropy_is_the_patterns(model: HookedModel, found: measures.Measures) -> None:
    with torch.no_grad():
        _, cache = model.module.run_with_cache(TRIALS.tokens)  # type: ignore[operator]
    for layer in range(3):
        p = cache[f"blocks.{layer}.attn.hook_pattern"]
        bits = -(p * p.clamp_min(1e-30).log2()).sum(-1)
        for head in range(5):
            scored = torch.stack([bits[b, head][TRIALS.scored[b]] for b in range(9)])
            assert found.attention_entropy_bits[layer, head] == pytest.approx(float(scored.mean()), abs=1e-5)


def test_separation_is_a_rank_correlation_of_distances(model: HookedModel, found: measures.Measures) -> None:
    with torch.no_grad():
        _, cache = model.module.run_with_cache(TRIALS.tokens)  # type: ignore[operator]
    values = TRIALS.at_scored(cache["blocks.2.attn.hook_v"]).flatten(2).flatten(0, 1).double()
    exact = TRIALS.at_scored(TRIALS.predictive).flatten(0, 1)
    apart, bits = [], []
    for i in range(len(values)):
        for j in range(i):
            apart.append(float((values[i] - values[j]).norm()))
            bits.append(round(float(total_variation(exact[i], exact[j])), 9))
    assert found.separation == pytest.approx(spearmanr(apart, bits)[0], abs=1e-6)


@pytest.mark.parametrize("kind", ["posterior", "noise"])
def test_planted_values_separate_or_do_not(kind: str) -> None:
    """Values that are the square roots of the posterior are as far apart as posteriors are; noise knows none."""
    trials = TASK.sample(31, seed=4)
    exact = trials.predictive.nan_to_num()
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    planted = (exact.sqrt() if kind == "posterior" else noise)[:, :, None]
    value, baseline = measures._separation(planted, trials, 0)
    assert value > 0.9 if kind == "posterior" else abs(value) < 0.1
    assert baseline < value - 0.2 if kind == "posterior" else abs(baseline) < 0.1  # position explains the rest


def test_chance_is_random_directions_uniform_attention_and_uniform_answers(model: HookedModel) -> None:
    chance = chance_levels(model, TRIALS, seed=0)
    entropy = torch.special.entr(TRIALS.at_scored(TRIALS.predictive)).sum(-1).mean() / math.log(2)
    n_answers = TRIALS.predictive.shape[-1]
    assert chance["kl_bits"] == pytest.approx(math.log2(n_answers) - float(entropy)) and math.isnan(
        chance["separation"]
    )
    assert chance["key_orthogonality"] == pytest.approx(1 - 6**-0.5, abs=0.01)  # E cos² = 1/d at d = 6
    assert 1 - chance["key_orthogonality"] > chance_overlap(6)  # a root mean square is above the mean
    positions = (TRIALS.scored_positions()[0] + 1).double()
    assert chance["attention_entropy_bits"] == pytest.approx(float(positions.log2().mean()))
    assert 0 < chance["coverage"] < 1


def test_and_so_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively()
    model.module.train()
    hooks, before = n_hooks(model.module), torch.random.get_rng_state()
    with pytest.raises(IndexError):
        measured(model, type(TASK)(n_values=40, n_pairs=7).sample(2, seed=0), seed=0)  # ids that it has not
    assert model.module.training and n_hooks(model.module) == hooks
    with pytest.raises(ZeroDivisionError), undisturbed(model.module):
        torch.rand(3)
        _ = 1 / 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_a_model_does_not_offer_is_nan() -> None:
    model = lively()
    model.withheld = dict.fromkeys(model.sites, "planted")
    found = measured(model, TRIALS, seed=0)
    assert np.isnan(found.key_orthogonality).all() and np.isnan(found.attention_entropy_bits).all()
    assert math.isnan(found.separation) and np.isfinite(found.kl_bits).all()
