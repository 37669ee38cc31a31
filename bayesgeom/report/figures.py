"""Figures for papers: one panel at the width of a column, in the sizes of printed text, and readable in gray."""

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bayesgeom.core import InvalidArgument, check_argument
from bayesgeom.core.errors import optional_package, quoted, unknown_name
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import INTERVAL, Panel, known_numbers, listed, tick_whole_numbers
from bayesgeom.report.theme import BASELINE, DASHES, wrapped

WIDTHS = {"column": 3.25, "text": 6.75}  # inches: a column of two, and the whole width of the text
FORMATS = ("pdf", "svg", "png")
_INCH, _POINT = 96, 96 / 72  # pixels, as browsers count them
_TEXT, _SMALL = 8 * _POINT, 7 * _POINT  # of axis titles; of everything else
# Pixels of a letter, of the line before a name, and of a row of a legend; letters of a name.
_LETTER, _SAMPLE, _ROW, _NAME = 5.2, 42, 14, 30
_THIN, _LOW = 0.6, 0.68  # lines and heights, as shares of those on pages
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "triangle-down", "star", "pentagon")
_MARKS, _WIDE, _DOTS = 8, 5, 300 / 96  # most markers of a line; pixels of a wide line; of a PNG: 300 an inch
_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


def panel_named(name: str, panels: Sequence[Panel], fields: Mapping[str, Any]) -> Panel:
    """Return the first panel that draws a field, or its entries by another axis, or that has this title.

    Args:
        name: The field, such as "kl_bits", which "kl_bits_by_position" also answers; or a title, at least up to ":".
        panels: The panels of a report.
        fields: The values of its fields by name.

    Raises:
        UnknownName: There is no such panel.
    """
    check_argument("name", name, str)
    titles = {title: own for own in reversed(panels) for title in (own.title, own.title.split(":")[0])}
    if name in titles:
        return titles[name]
    numbers = {field: known_numbers(own.value if isinstance(own, Estimate) else own) for field, own in fields.items()}
    drawn = [[field for field, values in numbers.items() if _draws(own.figure, values)] for own in panels]
    for is_meant in (name.__eq__, lambda field: field.startswith(f"{name}_by_")):
        for own, of_panel in zip(panels, drawn, strict=True):
            if any(map(is_meant, of_panel)):
                return own
    there = dict.fromkeys(label for own, of in zip(panels, drawn, strict=True) for label in of or [own.title])
    raise unknown_name("panel", name, there)


def _draws(figure: go.Figure, values: np.ndarray) -> bool:
    """Return whether all numbers of some trace are values of a field; whole ones alone could be anything."""
    drawn = [known_numbers(trace[axis]) for trace in figure.data for axis in "xyz" if axis in trace]
    return any((own != own.round()).any() and np.isin(own, values).all() for own in drawn)


def width_in_inches(width: str | float) -> float:
    """Return a width in inches.

    Raises:
        InvalidArgument: It is neither a name of `WIDTHS` nor a number from 1 to 20.
    """
    inches = WIDTHS.get(width, math.nan) if isinstance(width, str) else float(width)
    if not 1 <= inches <= 20:
        raise InvalidArgument(f"width must be {', '.join(WIDTHS)}, or inches from 1 to 20; got {quoted(width)}.")
    return inches


def format_of(path: Path | None, given: str) -> str:
    """Return the format of an image: the given one, or that of the path's ending; PDF without both.

    Raises:
        InvalidArgument: There is no such format, or the path ends in another one.
    """
    ending = "" if path is None else path.suffix.lower().removeprefix(".")
    chosen = given or ending or FORMATS[0]
    if chosen not in FORMATS or ending not in ("", chosen):
        asked = f"{chosen!r} for {path}" if path else repr(chosen)
        raise InvalidArgument(f"format must be {', '.join(FORMATS)}, as the ending of the path; got {asked}.")
    return chosen


