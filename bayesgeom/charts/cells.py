"""A heat map of shares with the number in each cell."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.core import number_text
from bayesgeom.report import EXACT, SHADES, rgb


def add_cells(
    figure: go.Figure,
    shares: Float[np.ndarray, "row column"],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    absent: str = "–",
) -> None:
    """Draw shares of a gap, 0 light and 1 dark, each with its number.

    Args:
        figure: An empty plot.
        shares: The shares; NaN is absent, and values outside 0 to 1 have the color of the nearer end.
        rows: Names of the rows, from the top.
        columns: Names of the columns.
        absent: What an absent cell says.
    """
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
        )
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
        )
    )
    figure.update_xaxes(range=[-0.5, len(columns) - 0.5])
    figure.update_yaxes(range=[len(rows) - 0.5, -0.5])


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
