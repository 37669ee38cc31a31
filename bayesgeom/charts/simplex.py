"""The simplex of beliefs in the plane: a corner per hypothesis, and each belief at its weighted mean of the corners.

Three hypotheses make a triangle, up to six a regular polygon, in which different beliefs may share a point, and more a
heat map of sorted beliefs. A color is the same exact belief in all panels: a read-out is correct if each color lies at
the same place as in the exact panel.
"""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.heat import add_heat
from bayesgeom.charts.lines import add_note
from bayesgeom.report import BASELINE, SERIES, rgb

MAX_CORNERS = 6  # with more corners, different beliefs overlap: a heat map of sorted beliefs is drawn instead
MAX_COLUMNS = 200
POINTS = "beliefs"  # the name of these traces, which need no legend
_SIDE, _HEIGHT = 8, 390  # pixels around the plot, and of the panel
_ROOM, _LETTERS = 0.16, 0.09  # around the polygon, whose radius is 1: for points outside, and for names


def corners(n: int) -> Float[np.ndarray, "corner xy"]:
    """Return the corners of a regular polygon of radius 1, the first one on top, then clockwise; a segment for two."""
    if n == 2:
        return np.array([[-1.0, 0.0], [1.0, 0.0]])
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def placed(weights: Float[np.ndarray, "*batch outcome"]) -> Float[np.ndarray, "*batch xy"]:
    """Return Σ_i w_i · corner_i; it may lie outside the polygon if a weight is negative."""
    return np.asarray(weights @ corners(weights.shape[-1]))


def add_simplex(
    figure: go.Figure, points: Float[np.ndarray, "point hypothesis"], belief: Float[np.ndarray, "point hypothesis"]
) -> None:
    """Add outline, corners and points, colored by the exact beliefs; the axes have no meaning and are hidden.

    Points may lie outside the simplex, because a linear read-out is not limited to 0 … 1. Those that lie far outside
    are drawn at the edge of the panel.
    """
    n = points.shape[1]
    drawn = np.isfinite(points).all(axis=1)
    if n < 2 or not drawn.any():
        add_note(figure, "not measured" if len(points) else f"not drawn: {n} hypotheses")
        return
    if n > MAX_CORNERS:
        _add_sorted(figure, points[drawn], belief[drawn])
        return
    edge = corners(n)
    low, high = edge.min(axis=0) - _ROOM, edge.max(axis=0) + _ROOM
    closed, at = np.concatenate([edge, edge[:1]]), placed(points[drawn]).clip(low, high)
    _add(figure, x=closed[:, 0], y=closed[:, 1], mode="lines", line={"color": BASELINE, "width": 1}, hoverinfo="skip")
    told = [" ".join(f"{share:.2f}" for share in own).replace("-", "−") for own in points[drawn]]
    marker = {"size": 4.5, "opacity": 0.8, "color": belief_colors(belief[drawn])}
    shown = "read belief<br>%{customdata}<extra></extra>"
    _add(figure, x=at[:, 0], y=at[:, 1], mode="markers", marker=marker, customdata=told, hovertemplate=shown)
    out, colors = (1 + _LETTERS) * edge, [SERIES[i] for i in range(n)]
    names = [str(i) for i in range(n)]
    text = {"color": colors, "size": 15}
    _add(figure, x=out[:, 0], y=out[:, 1], mode="text", text=names, textfont=text, hoverinfo="skip")
    figure.update_xaxes(range=[low[0], high[0]], visible=False)
    figure.update_yaxes(range=[low[1], high[1]], scaleanchor="x", visible=False)
    figure.layout.height = _HEIGHT
    figure.layout.margin = {"l": _SIDE, "r": _SIDE, "t": _SIDE, "b": _SIDE}


def _add_sorted(
    figure: go.Figure,
    read: Float[np.ndarray, "point hypothesis"],
    belief: Float[np.ndarray, "point hypothesis"],
) -> None:
    """Add a column per belief, from certain to uncertain, with hypotheses from the most to the least probable.

    Order and scale are those of the exact belief: a correct read-out looks like the exact panel.
    """
    certain_first = np.argsort(-np.max(belief, axis=1), kind="stable")
    columns = certain_first[:: -(-len(certain_first) // MAX_COLUMNS)]
    order = np.argsort(-belief[columns], axis=1, kind="stable")
    sorted_read = np.take_along_axis(read[columns], order, axis=1).T.round(3)
    ranks, places = (range(1, 1 + size) for size in sorted_read.shape)
    axes = ("sampled position, most certain first", "hypothesis, by exact rank")
    add_heat(figure, sorted_read, unit="probability", baseline=0.0, names=(ranks, places), axes=axes, limits=(0.0, 1.0))


def belief_colors(belief: Float[np.ndarray, "point hypothesis"]) -> Sequence[str]:
    """Mix the colors of the corners in proportion to the belief; a uniform belief is gray-brown."""
    palette = np.array([rgb(SERIES[i % len(SERIES)]) for i in range(belief.shape[1])])
    mixed = (np.clip(belief, 0, 1) @ palette).round().astype(int)
    return [f"rgb({red},{green},{blue})" for red, green, blue in mixed]


def _add(figure: go.Figure, **trace: object) -> None:
    figure.add_trace(go.Scatter(name=POINTS, showlegend=False, **trace))
