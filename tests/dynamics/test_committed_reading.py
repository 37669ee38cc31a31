"""What the page on dynamics says of the formation of the bijection is what the committed report holds."""

import numpy as np
import pytest

from bayesgeom.diagnosis import Diagnosis
from bayesgeom.over_training.report import DynamicsReport
from tests.pages import READINGS, numbers, rows, section

PAGE = section("dynamics.md", "Readings")


@pytest.fixture(scope="module")
def report() -> DynamicsReport:
    found = Diagnosis.load(READINGS / "dynamics-bijection")["dynamics"]
    assert isinstance(found, DynamicsReport)
    return found


def test_the_table_is_the_means_over_seeds(report: DynamicsReport) -> None:
    lines = [[number for cell in cells for number in numbers(cell)] for cells in rows(PAGE)[2:]]
    steps = [int(step) for step in report.steps]
    columns = (
        report.kl_bits, report.entropy_mae_bits, report.pattern_distance_bits, report.key_overlap[..., 0],
        report.pc1_share, report.belief_r2, report.redirect_bits[..., 0], report.frame_ratio[..., 0],
    )  # fmt: skip
    assert len(lines) == 10
    for step, *said in lines:
        known = [column.mean(axis=0)[steps.index(int(step))] for column in columns]
        for one, other, atol in zip(said, known, (6e-4, 6e-4, 6e-4, 6e-4, 6e-4, 6e-3, 6e-3, 6e-3), strict=True):
            assert abs(one - other) <= atol, (step, one, other)


def test_the_verdicts_are_the_reports(report: DynamicsReport) -> None:
    assert report.verdict.startswith("cannot decide")
    assert report.verdict_by_share.startswith("precision settles first")
    for name, value in (("dissociation", report.dissociation), ("dissociation_by_share", report.dissociation_by_share)):
        low, high = report.intervals[name]
        assert f"log2 ratio {value:.2f} [{low:.2f} … {high:.2f}]" in PAGE.replace("\n  ", " ")
    np.testing.assert_array_equal(report.frame_step, [3060, 3060, 4285])
    np.testing.assert_array_equal(report.precision_step, [6000] * 3)
    np.testing.assert_array_equal(report.precision_step_by_share, [290] * 3)
