"""Panels: plots with a title and a note, which pages show one by one and `plot()` joins into a figure.

A report adds named lines to a panel. `Panel.finished` then does for all panels alike what makes them readable: names
at the ends of lines in place of a legend, hover texts with units and intervals, and ticks at whole layers.
"""

import html
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self, final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from scipy.optimize import isotonic_regression

from bayesgeom.report.theme import AXIS, BASELINE, DASHES, EXACT, FONT, GRID, SERIES, escaped, wrapped

WIDTH = 1080  # of a joined figure, in pixels
_TOP, _BETWEEN, _GAP, _BAR = 84, 92, 0.11, 0.055  # above, below each row; between columns; width of a color bar
_LEGEND_ROW, _LETTER, _SAMPLE = 21, 7.4, 50  # pixels: a line of a legend, a letter, and the line before a name
_TITLE_LETTER, _TITLE_ROW = 8.6, 20  # pixels: a letter and a line of a title
MOST_LABELS = 9  # lines with their names at their ends; more have a legend
INTERVAL = "95 % interval"  # how the names of bands end
_LABEL, _LABEL_ROW, _LABEL_LETTER = 17, 14, 6.9  # letters of a line of a label; pixels of a line and of a letter
_NEAR, _LEADER = 5, 18  # pixels: a label further from its line has a thin line to it, in a gap of this width
_ABOVE, _BELOW = 8, 30  # pixels that labels may extend beyond the plot
_MOST_WHOLE, _STEPS = 80, (1, 2, 5, 10)  # range of whole numbers, and distances between their ticks


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot.

    Args:
        title: Its title, as plain text.
        figure: A plotly figure with one pair of axes, or with frames.
        note: A remark below it.
        is_wide: Whether it takes a whole row.
        is_folded: Whether pages show it on request only.
    """

    title: str
    figure: go.Figure
    note: str = ""
    is_wide: bool = False
    is_folded: bool = False

    @classmethod
    def blank(cls, title: str = "", *, height: int = 300, **known: Any) -> Self:
        """Return an empty plot in the common style; `height` includes the axis texts, but not the legend."""
        figure = go.Figure(_blank())
        figure.layout.height = height
        return cls(title=title, figure=figure, **known)

    def finished(self) -> go.Figure:
        """Return the plot as it is shown: with names at the ends of few lines, hover texts and whole ticks."""
        figure = go.Figure(self.figure)
        tick_whole_numbers(figure)
        _describe_on_hover(figure)
        _label_ends(figure)
        return figure


class Chart(ABC):
    """An additional figure of a report, which its page shows below the report's own panels.

    Concrete charts are final and have no required argument; they are found in a file of `bayesgeom/charts/`, or by an
    entry point in the group `bayesgeom.charts`. `reports` lists the names of the reports that it can draw.
    """

    name: ClassVar[str]
    reports: ClassVar[tuple[str, ...]]

    @abstractmethod
    def draw(self, report: Any) -> go.Figure:
        """Return a plotly figure of the report's stored numbers, including baselines."""


@cache
def _blank() -> go.Figure:
    axis = {"showgrid": True, "gridcolor": GRID, "zeroline": False, "linecolor": AXIS, "ticks": "outside"}
    axis |= {"tickcolor": AXIS, "exponentformat": "power", "separatethousands": True}
    return go.Figure(
        layout={
            "template": "none",  # plotly's own is most of a copy's time, and pages do not have it
            "xaxis": {**axis, "title": {"standoff": 4}},
            "yaxis": {**axis, "title": {"standoff": 6}},
            "font": {"family": FONT, "size": 13, "color": EXACT},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "colorway": SERIES,
            "hovermode": "closest",
            "showlegend": True,
        }
    )


def listed(figure: go.Figure) -> dict[str, list[int]]:
    """Return the entries of a plot's legend: the places of the traces of each name."""
    found: dict[str, list[int]] = {}
    lines = [(at, own) for at, own in enumerate(figure.data) if own.type == "scatter" and own.name]
    named = {trace.name for _, trace in lines if trace.showlegend is not False and trace.mode != "text"}
    for at, trace in lines:
        if trace.name in named:
            found.setdefault(trace.name, []).append(at)
    return found


