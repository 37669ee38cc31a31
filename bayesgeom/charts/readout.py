"""Read-outs with baselines: exact and decoded beliefs in the plane, then lines with intervals and gray levels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.charts.simplex import Simplex, add_simplex
from bayesgeom.results.theme import BASELINE, DASHES, label_axes, name_once, panels, with_room_for_legend


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One measured line of a panel.

    `ticks` name its steps; `baselines` are gray levels by name; `before` is the value of the embedding, one step
    before the first; `note` is shown in the panel if nothing was measured.
    """

    title: str
    x: str
    y: str
    ticks: Sequence[str]
    values: Float[np.ndarray, " step"]
    baselines: Mapping[str, Float[np.ndarray, " step"]]
    band: tuple[Float[np.ndarray, " step"], Float[np.ndarray, " step"]] | None = None
    before: float = float("nan")
    note: str = "not defined here"


def readout_figure(title: str, lines: Sequence[Line], simplexes: Sequence[Simplex] = ()) -> go.Figure:
    """Draw one panel per simplex, then one per line; each baseline has the same dash in all panels."""
    titles = (*(simplex.title for simplex in simplexes), *(line.title for line in lines))
    figure = panels(title, titles, row_height=360)
    for index, simplex in enumerate(simplexes):
        add_simplex(figure, (index // 2 + 1, index % 2 + 1), simplex)
    names = list(dict.fromkeys(name for line in lines for name in line.baselines))
    dashes = {name: DASHES[i % len(DASHES)] for i, name in enumerate(names)}
    for index, line in enumerate(lines, start=len(simplexes)):
        panel = (index // 2 + 1, index % 2 + 1)
        if np.isfinite(line.values).any():
            _draw(figure, panel, line, dashes)
        else:
            _note(figure, panel, line.note)
        label_axes(figure, panel, line.x, line.y)
    name_once(figure)
    return with_room_for_legend(figure)


def _draw(figure: go.Figure, panel: tuple[int, int], line: Line, dashes: Mapping[str, str]) -> None:
    steps = range(len(line.values))
    if line.band is not None and np.isfinite(line.band).all(axis=0).any():
        add_band(figure, panel, steps, *line.band, name="95 % interval")
    add_line(figure, panel, steps, line.values, name="measured")
    for name, level in line.baselines.items():
        if np.isfinite(level).any():
            add_baseline(figure, panel, steps, level, name=f"baseline: {name}")
            figure.data[-1].line.dash = dashes[name]
    places, texts = list(steps), list(line.ticks)
    if np.isfinite(line.before):
        add_line(figure, panel, [-1], np.array([line.before]), name="embedding", color=BASELINE)
        figure.data[-1].update(mode="markers", marker_symbol="diamond")
        places, texts = [-1, *places], ["embedding", *texts]
    every = -(-len(texts) // 9)
    figure.update_xaxes(tickvals=places[::every], ticktext=texts[::every], row=panel[0], col=panel[1])


def _note(figure: go.Figure, panel: tuple[int, int], text: str) -> None:
    """Add a sentence in the middle of an empty panel."""
    figure.add_trace(
        go.Scatter(x=[0], y=[0], mode="text", text=[text], textfont={"color": BASELINE}, hoverinfo="skip"),
        row=panel[0],
        col=panel[1],
    )
    figure.update_xaxes(showticklabels=False, showgrid=False, ticks="", row=panel[0], col=panel[1])
    figure.update_yaxes(showticklabels=False, showgrid=False, ticks="", row=panel[0], col=panel[1])
