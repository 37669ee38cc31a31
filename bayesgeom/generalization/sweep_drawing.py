"""The figure of the sweep report: entropy by position, tokens to converge, and errors with their baselines."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import LEAST_BITS, add_line, add_reference, log_baseline, log_floor
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.theme import (
    EXACT,
    MEASURED,
    at_least,
    label_axes,
    log_axes,
    name_once,
    panels,
    series,
    with_room_for_legend,
)


def sweep_figure(
    title: str,
    varied: tuple[str, Sequence[str]],
    *,
    entropies: tuple[Float[np.ndarray, "value position"], Float[np.ndarray, "value position"]],
    tokens: tuple[Estimate, Estimate],
    errors: tuple[Estimate, Estimate],
) -> go.Figure:
    """Draw four panels; pairs hold exact posterior and model, and `errors` holds KL and entropy error."""
    vary, labels = varied
    titles = (
        "Entropy by position (exact: wide and pale)",
        "Observations to converge",
        "KL to the exact posterior (log scale)",
        "Entropy error (log scale)",
    )
    figure = panels(title, titles)
    exact, model = entropies
    steps = np.arange(1, exact.shape[1] + 1)
    for index, label in enumerate(labels):
        style = series(index)
        add_reference(figure, (1, 1), steps, exact[index], name=f"{vary}={label}, exact", color=style["color"])
        if np.isfinite(model[index]).any():
            add_line(figure, (1, 1), steps, model[index], name=f"{vary}={label}", **style)
    label_axes(figure, (1, 1), "scored position (1 is the first)", "entropy (bits)")
    figure.for_each_trace(_only_models_listed)
    at_least(figure, (1, 1), LEAST_BITS)
    x, is_ordinal = _places(labels)
    for own, name, color in ((tokens[0], "exact", EXACT), (tokens[1], "model", MEASURED)):
        _estimates(figure, (1, 2), x, own, name, color)
        if name == "exact" and np.isfinite(own.value).any():
            figure.data[-1].update(opacity=0.3, line_width=7)
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    for column, own in enumerate(errors, start=1):
        _estimates(figure, (2, column), x, own, "model", MEASURED)
        floor = log_floor(own.value, np.array([baseline.value for baseline in own.baselines] or [own.value]))
        for baseline in own.baselines:
            log_baseline(figure, (2, column), x, baseline.value, name=f"baseline: {baseline.name}", floor=floor)
        log_axes(figure, (2, column), floor=floor)
    units = ("observations", "KL(exact ‖ model) (bits)", "|H model − H exact| (bits)")
    for panel, unit in zip(((1, 2), (2, 1), (2, 2)), units, strict=True):
        label_axes(figure, panel, vary, unit)
        if is_ordinal:
            figure.update_xaxes(tickvals=list(x), ticktext=list(labels), row=panel[0], col=panel[1])
    name_once(figure)
    return with_room_for_legend(figure)


def _only_models_listed(trace: go.Scatter) -> None:
    """Hide the exact curves in the legend: they have the colors of the model's curves."""
    if (trace.name or "").endswith(", exact"):
        trace.showlegend = False


def _places(labels: Sequence[str]) -> tuple[Float[np.ndarray, " value"], bool]:
    """Return numeric values, or indices for other values, and whether they are indices."""
    try:
        return np.array([float(label) for label in labels]), False
    except ValueError:
        return np.arange(len(labels), dtype=float), True


def _estimates(
    figure: go.Figure, panel: tuple[int, int], x: Float[np.ndarray, " value"], own: Estimate, name: str, color: str
) -> None:
    """Add connected points with whiskers; each name appears once in the legend."""
    if not np.isfinite(own.value).any():
        return
    low, high = own.ends
    seen = {trace.name for trace in figure.data if trace.showlegend is not False}
    add_line(figure, panel, x, own.value, name=name, color=color)
    figure.data[-1].update(
        showlegend=name not in seen,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": np.maximum(high - own.value, 0),
            "arrayminus": np.maximum(own.value - low, 0),
            "thickness": 1.4,
        },
    )
