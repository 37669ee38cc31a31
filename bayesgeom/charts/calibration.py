"""The calibration chart: entropy against position, its error beside the nulls, and single sequences."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_line, add_null
from bayesgeom.charts.theme import EXACT, MEASURED, label_axes, panels

_POSITION = "scored position (1 is the first)"


def calibration_figure(
    *,
    title: str,
    exact: Float[np.ndarray, " position"],
    model: Float[np.ndarray, " position"],
    error: Float[np.ndarray, " position"],
    error_band: tuple[Float[np.ndarray, " position"], Float[np.ndarray, " position"]],
    nulls: Mapping[str, Float[np.ndarray, " position"]],
    examples: tuple[Float[np.ndarray, "example position"], Float[np.ndarray, "example position"]],
) -> go.Figure:
    """Four panels: mean entropies, error on a log scale, and the first two example sequences."""
    x = np.arange(1, len(exact) + 1)
    titles = (
        "Entropy, mean over sequences",
        "Entropy error and its nulls (log scale)",
        "One sequence",
        "Another sequence",
    )
    figure = panels(title, titles)
    _entropies(figure, (1, 1), exact, model)
    add_band(figure, (1, 2), x, *error_band, name="95 % interval")
    add_line(figure, (1, 2), x, error, name="model")
    for name, level in nulls.items():
        add_null(figure, (1, 2), x, level, name=f"null: {name.replace('_', ' ')}")
    figure.update_yaxes(type="log", exponentformat="power", row=1, col=2)
    label_axes(figure, (1, 2), _POSITION, "|H model − H exact| (bits)")
    for column, sequence in enumerate(zip(*(values[:2] for values in examples), strict=True), start=1):
        _entropies(figure, (2, column), *sequence)
    figure.update_traces(showlegend=False)
    for trace in figure.data[:2] + tuple(t for t in figure.data if (t.name or "").startswith("null")):
        trace.showlegend = True
    return figure


def _entropies(
    figure: go.Figure,
    panel: tuple[int, int],
    exact: Float[np.ndarray, " position"],
    model: Float[np.ndarray, " position"],
) -> None:
    x = np.arange(1, len(exact) + 1)
    add_line(figure, panel, x, exact, name="exact", color=EXACT)
    add_line(figure, panel, x, model, name="model", color=MEASURED, dash="dot")
    label_axes(figure, panel, _POSITION, "entropy (bits)")