def paper_figure(panel: Panel, inches: float) -> go.Figure:
    """Return a panel as it is printed: without a title, which the caption states, with its legend on top."""
    figure = go.Figure(data=panel.figure.data, layout=panel.figure.layout)  # without frames
    tick_whole_numbers(figure)
    entries, width = _mark(figure), round(inches * _INCH)
    columns = max(1, int((width - 20) // (_SAMPLE + _LETTER * max(map(len, entries), default=1))))
    height = round(_LOW * (figure.layout.height or 340)) + _ROW * -(-len(entries) // columns)
    for axis, room in ((figure.layout.xaxis, width - 70), (figure.layout.yaxis, height - 60)):
        title = html.unescape((axis.title.text or "").replace("<br>", "\n"))
        axis.update(automargin=True, tickfont_size=_SMALL, ticklabeloverflow="allow", linewidth=_THIN, gridwidth=_THIN)
        axis.title.update(text=wrapped(title, max(12, int(room / _LETTER))), font_size=_TEXT)
    for own in (*figure.layout.annotations, *figure.layout.shapes):
        own.update({"font": {"size": _SMALL}} if "text" in own else {"line": {"width": _THIN * (own.line.width or 2)}})
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": _SMALL}}
    font, margin = {"family": _FONT, "size": _SMALL}, {"l": 4, "r": 12, "t": 8, "b": 4}
    bare: dict[str, Any] = {"title": None, "updatemenus": (), "sliders": ()}
    return figure.update_layout(width=width, height=height, legend=legend, font=font, margin=margin, **bare)


def _mark(figure: go.Figure) -> list[str]:
    """Thin the lines of a figure, tell them apart without colors, and return the entries of its legend.

    The first band says what bands are.
    """
    entries, lines = listed(figure), list(figure.select_traces({"type": "scatter"}))
    first_of = {places[0] for places in entries.values()}
    for at, own in _styles(figure, entries).items():
        _set_style(figure.data[at], own)
    for at, trace in enumerate(figure.data):
        if trace.type == "heatmap":
            trace.colorbar.update(thickness=8, len=1, outlinewidth=0, tickfont_size=_SMALL, title_font_size=_SMALL)
        elif trace.type == "scatter":
            trace.line.width = _THIN * (2 if trace.line.width is None else trace.line.width)
            if isinstance(trace.marker.size, int | float):  # and no array
                trace.marker.size *= _LOW
            trace.update(showlegend=at in first_of, textfont_size=_SMALL, error_y_thickness=_THIN)
    for band in [trace for trace in lines if trace.fill and (trace.name or "").endswith(INTERVAL)][:1]:
        band.update(showlegend=True, name=INTERVAL)
        entries[INTERVAL] = []
    for trace in lines:
        trace.name = wrapped(html.unescape(trace.name or ""), _NAME) or None
    return [html.unescape(name) for name in entries]


def _set_style(trace: go.Scatter, own: str) -> None:
    if own in DASHES:
        trace.line.dash = own
    elif trace.marker.symbol is None:
        trace.marker.symbol = own
        if "lines" in (trace.mode or ""):
            trace.update(mode="lines+markers", marker_size=6, marker_maxdisplayed=_MARKS)


def _styles(figure: go.Figure, entries: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """Return the dash of each gray line, and the marker of each line in color, open for the baseline of a series.

    Wide pale lines, such as exact ones, are told apart by their width.
    """
    symbols, dashes, found, of_color = iter(_SYMBOLS), iter(DASHES), dict[int, str](), dict[str | None, str]()
    for places in entries.values():
        line = figure.data[places[0]].line
        own = "" if (line.width or 0) >= _WIDE else next(dashes if line.color == BASELINE else symbols, "")
        found |= {at: own for at in places if own}
        of_color.setdefault(line.color, "" if line.color in (None, BASELINE) else own)
    for at, trace in enumerate(figure.data):
        if trace.type == "scatter" and trace.line.dash and at not in found and of_color.get(trace.line.color):
            found[at] = f"{of_color[trace.line.color]}-open"
    return found


def image_of(figure: go.Figure, kind: str) -> bytes:
    """Return a figure as an image in one of `FORMATS`; a PNG has 300 pixels an inch.

    Raises:
        InvalidArgument: kaleido is not installed, or finds no browser that it can start.
    """
    with optional_package("figures", "figure()"):
        import kaleido
    scale = _DOTS if kind == "png" else 1
    options = {"format": kind, "width": figure.layout.width, "height": figure.layout.height, "scale": scale}
    try:
        image: bytes = kaleido.calc_fig_sync(figure, opts=options, kopts={"mathjax": False})
    except (RuntimeError, OSError) as error:
        reason = next(iter(filter(None, map(str.strip, str(error).splitlines()))), type(error).__name__)
        raise InvalidArgument(
            f"figure() draws with Chrome or Chromium, which kaleido could not start ({reason}). Install one, or name "
            f"it in the variable BROWSER_PATH. Or open the page (to_html) in any browser: the camera above a figure "
            f"saves it as SVG."
        ) from error
    return image
