"""Curves over training: lines with interval bands, gray levels, and optionally a log axis of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Real

from bayesgeom.charts.lines import add_baseline, add_line, add_reference
from bayesgeom.report.theme import EXACT, MEASURED, SERIES, label_axes


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """One number over steps, with an optional band. Without `color` it takes the next color of the series.

    A curve that is alone in its panel and has no color is drawn in that of measured numbers.
    """

    name: str
    values: Float[np.ndarray, " step"]
    band: tuple[Float[np.ndarray, " step"], Float[np.ndarray, " step"]] | None = None
    color: str = ""


def add_curves(
    figure: go.Figure,
    steps: Real[np.ndarray, " step"],
    curves: Sequence[Curve],
    *,
    unit: str,
    levels: Sequence[tuple[str, float | Float[np.ndarray, " step"]]] = (),
    log_steps: bool = False,
) -> None:
    """Add constant or varying levels in gray, and curves in the colors of the series.

    On a log axis step 0 is drawn at half of the next step, with the tick label 0.
    """
    x = np.asarray(steps, dtype=float)
    if log_steps:
        x = np.where(x > 0, x, np.min(x[x > 0]) / 2) if (x > 0).any() else np.ones_like(x)
    for label, level in levels:
        if np.isfinite(level).any():
            add_baseline(figure, x, level, name=label)
    for next_color, curve in zip(SERIES if len(curves) > 1 else (MEASURED,), curves, strict=False):
        color = curve.color or next_color
        if color == EXACT:  # a limit: lines that coincide with it are seen on it
            add_reference(figure, x, curve.values, name=curve.name)
        else:
            add_line(figure, x, curve.values, name=curve.name, color=color, band=curve.band)
    label_axes(figure, "training step", unit)
    if log_steps:
        powers = [10.0**k for k in range(13) if x.min() <= 10.0**k <= x.max()]
        start = [float(x[0])] if steps[0] == 0 else []
        labels = ["0"] * len(start) + [f"{int(power):,}" for power in powers]
        figure.update_xaxes(type="log", tickvals=[*start, *powers], ticktext=labels)
        for trace in (trace for trace in figure.data if not trace.fill):
            trace.text = [f"{step:,}" for step in np.asarray(steps).tolist()]  # told on hover
