"""Read-outs beside their nulls: a grid of lines, each with its interval and grey levels, or a note for no answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_line, add_null
from bayesgeom.charts.theme import DASHES, NULL, SECOND, label_axes, panels, with_room_for_legend


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One measured line of a panel.

    `ticks` name its steps; `nulls` are grey levels by name; `before` is the value one step ahead of all, that of the
    embedding; `note` is what the panel says where nothing was measured.
    """

    title: str
    x: str
    y: str
    ticks: Sequence[str]
    values: Float[np.ndarray, " step"]
    nulls: Mapping[str, Float[np.ndarray, " step"]]
    band: tuple[Float[np.ndarray, " step"], Float[np.ndarray, " step"]] | None = None
    before: float = float("nan")
    note: str = "not defined here"


def readout_figure(title: str, lines: Sequence[Line]) -> go.Figure:
    """One panel per line; every null has one dash and one entry in the legend across panels."""
    figure = panels(title, tuple(line.title for line in lines), row_height=360)
    names = list(dict.fromkeys(name for line in lines for name in line.nulls))
    dashes = {name: DASHES[i % len(DASHES)] for i, name in enumerate(names)}
    for index, line in enumerate(lines):
        panel = (index // 2 + 1, index % 2 + 1)
        if np.isfinite(line.values).any():
            _draw(figure, panel, line, dashes)
        else:
            _note(figure, panel, line.note)
        label_axes(figure, panel, line.x, line.y)
    seen: set[str | None] = {None}
    for trace in figure.data:
        trace.showlegend = trace.name not in seen
        seen.add(trace.name)
    return with_room_for_legend(figure)


def _draw(figure: go.Figure, panel: tuple[int, int], line: Line, dashes: Mapping[str, str]) -> None:
    steps = range(len(line.values))
    if line.band is not None and np.isfinite(line.band).all():
        add_band(figure, panel, steps, *line.band, name="95 % interval")
    add_line(figure, panel, steps, line.values, name="measured")
    for name, level in line.nulls.items():
        if np.isfinite(level).any():
            add_null(figure, panel, steps, level, name=f"null: {name}")
            figure.data[-1].line.dash = dashes[name]
    places, texts = list(steps), list(line.ticks)
    if np.isfinite(line.before):
        add_line(figure, panel, [-1], np.array([line.before]), name="embedding", color=SECOND)
        places, texts = [-1, *places], ["embedding", *texts]
    every = -(-len(texts) // 9)
    figure.update_xaxes(tickvals=places[::every], ticktext=texts[::every], row=panel[0], col=panel[1])


def _note(figure: go.Figure, panel: tuple[int, int], text: str) -> None:
    """A sentence in the middle of a panel that has nothing to draw."""
    figure.add_trace(
        go.Scatter(x=[0], y=[0], mode="text", text=[text], textfont={"color": NULL}, hoverinfo="skip"),
        row=panel[0], col=panel[1],
    )  # fmt: skip
    figure.update_xaxes(showticklabels=False, showgrid=False, ticks="", row=panel[0], col=panel[1])
    figure.update_yaxes(showticklabels=False, showgrid=False, ticks="", row=panel[0], col=panel[1])
