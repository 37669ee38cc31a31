"""What the page on dynamics says of the formation of the bijection is what the committed report holds."""

import numpy as np
import pytest

from bayesgeom.dynamics.replication import ReplicationReport
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.stats.bootstrap import seed_interval
from tests.pages import READINGS, named_rows, numbers, rows, section

PAGE = section("dynamics.md", "Readings")


@pytest.fixture(scope="module")
def report() -> DynamicsReport:
    found = Diagnosis.load(READINGS / "dynamics-bijection")["dynamics"]
    assert isinstance(found, DynamicsReport)
    return found


def test_the_table_is_the_means_over_seeds_and_their_intervals(report: DynamicsReport) -> None:
    lines = [
        [number for cell in cells for number in numbers(cell)]
        for cells in rows(PAGE.split("- **Does the frame")[0])[2:]
    ]
    steps = [int(step) for step in report.steps]
    columns = (
        report.kl_bits, report.entropy_mae_bits, report.pattern_distance_bits, report.key_overlap[..., 0],
        report.pc1_share, report.belief_r2, report.redirect_bits[..., 0], report.frame_ratio[..., 0],
    )  # fmt: skip
    assert len(lines) == 10
    for step, *said in lines:
        found = []
        for column in columns:
            per_seed = column[:, steps.index(int(step))]
            mean, (low, high) = float(per_seed.mean()), seed_interval(per_seed)
            printed = (
                [mean] if mean == 0 else [mean, float(high - low) / 2]
            )  # the last step's distance from itself is 0
            unit = 1e-2 if abs(mean) >= 2 or printed[-1] >= 0.1 else 1e-3 if abs(mean) >= 0.02 else 1e-4
            found += [(value, 0.51 * unit) for value in printed]
        for one, (value, atol) in zip(said, found, strict=True):
            assert abs(one - value) <= atol, (step, one, value)


def test_the_verdicts_are_the_reports(report: DynamicsReport) -> None:
    assert report.verdict.startswith("cannot decide")
    assert report.order.startswith("not decided: the order changes with the scale")
    assert "Of nine pairs, three say precision, one says the frame, five are open." in PAGE
    assert "the frame first in 1, precision first in 3 of 9 pairs" in report.order
    low, high = report.intervals["dissociation"]
    assert f"log2 ratio {report.dissociation:.2f} [{low:.2f} … {high:.2f}]" in PAGE.replace("\n  ", " ")
    np.testing.assert_array_equal(report.frame_step, [3060, 3060, 4285])
    np.testing.assert_array_equal(report.precision_step, [6000] * 3)
    np.testing.assert_array_equal(report.precision_step_by_scale, [[290, 3060, 6000]] * 3)


def test_the_table_of_scales_and_measures_is_the_report(report: DynamicsReport) -> None:
    lines = {cells[0]: cells[1:] for cells in rows(PAGE.replace("\n  |", "\n|")) if cells[0] in report.frame_measures}
    assert set(lines) == set(report.frame_measures)
    for at, name in enumerate(report.frame_measures):
        moments = set(report.frame_step_by_measure[:, at].tolist())
        assert set(numbers(lines[name][0])) == moments
        for scale, said in enumerate(lines[name][1:]):
            found = [
                of[scale, at]
                for of in (
                    report.dissociation_by_scale,
                    report.dissociation_by_scale_lo,
                    report.dissociation_by_scale_hi,
                )
            ]
            np.testing.assert_allclose(numbers(said), found, atol=6e-3)


def test_the_second_task_says_what_its_report_says() -> None:
    found = Diagnosis.load(READINGS / "dynamics-sticky")["dynamics"]
    assert isinstance(found, DynamicsReport)
    said = PAGE[PAGE.index("**A second task") : PAGE.index("**Single trainings.**")].replace("\n", " ")
    assert found.verdict.startswith("cannot decide") and found.order.startswith("not decided: the order changes")
    low, high = found.intervals["dissociation"]
    assert f"log2 ratio {found.dissociation:.2f} [{low:.2f} … {high:.2f}]" in said
    for scale, measure in ((0, 0), (1, 0), (2, 0), (2, 2)):
        value, lo, hi = (
            of[scale, measure]
            for of in (found.dissociation_by_scale, found.dissociation_by_scale_lo, found.dissociation_by_scale_hi)
        )
        assert f"{value:.2f} [{lo:.2f} … {hi:.2f}]" in said
    assert found.precision_step_by_scale.tolist() == [[70, 165, 484]] * 5
    assert set(found.frame_step.tolist()) == {314, 390} and set(found.precision_step.tolist()) == {484}


@pytest.mark.parametrize("name", ["lstm", "repeats", "recall"])
def test_single_trainings_decide_nothing(name: str) -> None:
    found = Diagnosis.load(READINGS / f"dynamics-{name}")["dynamics"]
    assert isinstance(found, DynamicsReport) and found.verdict.startswith("cannot decide")
    assert f"{found.kl_bits[0, -1]:.4f}" in PAGE


@pytest.mark.parametrize(("recipe", "name"), [("hmm-arm-learned", "seeds-hmm"), ("sticky-small", "seeds-sticky")])
def test_rows_over_seeds_are_their_reports(recipe: str, name: str) -> None:
    found = Diagnosis.load(READINGS / name)["replication"]
    assert isinstance(found, ReplicationReport) and len(found.replicas) == 5 and not found.missing
    trainings, kl, kl_spread, error, error_spread, _ = named_rows(PAGE)[recipe]
    assert numbers(trainings) == [5]
    for cell, known in (
        (kl, [found.mean_kl_bits, *found.intervals["mean_kl_bits"]]),
        (kl_spread, [found.spread_kl_bits]),
        (error, [found.mean_entropy_mae_bits, *found.intervals["mean_entropy_mae_bits"]]),
        (error_spread, [found.spread_entropy_mae_bits]),
    ):
        np.testing.assert_allclose(numbers(cell), known, rtol=0.06, atol=6e-5 if known[0] >= 1e-3 else 0)
