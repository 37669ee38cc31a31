"""Curves over training: lines with interval bands, gray levels, and optionally a log axis of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Real

from bayesgeom.charts.lines import add_band, add_baseline, add_line, add_reference
from bayesgeom.report import DASHES, EXACT, MEASURED, SERIES, label_axes

_CROWDED = 30  # with more points, markers would hide the line


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
    """Add curves in the colors of the series, and constant or varying levels in gray.

    On a log axis step 0 is drawn at half of the next step, with the tick label 0.
    """
    x = _placed(steps) if log_steps else np.asarray(steps, dtype=float)
    colors = SERIES if len(curves) > 1 else (MEASURED,)
    for next_color, curve in zip(colors, curves, strict=False):
        color = curve.color or next_color
        if curve.band is not None and np.isfinite(curve.band).all(axis=0).any():
            add_band(figure, x, *curve.band, name=f"{curve.name}, 95 % interval", color=color)
            figure.data[-1].showlegend = False
        if color == EXACT:  # under the lines that it limits: they may coincide
            add_reference(figure, x, curve.values, name=curve.name)
        else:
            add_line(figure, x, curve.values, name=curve.name, color=color)
            figure.data[-1].mode = "lines" if len(x) > _CROWDED else "lines+markers"
    for dash, (label, level) in zip(DASHES, levels, strict=False):
        if np.isfinite(level).any():
            add_baseline(figure, x, level, name=label)
            figure.data[-1].line.dash = dash
    label_axes(figure, "training step", unit)
    if log_steps:
        figure.update_xaxes(type="log", **_ticks(steps, x))


def _placed(steps: Real[np.ndarray, " step"]) -> Float[np.ndarray, " step"]:
    """Return steps with 0 replaced by a positive value, for a log axis."""
    x = np.asarray(steps, dtype=float)
    return np.where(x > 0, x, np.min(x[x > 0]) / 2) if (x > 0).any() else np.ones_like(x)


def _ticks(steps: Real[np.ndarray, " step"], x: Float[np.ndarray, " step"]) -> dict[str, list[float] | list[str]]:
    """Return ticks at powers of ten in the range, and 0 at its drawn place."""
    powers = [10.0**k for k in range(13) if x.min() <= 10.0**k <= x.max()]
    start = [float(x[0])] if steps[0] == 0 else []
    labels = ["0"] * len(start) + [f"{int(p):,}" for p in powers]
    return {"tickvals": [*start, *powers], "ticktext": labels}
