"""The figure of an intervention: effect by layer, bands of positions as lines, between ceiling and floor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_line, add_null
from bayesgeom.results.theme import EXACT, NULL, SERIES, label_axes, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """One panel: a metric over layers and bands; ceiling, floor and the unedited level over all positions."""

    title: str
    y: str
    values: Float[np.ndarray, "layer band"]
    lo: Float[np.ndarray, "layer band"]
    hi: Float[np.ndarray, "layer band"]
    ceiling: Float[np.ndarray, " layer"]
    floor: Float[np.ndarray, " layer"]
    floor_range: tuple[Float[np.ndarray, " layer"], Float[np.ndarray, " layer"]]
    matched: Float[np.ndarray, " layer"] | None
    unedited: float


def intervention_figure(title: str, profiles: Sequence[Profile], bands: Sequence[str]) -> "Figure":
    """The panels side by side. The line of all positions carries its 95 % interval."""
    figure = panels(title, tuple(profile.title for profile in profiles))
    for column, profile in enumerate(profiles, start=1):
        before = len(figure.data)
        _draw(figure, (1, column), profile, bands)
        figure.update_xaxes(tickmode="linear", tick0=0, dtick=1, row=1, col=column)
        label_axes(figure, (1, column), "layer", profile.y)
        for trace in figure.data[before:]:  # one legend serves both panels
            trace.update(legendgroup=trace.name, showlegend=column == 1)
    return figure


def _draw(figure: "Figure", panel: tuple[int, int], profile: Profile, bands: Sequence[str]) -> None:
    layers = np.flatnonzero(np.isfinite(profile.values[:, 0]))
    least, most = (edge[layers] for edge in profile.floor_range)
    add_band(figure, panel, layers, least, most, name="random subspaces, range", color=NULL)
    add_null(figure, panel, layers, profile.floor[layers], name="random subspaces, mean")
    if profile.matched is not None:
        matched = profile.matched[layers]
        add_line(figure, panel, layers, matched, name="same share of variance, most", color=NULL, dash="dash")
    add_null(figure, panel, layers, profile.unedited, name="unedited")
    figure.data[-1].line.dash = "dot"
    add_line(figure, panel, layers, profile.ceiling[layers], name="ceiling: whole activation", color=EXACT, dash="dot")
    lo, hi = profile.lo[layers, 0], profile.hi[layers, 0]
    add_band(figure, panel, layers, lo, hi, name=f"{bands[0]}, 95 % interval", color=SERIES[0])
    for band, name in enumerate(bands):
        dash = "solid" if band == 0 else "dash"
        add_line(figure, panel, layers, profile.values[layers, band], name=name, color=SERIES[band], dash=dash)
