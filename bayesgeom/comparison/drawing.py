"""The figure of the comparison: a heat map of the share of the gap closed, and every model with its interval."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.comparison.verdict import LIMITED, REALIZED
from bayesgeom.core.text import number_text
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.theme import BASELINE, BETWEEN, EXACT, MEASURED, SHADES, label_axes, panels, rgb

_LEVELS = ((0.0, "context-free"), (LIMITED, "limited"), (REALIZED, "realized"))


def comparison_figure(
    title: str,
    shares: Float[np.ndarray, "task architecture"],
    tasks: Sequence[str],
    architectures: Sequence[str],
    models: tuple[Sequence[str], Estimate],
) -> go.Figure:
    """Draw a heat map of tasks by architectures, and below it every trained model with its 95 % interval."""
    names, closed = models
    levels = ", ".join(f"{name} {level:g}" for level, name in _LEVELS)  # next to the lines, the names would cover rows
    titles = ("Share of the gap closed (context-free predictor: 0)", f"Every trained model (dotted lines: {levels})")
    figure = panels(title, titles, n_columns=1)
    figure.add_trace(
        go.Heatmap(
            z=shares,
            x=list(architectures),
            y=list(tasks),
            zmin=0,
            zmax=1,
            colorscale=SHADES,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{y}, %{x}: %{z:.4f}<extra>share closed</extra>",
            name="share closed",
        ),
        row=1,
        col=1,
    )
    _name_cells(figure, shares, tasks, architectures)
    figure.update_xaxes(range=[-0.5, len(architectures) - 0.5], row=1, col=1)
    figure.update_yaxes(range=[len(tasks) - 0.5, -0.5], row=1, col=1)
    label_axes(figure, (1, 1), "architecture", "")  # a title would lie on the names of the tasks
    _add_models(figure, names, closed)
    for level, _ in _LEVELS:
        figure.add_vline(x=level, line={"color": BASELINE, "dash": "dot", "width": 1}, row=2, col=1)
    figure.update_xaxes(range=[-0.3, 1.05], row=2, col=1)
    figure.update_yaxes(type="category", range=[len(names) - 0.5, -0.5], row=2, col=1)
    label_axes(figure, (2, 1), "share closed", "")
    return stacked(figure, (80 * len(tasks) + 60, 28 * len(names) + 60))


def _cell_text(share: float) -> str:
    """Return the text of a cell, at most six letters; the sign at the level of the context-free predictor is noise."""
    return "≈ 0" if 0 < abs(share) < 1e-4 else number_text(round(share, 4))


def _name_cells(
    figure: go.Figure,
    shares: Float[np.ndarray, "task architecture"],
    tasks: Sequence[str],
    architectures: Sequence[str],
) -> None:
    """Write the share on each cell, and "not trained" where there is none; a heat map's own text is hard to read."""
    known = np.isfinite(shares).ravel()
    figure.add_trace(
        go.Scatter(
            x=[name for _ in tasks for name in architectures],
            y=[name for name in tasks for _ in architectures],
            text=[
                _cell_text(float(v)) if is_known else "not<br>trained"
                for v, is_known in zip(shares.flat, known, strict=True)
            ],
            mode="text",
            textfont={
                "color": [_ink(float(v)) if is_known else EXACT for v, is_known in zip(shares.flat, known, strict=True)]
            },
            name="cells",
            hoverinfo="skip",
            showlegend=False,
        ),
        row=1,
        col=1,
    )


def _ink(share: float) -> str:
    """Return black or white, whichever has the higher contrast with the cell: at least 4.58 on any color."""
    places, colors = [place for place, _ in SHADES], np.array([rgb(color) for _, color in SHADES]) / 255
    cell = np.array([np.interp(share, places, channel) for channel in colors.T])
    linear = np.where(cell <= 0.04045, cell / 12.92, ((cell + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))  # of sRGB, as in WCAG 2
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def stacked(figure: go.Figure, heights: Sequence[int]) -> go.Figure:
    """Give the panels heights in pixels, one below the other; their titles move along, and a legend below them."""
    inside = sum(heights) + BETWEEN * (len(heights) - 1)
    figure.update_layout(height=inside + figure.layout.margin.t + figure.layout.margin.b)
    figure.layout.legend.y = -figure.layout.margin.b / inside
    top = inside
    notes = figure.layout.annotations[: len(heights)]
    for note, axis, height in zip(notes, figure.select_yaxes(), heights, strict=True):
        axis.domain = max(0, top - height) / inside, top / inside
        note.y = top / inside
        top -= height + BETWEEN
    return figure


def _add_models(figure: go.Figure, names: Sequence[str], closed: Estimate) -> None:
    """Draw every trained model's share with its interval, in the second row."""
    values, (low, high) = closed.value, closed.ends
    shown = np.maximum(values, -0.25)  # a model may be worse than the context-free predictor by any amount
    error = {"array": np.maximum(high - values, 0), "arrayminus": np.maximum(values - low, 0)}
    figure.add_trace(
        go.Scatter(
            x=shown,
            y=list(names),
            mode="markers",
            marker={"color": MEASURED, "size": 9},
            name="share closed",
            error_x={"type": "data", "symmetric": False, "color": MEASURED, **error},
            customdata=np.stack([values, low, high], axis=1),
            showlegend=False,
            hovertemplate="%{y}: %{customdata[0]:.4f} [%{customdata[1]:.4f}, %{customdata[2]:.4f}]<extra></extra>",
        ),
        row=2,
        col=1,
    )
