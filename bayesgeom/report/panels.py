"""Panels: plots with a title and a note, which pages show one by one and `plot()` joins into a figure."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self, final

import plotly.graph_objects as go

from bayesgeom.report.theme import AXIS, EXACT, FONT, GRID, SERIES

WIDTH = 1080  # of a joined figure, in pixels
_TOP, _BETWEEN, _GAP, _BAR = 84, 92, 0.11, 0.055  # above, below each row; between columns; width of a color bar
_LEGEND_ROW, _LETTER, _SAMPLE = 21, 7.4, 50  # pixels: a line of a legend, a letter, and the line before a name


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot.

    Args:
        title: Its title.
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
    def blank(cls, title: str = "", *, height: int = 340, **known: Any) -> Self:
        """Return an empty plot in the common style; `height` includes the axis texts, but not the legend."""
        figure = go.Figure(_blank())
        figure.layout.height = height
        return cls(title=title, figure=figure, **known)


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
            "yaxis": axis,
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


def figure_of(title: str, drawn: Sequence[Panel]) -> go.Figure:
    """Return one figure of all panels, two in a row, with a legend below each."""
    if not drawn:
        return go.Figure(layout={"title": {"text": title}})
    heading = {"text": title, "x": 0.01, "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    heading |= {"pad": {"t": 20}, "font": {"size": 17}}
    if len(drawn) == 1 and drawn[0].figure.frames:
        return go.Figure(drawn[0].figure).update_layout(title=heading, margin_t=_TOP)
    rows = list(_rows(drawn))
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
            box = {"x": (left, left + width), "y": ((top - plot) / total, top / total)}
            data += _place(own, layout, box, str(number) if number > 1 else "")
        top -= height
    return go.Figure(data=data, layout=layout)


def _rows(drawn: Sequence[Panel]) -> Iterator[list[Panel]]:
    """Give each wide panel a row of its own, and the others rows of two."""
    row = list[Panel]()
    for own in drawn:
        if row and (own.is_wide or len(row) == 2):
            yield row
            row = []
        row.append(own)
        if own.is_wide:
            yield row
            row = []
    if row:
        yield row


def _height(own: Panel) -> int:
    """Return the height of a panel with its legend, in pixels."""
    lines = _legend_lines(list(listed(own.figure)), WIDTH * (1 if own.is_wide else (1 - _GAP) / 2))
    return int(own.figure.layout.height + _LEGEND_ROW * lines + 8 * bool(lines))


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
    has_bar = any("colorbar" in own for trace in data for own in (trace, trace.get("marker", {})))
    right -= _BAR * has_bar
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
    return list(_placed_traces(own, data, layout, (left, right, bottom), suffix, bar))


def _placed_traces(
    own: Panel,
    data: Sequence[dict[str, Any]],
    layout: dict[str, Any],
    box: tuple[float, ...],
    suffix: str,
    bar: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Return the traces of a panel with axes, color axis and legend of their own; legends are columns below it."""
    (left, right, bottom), entries = box, listed(own.figure)
    lines = _legend_lines(list(entries), WIDTH * (right - left))
    legend_of, first = dict[int, tuple[str, bool]](), sum(1 for name in layout if name.startswith("legend")) + 1
    for at, places in enumerate(entries.values()):
        column, n_columns = at // lines, -(-len(entries) // lines)
        name = f"legend{first + column}" if first + column > 1 else "legend"
        place = {"x": left + (right - left) * column / n_columns, "y": bottom - 52 / (layout["height"] - _TOP)}
        layout[name] = {**place, "yanchor": "top", "font": {"size": 12}}
        legend_of |= {index: (name, index == places[0]) for index in places}
    for index, trace in enumerate(data):
        placed = {**trace, "xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        if "colorbar" in placed:
            placed["colorbar"] = placed["colorbar"] | bar
        if "colorbar" in (marker := placed.get("marker", {})):
            placed["marker"] = {**marker, "colorbar": marker["colorbar"] | bar}
        name, is_first = legend_of.get(index, ("", False))
        yield {**placed, "showlegend": is_first, **({"legend": name} if name else {})}
