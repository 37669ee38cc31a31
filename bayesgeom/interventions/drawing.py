"""Panels of interventions: profiles over layers with ceiling and controls, and rows of measured values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_line
from bayesgeom.interventions.design import MATCHED, RANDOM
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import BASELINE, DASHES, EXACT, MEASURED, SERIES, label_axes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

_SYMBOLS = ("diamond-open", "x-thin-open", "square-open")


def profile_panel(title: str, y: str, effect: Estimate, bands: Sequence[str]) -> Panel:
    """Draw an effect over layers and bands with its baselines, and the ceiling at all positions.

    Only the line of all positions has a 95 % interval.
    """
    panel, layers = Panel.blank(title), np.flatnonzero(np.isfinite(effect.value[:, 0]))
    figure = panel.figure
    random, matched = (effect.baseline(name) for name in (RANDOM, MATCHED))
    least, most = (random.value if end is None else end for end in (random.low, random.high))
    add_band(figure, layers, least[layers, 0], most[layers, 0], name=f"baseline: {RANDOM} (range)", color=BASELINE)
    most = matched.bar("higher")[layers, 0]
    add_line(figure, layers, most, name=f"baseline: {MATCHED} (largest)", color=BASELINE, dash="dash")
    figure.data[-1].marker.update(symbol="square", size=8)
    add_line(figure, layers, effect.ceiling[layers, 0], name="ceiling: whole activation", color=EXACT, dash="dot")
    others = (own for own in effect.compared if own.name not in (RANDOM, MATCHED))
    for dash, other in zip(("solid", *DASHES[2:]), others, strict=False):  # untrained: over all positions only
        if np.isfinite(level := other.bar("higher")[layers, 0]).any():
            add_line(figure, layers, level, name=f"baseline: {other.name}", color=BASELINE, dash=dash)
            figure.data[-1].marker.update(symbol="diamond", size=9)
    low, high = (end[layers, 0] for end in effect.ends)
    add_band(figure, layers, low, high, name=f"{bands[0]}, 95 % interval", color=MEASURED)
    for band, name in reversed(list(enumerate(bands))):
        dash, label = ("solid", f"{name} positions, 95 % interval") if band == 0 else ("dash", f"{name} of positions")
        color = (MEASURED, *SERIES)[band]
        add_line(figure, layers, effect.value[layers, band], name=label, color=color, dash=dash)
    for trace in figure.data:
        trace.showlegend = trace.fill is None or trace.name.startswith("baseline")
    figure.update_xaxes(tickmode="linear", tick0=0, dtick=1)
    label_axes(figure, "layer", y)
    return panel


@final
@dataclass(frozen=True, kw_only=True)
class Rows:
    """Measured values, thresholds and scores of baselines to draw, row by row from top to bottom."""

    labels: tuple[str, ...]
    values: Float[np.ndarray, " row"]
    lo: Float[np.ndarray, " row"]
    hi: Float[np.ndarray, " row"]
    thresholds: Float[np.ndarray, " row"]
    baselines: Mapping[str, Float[np.ndarray, " row"]]
    threshold_name: str = "threshold"


def add_thresholds(figure: "Figure", rows: Rows, *, unit: str, limits: tuple[float, float]) -> None:
    """Draw the rows; values outside of `limits` are drawn at their edge, and shown on hover.

    The axis starts at the least value that is drawn, at 0 if all are positive.
    """
    import plotly.graph_objects as go

    def points(values: Float[np.ndarray, " row"], name: str, **marker: object) -> "Scatter":
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
    figure.add_traces(traces)
    drawn = np.concatenate([lo, values, *(trace.x for trace in traces)])
    least = min(0.0, float(drawn[np.isfinite(drawn)].min(initial=limits[1])))
    edge = 0.05 * (limits[1] - max(limits[0], least))  # room for half of a marker, also on a narrow screen
    figure.update_xaxes(range=[max(limits[0], least) - edge, limits[1] + edge])
    rows_range = {"type": "category", "range": [len(rows.labels) - 0.5, -0.5]}
    figure.update_yaxes(**rows_range)
    label_axes(figure, unit, "")  # a title would lie on the rows' names
