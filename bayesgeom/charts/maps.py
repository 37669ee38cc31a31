"""Attention maps: one for each layer and step, with one color scale."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.report import SHADES, Panel, label_axes

_DIGITS = 3


def map_panels(
    maps: Float[np.ndarray, "column row query_pos key_pos"],
    columns: Sequence[str],
    rows: Sequence[str],
    notes: Float[np.ndarray, "column row"],
) -> list[Panel]:
    """Draw queries downward and keys to the right, counted from 1; invisible positions are 0.

    The first row of a map does not extend the scale of colors: in a causal model it has few keys, so its weights are
    large. `notes` are the largest weights of a row.
    """
    most, drawn = float(maps[:, :, 1:].max(initial=0.0) or maps.max()), list[Panel]()
    for row, layer in enumerate(rows):
        for column, step in enumerate(columns):
            title = f"layer {layer}, step {step}"
            panel = Panel.blank(title, height=300, note=f"Largest weight of a row: {notes[column, row]:.3g}")
            panel.figure.add_trace(
                go.Heatmap(
                    z=np.round(maps[column, row], _DIGITS),
                    x0=1,
                    y0=1,
                    zmin=0.0,
                    zmax=most,
                    colorscale=SHADES,
                    colorbar={"title": "weight", "thickness": 12},
                    name=title,
                    hovertemplate="query %{y}, key %{x}: %{z:.3f}<extra></extra>",
                )
            )
            panel.figure.update_yaxes(autorange="reversed")
            label_axes(panel.figure, "key position", "scored position")
            drawn.append(panel)
    return drawn
