"""Lines over layers or positions, with interval bands, and their baseline as a gray dashed line or band."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Real

from bayesgeom.results.theme import BASELINE, EXACT, MEASURED

Panel = tuple[int, int]
SMALLEST_BITS = 1e-6  # lower end of logarithmic axes; a baseline below it is no nearer to the model's error
LEAST_BITS = 0.01  # least range of an axis of entropies or differences


def add_line(
    figure: go.Figure,
    panel: Panel,
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
        ),
        row=panel[0],
        col=panel[1],
    )


def add_reference(
    figure: go.Figure,
    panel: Panel,
    x: Sequence[float] | Real[np.ndarray, " x"],
    y: Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = EXACT,
) -> None:
    """Add a wide pale line, which stays visible under a line that coincides with it."""
    line = {"color": color, "width": 7}
    figure.add_trace(
        go.Scatter(x=list(x), y=y, name=name, mode="lines", line=line, opacity=0.3), row=panel[0], col=panel[1]
    )


def add_band(
    figure: go.Figure,
    panel: Panel,
    x: Sequence[float] | Real[np.ndarray, " x"],
    lo: Float[np.ndarray, " x"],
    hi: Float[np.ndarray, " x"],
    *,
    name: str,
    color: str = MEASURED,
) -> None:
    """Add a shaded interval between `lo` and `hi`, where both are known."""
    known = np.isfinite(lo) & np.isfinite(hi)
    lo, hi = lo[known], hi[known]
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    along = np.asarray(x, dtype=float)[known]
    across = np.concatenate([along, along[::-1]])
    figure.add_trace(
        go.Scatter(
            x=across,
            y=np.concatenate([hi, lo[::-1]]),
            mode="lines",
            line={"width": 0},
            fill="toself",
            fillcolor=f"rgba({red},{green},{blue},0.18)",
            name=name,
            hoverinfo="skip",
        ),
        row=panel[0],
        col=panel[1],
    )


def add_baseline(
    figure: go.Figure,
    panel: Panel,
    x: Sequence[float] | Real[np.ndarray, " x"],
    y: float | Float[np.ndarray, " x"],
    *,
    name: str,
) -> None:
    """Add a baseline level as a gray dashed line, constant or varying."""
    levels = np.broadcast_to(np.asarray(y, dtype=float), (len(x),))
    figure.add_trace(
        go.Scatter(x=list(x), y=levels, name=name, mode="lines", line={"color": BASELINE, "dash": "dash"}),
        row=panel[0],
        col=panel[1],
    )


def log_baseline(
    figure: go.Figure,
    panel: Panel,
    x: Sequence[float] | Real[np.ndarray, " x"],
    y: Float[np.ndarray, " x"],
    *,
    name: str,
    floor: float,
) -> None:
    """Add a baseline to a logarithmic axis from `floor` on; the legend names one that lies below it everywhere."""
    is_shown = y > floor
    below = "" if is_shown.any() or not np.isfinite(y).any() else " (below the axis)"
    add_baseline(figure, panel, x, np.where(is_shown, y, np.nan), name=f"{name}{below}")
