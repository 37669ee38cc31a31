"""Curves over training: what is drawn, where step 0 stands on a log axis, one entry of the legend per name."""

import numpy as np

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.report.theme import BASELINE, SERIES

STEPS = np.array([0, 10, 100, 1_000])


def test_curves_bands_and_levels_are_drawn_in_their_colors() -> None:
    figure = panels("title", ("one", "two"))
    rising = Curve(name="rising", values=np.arange(4.0), band=(np.arange(4.0) - 1, np.arange(4.0) + 1))
    for panel in ((1, 1), (1, 2)):
        add_curves(
            figure,
            panel,
            STEPS,
            [rising, Curve(name="flat", values=np.ones(4))],
            unit="bits",
            levels=[("floor", 0.5), ("varying", np.arange(4.0)), ("unknown", float("nan"))],
        )
    shown = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert sorted(shown) == ["flat", "floor", "rising", "varying"]
    lines = {trace.name: trace for trace in figure.data[:5]}
    assert lines["rising"].line.color == SERIES[0] and lines["flat"].line.color == SERIES[1]
    assert lines["floor"].line.color == BASELINE and list(lines["floor"].y) == [0.5] * 4
    assert list(lines["varying"].y) == [0, 1, 2, 3] and lines["varying"].line.dash != lines["floor"].line.dash
    assert "rising, 95 % interval" in lines
    assert figure.layout.yaxis.title.text == "bits" and figure.layout.xaxis.title.text == "training step"


def test_step_zero_has_a_place_on_a_log_axis() -> None:
    figure = panels("title", ("one",), n_columns=1)
    add_curves(figure, (1, 1), STEPS, [Curve(name="x", values=np.ones(4))], unit="bits", log_steps=True)
    assert list(figure.data[0].x) == [5, 10, 100, 1_000] and figure.layout.xaxis.type == "log"
    assert dict(zip(figure.layout.xaxis.ticktext, figure.layout.xaxis.tickvals, strict=True)) == {
        "0": 5,
        "10": 10,
        "100": 100,
        "1,000": 1_000,
    }


def test_many_points_have_no_markers() -> None:
    figure = panels("title", ("one",), n_columns=1)
    add_curves(figure, (1, 1), np.arange(200), [Curve(name="x", values=np.ones(200))], unit="bits")
    assert figure.data[0].mode == "lines"
