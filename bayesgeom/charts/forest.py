"""The forest plot: one row per estimate with its interval, and the baseline as a vertical line."""

import textwrap
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.report import BASELINE, MEASURED, label_axes

_LABEL = 32  # letters of a line of a label


def add_forest(
    figure: go.Figure,
    labels: Sequence[str],
    values: Float[np.ndarray, " row"],
    interval: tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]],
    *,
    unit: str,
    baseline: float | None,
) -> None:
    """Add rows from top to bottom in the given order; whiskers show the intervals. None draws no baseline."""
    lo, hi = interval
    figure.add_trace(
        go.Scatter(
            x=values,
            y=list(labels),
            mode="markers",
            marker={"color": MEASURED, "size": 7},
            name="estimate, 95 % interval" if np.isfinite(lo).any() else "estimate",
            error_x={
                "type": "data",
                "symmetric": False,
                "array": hi - values,
                "arrayminus": values - lo,
                "thickness": 1.4,
            },
        )
    )
    if baseline is not None:
        figure.add_trace(
            go.Scatter(
                x=[baseline, baseline],
                y=[labels[0], labels[0]],
                mode="lines",
                line={"color": BASELINE, "dash": "dash"},
                name=f"baseline: {baseline:g}",
            )
        )
        # The trace above is for the legend; the line itself spans the whole height of the panel.
        figure.add_vline(x=baseline, line={"color": BASELINE, "dash": "dash"})
    every = {"tickfont_size": 13 if len(labels) < 12 else 11, "range": [len(labels) - 0.5, -0.5], **_ticks(labels)}
    figure.update_yaxes(type="category", **every)
    figure.update_xaxes(nticks=5)  # more would be turned upright on a small screen
    label_axes(figure, unit, "")


def _ticks(labels: Sequence[str]) -> dict[str, object]:
    """Return one tick per row, with long labels on several lines: on a small screen they take the room of the plot."""
    if max(map(len, labels), default=0) <= _LABEL:
        return {"tickmode": "linear", "dtick": 1}
    return {"tickvals": list(labels), "ticktext": ["<br>".join(textwrap.wrap(label, _LABEL)) for label in labels]}