def tick_whole_numbers(figure: go.Figure) -> None:
    """Set at most about eight ticks, at whole numbers, on an x axis of layers, heads or positions."""
    axis = figure.layout.xaxis
    places = [np.asarray(trace.x) for trace in figure.data if trace.type == "scatter" and trace.x is not None]
    if not places or axis.tickvals is not None or axis.tickmode is not None or axis.type not in (None, "linear"):
        return
    if all(np.issubdtype(own.dtype, np.number) for own in places):
        whole = np.concatenate(places).astype(float)
        whole = whole[np.isfinite(whole)]
        if len(whole) and (whole == whole.round()).all() and 0 < np.ptp(whole) <= _MOST_WHOLE:
            axis.update(tickmode="linear", tick0=0, dtick=next(n for n in _STEPS if np.ptp(whole) <= 8 * n))
        else:
            axis.nticks = 6  # more would be turned upright on a small screen


def _describe_on_hover(figure: go.Figure) -> None:
    """Name series, value with unit, interval and place on hover, of lines and points that have no text of their own.

    `customdata` of a trace holds its intervals as text, and `text` its places where they are not the numbers of x.
    """
    x, y = (axis.title.text or name for axis, name in ((figure.layout.xaxis, "x"), (figure.layout.yaxis, "y")))
    named_places = dict(zip(figure.layout.xaxis.tickvals or (), figure.layout.xaxis.ticktext or (), strict=False))
    for trace in figure.data:
        if trace.type != "scatter" or trace.fill or trace.mode == "text" or trace.hovertemplate or trace.hoverinfo:
            continue
        places = np.asarray(() if trace.x is None else trace.x)
        if trace.text is None and named_places and figure.layout.xaxis.type != "log":
            trace.text = [named_places.get(place, f"{place:g}") for place in places.tolist()]
        is_whole = np.issubdtype(places.dtype, np.number) and bool((places == np.round(places)).all())
        at = "%{text}" if trace.text is not None else "%{x:,}" if is_whole else "%{x:.4~g}"
        interval = "" if trace.customdata is None else "%{customdata}"
        named = f"<b>{trace.name}</b><br>" if trace.name else ""
        trace.hovertemplate = f"{named}{y}: %{{y:.4~g}}{interval}<br>{x}: {at}<extra></extra>"


