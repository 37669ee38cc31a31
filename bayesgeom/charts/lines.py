"""Lines over layers, positions or steps: measured ones with 95 % bands, exact ones, and baselines in gray.

`Panel.finished` writes the name of each line at its end, and its interval on hover.
"""

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Bool, Float, Int, Real

from bayesgeom.core import number_text
from bayesgeom.core.text import interval_text
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import INTERVAL, Panel
from bayesgeom.report.theme import BASELINE, EXACT, MEASURED, escaped, label_axes, log_axes, rgb, wrapped

SMALLEST_BITS = 1e-6  # lower end of logarithmic axes; a baseline below it is no nearer to the model's error
LEAST_BITS = 0.01  # least range of an axis of entropies or differences
N_BASELINES = 3  # of an estimate: more gray lines cannot be told apart, and tables list them
_LIKE = 1.05  # a smaller ratio is none that a title should name
_LOW = 140  # height of an empty panel, in pixels
_CROWDED = 40  # with more points, markers would hide the line

Places = Sequence[float] | Real[np.ndarray, " x"]
Band = tuple[Float[np.ndarray, " x"], Float[np.ndarray, " x"]]


def add_line(
    figure: go.Figure,
    x: Places,
    y: Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = MEASURED,
    band: Band | None = None,
) -> None:
    """Add a measured line, and its 95 % interval as a band that is also told on hover; missing values leave a gap."""
    texts = None
    if band is not None and np.isfinite(band).all(axis=0).any():
        add_band(figure, x, *band, name=f"{name}, {INTERVAL}", color=color)
        texts = ["" if np.isnan(ends).any() else f" ({interval_text(*ends)})" for ends in zip(*band, strict=True)]
    mode = "lines" if len(x) > _CROWDED else "lines+markers"
    style = {"line": {"color": color, "width": 2.5}, "marker": {"size": 5, "color": color}}
    figure.add_scatter(x=list(x), y=y, name=escaped(name), mode=mode, customdata=texts, **style)


def add_estimate(
    figure: go.Figure,
    x: Places,
    own: Estimate,
    *,
    name: str = "model",
    baselines: Mapping[str, float | Float[np.ndarray, " x"]] | None = None,
    is_log: bool = False,
) -> None:
    """Add an estimate along its only axis with its band, above its baselines or those that are given.

    Of more than three baselines those nearest to the estimate are drawn, and on a log axis of errors the lowest; tables
    list all of them. Levels far below the estimate are drawn at the end of a log axis.
    """
    levels = {level.name: level.value for level in own.compared} if baselines is None else baselines
    level_of = {label: np.broadcast_to(level, own.value.shape) for label, level in levels.items()}
    known = {label: level for label, level in level_of.items() if np.isfinite(level).any()}
    order = {label: float(np.nanmean(level if is_log else np.abs(level - own.value))) for label, level in known.items()}
    nearest = sorted(known, key=order.__getitem__)[:N_BASELINES]
    floor = log_floor(own.value, known[nearest[0]] if nearest else own.value) if is_log else -np.inf
    for label in nearest:
        add_baseline(figure, x, known[label], name=f"baseline: {label}", floor=floor)
    if np.isfinite(own.value).any():
        add_line(figure, x, own.value, name=name, band=own.ends)
    if is_log:
        log_axes(figure, floor=floor)


def estimate_panel(
    title: str, axes: tuple[str, str], x: Places, own: Estimate, *, name: str = "model", **known: Any
) -> Panel:
    """Return a panel of an estimate along its only axis, with its band and baselines, or a note that it is unknown."""
    panel = Panel.blank(title, **known)
    if np.isfinite(own.value).any():
        add_estimate(panel.figure, x, own, name=name)
        label_axes(panel.figure, *axes)
    else:
        add_note(panel.figure, "not defined here")
    return panel


def with_baseline(title: str, baseline: float, label: str) -> str:
    """Return a panel's title with the baseline level appended, if it is known."""
    return title if np.isnan(baseline) else f"{title} ({label}: {number_text(baseline)})"


def brief(value: SupportsFloat) -> str:
    """Return a number for a title: two significant digits, and three where only the distance from 1 is left.

    Example:
        >>> brief(0.12345), brief(0.9982), brief(-2e-8), brief(1234.0)
        ('0.12', '0.998', '−2e−8', '1,200')
    """
    number = float(value)
    return number_text(float(f"{number:.{3 if 0.99 < abs(number) < 1 else 2}g}"))


def times_text(value: float, level: float, name: str) -> str:
    """Return how a positive number compares with a level, in words for a title.

    Example:
        >>> times_text(0.25, 1.0, "uniform"), times_text(3.0, 2.0, "chance"), times_text(2.0, 2.01, "chance")
        ('4 times below uniform', '1.5 times above chance', 'like chance')
    """
    if not (np.isfinite([value, level]).all() and min(value, level) > 0):
        return f"{name}: {number_text(level)}"
    ratio, word = max(level / value, value / level), "below" if level > value else "above"
    return f"{brief(ratio)} times {word} {name}" if ratio > _LIKE else f"like {name}"


def change_text(what: str, kl_bits: float) -> str:
    """Return how much an edit changes KL, for a title.

    Example:
        >>> change_text("Editing layer 2", 0.25)
        'Editing layer 2 changes KL by 0.25 bits'
    """
    return f"{what} changes KL by {brief(kl_bits)} bits"


