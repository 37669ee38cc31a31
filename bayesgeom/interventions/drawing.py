"""Panels of interventions: profiles over layers with ceiling and controls, and rows of measured values."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_line
from bayesgeom.report import BASELINE, DASHES, EXACT, MEASURED, SERIES, Estimate, Panel, label_axes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

_SYMBOLS = ("diamond-open", "x-thin-open", "square-open")


def profile_panel(title: str, y: str, effect: Estimate, bands: Sequence[str]) -> Panel:
    """Draw an effect over layers and bands with its baselines, and the ceiling at all positions.

    Only the line of all positions has a 95 % interval. The range of the first baseline, random subspaces, is a band.
    """
    panel, layers = Panel.blank(title), np.flatnonzero(np.isfinite(effect.value[:, 0]))
    figure, (random, *others) = panel.figure, effect[layers, 0].compared
    least, most = (random.value if end is None else end for end in (random.low, random.high))
    add_band(figure, layers, least, most, name=f"baseline: {random.name} (range)", color=BASELINE)
    for dash, symbol, own in zip(("dash", "solid", *DASHES[2:]), ("square", "diamond"), others, strict=False):
        if np.isfinite(level := own.bar("higher")).any():
            add_line(figure, layers, level, name=f"baseline: {own.name} (largest)", color=BASELINE, dash=dash)
            figure.data[-1].marker.update(symbol=symbol, size=8)
    add_line(figure, layers, effect.ceiling[layers, 0], name="ceiling: whole activation", color=EXACT, dash="dot")
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


def add_rows(
    figure: "Figure",
    labels: Sequence[str],
    measured: Estimate,
    marks: Mapping[str, Float[np.ndarray, " row"]],
    *,
    unit: str,
    limits: tuple[float, float],
) -> None:
    """Draw rows from top to bottom: measured values with intervals, marks such as thresholds, and baselines.

    Values outside of `limits` are drawn at their edge, and shown on hover. The axis starts at the least value that is
    drawn, at 0 if all are positive.
    """
    import plotly.graph_objects as go

    def points(values: Float[np.ndarray, " row"], name: str, **marker: object) -> "Scatter":
        return go.Scatter(
            x=values.clip(*limits),
            y=list(labels),
            mode="markers",
            marker=marker,
            name=name,
            customdata=values,
            hovertemplate="%{y}: %{customdata:.4g}<extra>" + name + "</extra>",
        )

    traces = [points(measured.value, "measured, 95 % interval", color=MEASURED, size=9)]
    low, value, high = (own.clip(*limits) for own in (measured.ends[0], measured.value, measured.ends[1]))
    ends = {"type": "data", "symmetric": False, "array": high - value, "arrayminus": value - low, "thickness": 1.4}
    traces[0].error_x = ends
    traces += [
        points(level, name, color=EXACT, symbol="line-ns-open", size=22, line_width=2)
        for name, level in marks.items()
        if np.isfinite(level).any()
    ]
    for own, symbol in zip(measured.compared, _SYMBOLS, strict=False):
        if np.isfinite(own.value).any():
            style = {"color": BASELINE, "symbol": symbol, "size": 10, "line_width": 2}
            traces.append(points(own.value, f"baseline: {own.name}", **style))
    figure.add_traces(traces)
    drawn = np.concatenate([low, value, *(trace.x for trace in traces)])
    least = min(0.0, float(drawn[np.isfinite(drawn)].min(initial=limits[1])))
    edge = 0.05 * (limits[1] - max(limits[0], least))  # room for half of a marker, also on a narrow screen
    figure.update_xaxes(range=[max(limits[0], least) - edge, limits[1] + edge])
    figure.update_yaxes(type="category", range=[len(labels) - 0.5, -0.5])
    label_axes(figure, unit, "")  # a title would lie on the rows' names
