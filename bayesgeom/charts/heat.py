"""Heat maps: numbers by layer and head, shares by task and model, attention; a cell of the baseline is as the page."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_note
from bayesgeom.core import number_text
from bayesgeom.report.theme import ABOVE, BELOW, INKS, SHADES, categories, escaped, label_axes, wrapped

_MOST_LETTERS, _MOST_ROWS = 40, 13  # of a row of cells, and rows, in which numbers have room on a small screen
_ROW, _LINE, _AXES, _MOST_HEIGHT = 27, 16, 92, 340  # pixels: a row of cells, a line more, the axis texts, a panel
_PART = 0.05  # of the range: values that lie less beyond the baseline get no colors of their own
_NAME = 22  # letters of a line of a row's name
_ACROSS = 46  # letters of all columns and of a row's name, side by side on a small screen
_MOST_NAMES = 12  # of columns that share them
_KEY = 24  # letters of a line of the names of numbered columns
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

    Cells hold their numbers where these have room on a small screen; else there is a color bar. The panel is as high as
    its rows need.

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
    rows = rows if isinstance(rows, range) else categories([wrapped(name, _NAME) for name in rows])
    columns, ticks, key = (columns, (), "") if isinstance(columns, range) else _column_names(columns, rows)
    across, down, what = map(escaped, (*axes, unit))
    texts = [_cell_text(value, _digits(known) if names is None else 4) for value in map(float, values.flat)]
    has_numbers = len(columns) * max(map(len, texts)) <= _MOST_LETTERS and len(rows) <= _MOST_ROWS
    figure.add_heatmap(
        z=values,
        x=list(columns),
        y=list(rows),
        zmin=low,
        zmax=high,
        xgap=1.5 * has_numbers,
        ygap=1.5 * has_numbers,
        colorscale=scale,
        showscale=not has_numbers,
        name=what,
        hoverongaps=False,
        hovertemplate=f"{down} %{{y}}, {across} %{{x}}<br>{what}: %{{z:.4~g}}<extra></extra>",
        colorbar=None if has_numbers else {"thickness": 11, "outlinewidth": 0, "nticks": 5, "tickformat": ".3~g"},
    )
    if has_numbers:
        _add_texts(figure, texts, (rows, columns), np.abs(values - page) / max(high - page, page - low))
    _set_axis(figure.layout.xaxis, columns, ticks)
    _set_axis(figure.layout.yaxis, rows, is_turned=names is not None)
    label_axes(figure, f"{axes[0]} ({'cells' if has_numbers else 'color'}: {unit})", axes[1])
    figure.layout.xaxis.title.text += key
    figure.layout.height = _height(rows) + _LINE * max(name.count("<br>") for name in (key, *ticks))


def _column_names(names: Sequence[str], rows: Sequence[str] | range) -> tuple[Sequence[str], Sequence[str], str]:
    """Return places of columns, ticks that fit a small screen beside the rows, and the names that ticks only number.

    Names wrap; those with a word that is too long are numbered. More columns than `_MOST_NAMES` have plotly's ticks.
    """
    beside = 2 if isinstance(rows, range) else max(len(line) for name in rows for line in name.split("<br>"))
    letters = max(1, (_ACROSS - beside) // len(names))
    if len(names) > _MOST_NAMES:
        return categories([escaped(name) for name in names]), (), ""
    lines = [textwrap.wrap(name, letters, break_long_words=False) or [""] for name in names]
    places = categories(["<br>".join(map(escaped, own)) for own in lines])
    if max(len(line) for own in lines for line in own) <= letters:
        return places, places, ""
    numbered = [name if name.startswith(f"{at} ") else f"{at}\u00a0{name}" for at, name in enumerate(names, start=1)]
    return places, [str(at) for at in range(1, len(names) + 1)], f"<br>{wrapped('; '.join(numbered), _KEY)}"


def _set_axis(axis: Any, names: Sequence[str] | range, ticks: Sequence[str] = (), *, is_turned: bool = False) -> None:
    """Set the range of an axis around its cells, its ticks, and at most eight at numbers."""
    first, last = (names[0], names[-1]) if isinstance(names, range) else (0, len(names) - 1)
    ends = [last + 0.5, first - 0.5] if is_turned else [first - 0.5, last + 0.5]
    axis.update(showgrid=False, ticks="", range=ends)
    if isinstance(names, range):
        axis.update(tickmode="linear", tick0=0, dtick=-(-len(names) // 8))
    else:
        axis.type = "category"  # plotly would take names such as "10", "2 3" and 2026-11-01 for numbers and dates
    if ticks:
        axis.update(tickvals=list(range(len(ticks))), ticktext=ticks, tickangle=0)


def _height(rows: Sequence[str] | range) -> float:
    """Return the height of a panel: rows are as high as the longest of their names; many numbered rows are lower."""
    if isinstance(rows, range):
        return min(_AXES + _ROW * max(2, len(rows)), _MOST_HEIGHT)
    return _AXES + max(2, len(rows)) * (_ROW + _LINE * max(name.count("<br>") for name in rows))


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


def _add_texts(
    figure: go.Figure,
    texts: Sequence[str],
    names: tuple[Sequence[str] | range, Sequence[str] | range],
    depth: Float[np.ndarray, "row column"],
) -> None:
    """Write each text into its cell, in the ink that can be read on its color in light and in dark mode."""
    rows, columns = names
    figure.add_scatter(  # a heat map's own text is hard to read
        x=[name for _ in rows for name in columns],
        y=[name for name in rows for _ in columns],
        text=list(texts),
        mode="text",
        textfont={"size": 11, "color": [INKS[int(level >= _DEEP)] for level in depth.flat]},
        name="cells",
        hoverinfo="skip",
        showlegend=False,
    )


def _digits(known: Float[np.ndarray, " value"]) -> int:
    """Return how many decimals show two significant digits of the largest number."""
    reach = float(np.abs(known).max()) or 1.0
    return min(max(1 - math.floor(math.log10(reach)), 2 * (reach <= 1)), 6) if reach < 10 else 0


def _cell_text(value: float, digits: int) -> str:
    """Return a number with so many decimals, or a dash for NaN; the sign of one that is rounded to 0 is noise."""
    text = number_text(round(value, digits))
    return "≈ 0" if value and text in ("0", "−0") else text
