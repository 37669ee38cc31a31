"""The forest plot: a row per estimate with its interval, and levels to compare it with."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.core.text import interval_text
from bayesgeom.report.panels import INTERVAL
from bayesgeom.report.theme import BASELINE, EXACT, MEASURED, PAPER, categories, escaped, label_axes, wrapped

_BESIDE = 14  # letters of a name that stands next to its row; longer ones stand above it, where they have room
_WRAPPED = 46  # letters of a line of these
_ROW, _LINE, _AXES = 22, 16, 92  # pixels: a row, a line of a name above it, the axis texts
_SYMBOLS = ("diamond-open", "x-thin-open", "square-open")


def add_forest(
    figure: go.Figure,
    labels: Sequence[str],
    values: Float[np.ndarray, " row"],
    interval: tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]],
    *,
    unit: str,
    levels: float | Mapping[str, Float[np.ndarray, " row"]] = 0.0,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> None:
    """Add rows from top to bottom in the given order; whiskers show the intervals. The panel is as high as they need.

    Args:
        figure: An empty plot.
        labels: Names of the rows.
        values: One number per row.
        interval: Its ends; NaN where there is none.
        unit: Title of the axis.
        levels: One level of all rows, as a line from edge to edge; or marks in each row by name. A name that does not
            begin with "baseline" is a threshold or a ceiling, which is a black stroke. NaN draws nothing.
        limits: Range of the axis; what lies outside is drawn at its edge and told on hover.
    """
    lo, hi = interval
    name = f"estimate, {INTERVAL}" if np.isfinite(lo).any() else "estimate"
    low, value, high = (numbers.clip(*limits) for numbers in (lo, values, hi))
    whiskers = {"type": "data", "symmetric": False, "array": high - value, "arrayminus": value - low, "thickness": 1.6}
    ends = zip(lo, hi, strict=True)
    texts = [f"{INTERVAL} {interval_text(*pair)}" if np.isfinite(pair).all() else "" for pair in ends]
    _add(figure, labels, (value, values), name, {"color": MEASURED, "size": 8}, error_x=whiskers, text=texts)
    marks = {} if isinstance(levels, float) else {k: level for k, level in levels.items() if np.isfinite(level).any()}
    for at, (mark, level) in enumerate(marks.items()):
        is_baseline = mark.startswith("baseline")
        symbol = _SYMBOLS[at % len(_SYMBOLS)] if is_baseline else "line-ns-open"
        style = {"symbol": symbol, "size": 10 if is_baseline else 16, "line": {"width": 2}}
        color = BASELINE if is_baseline else EXACT
        _add(figure, labels, (level.clip(*limits), level), mark, {"color": color, **style})
    if isinstance(levels, float) and np.isfinite(levels):
        figure.add_vline(x=levels, line={"color": BASELINE, "dash": "dash", "width": 1.5})
    figure.data[0].showlegend = bool(marks)
    figure.update_xaxes(nticks=5)  # more would be turned upright on a small screen
    _name_rows(figure, labels)
    label_axes(figure, unit, "")


def _add(
    figure: go.Figure,
    labels: Sequence[str],
    values: tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]],
    name: str,
    marker: Mapping[str, object],
    **more: object,
) -> None:
    """Add a mark per row at the first of two values; hover tells the second, which was not cut."""
    interval, name = "<br>%{text}" if "text" in more else "", escaped(name)
    figure.add_scatter(
        x=values[0],
        y=categories([*map(escaped, labels)]),
        mode="markers",
        name=name,
        marker=dict(marker),
        customdata=values[1],
        hovertemplate=f"<b>%{{y}}</b><br>{name.partition(',')[0]}: %{{customdata:.4~g}}{interval}<extra></extra>",
        **more,
    )


def _name_rows(figure: go.Figure, labels: Sequence[str]) -> None:
    """Write short names next to their rows, and long ones above them; set the height of the panel."""
    is_beside = max(map(len, labels), default=0) <= _BESIDE
    texts = [label if is_beside else wrapped(label, _WRAPPED) for label in labels]
    lines = 0 if is_beside else max((text.count("<br>") + 1 for text in texts), default=1)
    height = _ROW + _LINE * lines
    figure.layout.height = _AXES + max(3, len(labels)) * height if is_beside else _AXES + len(labels) * height
    top = -0.5 - 0.3 * (not is_beside)
    figure.update_yaxes(type="category", range=[len(labels) - 0.5, top], showgrid=is_beside, ticks="")
    if is_beside:
        figure.update_yaxes(tickmode="linear", dtick=1)
        return
    figure.update_yaxes(tickvals=[], showline=False)
    figure.layout.margin.l = 12
    for at, text in enumerate(texts):
        figure.add_annotation(
            text=text,
            x=0,
            xref="x domain",
            xanchor="left",
            y=at,
            yref="y",
            yanchor="bottom",
            yshift=8,
            showarrow=False,
            align="left",
            font={"size": 12},
            bgcolor=PAPER,
            borderpad=0,
        )
