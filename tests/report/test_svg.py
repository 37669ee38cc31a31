"""Samples of lines in legends: their dash and marker, and no markup from a color."""

from types import SimpleNamespace

import plotly.graph_objects as go

from bayesgeom.report.svg import swatch
from bayesgeom.report.theme import BASELINE, MEASURED


def test_a_sample_has_the_dash_and_the_marker_of_its_line() -> None:
    line, points = go.Scatter(line={"color": BASELINE, "dash": "dot"}), go.Scatter(mode="markers", marker_symbol="x")
    assert "stroke-dasharray:2,3" in swatch(line) and f"--c{BASELINE[1:]}" in swatch(line)
    assert "<path" in swatch(points) and "stroke-dasharray" not in swatch(points)


def test_a_band_is_a_pale_area_in_the_color_of_its_line() -> None:
    red, green, blue = (int(MEASURED[at : at + 2], 16) for at in (1, 3, 5))
    band = go.Scatter(fill="toself", fillcolor=f"rgba({red},{green},{blue},0.18)", line={"width": 0})
    assert "<rect" in swatch(band) and f"--c{MEASURED[1:]}" in swatch(band)


def test_colors_are_no_markup() -> None:
    line = SimpleNamespace(color='"/><script>alert(1)</script>', width=2, dash=None)
    marker = SimpleNamespace(color=None, symbol=None)
    assert "<script" not in swatch(SimpleNamespace(line=line, marker=marker, fill=None, mode="lines", opacity=None))
