"""The simplex of beliefs in the plane: a corner per hypothesis, and each belief at its weighted mean of the corners.

Three hypotheses make a triangle, up to six a regular polygon, in which different beliefs may share a point, and more a
heat map of sorted beliefs. A color is the same exact belief in all panels: a read-out is correct if each color lies at
the same place as in the exact panel.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.heat import add_heat
from bayesgeom.charts.lines import add_note
from bayesgeom.report.theme import BASELINE, EXACT, SERIES, escaped, rgb, wrapped

MAX_CORNERS = 6  # with more corners, different beliefs overlap: a heat map of sorted beliefs is drawn instead
MAX_COLUMNS = 200
POINTS = "beliefs"  # the name of these traces, which need no legend
_SIDE, _HEIGHTS = 8, (360, 290, 260)  # pixels around the plot, and of a panel of one, two or three sets
_LINE = 170  # pixels of a panel of two hypotheses
_CAPTION_LETTERS = 18  # of a line of the name of a set
_ROOM, _LETTERS, _CAPTION = 0.26, 0.13, 0.2  # around a polygon of radius 1: points outside, corners' names, its own


def corners(n: int) -> Float[np.ndarray, "corner xy"]:
    """Return the corners of a regular polygon of radius 1, the first one on top, then clockwise; a segment for two."""
    if n == 2:
        return np.array([[-1.0, 0.0], [1.0, 0.0]])
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def placed(weights: Float[np.ndarray, "*batch outcome"]) -> Float[np.ndarray, "*batch xy"]:
    """Return Σ_i w_i · corner_i; it may lie outside the polygon if a weight is negative."""
    return np.asarray(weights @ corners(weights.shape[-1]))


def add_simplexes(
    figure: go.Figure,
    shown: Mapping[str, Float[np.ndarray, "point hypothesis"]],
    belief: Float[np.ndarray, "point hypothesis"],
    reachable: Float[np.ndarray, "reachable hypothesis"] | None = None,
) -> None:
    """Draw named sets of beliefs side by side, colored by the exact ones; sets without known points are left out.

    Points may lie outside the simplex, because a linear read-out is not limited to 0 … 1. Those that lie far outside
    are drawn at the edge.

    Args:
        figure: An empty plot; its axes have no meaning and are hidden.
        shown: Beliefs by name: the exact ones, read-outs.
        belief: The exact belief at each point.
        reachable: Every belief that can occur, in gray under the points of a polygon.
    """
    n = belief.shape[1]
    known = {name: points for name, points in shown.items() if np.isfinite(points).any()}
    if n < 2 or not known:
        add_note(figure, "not measured" if len(belief) else f"not drawn: {n} hypotheses")
        return
    if n > MAX_CORNERS:
        # Add a column per belief, from certain to uncertain, with hypotheses from the most to the least probable.
        certain_first = np.argsort(-np.max(belief, axis=1), kind="stable")
        columns = certain_first[:: -(-len(certain_first) // MAX_COLUMNS)]
        order = np.argsort(-belief[columns], axis=1, kind="stable")
        parts = [np.take_along_axis(points[columns], order, axis=1).T.round(3) for points in known.values()]
        gap = np.full((belief.shape[1], max(1, len(columns) // 40)), np.nan)
        cells = np.concatenate([part for block in parts for part in (gap, block)][1:], axis=1)
        most = float(np.max(belief[columns], initial=0.0)) or 1.0
        names = (range(1, 1 + len(cells)), range(1, 1 + cells.shape[1]))
        axes = ("positions, most certain first", "hypothesis, by exact rank")
        add_heat(figure, cells, unit="probability", baseline=0.0, names=names, axes=axes, limits=(0.0, most))
        middles = [1 + (len(columns) - 1) / 2 + at * (len(columns) + gap.shape[1]) for at in range(len(parts))]
        figure.update_xaxes(tickmode="array", tickvals=middles, ticktext=[*map(escaped, known)])
        return
    edge = corners(n)
    low, high = edge.min(axis=0) - _ROOM, edge.max(axis=0) + _ROOM
    step = float(high[0] - low[0]) + (2 * _ROOM if n == 2 else 0.0)  # points on a line reach its neighbor
    for at, (name, points) in enumerate(known.items()):
        if reachable is not None and len(reachable):
            (x, y), gray = placed(reachable).T, {"size": 3, "opacity": 0.6, "color": BASELINE}
            _add(figure, x=x + at * step, y=y, mode="markers", marker=gray, hoverinfo="skip")
        _add_polygon(figure, name, points, belief, at * step)
    width = float(high[0] - low[0]) + step * (len(known) - 1)
    figure.update_xaxes(range=[low[0], low[0] + width], visible=False)
    figure.update_yaxes(range=[low[1] - _CAPTION, high[1]], scaleanchor="x", visible=False)
    figure.layout.margin = {"l": _SIDE, "r": _SIDE, "t": _SIDE, "b": _SIDE}
    figure.layout.height = _HEIGHTS[min(len(known), len(_HEIGHTS)) - 1] if n > 2 else _LINE


def _add_polygon(
    figure: go.Figure,
    name: str,
    points: Float[np.ndarray, "point hypothesis"],
    belief: Float[np.ndarray, "point hypothesis"],
    shift: float,
) -> None:
    """Add outline, corners, points and name of one set of beliefs, this far to the right."""
    edge, drawn = corners(points.shape[1]), np.isfinite(points).all(axis=1)
    at = placed(points[drawn]).clip(edge.min(axis=0) - _ROOM, edge.max(axis=0) + _ROOM)
    # The points of two hypotheses lie on a line: there the names stand above its ends.
    out = edge + np.array([0.0, 1.3 * _LETTERS]) if len(edge) == 2 else (1 + _LETTERS) * edge
    closed = np.concatenate([edge, edge[:1]])
    line = {"color": BASELINE, "width": 1}
    _add(figure, x=closed[:, 0] + shift, y=closed[:, 1], mode="lines", line=line, hoverinfo="skip")
    texts = [" ".join(f"{share:.2f}" for share in point).replace("-", "−") for point in points[drawn]]
    marker = {"size": 4.5, "opacity": 0.8, "color": belief_colors(belief[drawn])}
    shown = f"{escaped(name)}<br>%{{customdata}}<extra></extra>"
    _add(figure, x=at[:, 0] + shift, y=at[:, 1], mode="markers", marker=marker, customdata=texts, hovertemplate=shown)
    style = {"color": [SERIES[i] for i in range(len(edge))], "size": 15}
    names = [str(i) for i in range(len(edge))]
    _add(figure, x=out[:, 0] + shift, y=out[:, 1], mode="text", text=names, textfont=style, hoverinfo="skip")
    below = {
        "mode": "text",
        "text": [wrapped(name, _CAPTION_LETTERS)],
        "textfont": {"size": 12, "color": EXACT},
        "hoverinfo": "skip",
    }
    where = "bottom center" if len(edge) == 2 else "middle center"  # below a line, two rows of letters need room
    _add(figure, x=[shift], y=[edge[:, 1].min() - _ROOM - _CAPTION / 2], textposition=where, **below)


def belief_colors(belief: Float[np.ndarray, "point hypothesis"]) -> Sequence[str]:
    """Mix the colors of the corners in proportion to the belief; a uniform belief is gray-brown."""
    palette = np.array([rgb(SERIES[i % len(SERIES)]) for i in range(belief.shape[1])])
    mixed = (np.clip(belief, 0, 1) @ palette).round().astype(int)
    return [f"rgb({red},{green},{blue})" for red, green, blue in mixed]


def _add(figure: go.Figure, **trace: object) -> None:
    figure.add_scatter(name=POINTS, showlegend=False, **trace)
