"""A heat map of shares with the number in each cell, and panels of different heights below one another."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.core.text import number_text
from bayesgeom.results.theme import BETWEEN, EXACT, SHADES, rgb


def add_cells(
    figure: go.Figure,
    panel: tuple[int, int],
    shares: Float[np.ndarray, "row column"],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    absent: str = "–",
) -> None:
    """Draw shares of a gap, 0 light and 1 dark, each with its number.

    Args:
        figure: A grid of panels.
        panel: Row and column of the panel, counted from 1.
        shares: The shares; NaN is absent, and values outside 0 to 1 have the color of the nearer end.
        rows: Names of the rows, from the top.
        columns: Names of the columns.
        absent: What an absent cell says.
    """
    at = {"row": panel[0], "col": panel[1]}
    figure.add_trace(
        go.Heatmap(
            z=shares,
            x=list(columns),
            y=list(rows),
            zmin=0,
            zmax=1,
            colorscale=SHADES,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{y}, %{x}: %{z:.4f}<extra>share closed</extra>",
            name="share closed",
        ),
        **at,
    )
    cells = [float(own) for own in shares.flat]
    figure.add_trace(  # a heat map's own text is hard to read
        go.Scatter(
            x=[name for _ in rows for name in columns],
            y=[name for name in rows for _ in columns],
            text=[_cell_text(own) if np.isfinite(own) else absent for own in cells],
            mode="text",
            textfont={"color": [_ink(own) if np.isfinite(own) else EXACT for own in cells]},
            name="cells",
            hoverinfo="skip",
            showlegend=False,
        ),
        **at,
    )
    figure.update_xaxes(range=[-0.5, len(columns) - 0.5], **at)
    figure.update_yaxes(range=[len(rows) - 0.5, -0.5], **at)


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


def _cell_text(share: float) -> str:
    """Return the text of a cell, at most six letters; the sign of a share near 0 is noise."""
    return "≈ 0" if 0 < abs(share) < 1e-4 else number_text(round(share, 4))


def _ink(share: float) -> str:
    """Return black or white, whichever has the higher contrast with the cell: at least 4.58 on any color."""
    places, colors = [place for place, _ in SHADES], np.array([rgb(color) for _, color in SHADES]) / 255
    cell = np.array([np.interp(share, places, channel) for channel in colors.T])
    linear = np.where(cell <= 0.04045, cell / 12.92, ((cell + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))  # of sRGB, as in WCAG 2
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"
