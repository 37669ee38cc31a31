"""The panels of the sweep report: entropy by position, tokens to converge, and errors with their baselines."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import LEAST_BITS, add_line, add_reference, log_baseline, log_floor
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import (
    EXACT,
    MEASURED,
    at_least,
    label_axes,
    log_axes,
    series,
)


def sweep_panels(
    varied: tuple[str, Sequence[str]],
    *,
    entropies: tuple[Float[np.ndarray, "value position"], Float[np.ndarray, "value position"]],
    tokens: tuple[Estimate, Estimate],
    errors: tuple[Estimate, Estimate],
) -> list[Panel]:
    """Draw four panels; pairs hold exact posterior and model, and `errors` holds KL and entropy error."""
    (vary, labels), (exact, model) = varied, entropies
    curves = Panel.blank("Entropy by position (exact: wide and pale)")
    steps = np.arange(1, exact.shape[1] + 1)
    for index, label in enumerate(labels):
        style = series(index)
        add_reference(curves.figure, steps, exact[index], name=f"{vary}={label}, exact", color=style["color"])
        curves.figure.data[-1].showlegend = False  # it has the color of the model's curve
        if np.isfinite(model[index]).any():
            add_line(curves.figure, steps, model[index], name=f"{vary}={label}", **style)
    label_axes(curves.figure, "scored position (1 is the first)", "entropy (bits)")
    at_least(curves.figure, LEAST_BITS)
    x, is_ordinal = _places(labels)
    converged = Panel.blank("Observations to converge")
    for own, name, color in ((tokens[0], "exact", EXACT), (tokens[1], "model", MEASURED)):
        _estimates(converged.figure, x, own, name, color)
        if name == "exact" and np.isfinite(own.value).any():
            converged.figure.data[-1].update(opacity=0.3, line_width=7)
    converged.figure.update_yaxes(rangemode="tozero")
    titles = ("KL to the exact posterior (log scale)", "Entropy error (log scale)")
    drawn = [Panel.blank(title) for title in titles]
    for panel, own in zip(drawn, errors, strict=True):
        _estimates(panel.figure, x, own, "model", MEASURED)
        floor = log_floor(own.value, np.array([baseline.value for baseline in own.baselines] or [own.value]))
        for baseline in own.baselines:
            log_baseline(panel.figure, x, baseline.value, name=f"baseline: {baseline.name}", floor=floor)
        log_axes(panel.figure, floor=floor)
    units = ("observations", "KL(exact ‖ model) (bits)", "|H model − H exact| (bits)")
    for panel, unit in zip((converged, *drawn), units, strict=True):
        label_axes(panel.figure, vary, unit)
        if is_ordinal:
            panel.figure.update_xaxes(tickvals=list(x), ticktext=list(labels))
    return [curves, converged, *drawn]


def _places(labels: Sequence[str]) -> tuple[Float[np.ndarray, " value"], bool]:
    """Return numeric values, or indices for other values, and whether they are indices."""
    try:
        return np.array([float(label) for label in labels]), False
    except ValueError:
        return np.arange(len(labels), dtype=float), True


def _estimates(figure: go.Figure, x: Float[np.ndarray, " value"], own: Estimate, name: str, color: str) -> None:
    """Add connected points with whiskers."""
    if not np.isfinite(own.value).any():
        return
    low, high = own.ends
    add_line(figure, x, own.value, name=name, color=color)
    figure.data[-1].update(
        error_y={
            "type": "data",
            "symmetric": False,
            "array": np.maximum(high - own.value, 0),
            "arrayminus": np.maximum(own.value - low, 0),
            "thickness": 1.4,
        },
    )
