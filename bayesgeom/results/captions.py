"""Captions of panels: what a panel shows, in numbers that are read from its own traces.

A report states the caption of a panel itself where it has a better sentence (`with_captions`).
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.core.text import interval_text, number_text
from bayesgeom.results.theme import BASELINE, EXACT, axis_id, entries, rgb

_SERIES_LISTED, _LISTED = 3, 4  # with more series, the least and the greatest are named; of baselines
_CAPTIONS, _SHOWN = "captions", "n_shown"
_PREFIX, _INTERVAL, _ALONE = "baseline: ", "95 % interval", "; each interval is of one row alone"


def with_captions(figure: go.Figure, captions: Sequence[str], *, n_shown: int = 0) -> go.Figure:
    """Return the same figure with captions of its panels, in their order; "" keeps the caption read from the traces.

    Args:
        figure: The figure.
        captions: A sentence per panel; panels beyond the last one keep theirs.
        n_shown: Number of panels that pages show at once; others are folded below them. 0 shows all.
    """
    return figure.update_layout(meta={**(figure.layout.meta or {}), _CAPTIONS: list(captions), _SHOWN: n_shown})


def n_shown(figure: go.Figure) -> int:
    """Return the number of panels that pages show at once; 0 for all."""
    return int((figure.layout.meta or {}).get(_SHOWN, 0))


def caption_of(figure: go.Figure, axis: str) -> str:
    """Return the caption of the panel with this x axis, such as "x2"; "" if its traces state no numbers."""
    places = [axis_id(x) for x in figure.select_xaxes()]
    return stated_caption(figure, places.index(axis)) or _read(figure, axis)


def stated_caption(figure: go.Figure, index: int) -> str:
    """Return the caption that a report states for a panel; "" for none."""
    stated = (figure.layout.meta or {}).get(_CAPTIONS, ())
    return plain(stated[index]) if index < len(stated) else ""


def _read(figure: go.Figure, axis: str) -> str:
    listed = {name for names in entries(figure).values() for name in names}
    traces = [trace for trace in figure.data if (trace.xaxis or "x") == axis]
    x = figure.layout[f"xaxis{axis[1:]}"]
    y = figure.layout[f"yaxis{(x.anchor or 'y')[1:]}"]
    titles = _title(x), _title(y)
    cells = [trace for trace in traces if trace.type == "heatmap" and trace.z is not None]
    if cells:
        return _of_cells(cells[0], titles, _color_title(x))
    points = [t for t in traces if t.type == "scatter" and t.name and t.x is not None and t.y is not None and len(t.y)]
    rows = [trace for trace in points if trace.mode == "markers" and isinstance(trace.y[0], str)]
    if rows:
        return _of_rows(rows, [trace for trace in points if trace not in rows], titles[0])
    lines = [t for t in points if "lines" in str(t.mode) and not t.fill and t.name in listed]
    bands = [trace for trace in points if trace.fill and _INTERVAL in trace.name]
    return _of_lines(lines, bands, titles, dict(zip(x.tickvals or (), x.ticktext or (), strict=False)))


def _of_cells(trace: Any, titles: tuple[str, str], unit: str) -> str:
    """Return the greatest and the least cell of a map, and the baseline that its color bar marks."""
    ticks = [str(text) for text in trace.colorbar.ticktext or ()]
    cells = np.asarray(trace.z, dtype=float)
    if not np.isfinite(cells).any():
        return ""

    def cell(at: int) -> str:
        row, column = map(int, np.unravel_index(at, cells.shape))
        places = ((trace.y, trace.y0, row, titles[1]), (trace.x, trace.x0, column, titles[0]))
        return f"{number_text(cells[row, column])} ({', '.join(_place(*place) for place in places)})"

    level = next((tick.split(" ")[0] for tick in ticks if "baseline" in tick), "")
    ends = f"{_capital(unit)}: largest " if unit else "Largest: "
    ends += cell(int(np.nanargmax(cells)))
    if np.isfinite(cells).sum() > 1:
        ends += f", smallest {cell(int(np.nanargmin(cells)))}"
    return f"{ends}; baseline {level}." if level else f"{ends}."


def _place(names: Any, first: Any, index: int, title: str) -> str:
    """Return the name of a row or a column."""
    name = names[index] if names is not None else (first or 0) + index
    return plain(name) if isinstance(name, str) else f"{title} {name}".strip()


def _of_rows(rows: Sequence[Any], levels: Sequence[Any], unit: str) -> str:
    """Return the row farthest from the baseline, with its interval if it is the only one, and how many lie beyond."""
    measured = next((trace for trace in rows if _color(trace) not in (BASELINE, EXACT)), rows[0])
    values = _along(measured)
    if not np.isfinite(values).any():
        return ""
    line = next((float(t.x[0]) for t in levels if _color(t) == BASELINE), np.nan)
    at = int(np.nanargmax(values if np.isnan(line) else np.abs(values - line)))
    first = "Measured" if len(values) == 1 else "Largest" if at == np.nanargmax(values) else "Largest in size"
    label, drawn, error = measured.y[at], np.asarray(measured.x, dtype=float), measured.error_x
    known = error.array is not None
    low = drawn - np.asarray(error.arrayminus, dtype=float) if known else np.full(len(drawn), np.nan)
    high = drawn + np.asarray(error.array, dtype=float) if known else low
    text = f"{first}: {plain(label)}, {number_text(values[at])}"
    text += _interval(low[at], high[at]) if len(values) == 1 else _ALONE * bool(np.isfinite(low).any())
    others = [t for t in rows if t is not measured and np.isfinite(np.asarray(t.x, dtype=float)[at])]
    if others:
        at_rows = (_along(t)[at] for t in others)
        text += "; " + ", ".join(f"{_name(t)} {number_text(value)}" for t, value in zip(others, at_rows, strict=True))
    if np.isfinite(line) and np.isfinite(low).any():
        above, below = int((low > line).sum()), int((high < line).sum())
        found = [f"{n} {side}" for n, side in ((above, "above"), (below, "below")) if n] or ["none beyond"]
        text += f". Of {int(np.isfinite(low).sum())} intervals, {' and '.join(found)} the baseline {number_text(line)}"
    return f"{_capital(unit)}. {text}." if unit else f"{text}."


def _along(trace: Any) -> Float[np.ndarray, " row"]:
    """Return the values of rows, also those that are drawn at the edge of a panel."""
    stored = np.empty(0) if trace.customdata is None else np.asarray(trace.customdata)
    return np.asarray(stored if stored.ndim == 1 and len(stored) else trace.x, dtype=float)


def _of_lines(lines: Sequence[Any], bands: Sequence[Any], titles: tuple[str, str], ticks: dict[Any, Any]) -> str:
    """Return the last values of measured lines, with interval, and those of the gray and black lines there."""
    # A wide pale line is a reference in the color of its series.
    measured = [t for t in lines if _color(t) not in (BASELINE, EXACT) and not (t.opacity or 1) < 1]
    known = [(t, last) for t in measured if (last := _last(t)) is not None]
    if not known:
        return ""
    x, y = titles
    end = max(last[0] for _, last in known)
    ended = [t for t, last in sorted(known, key=lambda own: own[1][1]) if last[0] == end]
    axis, comma, condition = x.partition(",")  # "number of clusters k, last layer"
    where = f"{axis}{' =' if '/' in axis else ''} {_tick(end, ticks)}{comma}{condition}".strip()
    levels_text = _levels([t for t in lines if _color(t) in (BASELINE, EXACT)], end, _level(ended[0], end))
    if len(ended) == 1:
        name = f"{_name(ended[0])} " if _name(ended[0]).lower() not in y.lower() else ""
        return f"{_capital(y)} at {where}: {name}{_value(ended[0], end, bands)}{levels_text}."
    values = {_name(t): _value(t, end, bands) for t in measured if t in ended}
    if len(values) <= _SERIES_LISTED:
        return f"{_capital(y)} at {where}: {', '.join(_pairs(values))}{levels_text}."
    ends = _pairs({_name(t): _value(t, end, bands) for t in (ended[0], ended[-1])})
    return f"{_capital(y)} at {where}: from {' to '.join(ends)}{levels_text}."


def _levels(lines: Sequence[Any], at: float, value: float) -> str:
    """Return the gray and black levels at a place that are nearest to a value, those of the same name as a range."""
    found: dict[str, list[float]] = {}
    for trace in lines:
        if np.isfinite(level := _level(trace, at)):
            found.setdefault(_name(trace), []).append(level)
    nearest = sorted(found, key=lambda name: min(abs(own - value) for own in found[name]))[:_LISTED]
    found = {name: own for name, own in found.items() if name in nearest}
    texts = {name: " to ".join(dict.fromkeys(map(number_text, (min(own), max(own))))) for name, own in found.items()}
    unnamed = [name for name, text in texts.items() if text in name]  # "threshold 0.01 bits"
    texts_of_levels = [*_pairs({name: text for name, text in texts.items() if name not in unnamed}), *unnamed]
    return f"; {', '.join(texts_of_levels)}" if texts_of_levels else ""


def _pairs(values: Mapping[str, str]) -> list[str]:
    """Return names and values, also where a name ends with a number."""
    between = " = " if any(name[-1:].isdigit() for name in values) else " "
    return [f"{name}{between}{value}" for name, value in values.items()]


def _value(trace: Any, at: float, bands: Iterable[Any]) -> str:
    """Return the value of a line at a place, with its interval if a band or whiskers show one."""
    index = int(np.flatnonzero(np.asarray(trace.x, dtype=float) == at)[0])
    value, low, high = float(trace.y[index]), np.nan, np.nan
    if trace.error_y.array is not None:
        low, high = value - trace.error_y.arrayminus[index], value + trace.error_y.array[index]
    red, green, blue = rgb(_color(trace)) if _color(trace).startswith("#") else (0, 0, 0)
    for band in bands:
        if str(band.fillcolor).startswith(f"rgba({red},{green},{blue},"):
            ends = np.asarray(band.y, dtype=float)[np.asarray(band.x, dtype=float) == at]
            low, high = (float(ends.min()), float(ends.max())) if len(ends) >= 2 else (low, high)
    return f"{number_text(value)}{_interval(low, high)}"


def _interval(low: float, high: float) -> str:
    return f" (95 % interval {interval_text(low, high)})" if np.isfinite([low, high]).all() else ""


def _last(trace: Any) -> tuple[float, float] | None:
    """Return the last known point of a line."""
    x, y = _floats(trace.x), _floats(trace.y)
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y)) if len(x) == len(y) else np.empty(0, dtype=int)
    return (float(x[known[-1]]), float(y[known[-1]])) if len(known) else None


def _level(trace: Any, at: float) -> float:
    """Return the value of a line at a place; NaN if it has none there."""
    x, y = _floats(trace.x), _floats(trace.y if trace.customdata is None else trace.customdata)  # also below the axis
    found = y[x == at] if len(x) == len(y) else y[:0]
    return float(found[0]) if len(found) else float("nan")


def _floats(values: Any) -> Float[np.ndarray, " point"]:
    try:
        return np.asarray([np.nan if value is None else value for value in values], dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)


def _tick(value: float, ticks: dict[Any, Any]) -> str:
    """Return a place on an axis as its ticks name it."""
    return plain(ticks.get(value, "")) or (f"{value:,.0f}" if value.is_integer() else number_text(value))


def _title(axis: Any) -> str:
    """Return the title of an axis without remarks on its scale and its direction."""
    text = plain(axis.title.text or "")
    return re.sub(r"[ ,]*\(color: .*\)$|,? ?\(log\)|, log scale|,? ?\(log scale\)| \(1 is the first\)", "", text)


def _color_title(axis: Any) -> str:
    """Return what the colors of a map show, which stands in the title of its x axis."""
    return next(iter(re.findall(r"\(color: (.*)\)$", plain(axis.title.text or ""))), "")


def _name(trace: Any) -> str:
    """Return the name of a series without what a legend adds, such as how levels below the axis are drawn."""
    return re.sub(r" \(▾ below [^)]*\)$|, 95 % interval$", "", plain(trace.name)).removeprefix(_PREFIX)


def _color(trace: Any) -> str:
    color = trace.line.color or trace.marker.color
    return color if isinstance(color, str) else ""


def plain(text: Any) -> str:
    """Return a text without tags and line breaks."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", str(text)))).strip()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:2].islower() else text
