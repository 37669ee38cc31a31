"""What a figure must not hide: the deciding baseline, an unknown interval, and which line is a baseline."""

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.charts.lines import add_band, add_baseline, log_floor
from bayesgeom.report.diagnosis import load_report
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from tests.pages import READINGS


def reading(folder: str, name: str = "") -> Report:
    """A committed report; of a diagnosis the one of this name, or its only one."""
    found = load_report(READINGS / folder)
    return found if isinstance(found, Report) else found[name] if name else next(iter(found.reports.values()))


def named(figure: go.Figure, start: str) -> list[go.Scatter]:
    """The lines whose name begins like this, in the first panel."""
    return [t for t in figure.data if (t.name or "").startswith(start) and (t.xaxis or "x") == "x"]


@pytest.mark.parametrize("folder", ["bijection-v20/frame", "hmm-s5/trained_swap-4-belief"])
def test_a_ceiling_is_not_drawn_as_a_baseline(folder: str) -> None:
    figure = reading(f"interventions/{folder}").plot()
    (ceiling,) = named(figure, "ceiling")
    baselines = named(figure, "baseline")
    assert len(baselines) >= 3 and not any(np.array_equal(own.y, ceiling.y) for own in baselines)
    labels = {note.text.replace("<br>", " ") for note in figure.layout.annotations}
    names = {own.name.removeprefix("baseline: ") for own in baselines if not own.fill}
    assert len(names) >= 2 and names <= labels, "each baseline has its name at its end"


def test_the_deciding_baseline_is_drawn_at_every_position() -> None:
    figure = reading("smollm2-evidence-256").plot()
    calibration = [t for t in figure.data if t.xaxis == "x2" and (t.name or "").startswith("baseline: position only")]
    (decides,) = calibration
    assert np.isfinite(decides.y).all()
    low, high = figure.layout.yaxis2.range
    assert (np.log10(decides.y) >= low).all() and (np.log10(decides.y) <= high).all()


def test_a_band_has_gaps_where_no_interval_is_known() -> None:
    figure = Panel.blank().figure
    lo, hi = np.array([0.0, 1.0, np.nan, 3.0, np.nan]), np.array([2.0, 3.0, np.nan, 4.0, 5.0])
    add_band(figure, [0, 1, 2, 3, 4], lo, hi, name="95 % interval")
    band = figure.data[-1]
    nan = np.nan
    np.testing.assert_array_equal(band.x, [0, 1, 1, 0, nan, 3, 3])
    np.testing.assert_array_equal(band.y, [2, 3, 1, 0, nan, 4, 3])
    np.testing.assert_array_equal(band.error_y.arrayminus, [nan] * 5 + [1, nan], "alone: a whisker")


@pytest.mark.parametrize("folder", ["claims/calibration-hmm-s5", "claims/calibration-bijection-v20"])
def test_each_baseline_that_is_drawn_is_listed(folder: str) -> None:
    report = reading(folder, "calibration")
    drawn = [t.name.split(": ")[1] for t in report.plot().data if t.name.startswith("baseline: ")]
    (listed,) = (line.baselines for line in report.headlines() if line.metric == "entropy_mae_bits")
    assert len(drawn) >= 2 and all(any(f"({name})" in line for line in listed) for name in drawn), (drawn, listed)
    levels = [float(line.split(" (")[0].removeprefix("≥ ").replace("−", "-")) for line in listed]
    assert levels == sorted(levels), "where smaller is better, the smallest is first"


def test_a_baseline_of_one_layer_is_a_marker() -> None:
    figure = Panel.blank().figure
    add_baseline(figure, [0, 1, 2], np.array([0.5, np.nan, np.nan]), name="baseline: first layer")
    add_baseline(figure, [0, 1, 2], 0.5, name="baseline: everywhere")
    assert [trace.mode for trace in figure.data] == ["lines+markers", "lines"]


def test_a_level_below_the_axis_does_not_touch_the_model() -> None:
    assert log_floor(np.array([8.618e-7]), np.array([5e-10])) == pytest.approx(5e-7)
    assert log_floor(np.array([0.3]), np.zeros(3)) == 0.2 and log_floor(np.zeros(3), np.zeros(3)) == 1e-6
