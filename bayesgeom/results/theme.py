"""Common style of all charts: measured numbers in color, baselines in gray, a legend per panel, units on the axes."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

MEASURED, SECOND, THIRD, BASELINE, EXACT = "#2563a8", "#c2571a", "#7d4fa1", "#6b7280", "#1d1f23"
# Of named series. MEASURED is not among them: it is the only measured number of a panel. Green and red are verdicts.
SERIES = (SECOND, THIRD, "#0f8b8d", "#b08900", "#6d4c2f", "#c2408f", "#3d3a8c", "#4b8fba", "#94785a")
LAYERS = ("#eb568f", "#c64381", "#a33171", "#811f60", "#610d4d", "#420039", "#b98267", "#a06a4c", "#855036")  # by layer
QUANTITIES = ("#4b5d16", "#680090", "#d860e0")  # of quantities, where colors stand for trainings elsewhere
DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot", "2px,6px", "9px,3px,2px,3px,2px,3px", "1px,3px")  # gray
SEQUENTIAL = "Viridis"  # of points: every color is visible on white
SHADES = ((0.0, "#f4f8fd"), (0.25, "#c6dbef"), (0.5, "#7fb2dd"), (0.75, "#2f74b5"), (1.0, "#0b2f5e"))  # of cells
DIVERGING = "PuOr_r"  # purple below the middle, orange above; red and green are verdicts
GRID, AXIS = "#e7eaee", "#b9bfc7"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
BACKGROUNDS = ("#ffffff", "#16181c")  # of the page: light, dark
_DARK_SERIES = ("#f0935a", "#bd93e0", "#4cc3c5", "#e0c040", "#a87a4e", "#f27fc4", "#7d7bf5", "#a3d4f0", "#efdcc0")
_DARK_LAYERS = ("#ac2b98", "#c54d9d", "#dc6ca3", "#ef8bad", "#ffabbb", "#ffd1d3", "#8f6b5a", "#a87d69", "#d3a48f")
DARK: Mapping[str, str] = {
    MEASURED: "#6aa9ee",
    **dict(zip(SERIES, _DARK_SERIES, strict=True)),
    **dict(zip(LAYERS, _DARK_LAYERS, strict=True)),
    **dict(zip(QUANTITIES, ("#b7cf6f", "#9040c0", "#ff66ff"), strict=True)),
    BASELINE: "#9aa3af",
    EXACT: "#e8eaed",
    GRID: "#2d3238",
    AXIS: "#59616c",
}
TOP, BETWEEN, BELOW, LEGEND_ROW = 84, 92, 52, 21  # pixels: above, between and below the panels; a line of the legend
PAGE_WIDTH = 1080  # width of a figure on the report page, in pixels
CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
_LETTER, _SAMPLE = 7.4, 50  # pixels of a legend's entry: a letter, and the line before the name


def rgb(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of "#rrggbb".

    Example:
        >>> rgb("#0f8b8d")
        (15, 139, 141)
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def series(index: int) -> dict[str, str]:
    """Return color and dash of a named series: colors first, then the same colors with another dash.

    Example:
        >>> series(0), series(9)["dash"]
        ({'color': '#c2571a', 'dash': 'solid'}, 'dash')
    """
    lap, place = divmod(index, len(SERIES))
    return {"color": SERIES[place], "dash": ("solid", *DASHES)[lap % (1 + len(DASHES))]}


def layer_colors(n_layers: int) -> tuple[str, ...]:
    """Return a color per layer, from light to dark; up to six layers are as far apart as the scale allows.

    Example:
        >>> layer_colors(2) == (LAYERS[0], LAYERS[5]), layer_colors(30) == LAYERS
        (True, True)
    """
    ramp = _RAMP if 1 < n_layers < _RAMP else n_layers
    return tuple(LAYERS[round(i * (ramp - 1) / max(1, n_layers - 1))] for i in range(min(n_layers, len(LAYERS))))


def panels(title: str, subplot_titles: tuple[str, ...], *, n_columns: int = 2, row_height: int = 340) -> go.Figure:
    """Return an empty grid of titled panels in the common style; `row_height` includes the axis texts below a panel."""
    figure = go.Figure(_grid(tuple(bool(own) for own in subplot_titles), n_columns, row_height))
    figure.layout.title.text = title
    for note, text in zip(figure.layout.annotations, filter(None, subplot_titles), strict=True):
        note.text = text
    return figure


@lru_cache(maxsize=32)
def _grid(is_titled: tuple[bool, ...], n_columns: int, row_height: int) -> go.Figure:
    """Return the empty grid, to be copied: plotly takes three times as long to make it as to copy it."""
    n_rows = -(-len(is_titled) // n_columns)
    height = row_height * n_rows - BETWEEN
    figure = make_subplots(
        rows=n_rows,
        cols=n_columns,
        subplot_titles=[" " * own for own in is_titled],
        vertical_spacing=BETWEEN / height,
        horizontal_spacing=0.22 / max(2, n_columns),
    )
    axis = {"showgrid": True, "gridcolor": GRID, "zeroline": False, "linecolor": AXIS, "ticks": "outside"}
    axis |= {"tickcolor": AXIS, "exponentformat": "power", "separatethousands": True}
    title = {"x": 0.01, "xanchor": "left", "y": 1, "font": {"size": 17}}
    styles, placed = {"x": {**axis, "title": {"standoff": 4}}, "y": axis}, figure.layout.to_plotly_json()
    figure.layout = {  # at once: plotly takes three times as long to update one property after another
        **{name: {**own, **styles[name[0]]} if "axis" in name else own for name, own in placed.items()},
        "template": "none",  # plotly's own is most of a copy's time, and pages do not have it
        "title": {**title, "yref": "container", "yanchor": "top", "pad": {"t": 20}},
        "font": {"family": FONT, "size": 13, "color": EXACT},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "height": TOP + height + BELOW,
        "margin": {"l": 70, "r": 30, "t": TOP, "b": BELOW},
        "colorway": SERIES,
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": -BELOW / height, "yanchor": "top"},
    }
    return figure


def log_axes(figure: go.Figure, panel: tuple[int, int], axes: str = "y", *, floor: float = 0.0) -> None:
    """Make axes of a panel logarithmic over the range of its lines and points, with each decade labeled.

    Lower ends of intervals, zeros and values below `floor` do not extend the range: the lower end of an interval can be
    a millionth of its estimate.
    """
    subplot = figure.get_subplot(*panel)
    name = str(subplot.xaxis.plotly_name).replace("axis", "")
    drawn = [trace for trace in figure.data if trace.type == "scatter" and (trace.xaxis or "x") == name]
    for axis in axes:
        values = np.concatenate([np.ones(0), *(_reach(trace, axis) for trace in drawn)])
        values = values[np.isfinite(values) & (values > 0) & (values >= floor)]
        low, high = (np.log10(values.min()), np.log10(values.max())) if len(values) else (0.0, 1.0)
        low, high = (low - 0.1, high + 0.1) if high - low > _LEAST_DECADES else (low - 0.2, high + 0.2)
        ticks, labels = _log_ticks(low, high)
        update = figure.update_xaxes if axis == "x" else figure.update_yaxes
        update(type="log", range=[low, high], tickvals=ticks, ticktext=labels, row=panel[0], col=panel[1])


def at_least(figure: go.Figure, panel: tuple[int, int], span: float) -> None:
    """Make the linear y axis of a panel cover at least `span`, so that rounding does not look like a trend."""
    name = str(figure.get_subplot(*panel).xaxis.plotly_name).replace("axis", "")
    own = [np.asarray(t.y, dtype=float) for t in figure.data if (t.xaxis or "x") == name and t.type == "scatter"]
    values = np.concatenate(own or [np.zeros(1)])
    values = values[np.isfinite(values)]
    if len(values) and values.max() - values.min() < span:
        middle = (values.max() + values.min()) / 2
        ends = [middle - span / 2, middle + span / 2]
        shift = -ends[0] if ends[0] < 0 <= values.min() else 0.0  # no negative axis without negative numbers
        figure.update_yaxes(range=[end + shift for end in ends], row=panel[0], col=panel[1])


def name_once(figure: go.Figure) -> None:
    """List each name once in the legend; unnamed or already hidden traces are not listed."""
    seen: set[str | None] = {None}
    for trace in figure.data:
        if trace.type == "scatter" and trace.showlegend is not False:
            trace.showlegend = trace.name not in seen
            seen.add(trace.name)


def entries(figure: go.Figure) -> dict[str, dict[str, list[int]]]:
    """Return the legend entries of each panel: indices of traces by name, by the panel's x axis.

    A name in the figure's legend is listed in every panel that has a trace of that name.
    """
    lines = [
        (index, trace)
        for index, trace in enumerate(figure.data)
        if trace.type == "scatter" and trace.name and trace.mode != "text"
    ]
    listed = {trace.name for _, trace in lines if trace.showlegend is not False}
    found: dict[str, dict[str, list[int]]] = {}
    for index, trace in lines:
        if trace.name in listed:
            found.setdefault(trace.xaxis or "x", {}).setdefault(trace.name, []).append(index)
    return found


def with_room_for_legend(figure: go.Figure) -> go.Figure:
    """Put a legend below each panel and make the figure higher, so that panels keep their size; return the figure."""
    listed, layout = entries(figure), figure.layout
    if (layout.meta or {}).get(_SPACED) or not listed:
        return figure
    width = PAGE_WIDTH - layout.margin.l - layout.margin.r
    axes = [(listed.get(axis_id(x), {}), x.domain, layout[axis_name(x.anchor or "y")]) for x in figure.select_xaxes()]
    rows: dict[float, int] = {}  # lines of the highest legend, by the upper edge of the row
    for names, (left, right), y in axes:
        rows[y.domain[1]] = max(rows.get(y.domain[1], 0), _lines(list(names), width * (right - left)))
    moved = _Stretch(rows, layout.height - layout.margin.t - layout.margin.b)
    number = 2  # of the next legend; traces without one use the first
    for names, (left, right), y in axes:
        place = (left, right, moved(y.domain[0]) - BELOW / moved.height)
        number = _place_legends(figure, names, place, width, number)
    _move(figure, moved)
    layout.height, layout.margin.b = layout.height + moved.added, layout.margin.b + moved.last
    layout.meta, layout.showlegend = {**(layout.meta or {}), _SPACED: True}, True
    return figure


def label_axes(figure: go.Figure, panel: tuple[int, int], x: str, y: str) -> None:
    """Set axis titles, including units, of the panel at (row, column), counted from 1."""
    subplot = figure.get_subplot(*panel)
    subplot.xaxis.title.text, subplot.yaxis.title.text = x, y


_RAMP = 6  # colors of `LAYERS` from light to dark; those after them are another ramp
_SPACED = "is_spaced"  # key of the figure's notes: a legend under each panel
_LEAST_DECADES = 0.5


def _reach(trace: "go.Scatter", axis: str) -> Float[np.ndarray, " value"]:
    """Return the values of a line with the upper ends of its whiskers, or the upper end of a band."""
    values, error = np.asarray(trace[axis], dtype=float).ravel(), trace[f"error_{axis}"].array
    upper = np.ones(0) if error is None else values + np.asarray(error, dtype=float)
    return np.append(upper, np.nanmax(values, initial=0.0) if trace.fill else values)


def _log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return ticks at powers of ten between two logarithms; with fewer than two, at 1, 2 and 5, or at all digits."""
    decades = list(range(math.floor(low), math.ceil(high) + 1))
    powers = [10.0**k for k in decades if low <= k <= high]
    if len(powers) >= 2:
        powers = powers[:: -(-len(powers) // 6)]
        return powers, [_power(value) for value in powers]
    every = [(k, digit) for k in decades for digit in range(1, 10) if low <= math.log10(digit * 10.0**k) <= high]
    few = [at for at in every if at[1] in (1, 2, 5)]
    finer = [digit * 10.0**k for k, digit in (few if len(few) >= 2 else every)]
    return finer, [f"{value:.3g}" for value in finer]


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    return f"{value:g}" if -3 <= exponent <= 4 else f"10<sup>{exponent}</sup>"


@final
class _Stretch:
    """Map heights in a figure to heights after its rows are extended for legends, as shares of the new height."""

    def __init__(self, rows: Mapping[float, int], height: float) -> None:
        self._tops = sorted(rows, reverse=True)
        room = [LEGEND_ROW * rows[top] + 8 * bool(rows[top]) for top in self._tops]
        self._above = [sum(room[:index]) for index in range(len(room))]
        self.last, self.added = room[-1], sum(room)
        self._old, self.height = height, height + self.added - self.last

    def __call__(self, y: float) -> float:
        """Return the new place of a height between 0 and 1."""
        below = [above for top, above in zip(self._tops, self._above, strict=True) if y <= top + 1e-9]
        from_top = (1 - y) * self._old + (below[-1] if below else 0)
        return 1 - from_top / self.height


def _move(figure: go.Figure, moved: _Stretch) -> None:
    """Move axes, titles and color bars to the new place of their row."""
    for note in figure.select_annotations({"yref": "paper"}):
        note.y = moved(note.y)
    bars = [trace.colorbar for trace in figure.data if trace.type == "heatmap"]
    bars += [axis.colorbar for axis in figure.select_coloraxes()]
    for bar in (bar for bar in bars if bar.y is not None and bar.len is not None):
        bar.len *= (moved.height - moved.added + moved.last) / moved.height
        bar.y = moved(bar.y)
    for y in figure.select_yaxes():
        y.domain = tuple(moved(end) for end in y.domain)


def _place_legends(
    figure: go.Figure, names: Mapping[str, list[int]], place: tuple[float, float, float], width: float, number: int
) -> int:
    """Lay out legends below a panel, in as many columns as fit, and return the number of the next legend.

    `place` is left, right and the legend's top.
    """
    (left, right, top), shown, traces = place, list(names.values()), figure.data
    n_lines = _lines(list(names), width * (right - left))
    for start in range(0, len(shown), max(1, n_lines)):
        x = left + (right - left) * (start // n_lines) / -(-len(shown) // n_lines)
        figure.layout[f"legend{number}"] = {"x": x, "y": top, "yanchor": "top", "font": {"size": 12}}
        for indices in shown[start : start + n_lines]:
            for index in indices:
                trace = traces[index]
                trace.legend, trace.showlegend, trace.legendgroup = f"legend{number}", index == indices[0], None
        number += 1
    return number


def _lines(names: list[str], width: float) -> int:
    """Return the number of lines of a legend of this width in pixels, with columns as wide as its longest name."""
    if not names:
        return 0
    widest = max(_SAMPLE + _LETTER * len(name) for name in names)
    return -(-len(names) // max(1, int(width // widest)))


def axis_name(axis: str) -> str:
    """Return the name of an axis in a layout, such as "xaxis2" for "x2"."""
    return f"{axis[0]}axis{axis[1:]}"


def axis_id(axis: "go.layout.XAxis") -> str:
    """Return the short name of an axis, such as "x2"."""
    return str(axis.plotly_name).replace("axis", "")
