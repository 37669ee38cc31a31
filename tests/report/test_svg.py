"""Thumbnails of panels: lines, points and cells of a plot, inside their frame, whatever its values are."""

import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.report.svg import thumbnail


def drawn(*traces: Any, **layout: Any) -> str:
    figure = go.Figure(data=list(traces), layout=layout)
    return thumbnail({"data": [own.to_plotly_json() for own in figure.data], "layout": figure.layout.to_plotly_json()})


def places(svg: str) -> np.ndarray:
    return np.array([[float(x), float(y)] for x, y in re.findall(r"[ML](\S+?) (\S+?)(?=[MLh\"])", svg)])


@pytest.mark.parametrize("kind", ["linear", "log"])
def test_lines_stay_inside_with_a_gap_where_a_value_is_missing(kind: str, rng: np.random.Generator) -> None:
    y = rng.random(7) * 1000
    y[3] = np.nan
    svg = drawn(go.Scatter(x=np.arange(7), y=y), yaxis_type=kind)
    found = places(svg)
    assert svg.count("<path") == 1 and svg.count("M") == 2 and len(found) == 6
    assert (found >= 0).all() and (found <= [160, 44]).all()
    assert np.array_equal(np.argsort(found[:, 1]), np.argsort(-y[~np.isnan(y)])), "larger values lie higher"


def test_zero_has_no_place_on_a_log_axis() -> None:
    assert len(places(drawn(go.Scatter(x=[1, 2, 3], y=[0.0, 1.0, 2.0]), yaxis_type="log"))) == 2
    assert drawn(go.Scatter(x=[1], y=[0.0]), yaxis_type="log") == ""


def test_names_are_places_in_their_order_and_points_are_few() -> None:
    assert len(places(drawn(go.Scatter(x=["a", "b", "a"], y=[1, 2, 3], mode="markers")))) == 3
    named = drawn(go.Scatter(x=["7", "2000", "30"], y=[1, 2, 3], mode="markers"), xaxis_type="category")
    assert np.ptp(np.diff(places(named)[:, 0])) == pytest.approx(0, abs=0.1), "evenly spaced, whatever they are"
    cloud = drawn(go.Scatter(x=np.arange(10_000), y=np.arange(10_000), mode="markers"))
    assert cloud.count("h0") <= 150


@pytest.mark.parametrize("shape", [(2, 3), (30, 700)])
def test_cells_are_as_dark_as_they_are_large(shape: tuple[int, int], rng: np.random.Generator) -> None:
    values = rng.random(shape)
    svg = drawn(go.Heatmap(z=values))
    shades = [float(shade) for shade in re.findall(r"fill-opacity:(\S+?)\"", svg)]
    assert len(shades) <= 800 and max(shades) <= 1 and min(shades) >= 0.07
    if values.size < 800:
        assert np.array_equal(np.argsort(shades), np.argsort(values[::-1].ravel())), "the first row is the lowest"


def test_texts_and_bands_are_left_out_and_colors_are_no_markup() -> None:
    assert (
        drawn(go.Scatter(x=[0], y=[0], mode="text", text=["none"]))
        == ""
        == drawn(go.Scatter(x=[0, 1], y=[0, 1], fill="toself"))
    )
    trace = {"type": "scatter", "x": [0, 1], "y": [0, 1], "line": {"color": '"/><script>alert(1)</script>'}}
    assert "<script" not in thumbnail({"data": [trace], "layout": {}})
