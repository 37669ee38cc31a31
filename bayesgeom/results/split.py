"""Split a figure for the page: each panel becomes a plot with title, legend and a text for screen readers."""

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import plotly.graph_objects as go

from bayesgeom.results.captions import caption_of, n_shown, plain, stated_caption
from bayesgeom.results.theme import DARK, EXACT, axis_name, entries

DIGITS = 5  # significant digits of a plotted number
_CARTESIAN = {"bar", "box", "contour", "heatmap", "histogram", "image", "scatter", "violin"}
_DASHES = {"dash": "7,4", "dot": "2,3", "dashdot": "7,3,2,3", "longdash": "11,4", "longdashdot": "11,3,2,3"}
_MARGIN = {"l": 54, "r": 18, "t": 10, "b": 44}
_TITLE_LINE = 40  # letters of an axis title that fit along a panel of a small screen
_HEIGHT = 320  # pixels of a plot that states no height


@final
@dataclass(frozen=True, kw_only=True)
class Key:
    """An entry of a legend: a name, the traces that it shows and hides, and its sample as SVG."""

    name: str
    traces: Sequence[int]
    swatch: str


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot of the page. `caption` states what it shows, and `drawn` is what plotly.js draws."""

    id: str
    title: str
    caption: str
    alt: str
    height: int
    keys: Sequence[Key]
    drawn: Mapping[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The panels of one figure, and why others are missing.

    `is_wide`: panels are as wide as the page. `folded` are panels that the page shows on request.
    """

    title: str
    panels: Sequence[Panel]
    notes: Sequence[str]
    is_wide: bool
    folded: Sequence[Panel] = ()


def split(figure: go.Figure, name: str) -> Drawing:
    """Return the panels of a figure; a figure that is not a grid of plain axes becomes one panel.

    Args:
        figure: The figure.
        name: Start of the identifiers.
    """
    heading = plain(figure.layout.title.text or "")
    if not figure.data:
        return Drawing(title=heading, panels=(), notes=(), is_wide=True)
    if not _is_grid(figure):
        return Drawing(title=heading, panels=[_whole(figure, f"{name}-1")], notes=(), is_wide=True)
    found, notes, listed = list[Panel](), list[str](), entries(figure)
    for number, x in enumerate(figure.select_xaxes(), start=1):
        axis = str(x.plotly_name).replace("axis", "")
        traces = [index for index, trace in enumerate(figure.data) if (trace.xaxis or "x") == axis]
        title = _title(figure, x)
        if traces and all((t := figure.data[index]).type == "scatter" and t.mode == "text" for index in traces):
            text = " ".join(str(word) for index in traces for word in figure.data[index].text)
            notes += [f"{title} ({plain(text)})"] * bool(text)
            continue
        if traces:
            found.append(_panel(figure, axis, traces, listed.get(axis, {}), (f"{name}-{number}", title)))
    columns = {round((x.domain or (0, 1))[0], 2) for x in figure.select_xaxes()}
    last = n_shown(figure) or math.inf
    shown = sum(1 for panel in found if int(panel.id.rpartition("-")[2]) <= last)
    is_wide = len(columns) == 1 or len(found) == 1
    return Drawing(title=heading, panels=found[:shown], folded=found[shown:], notes=notes, is_wide=is_wide)


