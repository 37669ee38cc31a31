"""Colors of a page: each color of a series has one meaning on the whole page, whichever section draws it."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bayesgeom.results.theme import BASELINE, DARK, EXACT, LAYERS, MEASURED, QUANTITIES, SERIES, rgb

ROLES = (MEASURED, BASELINE, EXACT)  # the same in every figure, so that they are never changed
_FREE = (*SERIES, *QUANTITIES, *(LAYERS[i] for i in (0, 5, 2, 6, 8)))  # those of layers that are farthest apart


def series_of(figure: go.Figure) -> dict[str, str]:
    """Return the name of the series that each color of a figure stands for, without the colors of roles.

    Bands and pale lines, such as a baseline in the color of its line, belong to the line of their color.
    """
    found: dict[str, str] = {}
    for trace in figure.data:
        if trace.type == "scatter" and trace.name and not trace.fill and (trace.opacity or 1) == 1:
            color = trace.line.color or trace.marker.color
            if isinstance(color, str) and color in DARK and color not in ROLES:
                found.setdefault(color, str(trace.name))
    return found


def with_one_meaning(figures: Sequence[go.Figure]) -> list[go.Figure]:
    """Return the figures with colors changed so that none names two series, and each series has one color.

    A series keeps its color if no figure before uses it. If all colors are taken, it keeps its own.
    """
    color_of: dict[str, str] = {}
    colored = list[go.Figure]()
    for figure in figures:
        own = series_of(figure)
        for color, name in own.items():
            taken = {*color_of.values()}
            free = color if color not in taken else next((c for c in _FREE if c not in {*taken, *own}), color)
            color_of.setdefault(name, free)
        changes = {color: color_of[name] for color, name in own.items() if color_of[name] != color}
        changes |= {triple(color): triple(new) for color, new in changes.items()}
        colored.append(_changed(figure, changes) if changes else figure)
    return colored


def triple(color: str) -> str:
    """Return a color as bands state it, up to the opacity."""
    return f"rgba({','.join(map(str, rgb(color)))}"


def _changed(figure: go.Figure, changes: Mapping[str, str]) -> go.Figure:
    changed = go.Figure(figure)
    for trace in changed.data:
        trace.update(_recolored(trace.to_plotly_json(), changes))
    return changed


def _recolored(value: Any, changes: Mapping[str, str]) -> Any:
    match value:
        case str():
            color, comma, opacity = value.rpartition(",") if value.startswith("rgba(") else (value, "", "")
            return f"{changes.get(color, color)}{comma}{opacity}"
        case dict():
            return {key: _recolored(own, changes) for key, own in value.items()}
        case list() | tuple():
            return [_recolored(own, changes) for own in value]
    return value
