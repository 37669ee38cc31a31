"""Lines over layers or positions, with interval bands, and their baseline as a gray dashed line or band."""

import textwrap
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Bool, Float, Int, Real

from bayesgeom.core import number_text
from bayesgeom.report import BASELINE, EXACT, MEASURED, rgb

SMALLEST_BITS = 1e-6  # lower end of logarithmic axes; a baseline below it is no nearer to the model's error
LEAST_BITS = 0.01  # least range of an axis of entropies or differences
_LOW = 140  # height of an empty panel, in pixels


def add_line(
    figure: go.Figure,
    x: Sequence[float] | Real[np.ndarray, " x"],
    y: Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = MEASURED,
    dash: str = "solid",
) -> None:
    """Add a measured line with markers; missing values leave a gap."""
    figure.add_trace(
        go.Scatter(
            x=list(x), y=y, name=name, mode="lines+markers", line={"color": color, "dash": dash}, marker={"size": 5}
        )
    )


def add_reference(
    figure: go.Figure,
    x: Sequence[float] | Real[np.ndarray, " x"],
    y: Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = EXACT,
) -> None:
    """Add a wide pale line, which stays visible under a line that coincides with it."""
    line = {"color": color, "width": 7}
    figure.add_trace(go.Scatter(x=list(x), y=y, name=name, mode="lines", line=line, opacity=0.3))


def add_band(
    figure: go.Figure,
    x: Sequence[float] | Real[np.ndarray, " x"],
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
    figure.add_trace(
        go.Scatter(
            x=np.concatenate(across or [gap[:0]]),
            y=np.concatenate(ends or [gap[:0]]),
            mode="lines",
            line={"width": 0},
            fill="toself",
            fillcolor=f"rgba({red},{green},{blue},0.18)",
            name=name,
            hoverinfo="skip",
        )
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
    x: Sequence[float] | Real[np.ndarray, " x"],
    y: float | Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = "",
) -> None:
    """Add a baseline as a gray dashed line, constant or varying; a level known at one place alone is a marker.

    With the `color` of a series the line is pale and dashed, where several series have a baseline each.
    """
    levels = np.broadcast_to(np.asarray(y, dtype=float), (len(x),))
    mode = "lines+markers" if any(len(run) == 1 for run in _runs(np.isfinite(levels))) else "lines"
    line, marker = {"color": color or BASELINE, "dash": "dash"}, {"size": 6} if "markers" in mode else None
    drawn = {"line": line, "marker": marker, "opacity": 0.6 if color else None}
    figure.add_trace(go.Scatter(x=list(x), y=levels, name=name, mode=mode, **drawn))


def add_note(figure: go.Figure, text: str) -> None:
    """Add a sentence in the middle of an empty panel, make it low, and hide its axes."""
    wrapped = "<br>".join(textwrap.wrap(text, 46))
    figure.add_trace(
        go.Scatter(
            x=[0], y=[0], mode="text", text=[wrapped], textfont={"color": BASELINE}, hoverinfo="skip", showlegend=False
        )
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
    own, level = (float(each[each > 0].min(initial=np.inf)) for each in (values, deciding))
    if not np.isfinite(min(own, level)) or level <= SMALLEST_BITS < own:
        return SMALLEST_BITS
    lower = min(own, max(level, SMALLEST_BITS))
    decade = 10.0 ** np.floor(np.log10(lower))
    return float(max(digit * decade for digit in (0.5, 1, 2, 5) if digit * decade < lower))


def log_baseline(
    figure: go.Figure,
    x: Sequence[float] | Real[np.ndarray, " x"],
    y: Float[np.ndarray, " x"],
    *,
    name: str,
    floor: float,
) -> None:
    """Add a baseline to a logarithmic axis; levels below `floor` are drawn at `floor` as triangles that point down."""
    is_below = y < floor
    drawn = np.where(is_below, floor, y)
    add_baseline(
        figure,
        x,
        drawn,
        name=f"{name} (▾ below {number_text(floor)})" if is_below.any() else name,
    )
    if is_below.any():
        marker = {"symbol": "triangle-down", "size": np.where(is_below, 9, 0), "opacity": 1, "color": BASELINE}
        figure.data[-1].update(
            mode="lines+markers", marker=marker, customdata=y, hovertemplate="%{x}: %{customdata:.4g}"
        )
