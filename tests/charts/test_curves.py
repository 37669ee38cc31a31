"""Curves over training: what is drawn, where step 0 stands on a log axis, one entry of the legend per name."""

import numpy as np

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.report.panels import Panel, listed
from bayesgeom.report.theme import BASELINE, SERIES

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
