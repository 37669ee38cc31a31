"""What the readings say of the movement in training is what the committed reports hold."""

import numpy as np

from bayesgeom.dynamics.report import stable, times_later
from bayesgeom.gradients.report import GradientMovementReport
from bayesgeom.report.diagnosis import Diagnosis
from tests.pages import READINGS, numbers, rows, section


def test_the_shares_of_the_movement_are_the_reports() -> None:
    lines = rows(section("readings.md", "What the loss does to attention and values"))
    for name, folder in (
        ("`hmm-s5`", "hmm-s5"),
        ("`bijection-v20-llama`", "bijection-v20-llama"),
        ("`bijection-v20`, first stage", "bijection-v20-decayed"),
    ):
        at = next(i for i, cells in enumerate(lines) if cells[0].startswith(f"{name}, step"))
        report = Diagnosis.load(READINGS / "gradient-movement" / folder)["gradient_movement"]
        assert isinstance(report, GradientMovementReport)
        distances = (report.pattern_distance_bits.value, report.value_distance.value)
        shares = [v / v[0] for v in distances]
        for step, cell in zip(lines[at][1:-1], lines[at + 1][1:-1], strict=True):
            i = report.steps.index(step.replace(",", ""))
            np.testing.assert_allclose(numbers(cell), [s[i] for s in shares], atol=6e-3)
        steps = [int(step) for step in report.steps]
        routing, values = (stable(steps, v) for v in distances)
        (ratio, *bounds), cell = times_later(values, routing), lines[at + 1][-1]
        stored = [float(own) for own in (report.routing_stable_step, report.values_stable_step, report.stable_ratio)]
        np.testing.assert_equal(stored, [routing.step, values.step, ratio])
        ended = steps[-1] if np.isnan(values.step) else values.step
        known = np.array([routing.step, ended, ratio, *bounds])
        np.testing.assert_allclose(numbers(cell), known[np.isfinite(known)], atol=0.06)
        assert np.isnan(values.step) == ("not before the last" in cell)
