"""What the page on length says of the arms is what the committed report holds."""

import re

import numpy as np
import pytest

from bayesgeom.diagnosis import Diagnosis
from bayesgeom.generalisation.length_report import LengthReport
from bayesgeom.training.arms import arms
from tests.structure.source import ROOT

PAGE = (ROOT / "docs" / "length.md").read_text(encoding="utf-8").split("## Readings\n")[1].replace("−", "-")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]


@pytest.fixture(scope="module")
def report() -> LengthReport:
    found = Diagnosis.load(ROOT / "docs" / "readings" / "length-hmm")["length"]
    assert isinstance(found, LengthReport)
    return found


def numbers(cell: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", cell)]


def test_the_rows_are_the_reports(report: LengthReport) -> None:
    assert [f"hmm-arm-{row[0].strip('`')}" for row in ROWS] == list(report.arms)
    for i, row in enumerate(ROWS):
        known = [
            [report.kl_bits[i, 9]],
            [report.predicted_kl_bits[i]],
            [report.found_kl_bits[i]],
            [report.jump_kl_bits[i], report.jump_kl_bits_lo[i], report.jump_kl_bits_hi[i]],
            [report.jump_kl_bits_null[i]],
            [report.critical_length[i], report.critical_length_lo[i], report.critical_length_hi[i]],
            list(report.whole_kl_bits[i]),
            [report.entry_layer[i]],
        ]
        for cell, values in zip(row[1:], known, strict=True):
            said = numbers(cell)
            if said:  # "never" and "nowhere" are said in words
                np.testing.assert_allclose(said, values, rtol=0.05, atol=6e-5, err_msg=row[0])
            else:
                assert values[0] in (-1, np.inf)


def test_the_arms_are_the_committed_recipes(report: LengthReport) -> None:
    assert set(report.arms) <= set(arms("hmm")) and report.trained == 10 and report.n == 512
