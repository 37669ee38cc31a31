"""One look for every chart: measured numbers in color, chance in grey, titles and units always on the axes."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

MEASURED, SECOND, THIRD, NULL, EXACT = "#2563a8", "#c2571a", "#3f8f5b", "#8a8f98", "#1d1f23"
SERIES = (MEASURED, SECOND, THIRD, "#7d4fa1", "#b08900", "#0f8b8d", "#a8325e", "#5c6b7a", "#6b8e23")
DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot", "2px,6px", "9px,3px,2px,3px,2px,3px", "1px,3px")  # grey
SEQUENTIAL = "Viridis"
DIVERGING = "RdBu_r"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
TOP, BETWEEN, BELOW, LEGEND_ROW = 84, 92, 52, 21  # pixels: over, between and under the panels; a line of the legend
PAGE_WIDTH = 1080  # pixels that a figure has on the report page
CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True}


def panels(title: str, subplot_titles: tuple[str, ...], *, n_columns: int = 2, row_height: int = 340) -> go.Figure:
    """An empty grid of titled panels in the house look; a row's height holds the panel and what stands under it."""
    n_rows = -(-len(subplot_titles) // n_columns)
    height = row_height * n_rows - BETWEEN
    figure = make_subplots(
        rows=n_rows,
        cols=n_columns,
        subplot_titles=subplot_titles,
        vertical_spacing=BETWEEN / height,
        horizontal_spacing=0.22 / max(2, n_columns),
    )
    figure.update_layout(
        title={"text": title, "x": 0.01, "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top", "pad_t": 20},
        title_font_size=17,
        font={"family": FONT, "size": 13, "color": EXACT},
        paper_bgcolor="white",
        plot_bgcolor="white",
        height=TOP + height + BELOW,
        margin={"l": 70, "r": 30, "t": TOP, "b": BELOW},
        colorway=SERIES,
        hovermode="closest",
        legend={"orientation": "h", "y": -BELOW / height, "yanchor": "top"},
    )
    axis = {"showgrid": True, "gridcolor": "#eceef1", "zeroline": False, "linecolor": "#c9cdd3", "ticks": "outside"}
    figure.update_xaxes(title_standoff=4, **axis)
    figure.update_yaxes(**axis)
    return figure


def name_once(figure: go.Figure) -> None:
    """Let each name stand in the legend once; what has none, or was hidden before, is not listed."""
    seen: set[str | None] = {None}
    for trace in figure.data:
        if trace.type == "scatter" and trace.showlegend is not False:
            trace.showlegend = trace.name not in seen
            seen.add(trace.name)


def with_room_for_legend(figure: go.Figure) -> go.Figure:
    """The figure, as much higher as the lines of its legend are, so that they take nothing from the panels."""
    layout = figure.layout
    lines = _legend_lines(figure, PAGE_WIDTH - layout.margin.l - layout.margin.r)
    below = BELOW + LEGEND_ROW * lines + 8
    content = layout.height - layout.margin.t - layout.margin.b
    return go.Figure(figure).update_layout(
        height=layout.height + below - layout.margin.b, margin_b=below, legend_y=-BELOW / content
    )


def _legend_lines(figure: go.Figure, width: float) -> int:
    """Lines of a horizontal legend: plotly gives every entry the width of the longest once one line is too short."""
    named = [trace for trace in figure.data if trace.name and trace.type.startswith("scatter")]
    widths = [50 + 7.4 * len(trace.name) for trace in named if trace.showlegend is not False]
    if sum(widths) <= width:
        return int(bool(widths))
    return -(-len(widths) // max(1, int(width // max(widths))))


def label_axes(figure: go.Figure, panel: tuple[int, int], x: str, y: str) -> None:
    """Axis titles, units included, of the panel at (row, column) counted from 1."""
    figure.update_xaxes(title_text=x, row=panel[0], col=panel[1])
    figure.update_yaxes(title_text=y, row=panel[0], col=panel[1])
