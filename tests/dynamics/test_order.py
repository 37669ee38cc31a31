"""The order of frame and precision: one rule, three scales, several frame measures, and when it is not decided."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesgeom.cli import main
from bayesgeom.core.errors import OutputFault
from bayesgeom.dynamics.again import decided_again
from bayesgeom.dynamics.order import SCALES, order_of
from bayesgeom.dynamics.settling_report import SettlingReport
from bayesgeom.dynamics.threshold_steps import settled
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS

STEPS = (0, 10, 20, 40, 80, 160, 320)


def slow_moment(steps: tuple[int, ...], curve: list[float]) -> float:
    """From the end backwards, while a tenth or less is left."""
    whole = abs(curve[0] - curve[-1])
    found = math.nan
    for step, value in reversed(list(zip(steps, curve, strict=True))):
        if whole == 0 or abs(value - curve[-1]) > 0.1 * whole:
            break
        found = step
    return found


def test_a_moment_is_where_a_curve_settles_for_good(rng: np.random.Generator) -> None:
    for _ in range(50):
        curve = rng.normal(size=7) * np.array([9, 7, 5, 0.5, 0.5, 0.5, 0.1])
        found = settled(STEPS, curve)
        assert found.step == pytest.approx(slow_moment(STEPS, curve.tolist()), nan_ok=True)
    passing = settled(STEPS, np.array([1.0, 0.0, 0.5, 0.05, 0.0, 0.0, 0.0]))
    assert (passing.step, passing.before) == (40.0, 20.0), "where it only passes by, it has not settled"
    assert math.isnan(settled(STEPS, np.ones(7)).step) and math.isnan(settled(STEPS, np.full(7, np.nan)).step)


def curves(kl: list[float], frame: list[float], n_runs: int = 3) -> dict[str, np.ndarray]:
    own = {"kl_bits": kl, "pattern_distance_bits": frame, "curve_share": frame}
    tiled = {name: np.tile(values, (n_runs, 1)) for name, values in own.items()}
    return tiled | {"key_overlap": np.repeat(tiled["curve_share"][..., None], 5, axis=2)}


EARLY, LATE = [1, 0.05, 0.01, 0, 0, 0, 0.0], [1, 0.99, 0.98, 0.97, 0.96, 0.95, 0.0]
EXPONENTIAL = [2.0 ** (-2 * k) for k in range(7)]


def test_an_order_on_all_scales_is_decided_and_one_that_changes_is_not() -> None:
    abrupt = [1.0, 1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3]
    assert order_of(STEPS, curves(abrupt, EARLY)).verdict == "the frame is first on all scales and measures"
    assert order_of(STEPS, curves([1, *[1e-3] * 6], LATE)).verdict == "precision is first on all scales and measures"
    between = order_of(STEPS, curves(EXPONENTIAL, [1, 0.9, 0.8, 0.7, 0.05, 0, 0]))
    assert [int(step) for step in between.precision_steps[0]] == [20, 80, 320]
    assert between.verdict.startswith(
        "not decided: the order changes with the scale or the measure (the frame first in 3, "
    )
    tied = order_of(STEPS, curves([1, 0.9, 0.8, 1e-9, 1e-9, 1e-9, 1e-9], [1, 0.9, 0.8, 0.05, 0, 0, 0]))
    assert tied.verdict.startswith("not decided: some pairs are open")


def test_few_trainings_or_measures_decide_nothing() -> None:
    abrupt = [1.0, 1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3]
    assert "2 trainings, and at least 3" in order_of(STEPS, curves(abrupt, EARLY, n_runs=2)).verdict
    without = curves(abrupt, EARLY) | {
        "pattern_distance_bits": np.full((3, 7), np.nan),
        "key_overlap": np.full((3, 7, 5), np.nan),
    }
    found = order_of(STEPS, without)
    assert found.frame_measures == ("manifold curve fit",)
    assert found.verdict == "not decided: 1 frame measure, and at least 2 are needed"
    nothing = order_of(STEPS, without | {"curve_share": np.full((3, 7), np.nan)})
    assert nothing.fields()["dissociation_by_scale"].value.shape == (3, 0) and nothing.fields()["order_by_scale"] == ()


def test_fields_agree_with_their_pairs() -> None:
    found = order_of(STEPS, curves(EXPONENTIAL, EARLY))
    own = found.fields()
    assert own["precision_step_by_scale"].shape == (3, 3) == own["frame_step_by_measure"].shape
    found_mean = own["dissociation_by_scale"]
    assert found_mean.value == pytest.approx(np.array([[1] * 3, [3] * 3, [5] * 3]))
    assert found_mean.resampled == "trainings" and found_mean.n == 3
    assert [[pair.lo for pair in row] for row in found.pairs] == found_mean.low.tolist()
    assert len(own["order_by_scale"]) == 9 and own["order_by_scale"][8].startswith("the frame is first")
    assert tuple(SCALES) == ("KL", "√KL", "log KL")


# Reports that were saved before.


def test_the_shipped_trainings_reach_nine_tenths_at_290_3060_and_6000() -> None:
    found = Diagnosis.load(READINGS / "dynamics-bijection")["settling"]
    assert isinstance(found, SettlingReport)
    assert found.precision_step_by_scale.tolist() == [[290, 3060, 6000]] * 3
    at = found.frame_measures.index("attention patterns")
    assert found.frame_step_by_measure[:, at].tolist() == [3060, 3060, 4285]
    assert found.order.startswith("not decided: the order changes with the scale or the measure")


@pytest.mark.slow
def test_a_saved_report_is_timed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = Diagnosis.load(READINGS / "dynamics-sticky")
    known = saved["settling"]
    assert isinstance(known, SettlingReport)
    wrong = replace(known, order="by another rule", precision_step_by_scale=known.precision_step_by_scale + 1)
    replace(saved, reports={**saved.reports, "settling": wrong}).save(tmp_path / "old")
    assert main(["dynamics", "--from-report", str(tmp_path / "old"), "--out", str(tmp_path / "new")]) == 0
    assert f"settles first is {known.order}" in " ".join(capsys.readouterr().out.split())
    again = Diagnosis.load(tmp_path / "new")["settling"]
    assert isinstance(again, SettlingReport) and again.table() == known.table()
    with pytest.raises(OutputFault, match="holds no readable report"):
        decided_again(tmp_path)
    with pytest.raises(OutputFault, match="holds no report of `bayesgeom dynamics`; it holds replication"):
        decided_again(READINGS / "seeds-sticky")
