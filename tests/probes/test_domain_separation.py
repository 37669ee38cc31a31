"""Domain separation: one domain against mixed samples of its size, with intervals, standardised or not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.core.run import Run
from bayesgeom.core.sites import RESID_POST
from bayesgeom.probes.base import planted_run, planted_trials
from bayesgeom.probes.domain_separation import DomainSeparation

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
    np.testing.assert_allclose(report.pc12_gain, report.pc12_share - report.pc12_share_null)
    # At 5 % for each of three groups, so that one of them may just lie outside.
    assert (report.pc12_gain_lo[0] < 0.02).all() and (report.pc12_gain_hi[0] > -0.02).all()
    assert report.pc12_gain_lo[1, 0] > 0.3 and 0.99 < report.pc12_share_lo[1, 0] < report.pc12_share_hi[1, 0]
    assert np.isnan(report.pc12_share_lo[0]).all(), "the axes of noise are not told apart"
    assert (report.pc12_gain[1, 1:] < 0).all(), "mixed samples hold flat points: the others are less flat than those"


def test_shares_are_eigenvalues_of_each_domain(rng: np.random.Generator) -> None:
    layers = clouds(rng) * np.geomspace(1, 100, D)
    run = run_of(layers)
    plain, unit = (DomainSeparation(standardised=s).measure(run) for s in (False, True))
    for layer in range(LAYERS):
        for group in range(3):
            members = layers[layer][group == LABELS]
            for report, matrix in ((plain, np.cov(members.T)), (unit, np.corrcoef(members.T))):
                variances = np.linalg.eigvalsh(matrix)
                expected = variances[-2:].sum() / variances.sum()
                assert report.pc12_share[layer, group] == pytest.approx(expected, abs=1e-9)
    assert unit.standardised and not plain.standardised


def test_the_null_of_the_gain_is_that_of_untrained_copies(rng: np.random.Generator) -> None:
    copies = [DomainSeparation().measure(run_of(clouds(rng), seed=seed)) for seed in (1, 2)]
    report = DomainSeparation().measure(run_of(clouds(rng)), copies)
    expected = (copies[0].pc12_gain + copies[1].pc12_gain) / 2
    np.testing.assert_allclose(report.pc12_gain_initialisation, expected)
    assert np.isnan(copies[0].pc12_gain_initialisation).all()


def test_a_group_of_two_has_no_plane(rng: np.random.Generator) -> None:
    labels = np.array([0] * 2 + [1] * 9 + [2] * 9)
    report = DomainSeparation().measure(run_of(rng.normal(size=(LAYERS, len(labels), D)), labels))
    assert np.isnan(report.pc12_gain).all() and np.isnan(report.pc12_share_lo[:, 0]).all()
    assert np.isfinite(report.silhouette).all() and report.figure().data
