"""Checks of drawn figures."""

import plotly.graph_objects as go

from bayesgeom.results.theme import BASELINE, EXACT


def colors_by_name(figure: go.Figure) -> dict[str, set[str]]:
    """The names that each color stands for: lines and points, without bands, baselines and exact values."""
    found: dict[str, set[str]] = {}
    for trace in figure.data:
        if trace.type == "scatter" and trace.name and trace.mode != "text" and not trace.fill:
            color = trace.line.color or trace.marker.color
            if isinstance(color, str) and color not in (BASELINE, EXACT):
                found.setdefault(color, set()).add(trace.name)
    return found


def assert_one_meaning_per_color(figure: go.Figure) -> None:
    found = colors_by_name(figure)
    assert len(found) > 2 and all(len(names) == 1 for names in found.values()), found