def add_reference(figure: go.Figure, x: Places, y: Float[np.ndarray, " x"], *, name: str, color: str = EXACT) -> None:
    """Add a wide pale line, which stays visible under a line that coincides with it."""
    line = {"color": color, "width": 7}
    figure.add_scatter(x=list(x), y=y, name=escaped(name), mode="lines", line=line, opacity=0.3)


def add_band(
    figure: go.Figure,
    x: Places,
    lo: Float[np.ndarray, " x"],
    hi: Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = MEASURED,
) -> None:
    """Add a shaded interval between `lo` and `hi`, with gaps where unknown, and a whisker where neighbors lack one."""
    along, runs = np.asarray(x, dtype=float), _runs(np.isfinite(lo) & np.isfinite(hi))
    gap = np.full(1, np.nan)
    across = [part for run in runs for part in (gap, along[run], along[run][::-1])][1:]
    ends = [part for run in runs for part in (gap, hi[run], lo[run][::-1])][1:]
    down = [part for run in runs for part in (gap, _whisker(hi[run] - lo[run]), np.full(len(run), np.nan))][1:]
    red, green, blue = rgb(color)
    figure.add_scatter(
        x=np.concatenate(across or [gap[:0]]),
        y=np.concatenate(ends or [gap[:0]]),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.18)",
        name=escaped(name),
        hoverinfo="skip",
        showlegend=False,
    )
    if any(len(run) == 1 for run in runs):
        reach = np.concatenate(down)
        bar = {"type": "data", "symmetric": False, "array": 0 * reach, "arrayminus": reach}
        line = {"color": f"rgba({red},{green},{blue},0.45)", "thickness": 6, "width": 0}
        figure.data[-1].error_y = {**bar, **(line if color == BASELINE else {"color": color, "thickness": 1.4})}


def _runs(known: Bool[np.ndarray, " x"]) -> list[Int[np.ndarray, " run"]]:
    """Return the indices of each run of neighboring known values."""
    at = np.flatnonzero(known)
    return [run for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(run)]


def _whisker(width: Float[np.ndarray, " run"]) -> Float[np.ndarray, " run"]:
    """Return the width of an interval without neighbors, which an area cannot show; NaN for the others."""
    return width if len(width) == 1 else np.full(len(width), np.nan)


def add_baseline(
    figure: go.Figure,
    x: Places,
    y: float | Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = BASELINE,
    floor: float = -np.inf,
) -> None:
    """Add a baseline as a dashed line, constant or varying; a level known at one place alone is a marker.

    Levels below the `floor` of a log axis are drawn at it, as triangles that point down. With the `color` of a series
    the line is pale and has no name of its own: there several series have a baseline each.
    """
    levels = np.broadcast_to(np.asarray(y, dtype=float), (len(x),))
    is_below, is_gray = levels < floor, color == BASELINE
    is_alone = any(len(run) == 1 for run in _runs(np.isfinite(levels)))
    texts = [f" (beyond the axis: {number_text(level)})" if level < floor else "" for level in levels]
    symbols = {"symbol": "triangle-down", "size": np.where(is_below, 9, 0)} if is_below.any() else {"size": 6}
    figure.add_scatter(
        x=list(x),
        y=np.where(is_below, floor, levels),
        name=escaped(name),
        mode="lines+markers" if is_alone or is_below.any() else "lines",
        line={"color": color, "dash": "dash", "width": 1.5},
        marker={"color": color, **symbols} if is_alone or is_below.any() else None,
        opacity=None if is_gray else 0.6,
        showlegend=None if is_gray else False,
        customdata=texts if is_below.any() else None,
    )


def label_layers(figure: go.Figure, n_layers: int) -> None:
    """Name the places −1, 0, … of x: the embedding and the layers, at most ten of them."""
    places = [-1, *range(n_layers - 1, -1, -max(1, -(-n_layers // 9)))]
    figure.update_xaxes(tickvals=places, ticktext=["emb", *map(str, places[1:])])


def add_note(figure: go.Figure, text: str) -> None:
    """Add a sentence, which gets a capital, in the middle of an empty panel, make it low, and hide its axes."""
    shown = wrapped(text[:1].upper() + text[1:], 46)
    figure.add_scatter(
        x=[0], y=[0], mode="text", text=[shown], textfont={"color": BASELINE}, hoverinfo="skip", showlegend=False
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.layout.height = _LOW


def log_floor(values: Float[np.ndarray, "..."], deciding: Float[np.ndarray, "..."]) -> float:
    """Return a round lower end of a log axis that shows values and the deciding baseline, this one from 1e−6 on.

    Example:
        >>> log_floor(np.array([0.25, 0.5]), np.array([0.125, 0.0])), log_floor(np.array([0.25]), np.array([1e-9]))
        (0.1, 1e-06)
    """
    smallest, level = (float(each[each > 0].min(initial=np.inf)) for each in (values, deciding))
    if not np.isfinite(min(smallest, level)) or level <= SMALLEST_BITS < smallest:
        return SMALLEST_BITS
    lower = min(smallest, max(level, SMALLEST_BITS))
    decade = 10.0 ** np.floor(np.log10(lower))
    return float(max(digit * decade for digit in (0.5, 1, 2, 5) if digit * decade < lower))
