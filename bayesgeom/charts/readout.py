"""Read-outs of beliefs: numbers along layers or counts with their baselines, and the simplex of beliefs in the plane.

A simplex has a corner per hypothesis and a point per belief. Three hypotheses make a triangle, up to six a regular
polygon, and more a heat map of sorted beliefs. A color is the same exact belief in all panels: a read-out is correct if
each color lies at the same place as in the exact panel.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_baseline, add_line, add_note
from bayesgeom.charts.polygon import MAX_CORNERS as MOST_HYPOTHESES
from bayesgeom.charts.polygon import corners, placed
from bayesgeom.report import BASELINE, EXACT, SERIES, SHADES, Estimate, Panel, label_axes

MAX_CORNERS = 6  # with more corners, different beliefs overlap: a heat map of sorted beliefs is drawn instead
MAX_COLUMNS = 200
POINTS = "beliefs"  # the name of these traces, which need no legend


def readout_panel(
    title: str, axes: tuple[str, str], ticks: Sequence[str], own: Estimate, dashes: Mapping[str, str], *, before: str
) -> Panel:
    """Draw an estimate along its only axis, which `ticks` name; its baseline `before` is one step before the first."""
    panel = Panel.blank(title, height=360)
    figure, steps = panel.figure, range(len(own.value))
    if not np.isfinite(own.value).any():
        add_note(figure, "not defined here")
        return panel
    if np.isfinite(own.ends).all(axis=0).any():
        add_band(figure, steps, *own.ends, name="95 % interval")
    add_line(figure, steps, own.value, name="measured")
    start = [float(level.value[0]) for level in own.baselines if level.name == before and np.isfinite(level.value[0])]
    for level in own.baselines:
        if level.name != before and np.isfinite(level.value).any():
            add_baseline(figure, steps, level.value, name=f"baseline: {level.name}")
            figure.data[-1].line.dash = dashes[level.name]
    places, texts = list(steps), list(ticks)
    if start:
        add_line(figure, [-1], np.array(start), name=before, color=BASELINE)
        figure.data[-1].update(mode="markers", marker_symbol="diamond")
        places, texts = [-1, *places], [before, *texts]
    every = -(-len(texts) // 9)
    figure.update_xaxes(tickvals=places[::every], ticktext=texts[::every])
    label_axes(figure, *axes)
    return panel


def add_simplex(
    figure: go.Figure, points: Float[np.ndarray, "point hypothesis"], belief: Float[np.ndarray, "point hypothesis"]
) -> None:
    """Add outline, corners and points, colored by the exact beliefs; the axes have no meaning and are hidden.

    Points may lie outside the simplex, because a linear read-out is not limited to 0 … 1.
    """
    n = points.shape[1]
    drawn = np.isfinite(points).all(axis=1)
    if n > MAX_CORNERS and drawn.any():
        _add_sorted(figure, points[drawn], belief[drawn])
        return
    if n < 2 or not drawn.any():
        text = f"not drawn: {n} hypotheses" if n > MOST_HYPOTHESES else "not measured"
        _add(figure, x=[0], y=[0], mode="text", text=[text], textfont={"color": BASELINE})
    else:
        edge = corners(n)
        closed = np.concatenate([edge, edge[:1]])
        _add(figure, x=closed[:, 0], y=closed[:, 1], mode="lines", line={"color": BASELINE, "width": 1})
        at = placed(points[drawn])
        marker = {"size": 3.5, "opacity": 0.8, "color": belief_colors(belief[drawn])}
        _add(figure, x=at[:, 0], y=at[:, 1], mode="markers", marker=marker)
        names = [str(i) for i in range(n)]
        out = 1.12 * edge
        _add(figure, x=out[:, 0], y=out[:, 1], mode="text", text=names, textfont={"color": EXACT})
    lowest = -0.5 if n == 3 else -1.0
    figure.update_xaxes(range=[-1.4, 1.4], visible=False)
    figure.update_yaxes(range=[lowest - 0.22, 1.22], scaleanchor="x", visible=False)


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
    figure.add_trace(
        go.Heatmap(
            z=np.take_along_axis(read[columns], order, axis=1).T.round(3),
            x0=1,
            y0=1,
            zmin=0.0,
            zmax=1.0,
            colorscale=SHADES,
            colorbar={"title": {"text": "probability", "side": "right"}, "thickness": 12},
            name=POINTS,
            hovertemplate="hypothesis of rank %{y}: %{z}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="sampled positions, most certain first")
    figure.update_yaxes(title_text="hypothesis, by exact rank", autorange="reversed")


def belief_colors(belief: Float[np.ndarray, "point hypothesis"]) -> Sequence[str]:
    """Mix the colors of the corners in proportion to the belief; a uniform belief is gray-brown."""
    palette = np.array(
        [[int(SERIES[i % len(SERIES)][j : j + 2], 16) for j in (1, 3, 5)] for i in range(belief.shape[1])]
    )
    mixed = (np.clip(belief, 0, 1) @ palette).round().astype(int)
    return [f"rgb({red},{green},{blue})" for red, green, blue in mixed]


def _add(figure: go.Figure, **trace: object) -> None:
    figure.add_trace(go.Scatter(name=POINTS, showlegend=False, hoverinfo="skip", **trace))
