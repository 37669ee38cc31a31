"""Checks of drawn figures, and what their colors mean."""

import plotly.graph_objects as go

from bayesgeom.report.theme import BASELINE, EXACT, MEASURED


def colors_by_name(figure: go.Figure) -> dict[str, set[str]]:
    """The names that each color and dash stand for: lines and points, without bands, baselines and exact values."""
    found: dict[str, set[str]] = {}
    for trace in figure.data:
        if trace.type == "scatter" and trace.name and trace.mode != "text" and not trace.fill:
            color = trace.line.color or trace.marker.color
            is_reference = trace.opacity is not None and trace.opacity < 1 and "lines" in str(trace.mode)
            if isinstance(color, str) and color not in (BASELINE, EXACT) and not is_reference:
                found.setdefault(f"{color} {trace.line.dash or 'solid'}", set()).add(trace.name)
    return found


def measured_by_panel(figure: go.Figure) -> dict[str, set[str]]:
    """The names of what each panel draws in the color of measured numbers."""
    found: dict[str, set[str]] = {}
    for trace in figure.data:
        if trace.type == "scatter" and trace.name and not trace.fill:
            color = trace.line.color or trace.marker.color
            if isinstance(color, str) and color == MEASURED:
                found.setdefault(trace.xaxis or "x", set()).add(trace.name)
    return found


def assert_one_meaning_per_color(figure: go.Figure) -> None:
    """A color is one series over all panels; that of measured numbers is the only one of its panel."""
    found = {color: names for color, names in colors_by_name(figure).items() if not color.startswith(MEASURED)}
    assert all(len(names) == 1 for names in found.values()), found
    series = [name for names in found.values() for name in names]
    assert len(series) == len(set(series)), f"a series has two colors: {found}"
    measured = measured_by_panel(figure)
    assert all(len(names) == 1 for names in measured.values()), measured
    assert not {name for names in measured.values() for name in names} & set(series), "a series is also measured"