def compact(value: Any) -> Any:
    """Return nested values as JSON values, floats with `DIGITS` significant digits.

    Example:
        >>> compact({"x": [0.123456789, 2.0, float("nan")]})
        {'x': [0.12346, 2, None]}
    """
    match value:
        case float() if not math.isfinite(value):
            return None
        case float():
            return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: compact(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [compact(item) for item in value]
        case str() | bool() | int() | None:
            return value
        case _:  # an array, or a number of numpy
            return compact(value.tolist())


def _is_grid(figure: go.Figure) -> bool:
    """Return whether every trace lies in a single pair of axes, and there are no other elements."""
    if figure.frames or figure.layout.updatemenus or figure.layout.sliders or not figure.data:
        return False
    axes = {y.anchor or "x" for y in figure.select_yaxes()}
    is_alone = len(axes) == len(list(figure.select_xaxes())) > 0
    return is_alone and {trace.type for trace in figure.data} <= _CARTESIAN


def _whole(figure: go.Figure, identifier: str) -> Panel:
    """Return a figure as a single panel."""
    drawn = figure.to_plotly_json()
    layout, title = drawn["layout"], plain((figure.layout.title.text or "").split("<br>")[0])
    height = int(layout.pop("height", None) or _HEIGHT)
    layout.pop("title", None)
    own: dict[str, Any] = {"data": drawn["data"], "layout": {**layout, "autosize": True}}
    if figure.frames:
        own["layout"].pop("template", None)
        own["layout"] |= {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR}
        own["layout"]["margin"] = {**layout["margin"], "t": 10}
        own["frames"] = [frame.to_plotly_json() for frame in figure.frames]
    caption, alt = stated_caption(figure, 0), title or "figure"
    return Panel(id=identifier, title="", caption=caption, alt=alt, height=height, keys=(), drawn=own)


_CLEAR = "rgba(0,0,0,0)"


def _title(figure: go.Figure, x: "go.layout.XAxis") -> str:
    """Return the title above a panel."""
    (left, right), y = x.domain or (0, 1), figure.layout[axis_name(x.anchor or "y")]
    top = (y.domain or (0, 1))[1]
    over = [
        note["text"]
        for note in (each.to_plotly_json() for each in figure.layout.annotations)
        if note.get("xref") == "paper" and left <= note["x"] <= right and abs(note["y"] - top) < 1e-6
    ]
    return plain(over[0]) if over else ""


def _panel(
    figure: go.Figure, axis: str, traces: Sequence[int], names: Mapping[str, Sequence[int]], named: tuple[str, str]
) -> Panel:
    """Return one pair of axes as a separate plot."""
    identifier, title = named
    x = figure.layout[axis_name(axis)]
    y = figure.layout[axis_name(x.anchor or "y")]
    at = {index: place for place, index in enumerate(traces)}
    layout = _layout(figure, axis, x.anchor or "y")
    for index in traces:
        if coloraxis := _coloraxis(figure.data[index]):
            layout[coloraxis] = figure.layout[coloraxis].to_plotly_json()
            layout[coloraxis]["colorbar"] = _bar(layout[coloraxis].get("colorbar", {}))
    margins = figure.layout.margin
    share = (y.domain or (0, 1))[1] - (y.domain or (0, 1))[0]
    height = share * ((figure.layout.height or 450) - (margins.t or 80) - (margins.b or 80))
    keys = [
        Key(name=plain(name), traces=[at[i] for i in own], swatch=_swatch(figure.data[own[0]]))
        for name, own in names.items()
    ]
    about = [f"{plain(side.title.text or '')}" for side in (y, x)]
    shown = f"Shown: {', '.join(key.name for key in keys)}" if keys else ""
    alt = ". ".join(filter(None, (title, " against ".join(filter(None, about)), shown)))
    drawn = {"data": [_trace(figure.data[index]) for index in traces], "layout": layout}
    total = int(height) + _MARGIN["t"] + _MARGIN["b"]
    caption = caption_of(figure, axis)
    return Panel(id=identifier, title=title, caption=caption, alt=alt, height=total, keys=keys, drawn=drawn)


def _layout(figure: go.Figure, x: str, y: str) -> dict[str, Any]:
    """Return axes, lines and texts of one panel, under the names of the first panel's axes."""
    own: dict[str, Any] = {}
    for axis, name in ((x, "xaxis"), (y, "yaxis")):
        own[name] = figure.layout[axis_name(axis)].to_plotly_json()
        own[name].pop("domain", None)
        own[name] |= {"anchor": "y" if name == "xaxis" else "x", "automargin": True}
        own[name]["ticklabeloverflow"] = "allow"
        if text := (own[name].get("title") or {}).get("text"):
            own[name]["title"] = {**own[name]["title"], "text": "<br>".join(textwrap.wrap(text, _TITLE_LINE))}
        if (anchor := own[name].get("scaleanchor")) is not None:
            own[name]["scaleanchor"] = anchor[0]
    for kind in ("shapes", "annotations"):
        drawn = [item.to_plotly_json() for item in figure.layout[kind]]
        inside = [each for each in drawn if _belongs(each, x, y)]
        for each in inside:
            each["xref"], each["yref"] = (
                str(each[ref]).replace(axis, axis[0]) for ref, axis in (("xref", x), ("yref", y))
            )
        own[kind] = inside
    font = figure.layout.font.to_plotly_json()
    colors = {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR, "font": {"color": EXACT, **font, "size": 12}}
    return {**own, **colors, "margin": _MARGIN, "showlegend": False, "hovermode": "closest", "autosize": True}


def _belongs(each: Mapping[str, Any], x: str, y: str) -> bool:
    references = {str(each.get("xref") or "").split(" ")[0], str(each.get("yref") or "").split(" ")[0]}
    return bool(references & {x, y}) and references <= {x, y, "paper"}


def _trace(trace: Any) -> dict[str, Any]:
    own: dict[str, Any] = trace.to_plotly_json()
    for key in ("xaxis", "yaxis", "legend", "legendgroup", "showlegend"):
        own.pop(key, None)
    if "colorbar" in own:
        own["colorbar"] = _bar(own["colorbar"])
    return own


def _bar(bar: Mapping[str, Any]) -> dict[str, Any]:
    """Return a color bar at the right edge, as high as its panel."""
    rest = {key: item for key, item in bar.items() if key not in ("x", "y", "len", "xanchor", "yanchor")}
    return {**rest, "thickness": 11, "outlinewidth": 0, "x": 1.01, "xanchor": "left"}


def _coloraxis(trace: Any) -> str:
    """Return the name of the shared color scale of a trace; "" for none."""
    holder = trace if trace.type == "heatmap" else trace.marker if trace.type == "scatter" else None
    return (holder.coloraxis or "") if holder is not None else ""


def _swatch(trace: Any) -> str:
    """Return a sample of the trace as a small SVG; theme colors follow the page's light or dark mode."""
    line, marker = trace.line, trace.marker
    color = line.color or (marker.color if isinstance(marker.color, str) else None) or EXACT
    is_band = bool(trace.fill and not line.width)
    if is_band and (ends := re.match(r"rgba\((\d+),(\d+),(\d+),", trace.fillcolor or "")):
        color = f"#{''.join(f'{int(part):02x}' for part in ends.groups())}"
    paint = f"var(--c{color[1:]}, {color})" if color in DARK else re.sub(r"[^\w(),.%# -]", "", color)
    if is_band and trace.error_y.array is not None and len(trace.x) == 2:  # one interval, drawn as a whisker
        inside = f'<path d="M13 0V11M9 .7H17M9 10.3H17" style="stroke:{paint};stroke-width:1.4"/>'
    elif is_band:
        inside = f'<rect x="2" y="1" width="22" height="9" style="fill:{paint};fill-opacity:.3;stroke:{paint}"/>'
    else:
        dash = _DASHES.get(line.dash, (line.dash or "solid").replace("px", "").replace("solid", ""))
        mode = trace.mode or "lines"
        width = f"{min(line.width or 2, 7):g};stroke-opacity:{trace.opacity or 1:g}"
        stroke = f'<path d="M1 5.5H25" style="stroke:{paint};stroke-width:{width};stroke-dasharray:{dash or "none"}"/>'
        inside = stroke * ("lines" in mode)
        if "markers" in mode:
            inside += _symbol(str(marker.symbol or "circle"), paint)
    return f'<svg width="26" height="11" aria-hidden="true">{inside}</svg>'


def _symbol(symbol: str, paint: str) -> str:
    """Return a marker in the middle of a sample, as SVG."""
    shapes = {
        "diamond": "M13 1L17.5 5.5L13 10L8.5 5.5Z",
        "x": "M9 1.5L17 9.5M17 1.5L9 9.5",
        "square": "M9 1.5H17V9.5H9Z",
        "line-ns": "M13 0V11",
    }
    shape = next((path for start, path in shapes.items() if symbol.startswith(start)), "")
    if not shape:
        return f'<circle cx="13" cy="5.5" r="3.5" style="fill:{paint}"/>'
    fill = paint if "-open" not in symbol and "-thin" not in symbol else "none"
    return f'<path d="{shape}" style="stroke:{paint};stroke-width:1.8;fill:{fill}"/>'


def as_json(drawings: Iterable[Drawing]) -> str:
    """Return the plotly.js input of all panels as JSON, by their identifiers."""
    panels = {panel.id: compact(panel.drawn) for drawing in drawings for panel in (*drawing.panels, *drawing.folded)}
    return json.dumps(panels, separators=(",", ":"), ensure_ascii=False)
