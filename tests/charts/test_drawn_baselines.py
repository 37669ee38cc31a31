"""What a figure must not hide: the deciding baseline, an unknown interval, and which line is a baseline."""

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.charts.lines import add_band, add_baseline, add_line, brief, log_floor
from bayesgeom.dynamics.report import AttentionMapsReport
from bayesgeom.report.diagnosis import load_report
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.theme import label_axes, log_axes
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


def test_a_sweep_draws_every_baseline_and_its_whole_intervals() -> None:
    figure = reading("sweep/hmm").plot()
    for number, axis in ((3, "x3"), (4, "x4")):
        low, high = figure.layout[f"yaxis{number}"].range
        own = [t for t in figure.data if t.xaxis == axis]
        baselines = [t for t in own if (t.name or "").startswith("baseline")]
        (model,) = (t for t in own if t.name == "model")
        assert baselines and all(np.isfinite(t.y).all() and (np.log10(t.y) >= low).all() for t in baselines)
        (band,) = (t for t in own if t.name == "model, 95 % interval")
        assert np.log10(np.nanmax(model.y)) <= np.log10(np.nanmax(band.y)) <= high


def test_a_level_below_a_log_axis_is_marked_at_its_end() -> None:
    figure, level = Panel.blank().figure, np.array([0.1, 1e-9, 0.0])
    add_line(figure, [1, 2, 3], np.array([0.5, 0.25, 0.125]), name="model")
    floor = log_floor(np.array([0.5, 0.25, 0.125]), level)
    add_baseline(figure, [1, 2, 3], level, name="baseline: shortcut", floor=floor)
    log_axes(figure)
    label_axes(figure, "position", "error (bits)")
    drawn = figure.data[-1]
    assert floor == 1e-6 and drawn.y.tolist() == [0.1, 1e-6, 1e-6] and drawn.marker.size.tolist() == [0, 9, 9]
    assert [bool(told) for told in drawn.customdata] == [False, True, True] and "1e−9" in drawn.customdata[1]


def test_a_band_has_gaps_where_no_interval_is_known() -> None:
    figure = Panel.blank().figure
    lo, hi = np.array([0.0, 1.0, np.nan, 3.0, np.nan]), np.array([2.0, 3.0, np.nan, 4.0, 5.0])
    add_band(figure, [0, 1, 2, 3, 4], lo, hi, name="95 % interval")
    band = figure.data[-1]
    nan = np.nan
    np.testing.assert_array_equal(band.x, [0, 1, 1, 0, nan, 3, 3])
    np.testing.assert_array_equal(band.y, [2, 3, 1, 0, nan, 4, 3])
    np.testing.assert_array_equal(band.error_y.arrayminus, [nan] * 5 + [1, nan], "alone: a whisker")


@pytest.mark.parametrize("values", [[0.0, 1.0, 2.0], [nan := float("nan")] * 3])
def test_a_band_without_lone_intervals_has_no_whiskers(values: list[float]) -> None:
    figure = Panel.blank().figure
    add_band(figure, [0, 1, 2], np.array(values), np.array(values) + 1, name="band")
    assert figure.data[-1].error_y.array is None


def test_no_band_covers_a_layer_without_an_interval() -> None:
    figure = reading("smollm2-prompts", "key_overlap").plot()
    bands = [t for t in figure.data if t.type == "scatter" and t.fill and "interval" in t.name]
    assert bands and any(np.isnan(np.asarray(band.x)).any() for band in bands)


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


def test_each_of_several_baselines_has_the_color_of_its_line() -> None:
    report = reading("claims/value-manifold-bijection-v20-repeats", "value_manifold")
    figure = report.plot()
    for axis in ("x5", "x6"):
        own = [t for t in figure.data if t.xaxis == axis and len(t.x) > 1]
        lines, baselines = ([t for t in own if t.name.startswith("baseline") == wanted] for wanted in (False, True))
        colors = [t.line.color for t in baselines]
        assert len(set(colors)) == len(colors) >= 2 and set(colors) <= {t.line.color for t in lines}, axis
        assert all(t.line.dash == "dash" and t.opacity < 1 for t in baselines)
    positions = [t.marker.color for t in figure.data if t.xaxis == "x2"]
    assert positions and all(min(own) >= 1 for own in positions), "positions are counted from 1"


def test_attention_maps_state_the_rows_largest_weight() -> None:
    report = reading("formation", "attention_maps")
    assert isinstance(report, AttentionMapsReport)
    panels = report.panels()
    assert len(panels) == report.focus.value.size and len({panel.title for panel in panels}) == len(panels)
    most = report.maps[:, :, report.maps.shape[2] // 2 :].max()
    assert all(panel.figure.data[0].zmax == pytest.approx(most) for panel in panels), "one scale"
    assert [panel.title.split()[-1] for panel in panels] == [brief(value) for value in report.focus.value.T.ravel()]


def test_bits_and_shares_have_axes_of_their_own() -> None:
    figure = reading("gradient-movement/hmm-s5").plot()
    assert not any("bits" in (y.title.text or "") and "relative" in y.title.text for y in figure.select_yaxes())


def test_the_only_interval_of_a_figure_is_visible() -> None:
    figure = reading("smollm2-onwards-entropy").plot()
    (band,) = (t for t in figure.data if t.name == "erased, 95 % interval")
    assert np.nansum(band.error_y.arrayminus) > 0.5 and figure.layout.xaxis.range is not None
