"""Heat maps: numbers by layer and head, shares by task and model, attention; a cell of the baseline is as the page."""

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_note
from bayesgeom.core import number_text
from bayesgeom.report import ABOVE, BELOW, INKS, SHADES, label_axes

_MOST_COLUMNS, _MOST_ROWS = 8, 13  # of cells that have room for their numbers, also on a small screen
_ROW, _NAMED_ROW, _AXES, _MOST_HEIGHT = 27, 60, 92, 340  # pixels: a row of cells, the axis texts, a whole panel
_PART = 0.05  # of the range: values that lie less beyond the baseline get no colors of their own
_DEEP = 0.75  # of a scale: from here on the text of a cell is in the other ink


def add_heat(
    figure: go.Figure,
    values: Float[np.ndarray, "row column"],
    *,
    unit: str,
    baseline: float = math.nan,
    names: tuple[Sequence[str] | range, Sequence[str] | range] | None = None,
    axes: tuple[str, str] = ("head", "layer"),
    limits: tuple[float, float] | None = None,
) -> None:
    """Add cells whose color is the distance from the baseline: blue shades, or orange above and purple below it.

    Up to 8 × 13 cells hold their numbers; more have a color bar. The panel is as high as its rows need.

    Args:
        figure: An empty plot.
        values: The numbers; NaN leaves a cell blank.
        unit: What they are, for hover and color bar.
        baseline: The level that has the color of the page. Default: the least value.
        names: Names or numbers of the rows, from the top, and of the columns. Default: from 0, rows upward.
        axes: Titles of x and y.
        limits: Range of the colors, which are clipped there. Default: that of the values and the baseline.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        add_note(figure, "not defined here")
        return
    low, high = limits or (float(np.nanmin([known.min(), baseline])), float(np.nanmax([known.max(), baseline])))
    scale, low, high, page = _scale(low, high, baseline)
    rows, columns = names or (range(len(values)), range(values.shape[1]))
    has_numbers = len(columns) <= _MOST_COLUMNS and len(rows) <= _MOST_ROWS
    figure.add_trace(
        go.Heatmap(
            z=values,
            x=list(columns),
            y=list(rows),
            zmin=low,
            zmax=high,
            xgap=1.5 * has_numbers,
            ygap=1.5 * has_numbers,
            colorscale=scale,
            showscale=not has_numbers,
            name=unit,
            hoverongaps=False,
            hovertemplate=f"{axes[1]} %{{y}}, {axes[0]} %{{x}}<br>{unit}: %{{z:.4~g}}<extra></extra>",
            colorbar=None if has_numbers else {"thickness": 11, "outlinewidth": 0, "nticks": 5, "tickformat": ".3~g"},
        )
    )
    if has_numbers:
        depth = np.abs(values - page) / max(high - page, page - low)
        _add_numbers(figure, values, (rows, columns), depth, digits=_digits(known) if names is None else 4)
    for update, own in ((figure.update_xaxes, columns), (figure.update_yaxes, rows)):
        first, last = (own[0], own[-1]) if isinstance(own, range) else (0, len(own) - 1)
        is_turned = own is rows and names is not None
        update(showgrid=False, ticks="", range=[last + 0.5, first - 0.5] if is_turned else [first - 0.5, last + 0.5])
        if isinstance(own, range):
            update(tickmode="linear", tick0=0, dtick=-(-len(own) // 8))
    row, most = (_ROW, _MOST_HEIGHT) if isinstance(rows, range) else (_NAMED_ROW, math.inf)
    figure.layout.height = min(_AXES + row * max(2, len(rows)), most)
    label_axes(figure, f"{axes[0]} ({'cells' if has_numbers else 'color'}: {unit})", axes[1])


def _scale(low: float, high: float, baseline: float) -> tuple[list[tuple[float, str]], float, float, float]:
    """Return a scale of colors, the values at both of its ends, and the one that has the color of the page."""
    high = max(high, low + 1e-9 + 1e-6 * abs(low))
    if np.isnan(baseline) or baseline - low <= _PART * (high - low):
        low = low if np.isnan(baseline) else baseline
        return list(SHADES), low, high, low
    if high - baseline <= _PART * (high - low):
        return [(1 - place, color) for place, color in reversed(BELOW)], low, baseline, baseline
    reach = max(high - baseline, baseline - low)
    below = [(0.5 - place / 2, color) for place, color in reversed(BELOW)]
    above = [(0.5 + place / 2, color) for place, color in ABOVE[1:]]
    return below + above, baseline - reach, baseline + reach, baseline


def _add_numbers(
    figure: go.Figure,
    values: Float[np.ndarray, "row column"],
    names: tuple[Sequence[str] | range, Sequence[str] | range],
    depth: Float[np.ndarray, "row column"],
    *,
    digits: int,
) -> None:
    """Write each number into its cell, in the ink that can be read on its color in light and in dark mode."""
    rows, columns = names
    figure.add_trace(  # a heat map's own text is hard to read
        go.Scatter(
            x=[name for _ in rows for name in columns],
            y=[name for name in rows for _ in columns],
            text=["–" if np.isnan(own) else _cell_text(own, digits) for own in map(float, values.flat)],
            mode="text",
            textfont={"size": 12, "color": [INKS[int(own >= _DEEP)] for own in depth.flat]},
            name="cells",
            hoverinfo="skip",
            showlegend=False,
        )
    )


def _digits(known: Float[np.ndarray, " value"]) -> int:
    """Return how many decimals show two significant digits of the largest number."""
    reach = float(np.abs(known).max()) or 1.0
    return min(max(1 - math.floor(math.log10(reach)), 2 * (reach <= 1)), 6) if reach < 10 else 0


def _cell_text(value: float, digits: int) -> str:
    """Return a number with so many decimals; the sign of one that is rounded to 0 is noise."""
    text = number_text(round(value, digits))
    return "≈ 0" if value and text in ("0", "−0") else text
