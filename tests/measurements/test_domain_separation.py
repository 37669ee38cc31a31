"""Domain separation: one domain against mixed samples of its size, with intervals, standardized or not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from bayesgeom.core.run import RESID_POST, Run
from bayesgeom.measurements.base import planted_run, planted_trials
from bayesgeom.measurements.domain_separation import EXCHANGED, MIXED, SHUFFLES, DomainSeparation
from bayesgeom.report.estimate import UNTRAINED
from tests.figures import assert_one_meaning_per_color

N, D, LAYERS = 66, 13, 2
LABELS = np.arange(N) % 3


def run_of(layers: np.ndarray, labels: np.ndarray = LABELS, seed: int = 0) -> Run:
    """One vector a sequence; groups as the labels say."""
    trials = planted_trials(np.full((len(labels), 1, 3), 1 / 3), np.tile(np.arange(5), (len(labels), 1)))
    grouped = replace(trials, groups=torch.from_numpy(labels), group_names=("one", "two", "three"))
    return planted_run(grouped, {RESID_POST: torch.from_numpy(layers[:, :, None])}, seed=seed)


def clouds(rng: np.random.Generator) -> np.ndarray:
    """Noise; then the first domain in a plane of its own, the others in all dimensions."""
    noise = rng.normal(size=(N, D))
    flat = noise.copy()
    flat[LABELS == 0, 2:] *= 0.01
    return np.stack([noise, flat])


def test_a_flat_domain_gains_on_mixed_samples_and_noise_does_not(rng: np.random.Generator) -> None:
    report = DomainSeparation().measure(run_of(clouds(rng)))
    share, gain = report.pc12_share, report.pc12_gain
    np.testing.assert_allclose(gain.value, share.value - share.baseline(MIXED).value)
    (low, high), (share_low, share_high) = gain.ends, share.ends
    # At 5 % for each of three groups, so that one of them may just lie outside.
    assert (low[0] < 0.02).all() and (high[0] > -0.02).all()
    assert low[1, 0] > 0.3 and 0.99 < share_low[1, 0] < share_high[1, 0]
    assert report.pc12_gain.clears("higher")[1, 0] == report.pc12_share.clears("higher")[1, 0] == "yes"
    assert np.isnan(share_low[0]).all(), "the axes of noise are not told apart"
    assert (gain.value[1, 1:] < 0).all(), "mixed samples hold flat points: the others are less flat than those"


def test_exchanged_domains_are_a_baseline_with_its_range(rng: np.random.Generator) -> None:
    layers = clouds(rng)
    report = DomainSeparation().measure(run_of(layers))
    generator = torch.Generator().manual_seed(0)
    labels = [LABELS[torch.randperm(N, generator=generator).numpy()] for _ in range(SHUFFLES)]
    slow = [silhouette_score(layers[0], own) for own in labels]
    assert report.silhouette.value[0] == pytest.approx(silhouette_score(layers[0], LABELS))
    exchanged = report.silhouette.baseline(EXCHANGED)
    assert exchanged.kind == "permutation" and exchanged.low is not None and exchanged.high is not None
    assert exchanged.value[0] == pytest.approx(np.mean(slow))
    assert (exchanged.low[0], exchanged.high[0]) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))


def test_shares_are_eigenvalues_of_each_domain(rng: np.random.Generator) -> None:
    layers = clouds(rng) * np.geomspace(1, 100, D)
    run = run_of(layers)
    plain, unit = (DomainSeparation(standardized=s).measure(run) for s in (False, True))
    for layer in range(LAYERS):
        for group in range(3):
            members = layers[layer][group == LABELS]
            for report, matrix in ((plain, np.cov(members.T)), (unit, np.corrcoef(members.T))):
                variances = np.linalg.eigvalsh(matrix)
                expected = variances[-2:].sum() / variances.sum()
                assert report.pc12_share.value[layer, group] == pytest.approx(expected, abs=1e-9)
    assert unit.standardized and not plain.standardized


def test_untrained_networks_are_a_baseline_of_the_gain(rng: np.random.Generator) -> None:
    copies = [DomainSeparation().measure(run_of(clouds(rng), seed=seed)) for seed in (1, 2)]
    report = DomainSeparation().measure(run_of(clouds(rng)), copies)
    fresh, found = report.pc12_gain.baseline(UNTRAINED), [copy.pc12_gain.value for copy in copies]
    np.testing.assert_allclose(fresh.value, (found[0] + found[1]) / 2)
    assert fresh.low is not None and fresh.high is not None
    reach = 12.7062 * np.std(found, axis=0, ddof=1) * 1.5**0.5  # t(0.975, 1), from a table
    ends = np.clip([fresh.value - reach, fresh.value + reach], -1, 1)
    np.testing.assert_allclose((fresh.low, fresh.high), ends, rtol=1e-5)
    assert [own.name for own in copies[0].pc12_gain.baselines] == [MIXED]
    for own in (report.silhouette, report.angle_degrees, report.pc12_share):
        assert UNTRAINED in [level.name for level in own.baselines]


def test_a_group_of_two_has_no_plane(rng: np.random.Generator) -> None:
    labels = np.array([0] * 2 + [1] * 9 + [2] * 9)
    report = DomainSeparation().measure(run_of(rng.normal(size=(LAYERS, len(labels), D)), labels))
    assert np.isnan(report.pc12_gain.value).all() and np.isnan(report.pc12_share.ends[0][:, 0]).all()
    assert np.isfinite(report.silhouette.value).all() and report.plot().data
    assert_one_meaning_per_color(report.plot())