def _label_ends(figure: go.Figure) -> None:
    """Write the name of each line next to its end, as high as it ends or as near as its neighbors leave room.

    A name that stands elsewhere has a thin line to the end of its own.

    A plot with more than `MOST_LABELS` lines, too little room or a color bar keeps its legend, where each gray line has
    its own dash.
    """
    lines = dict[str, tuple[Any, float]]()
    for name, places in listed(figure).items():
        traces = [figure.data[at] for at in places]
        known = [(trace, own[-1]) for trace in traces if len(own := known_numbers(trace.y))]
        if known and all("lines" in (trace.mode or "") and not trace.fill for trace in traces):
            lines[name] = known[0]
    texts = [_label(figure, name) for name in lines]
    sizes = np.array([_LABEL_ROW * (1 + text.count("<br>")) + 4 for text in texts], dtype=float)
    room = (figure.layout.height or 0) - _BETWEEN
    if not 0 < len(lines) <= MOST_LABELS or sizes.sum() > room + _LABEL_ROW or _has_bar(figure):
        gray = [trace for trace, _ in lines.values() if trace.line.color == BASELINE]
        for trace, dash in zip(gray, DASHES, strict=False):
            trace.line.dash = dash
        return
    low, high = _range_of_y(figure)
    ends = np.array([end for _, end in lines.values()])
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.log10(ends) if figure.layout.yaxis.type == "log" else ends
    wanted = (np.nan_to_num(ends, neginf=low).clip(low, high) - low) / (high - low) * room
    shifts = _apart(wanted, sizes, room) - wanted  # in pixels, as pages give the plot less room than this
    gap = 7 if np.abs(shifts).max() <= _NEAR else _LEADER
    for at, (name, shift) in enumerate(zip(lines, shifts, strict=True)):
        trace = lines[name][0]
        color = trace.line.color or trace.marker.color or EXACT
        leader = {"ax": gap, "ay": -shift, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": color, "arrowside": "none"}
        is_near = abs(shift) <= _NEAR
        figure.add_annotation(
            text=texts[at],
            x=1,
            xref="x domain",
            xanchor="left",
            y=wanted[at] / room,
            yref="y domain",
            yanchor="middle",
            showarrow=not is_near,
            align="left",
            font={"size": 12, "color": color},
            **({"xshift": gap, "yshift": shift} if is_near else leader),
        )
    shown = [len(html.unescape(part)) for text in texts for part in re.sub(r"<(?!br)[^>]*>", "", text).split("<br>")]
    figure.layout.margin.r = 9 + gap + _LABEL_LETTER * max(shown)
    for trace in figure.data:
        if trace.name in lines or trace.fill:
            trace.showlegend = False


def _label(figure: go.Figure, name: str) -> str:
    """Return the name of a line on several short lines; the first one with a band also says what the band is."""
    text = wrapped(html.unescape(name.removeprefix("baseline: ")), _LABEL)
    bands = [trace.name for trace in figure.data if trace.fill and trace.name and trace.name.endswith(INTERVAL)]
    is_first = bands and bands[0] in (INTERVAL, f"{name}, {INTERVAL}")
    return f"{text}<br><span style='font-size:10px'>{INTERVAL}</span>" if is_first else text


def _has_bar(figure: go.Figure) -> bool:
    scales = [each for trace in figure.data for each in (trace, trace.marker if trace.type == "scatter" else None)]
    return any(own is not None and "colorbar" in own and own.colorbar.to_plotly_json() for own in scales)


def known_numbers(values: Any) -> Float[np.ndarray, " value"]:
    """Return the finite numbers of an array as a row; none of what holds no numbers."""
    own = np.asarray(() if values is None else values)
    own = own.astype(float) if np.issubdtype(own.dtype, np.number) else np.zeros(0)
    return own[np.isfinite(own)]


def _range_of_y(figure: go.Figure) -> tuple[float, float]:
    """Return the range of the y axis, on a log axis of logarithms, and fix it as plotly would choose it."""
    axis = figure.layout.yaxis
    if axis.range is None:
        ends = [known_numbers(trace.y) for trace in figure.data if trace.type == "scatter"]
        for trace in (trace for trace in figure.data if trace.type == "scatter" and trace.error_y.array is not None):
            y, up = np.asarray(trace.y, dtype=float), np.asarray(trace.error_y.array, dtype=float)
            down = up if trace.error_y.arrayminus is None else np.asarray(trace.error_y.arrayminus, dtype=float)
            ends += [known_numbers(y + up), known_numbers(y - down)]
        values = np.concatenate(ends)
        values = np.log10(values[values > 0]) if axis.type == "log" else values
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        low = min(low, 0.0) if axis.rangemode == "tozero" else low
        edge = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
        axis.range = [low - edge * (low != 0 or axis.rangemode != "tozero"), high + edge]
    return axis.range[0], axis.range[1]


def _apart(
    wanted: Float[np.ndarray, " label"], sizes: Float[np.ndarray, " label"], room: float
) -> Float[np.ndarray, " label"]:
    """Return heights of labels that do not overlap, as near as possible to those that are wanted (least squares)."""
    order = np.argsort(wanted, kind="stable")
    size = sizes[order]
    below = np.concatenate([[0.0], np.cumsum((size[1:] + size[:-1]) / 2)])
    lowest = isotonic_regression(wanted[order] - below).x  # the places of labels below which no others touch them
    top, bottom = room - size[-1] / 2 - below[-1] + _ABOVE, size[0] / 2 - _BELOW
    heights = np.empty_like(wanted)
    heights[order] = np.clip(lowest, min(bottom, top), top) + below
    return heights


def figure_of(title: str, drawn: Sequence[Panel]) -> go.Figure:
    """Return one figure of all panels, two in a row, with a legend below each."""
    if not drawn:
        return go.Figure(layout={"title": {"text": escaped(title)}})
    heading = {"text": escaped(title), "x": 0.01, "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    heading |= {"pad": {"t": 20}, "font": {"size": 17}}
    if len(drawn) == 1 and drawn[0].figure.frames:
        return go.Figure(drawn[0].figure).update_layout(title=heading, margin_t=_TOP)
    titles = [wrapped(own.title, int(_width(own) / _TITLE_LETTER)) for own in drawn]
    finished = (replace(own, figure=own.finished(), title=title) for own, title in zip(drawn, titles, strict=True))
    rows = _rows([*finished])
    heights = [max(map(_height, row)) for row in rows]
    total, top = sum(heights), float(sum(heights))
    layout: dict[str, Any] = {**_blank().layout.to_plotly_json(), "height": _TOP + total, "title": heading}
    layout |= {"margin": {"l": 70, "r": 30, "t": _TOP, "b": 0}, "annotations": [], "shapes": []}
    data, number = list[dict[str, Any]](), 0
    for row, height in zip(rows, heights, strict=True):
        width = (1 - _GAP) / 2 if len(row) == 2 or not row[0].is_wide else 1.0
        for column, own in enumerate(row):
            number += 1
            left, plot = column * (width + _GAP), own.figure.layout.height - _BETWEEN
            upper = top - _TITLE_ROW * max(each.title.count("<br>") for each in row)
            box = {"x": (left, left + width), "y": ((upper - plot) / total, upper / total)}
            data += _place(own, layout, box, str(number) if number > 1 else "")
        top -= height
    return go.Figure(data=data, layout=layout)


def _rows(drawn: Sequence[Panel]) -> list[list[Panel]]:
    """Give each wide panel a row of its own, and the others rows of two."""
    rows = list[list[Panel]]()
    for own in drawn:
        if rows and len(rows[-1]) == 1 and not (own.is_wide or rows[-1][0].is_wide):
            rows[-1].append(own)
        else:
            rows.append([own])
    return rows


def _width(own: Panel) -> float:
    return WIDTH * (1 if own.is_wide else (1 - _GAP) / 2)


def _height(own: Panel) -> int:
    """Return the height of a panel with its title and legend, in pixels."""
    lines = _legend_lines(list(listed(own.figure)), _width(own))
    return int(own.figure.layout.height + _TITLE_ROW * own.title.count("<br>") + _LEGEND_ROW * lines + 8 * bool(lines))


def _legend_lines(names: Sequence[str], width: float) -> int:
    """Return the number of lines of a legend of this width, with columns as wide as its longest name."""
    if not names:
        return 0
    return -(-len(names) // max(1, int(width // max(_SAMPLE + _LETTER * len(name) for name in names))))


def _place(
    own: Panel, layout: dict[str, Any], box: Mapping[str, tuple[float, float]], suffix: str
) -> list[dict[str, Any]]:
    """Add axes, shapes, texts, color bars and legend of a panel to a layout, and return its traces with their axes."""
    data, drawn = [trace.to_plotly_json() for trace in own.figure.data], own.figure.layout.to_plotly_json()
    (left, right), (bottom, top) = box["x"], box["y"]
    right -= _BAR * _has_bar(own.figure) + (own.figure.layout.margin.r or 0) / WIDTH
    bar = {"x": right + 0.004, "xanchor": "left", "y": (bottom + top) / 2, "len": top - bottom, "thickness": 11}
    for axis, domain, other in (("x", (left, right), "y"), ("y", (bottom, top), "x")):
        axes = {**drawn[f"{axis}axis"], "domain": domain, "anchor": f"{other}{suffix}"}
        layout[f"{axis}axis{suffix}"] = axes | ({"scaleanchor": f"x{suffix}"} if "scaleanchor" in axes else {})
    for kind in ("shapes", "annotations"):
        for item in drawn.get(kind, ()):
            refs = {ref: item[ref].replace(ref[0], f"{ref[0]}{suffix}", 1) for ref in ("xref", "yref") if ref in item}
            layout[kind].append({**item, **refs})
    text = {"text": own.title, "x": (left + right) / 2, "y": top, "xref": "paper", "yref": "paper", "showarrow": False}
    layout["annotations"] += [{**text, "xanchor": "center", "yanchor": "bottom", "font": {"size": 16}}] * bool(
        own.title
    )
    # Legends are columns below the panel.
    entries = listed(own.figure)
    lines = _legend_lines(list(entries), WIDTH * (right - left))
    legend_of, first = dict[int, tuple[str, bool]](), sum(1 for name in layout if name.startswith("legend")) + 1
    for at, places in enumerate(entries.values()):
        column, n_columns = at // lines, -(-len(entries) // lines)
        name = f"legend{first + column}" if first + column > 1 else "legend"
        place = {"x": left + (right - left) * column / n_columns, "y": bottom - 52 / (layout["height"] - _TOP)}
        layout[name] = {**place, "yanchor": "top", "font": {"size": 12}}
        legend_of |= {index: (name, index == places[0]) for index in places}
    traces = list[dict[str, Any]]()
    for index, trace in enumerate(data):
        placed = {**trace, "xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        if "colorbar" in placed:
            placed["colorbar"] = placed["colorbar"] | bar
        if "colorbar" in (marker := placed.get("marker", {})):
            placed["marker"] = {**marker, "colorbar": marker["colorbar"] | bar}
        name, is_first = legend_of.get(index, ("", False))
        traces.append({**placed, "showlegend": is_first, **({"legend": name} if name else {})})
    return traces
