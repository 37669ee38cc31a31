"""The figure of the comparison: a heat map of the share of the gap closed, and every model with its interval."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.comparison.verdict import LIMITED, REALIZED
from bayesgeom.core.numbers import is_small, number_text
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.theme import BASELINE, BETWEEN, EXACT, MEASURED, SHADES, label_axes, panels

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
    levels = ", ".join(f"{name} {level:g}" for level, name in _LEVELS)  # beside the lines they would cover other text
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
            text=[[("" if np.isnan(v) else _cell_text(float(v))) for v in row] for row in shares],
            texttemplate="%{text}",
            showscale=False,
            hovertemplate="%{y}, %{x}: %{z:.4f}<extra>share closed</extra>",
            name="share closed",
        ),
        row=1,
        col=1,
    )
    _name_missing(figure, shares, tasks, architectures)
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
    """Return the text of a cell; the sign of a share at the level of the context-free predictor is noise."""
    return "≈ 0" if is_small(share) else number_text(share)


def _name_missing(
    figure: go.Figure,
    shares: Float[np.ndarray, "task architecture"],
    tasks: Sequence[str],
    architectures: Sequence[str],
) -> None:
    """Write "not trained" in cells without a share; a heat map's own text there has the color of light cells."""
    rows, columns = (at.tolist() for at in np.nonzero(np.isnan(shares)))
    if rows:
        figure.add_trace(
            go.Scatter(
                x=[architectures[column] for column in columns],
                y=[tasks[row] for row in rows],
                text=["not<br>trained"] * len(rows),
                mode="text",
                textfont={"color": EXACT},
                name="not trained",
                hoverinfo="skip",
                showlegend=False,
            ),
            row=1,
            col=1,
        )


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
