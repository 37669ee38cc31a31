"""What the readings say of the experiment and of training is what the committed reports hold."""

import re

import numpy as np

from bayesgeom.diagnosis import Diagnosis
from bayesgeom.em.report import EMReport
from bayesgeom.em_experiment import SEEDS
from bayesgeom.gradient_laws.movement import GradientMovementReport
from tests.structure.source import ROOT

READINGS = ROOT / "docs" / "readings"


def section(title: str) -> str:
    page = (ROOT / "docs" / "readings.md").read_text(encoding="utf-8")
    return page.split(f"## {title}\n")[1].split("\n## ")[0].replace("−", "-").replace(",", "")


def test_the_experiment_is_of_the_papers_size_and_its_table_is_the_reports() -> None:
    reading = Diagnosis.load(READINGS / "em-experiment")
    report, text = reading["em_experiment"], section("The EM-like schedule")
    assert isinstance(report, EMReport)
    arguments = reading.provenance["arguments"]
    assert (arguments["seeds"], arguments["steps"], arguments["length"]) == (SEEDS, 1_000, 2_000)
    rows = {cells[0].strip(): cells for line in text.splitlines() if (cells := line.strip("|").split("|"))[1:]}
    for arm, name in enumerate(report.arms):
        numbers = [[float(x) for x in re.findall(r"-?\d+\.?\d*", cell)] for cell in rows[name][1:]]
        expected = [
            [report.final_loss_nats[0, arm]],
            [vars(report)[f"final_loss_bits{end}"][0, arm] for end in ("", "_lo", "_hi")],
            [report.held_out_bits[0, arm]],
            [vars(report)[f"speedup{end}"][0, arm] for end in ("", "_lo", "_hi")],
            [vars(report)[f"em_margin_bits{end}"][0, arm] for end in ("", "_lo", "_hi")],
            [vars(report)[f"em_held_out_margin_bits{end}"][0, arm] for end in ("", "_lo", "_hi")],
        ]
        for found, known, atol in zip(numbers, expected, (6e-4, 6e-4, 6e-4, 0.06, 6e-4, 6e-4), strict=True):
            np.testing.assert_allclose(found, known[: len(found)], atol=atol, err_msg=name)


def test_the_shares_of_the_movement_are_the_reports() -> None:
    text = section("What the loss does to attention and values")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    for name, folder in (
        ("`hmm-s5`", "hmm-s5"), ("`bijection-v20-llama`", "bijection-v20-llama"),
        ("`bijection-v20` first stage", "bijection-v20-decayed"),
    ):  # fmt: skip
        at = next(i for i, cells in enumerate(lines) if cells[0].strip().startswith(f"{name} step"))
        report = Diagnosis.load(READINGS / "gradient-movement" / folder)["gradient_movement"]
        assert isinstance(report, GradientMovementReport)
        shares = [v / v[0] for v in (report.pattern_distance_bits, report.value_distance)]
        for step, cell in zip(lines[at][1:-1], lines[at + 1][1:-1], strict=True):
            i = report.steps.index(step.strip())
            np.testing.assert_allclose([float(x) for x in cell.split()], [s[i] for s in shares], atol=6e-3)
        said = [float(x) for x in re.findall(r"[\d.]+", lines[at + 1][-1])]
        known = [report.routing_settled_step, report.values_settled_step, report.settled_ratio]
        np.testing.assert_allclose(said, known, atol=0.06)
