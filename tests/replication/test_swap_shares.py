"""Shares of the difference against movements: read from saved swaps, with intervals over networks that cover."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import write_parts
from bayesgeom.stats.regression import spearman
from examples.replication.shares import EFFECTS, EXPLANATIONS, LEAST_UNITS, jackknife_student, swap_shares
from tests.pages import READINGS

SAVED = READINGS / "interventions/bijection-transformer/frame"


@pytest.fixture(scope="module")
def saved() -> InterventionReport:
    """Three layers, of which the first is by construction."""
    report = Diagnosis.load(SAVED)["intervention"]
    assert isinstance(report, InterventionReport) and report.verdict_by_layer[0] == Verdict.BY_CONSTRUCTION
    return report


def written(folder: Path, report: InterventionReport, numbers: np.ndarray) -> None:
    """Save a network for each row of layers of (share inside, movement); a movement is its own indirect one."""
    for row, layers in enumerate(numbers):
        estimates = report.outside_share, report.variance_share, report.movement, report.indirect_movement
        outside, variance, moved, indirect = (estimate.value.copy() for estimate in estimates)
        for layer, (inside, movement) in enumerate(layers, start=1):
            outside[layer], variance[layer] = 1 - inside, inside / 2
            moved[layer], indirect[layer] = movement, -movement
        own = replace(
            report,
            outside_share=replace(report.outside_share, value=outside),
            variance_share=replace(report.variance_share, value=variance),
            movement=replace(report.movement, value=moved, low=None, high=None),
            indirect_movement=replace(report.indirect_movement, value=indirect, low=None, high=None),
        )
        stored(folder / f"network-{row:02d}" / "frame", own)


def stored(folder: Path, report: InterventionReport) -> None:
    """Save a report without its page."""
    folder.mkdir(parents=True)
    extra = {"provenance": report.provenance, "skipped": {}, "inapplicable": {}}
    write_parts(folder, {report.name: report}, extra)


def test_planted_shares_are_ranked_as_scipy_ranks_them(
    saved: InterventionReport, tmp_path: Path, rng: np.random.Generator
) -> None:
    numbers = rng.uniform(size=(5, 2, 2))
    numbers[..., 1] = numbers[..., 0] + rng.normal(scale=0.2, size=(5, 2))
    written(tmp_path, saved, numbers)
    found = swap_shares(tmp_path)
    inside, moved = numbers.reshape(-1, 2).T
    expected = spearmanr(inside, moved).statistic
    np.testing.assert_allclose(found.rank_correlation.value, [[expected, -expected]] * 2)
    np.testing.assert_allclose(found.held.value, [inside, inside / 2])
    assert (found.explanations, found.effects, found.n) == (EXPLANATIONS, EFFECTS, 5)
    assert found.swaps[:2] == ("network-00, layer 1", "network-00, layer 2"), "layer 0 is by construction"
    assert found.rank_correlation.resampled == "networks" and np.isnan(found.rank_correlation.ends[0]).all()
    assert found.table().splitlines()[-1].startswith(found.swaps[int(np.argmin(inside))])
    assert list(found.plot().data[1].y) == list(-moved)


def test_too_few_networks_or_another_kind_are_refused(saved: InterventionReport, tmp_path: Path) -> None:
    stored(tmp_path / "one" / "frame", saved)
    stored(tmp_path / "two" / "frame", replace(saved, kind="remove"))
    with pytest.raises(InvalidArgument, match="swaps of 'frame' for 1 networks; at least 2"):
        swap_shares(tmp_path)


def test_the_committed_frames_have_an_interval() -> None:
    found = swap_shares(READINGS / "interventions")
    low, high = found.rank_correlation.ends
    assert found.n >= LEAST_UNITS and (low < found.rank_correlation.value).all() and (high < 1).all()
    assert not any("layer 0" in own for own in found.swaps)
    committed = Diagnosis.load(READINGS / "claims/swap-shares-frame")["swap_shares"]
    np.testing.assert_allclose(committed.estimate("rank_correlation").value, found.rank_correlation.value, rtol=1e-12)
    assert committed.provenance["arguments"] == {
        "folder": "examples/replication/results/interventions",
        "subspace": "frame",
    }


def test_intervals_over_networks_cover(rng: np.random.Generator) -> None:
    """Networks of 1 to 8 layers; of 120 intervals, one with 95 % coverage misses 13 or more in 1 of 100 cases."""
    sizes = np.array([1, 2, 2, 2, 5, 5, 5, 2, 2, 8, 2, 1, 2, 2, 1, 2, 2, 2, 2, 5, 2])

    def planted(of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = np.repeat(np.arange(len(of)), of)
        between, within = rng.normal(size=(2, len(of))), rng.normal(size=(2, len(own)))
        between[1] = 0.9 * between[0] + np.sqrt(1 - 0.9**2) * between[1]
        within[1] = 0.5 * within[0] + np.sqrt(1 - 0.5**2) * within[1]
        return own, np.sqrt(0.8) * between[:, own] + np.sqrt(0.2) * within

    _, many = planted(np.tile(sizes, 2_000))
    truth, missed = float(spearman(*many)), 0
    for _ in range(120):
        own, values = planted(sizes)
        kept = [np.ones(len(own), bool), *(own != one for one in range(len(sizes)))]
        low, high = jackknife_student(np.array([spearman(*values[:, each]) for each in kept]))
        missed += not low < truth < high
    assert missed <= 12
