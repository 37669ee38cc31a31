"""Shares of principal components of values, in each reading."""

import numpy as np
import pytest
import torch

from bayesgeom.report.diagnosis import load_report
from bayesgeom.stats.bootstrap import jackknife_weights
from examples.replication.values import COMPONENTS, READINGS, ValueReadingsReport, _shares, leading_shares
from tests.pages import READINGS as STORED

POOLED, ONE, MEAN = range(len(READINGS))


def test_shares_are_those_of_the_singular_values() -> None:
    points = torch.randn(23, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    variances = np.linalg.svd((points - points.mean(dim=0)).numpy(), compute_uv=False) ** 2
    expected = variances[:2].cumsum() / variances.sum()
    assert leading_shares(points).numpy() == pytest.approx(expected, abs=1e-12)
    assert leading_shares(points.mT).numpy() != pytest.approx(expected, abs=1e-3), "points are rows"


def test_a_weight_of_zero_leaves_points_out() -> None:
    points = torch.randn(23, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = torch.from_numpy(jackknife_weights(23)[5])
    kept = points[weights > 0]
    assert leading_shares(points, weights).numpy() == pytest.approx(leading_shares(kept).numpy(), abs=1e-12)


def test_the_three_readings_tell_three_planted_clouds_apart() -> None:
    """A common curve with noise of its own in each sequence: only the mean over sequences shows the curve."""
    generator = torch.Generator().manual_seed(2)
    curve = torch.linspace(-1, 1, 11, dtype=torch.float64)[:, None] * torch.eye(13, dtype=torch.float64)[0]
    noisy = curve + torch.randn(257, 11, 13, dtype=torch.float64, generator=generator)
    found = _shares(noisy, seed=0).value
    assert found[MEAN, 0] > 0.9 > 0.3 > found[POOLED, 0] and found[ONE, 0] < 0.5
    offsets = 9 * torch.randn(257, 1, 13, dtype=torch.float64, generator=generator) * torch.eye(13)[1].double()
    shifted = _shares(curve + 0.01 * noisy + offsets, seed=0).value
    assert shifted[ONE, 0] > 0.9 and shifted[POOLED, 0] > 0.9
    assert shifted[POOLED, 1] >= shifted[POOLED, 0]


@pytest.mark.parametrize("name", ["bijection-v20", "bijection-v20-repeats", "hmm-s5"])
def test_the_published_share_lies_among_the_readings(name: str) -> None:
    """0.84 to 0.90 is published; pooled and single sequences are below, the mean over sequences is above for two."""
    report = load_report(STORED / "claims" / f"value-readings-{name}")
    assert isinstance(report, ValueReadingsReport) and report.components == COMPONENTS
    first = report.share.value[:, 0]
    assert first[POOLED] < first[ONE] < first[MEAN] and first[ONE] < 0.84
    assert (first[MEAN] > 0.9) == name.startswith("bijection")
