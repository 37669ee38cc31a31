"""Small pictures of pages, as SVG without a script: samples of lines in legends, and thumbnails of panels."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bayesgeom.report.theme import BASELINE, DARK, EXACT, MEASURED

_DASHES = {"dash": "7,4", "dot": "2,3", "dashdot": "7,3,2,3", "longdash": "11,4", "longdashdot": "11,3,2,3"}
_SYMBOLS = {
    "diamond": "M13 1L17.5 5.5L13 10L8.5 5.5Z",
    "x": "M9 1.5L17 9.5M17 1.5L9 9.5",
    "square": "M9 1.5H17V9.5H9Z",
    "line-ns": "M13 0V11",
}
_WIDTH, _HEIGHT, _EDGE = 160, 44, 3  # of a thumbnail, in its own units; it is stretched to its tile
_MOST_ROWS, _MOST_COLUMNS, _MOST_LINES, _MOST_POINTS = 20, 40, 9, 150


def swatch(trace: Any) -> str:
    """Return a sample of a trace; theme colors follow the page's light or dark mode."""
    line, marker = trace.line, trace.marker
    color = line.color or (marker.color if isinstance(marker.color, str) else None) or EXACT
    is_band = bool(trace.fill and not line.width)
    if is_band and (ends := re.match(r"rgba\((\d+),(\d+),(\d+),", trace.fillcolor or "")):
        color = f"#{''.join(f'{int(part):02x}' for part in ends.groups())}"
    paint = _paint(color)
    if is_band:
        inside = f'<rect x="2" y="1" width="22" height="9" style="fill:{paint};fill-opacity:.3;stroke:{paint}"/>'
    else:
        dash = _DASHES.get(line.dash, (line.dash or "solid").replace("px", "").replace("solid", ""))
        mode = trace.mode or "lines"
        width = f"{min(line.width or 2, 7):g};stroke-opacity:{trace.opacity or 1:g}"
        stroke = f'<path d="M1 5.5H25" style="stroke:{paint};stroke-width:{width};stroke-dasharray:{dash or "none"}"/>'
        inside = stroke * ("lines" in mode) + _symbol(str(marker.symbol or "circle"), paint) * ("markers" in mode)
    return f'<svg width="26" height="11" aria-hidden="true">{inside}</svg>'


def thumbnail(plot: Mapping[str, Any]) -> str:
    """Return the lines, points, bars or cells of a plot without texts; "" where it has none of these.

    Args:
        plot: `data` and `layout` of a plotly figure.
    """
    traces = [trace for trace in plot["data"] if trace.get("visible", True) is True]
    inside = "".join(_cells(traces, plot["layout"]) or _lines(traces, plot["layout"]))
    if not inside:
        return ""
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{inside}</svg>'


def _paint(color: str) -> str:
    return f"var(--c{color[1:]}, {color})" if color in DARK else re.sub(r"[^\w(),.%# -]", "", color)


def _symbol(symbol: str, paint: str) -> str:
    """Return a marker in the middle of a sample, as SVG."""
    shape = next((path for start, path in _SYMBOLS.items() if symbol.startswith(start)), "")
    if not shape:
        return f'<circle cx="13" cy="5.5" r="3.5" style="fill:{paint}"/>'
    fill = paint if "-open" not in symbol and "-thin" not in symbol else "none"
    return f'<path d="{shape}" style="stroke:{paint};stroke-width:1.8;fill:{fill}"/>'


