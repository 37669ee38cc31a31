"""Curves over training: what is drawn, where step 0 stands on a log axis, one entry of the legend per name."""

import numpy as np

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.report.panels import Panel, listed
from bayesgeom.report.theme import BASELINE, EXACT, MEASURED, SERIES

STEPS = np.array([0, 10, 100, 1_000])


def test_curves_bands_and_levels_are_drawn_in_their_colors() -> None:
    figure = Panel.blank().figure
    rising = Curve(name="rising", values=np.arange(4.0), band=(np.arange(4.0) - 1, np.arange(4.0) + 1))
    add_curves(
        figure,
        STEPS,
        [rising, Curve(name="flat", values=np.ones(4))],
        unit="bits",
        levels=[("floor", 0.5), ("varying", np.arange(4.0)), ("unknown", float("nan"))],
    )
    assert sorted(listed(figure)) == ["flat", "floor", "rising", "varying"]
    lines = {trace.name: trace for trace in figure.data}
    assert lines["rising"].line.color == SERIES[0] and lines["flat"].line.color == SERIES[1]
    assert lines["floor"].line.color == BASELINE and list(lines["floor"].y) == [0.5] * 4
    assert list(lines["varying"].y) == [0, 1, 2, 3]
    assert "rising, 95 % interval" in lines
    assert figure.layout.yaxis.title.text == "bits" and figure.layout.xaxis.title.text == "training step"


def test_step_zero_has_a_place_on_a_log_axis() -> None:
    figure = Panel.blank().figure
    add_curves(figure, STEPS, [Curve(name="x", values=np.ones(4))], unit="bits", log_steps=True)
    assert list(figure.data[0].x) == [5, 10, 100, 1_000] and figure.layout.xaxis.type == "log"
    assert dict(zip(figure.layout.xaxis.ticktext, figure.layout.xaxis.tickvals, strict=True)) == {
        "0": 5,
        "10": 10,
        "100": 100,
        "1,000": 1_000,
    }


def test_many_points_have_no_markers() -> None:
    figure = Panel.blank().figure
    add_curves(figure, np.arange(200), [Curve(name="x", values=np.ones(200))], unit="bits")
    assert figure.data[0].mode == "lines"


def test_many_series_and_a_single_curve_have_their_colors() -> None:
    figure, values = Panel.blank().figure, np.array([1.0, 2.0])
    curves = [Curve(name=f"seed{i}", values=values) for i in range(5)]
    add_curves(figure, np.array([10, 20]), curves, unit="loss (nats)")
    assert [trace.line.color for trace in figure.data] == list(SERIES[:5])
    single = Panel.blank().figure
    add_curves(single, np.array([10, 20]), curves[:1], unit="KL (bits)")
    assert single.data[0].line.color == MEASURED
    both = [Curve(name="ceiling", values=values, color=EXACT), Curve(name="layer 0", values=values)]
    add_curves(figure, np.array([10, 20]), both, unit="shift (bits)")
    ceiling, layer = figure.data[5:]
    assert ceiling.line.width > 5 and ceiling.opacity < 0.5 and layer.opacity is None, "both are seen"
