"""Attention maps: a row per layer, a column per step, one color scale."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.results.captions import with_captions
from bayesgeom.results.theme import SHADES, label_axes, panels

_DIGITS = 3


def maps_figure(
    title: str,
    maps: Float[np.ndarray, "column row query_pos key_pos"],
    columns: Sequence[str],
    rows: Sequence[str],
    captions: Sequence[str],
) -> go.Figure:
    """Draw queries downward and keys to the right, counted from 1; invisible positions are 0.

    The first row does not extend the scale of colors: in a causal model it has few keys, so its weights are large.
    """
    titles = tuple(f"layer {row}, step {column}" for row in rows for column in columns)
    figure = panels(title, titles, n_columns=len(columns), row_height=300)
    for row in range(len(rows)):
        for column in range(len(columns)):
            panel = (row + 1, column + 1)
            figure.add_trace(
                go.Heatmap(
                    z=np.round(maps[column, row], _DIGITS),
                    x0=1,
                    y0=1,
                    coloraxis="coloraxis",
                    name=titles[row * len(columns) + column],
                    hovertemplate="query %{y}, key %{x}: %{z:.3f}<extra></extra>",
                ),
                row=panel[0],
                col=panel[1],
            )
            figure.update_yaxes(autorange="reversed", row=panel[0], col=panel[1])
            label_axes(figure, panel, "key position", "scored position")
    scale = {
        "colorscale": SHADES,
        "cmin": 0.0,
        "cmax": float(maps[:, :, 1:].max(initial=0.0) or maps.max()),
        "colorbar": {"title": "weight", "thickness": 12},
    }
    return with_captions(figure.update_layout(coloraxis=scale), captions)