def _cells(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> list[str]:
    """Return the cells of the first heat map: the larger, the darker."""
    values: np.ndarray
    for trace in (trace for trace in traces if trace["type"] == "heatmap"):
        values = np.abs(_numbers(trace["z"]))
        if values.ndim != 2 or values.size < 2 or not np.nanmax(values, initial=0.0) > 0:
            continue
        values = values[:: -(-len(values) // _MOST_ROWS), :: -(-values.shape[1] // _MOST_COLUMNS)]
        axis = layout.get("yaxis", {})
        first, last = axis.get("range") or (0, 1)
        if axis.get("autorange") != "reversed" and first < last:
            values = values[::-1]
        n_rows, n_columns = values.shape
        width, height = _WIDTH / n_columns, _HEIGHT / n_rows
        shades = np.nan_to_num(values / np.nanmax(values))
        return [
            f'<rect x="{column * width:.1f}" y="{row * height:.1f}" width="{width * 0.94:.1f}" '
            f'height="{height * 0.9:.1f}" style="fill:{_paint(MEASURED)};fill-opacity:{0.07 + 0.93 * shade:.2f}"/>'
            for (row, column), shade in np.ndenumerate(shades)
        ]
    return []


def _lines(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> list[str]:
    """Return lines and points, in the range of all of them."""
    drawn = [
        (trace, x, y)
        for trace in traces
        if trace["type"] == "scatter" and not trace.get("fill") and trace.get("mode") != "text"
        for x, y in [(_axis(trace.get("x"), layout, "x"), _axis(trace.get("y"), layout, "y"))]
        if len(x) == len(y) > 0
    ][:_MOST_LINES]
    if not drawn:
        return []
    ends = [(own.min(initial=np.inf), own.max(initial=-np.inf)) for own in (_known(drawn, 1), _known(drawn, 2))]
    if not np.isfinite(ends).all():
        return []
    (left, right), (bottom, top) = ends

    def path(trace: Mapping[str, Any], x: Float[np.ndarray, " x"], y: Float[np.ndarray, " x"]) -> str:
        across = _EDGE + (_WIDTH - 2 * _EDGE) * (x - left) / ((right - left) or 1.0)
        down = _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * ((y - bottom) / ((top - bottom) or 1.0))
        places = list(zip(across, down, strict=True))
        line, marker = trace.get("line") or {}, trace.get("marker") or {}
        color = next((own for own in (line.get("color"), marker.get("color")) if isinstance(own, str)), MEASURED)
        is_line = "lines" in (trace.get("mode") or "lines")
        places = places if is_line else places[:: -(-len(places) // _MOST_POINTS)]
        width = "5;stroke-opacity:.35" if (line.get("width") or 2) > 5 else "1.8" if is_line else "4.5"
        dash = "3,3" if color == BASELINE or line.get("dash", "solid") != "solid" else "none"
        moves = "".join(_moves(places) if is_line else (f"M{a:.1f} {b:.1f}h0" for a, b in places if np.isfinite(a + b)))
        return (
            f'<path d="{moves}" style="fill:none;stroke:{_paint(color)};stroke-width:{width};stroke-linecap:round;'
            f'stroke-dasharray:{dash if is_line else "none"};vector-effect:non-scaling-stroke"/>'
        )

    return [path(*own) for own in drawn]


def _known(drawn: Sequence[tuple[Any, ...]], at: int) -> Float[np.ndarray, " value"]:
    values = np.concatenate([np.asarray(own[at], dtype=float) for own in drawn])
    return np.array(values[np.isfinite(values)])


def _moves(places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield the parts of a path, with a gap wherever a value is missing."""
    is_down = False
    for across, down in places:
        is_known = bool(np.isfinite(across + down))
        if is_known:
            yield f"{'L' if is_down else 'M'}{across:.1f} {down:.1f}"
        is_down = is_known


def _axis(values: Any, layout: Mapping[str, Any], axis: str) -> Float[np.ndarray, " x"]:
    """Return the values along an axis as places: logarithms on a logarithmic one, and counts of names."""
    kind = layout.get(f"{axis}axis", {}).get("type")
    if kind == "category" and values is not None:  # names may be written as numbers
        values = [f"name {value}" for value in values]
    own: Float[np.ndarray, " x"] = _numbers(values)
    if kind == "log":
        own = np.log10(np.where(own > 0, own, np.nan))
    return own


def _numbers(values: Any) -> Float[np.ndarray, "..."]:
    """Return numbers; names are numbered in their order, and missing values are NaN."""
    if values is None:
        return np.zeros(0)
    try:
        return np.asarray(values, dtype=float)
    except ValueError:
        names = list(dict.fromkeys(map(str, values)))
        return np.array([float(names.index(str(value))) for value in values])
