"""Measured values and thresholds: one row each, with the interval, the threshold and the scores of baselines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.results.theme import BASELINE, EXACT, MEASURED, label_axes

_SYMBOLS = ("diamond-open", "x-thin-open", "square-open")


@final
@dataclass(frozen=True, kw_only=True)
class Rows:
    """The values to draw, row by row from top to bottom."""

    labels: tuple[str, ...]
    values: Float[np.ndarray, " row"]
    lo: Float[np.ndarray, " row"]
    hi: Float[np.ndarray, " row"]
    thresholds: Float[np.ndarray, " row"]
    baselines: Mapping[str, Float[np.ndarray, " row"]]
    threshold_name: str = "threshold"


def add_thresholds(
    figure: go.Figure, panel: tuple[int, int], rows: Rows, *, unit: str, limits: tuple[float, float]
) -> None:
    """Draw the rows; values outside of `limits` are drawn at their edge, and shown on hover.

    The axis starts at the least value that is drawn, at 0 if all are positive.
    """

    def points(values: Float[np.ndarray, " row"], name: str, **marker: object) -> go.Scatter:
        return go.Scatter(
            x=values.clip(*limits),
            y=list(rows.labels),
            mode="markers",
            marker=marker,
            name=name,
            customdata=values,
            hovertemplate="%{y}: %{customdata:.4g}<extra>" + name + "</extra>",
        )

    measured = points(rows.values, "measured, 95 % interval", color=MEASURED, size=9)
    lo, values, hi = (part.clip(*limits) for part in (rows.lo, rows.values, rows.hi))
    measured.error_x = {
        "type": "data",
        "symmetric": False,
        "array": hi - values,
        "arrayminus": values - lo,
        "thickness": 1.4,
    }
    traces = [measured]
    if np.isfinite(rows.thresholds).any():
        mark = {"color": EXACT, "symbol": "line-ns-open", "size": 22, "line_width": 2}
        traces.append(points(rows.thresholds, rows.threshold_name, **mark))
    for (name, level), symbol in zip(rows.baselines.items(), _SYMBOLS, strict=False):
        if np.isfinite(level).any():
            traces.append(points(level, f"baseline: {name}", color=BASELINE, symbol=symbol, size=10, line_width=2))
    for trace in traces:
        trace.showlegend = trace.name not in {shown.name for shown in figure.data}
        figure.add_trace(trace, row=panel[0], col=panel[1])
    drawn = np.concatenate([lo, values, *(trace.x for trace in traces)])
    least = min(0.0, float(drawn[np.isfinite(drawn)].min(initial=limits[1])))
    edge = 0.05 * (limits[1] - max(limits[0], least))  # room for half of a marker, also on a narrow screen
    figure.update_xaxes(range=[max(limits[0], least) - edge, limits[1] + edge], row=panel[0], col=panel[1])
    rows_range = {"type": "category", "range": [len(rows.labels) - 0.5, -0.5]}
    figure.update_yaxes(**rows_range, row=panel[0], col=panel[1])
    label_axes(figure, panel, unit, "")  # a title would lie on the rows' names
