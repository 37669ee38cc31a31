"""The simplex of beliefs in the plane: a corner per hypothesis, a point per belief, colored by what it believes.

Three hypotheses make a triangle, more of them a regular polygon. The same color in two panels is the same exact
belief, so that a read-out is right where it puts each color at the same place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.results.theme import EXACT, NULL, SERIES
from bayesgeom.stats.polygon import MAX_CORNERS, corners, placed

POINTS = "beliefs"  # the name of what is drawn here, which needs no legend


@final
@dataclass(frozen=True, kw_only=True)
class Simplex:
    """One panel: where `placed` puts the points whose exact beliefs are `belief`; `note` is said where there are none.

    `placed` may stick out: a linear read-out knows nothing of 0 and 1.
    """

    title: str
    placed: Float[np.ndarray, "point hypothesis"]
    belief: Float[np.ndarray, "point hypothesis"]
    note: str = "not measured"


def add_simplex(figure: go.Figure, panel: tuple[int, int], simplex: Simplex) -> None:
    """Outline, corners and points in one panel of a grid; its axes mean nothing and are hidden."""
    places = {"row": panel[0], "col": panel[1]}
    n = simplex.placed.shape[1]
    drawn = np.isfinite(simplex.placed).all(axis=1)
    if n < 2 or n > MAX_CORNERS or not drawn.any():
        text = simplex.note if n <= MAX_CORNERS else f"{n} hypotheses are too many corners to draw"
        _add(figure, places, x=[0], y=[0], mode="text", text=[text], textfont={"color": NULL})
    else:
        edge = corners(n)
        closed = np.concatenate([edge, edge[:1]])
        _add(figure, places, x=closed[:, 0], y=closed[:, 1], mode="lines", line={"color": NULL, "width": 1})
        at = placed(simplex.placed[drawn])
        marker = {"size": 3.5, "opacity": 0.8, "color": belief_colors(simplex.belief[drawn])}
        _add(figure, places, x=at[:, 0], y=at[:, 1], mode="markers", marker=marker)
        names = [str(i) for i in range(n)]
        out = 1.12 * edge
        _add(figure, places, x=out[:, 0], y=out[:, 1], mode="text", text=names, textfont={"color": EXACT})
    hidden = {"visible": False, **places}
    lowest = -0.5 if n == 3 else -1.0
    figure.update_xaxes(range=[-1.4, 1.4], **hidden)
    figure.update_yaxes(range=[lowest - 0.22, 1.22], scaleanchor=figure.data[-1].xaxis or "x", **hidden)


def belief_colors(belief: Float[np.ndarray, "point hypothesis"]) -> Sequence[str]:
    """Each corner has its color; a belief mixes them by its shares, so that indifference is grey-brown."""
    palette = np.array(
        [[int(SERIES[i % len(SERIES)][j : j + 2], 16) for j in (1, 3, 5)] for i in range(belief.shape[1])]
    )
    mixed = (np.clip(belief, 0, 1) @ palette).round().astype(int)
    return [f"rgb({red},{green},{blue})" for red, green, blue in mixed]


def _add(figure: go.Figure, places: dict[str, int], **trace: object) -> None:
    figure.add_trace(go.Scatter(name=POINTS, showlegend=False, hoverinfo="skip", **trace), **places)
