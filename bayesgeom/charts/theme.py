"""One look for every chart: measured numbers in colour, chance in grey, titles and units always on the axes."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

MEASURED, SECOND, THIRD, NULL, EXACT = "#2563a8", "#c2571a", "#3f8f5b", "#8a8f98", "#1d1f23"
SERIES = (MEASURED, SECOND, THIRD, "#7d4fa1", "#b08900", "#0f8b8d", "#a8325e", "#5c6b7a", "#6b8e23")
SEQUENTIAL = "Viridis"
DIVERGING = "RdBu_r"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True}


def panels(title: str, subplot_titles: tuple[str, ...], *, n_columns: int = 2, row_height: int = 320) -> go.Figure:
    """An empty grid of titled panels in the house look."""
    n_rows = -(-len(subplot_titles) // n_columns)
    figure = make_subplots(
        rows=n_rows, cols=n_columns, subplot_titles=subplot_titles, vertical_spacing=0.36 / max(2, n_rows + 1),
        horizontal_spacing=0.22 / max(2, n_columns),
    )  # fmt: skip
    figure.update_layout(
        title={"text": title, "x": 0.01, "xanchor": "left", "font": {"size": 17}},
        font={"family": FONT, "size": 13, "color": EXACT},
        paper_bgcolor="white",
        plot_bgcolor="white",
        height=110 + row_height * n_rows,
        margin={"l": 70, "r": 30, "t": 80, "b": 60},
        colorway=SERIES,
        hovermode="closest",
        legend={"orientation": "h", "y": -0.18 / n_rows, "yanchor": "top"},
    )
    figure.update_xaxes(showgrid=True, gridcolor="#eceef1", zeroline=False, linecolor="#c9cdd3", ticks="outside")
    figure.update_yaxes(showgrid=True, gridcolor="#eceef1", zeroline=False, linecolor="#c9cdd3", ticks="outside")
    return figure


def label_axes(figure: go.Figure, panel: tuple[int, int], x: str, y: str) -> None:
    """Axis titles, units included, of the panel at (row, column) counted from 1."""
    figure.update_xaxes(title_text=x, row=panel[0], col=panel[1])
    figure.update_yaxes(title_text=y, row=panel[0], col=panel[1])
