"""The figure of an intervention: effect by layer with ceiling and controls, one line per band of positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_line
from bayesgeom.interventions.design import MATCHED, RANDOM
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.theme import BASELINE, DASHES, EXACT, MEASURED, SERIES, label_axes, panels, with_room_for_legend

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """One panel: an effect over layers and bands with its baselines, and the ceiling at all positions."""

    title: str
    y: str
    effect: Estimate
    ceiling: Float[np.ndarray, " layer"]


def intervention_figure(title: str, profiles: Sequence[Profile], bands: Sequence[str]) -> "Figure":
    """Draw the panels in a row; only the line of all positions has a 95 % interval."""
    figure = panels(title, tuple(profile.title for profile in profiles))
    for column, profile in enumerate(profiles, start=1):
        before = len(figure.data)
        _draw(figure, (1, column), profile, bands)
        figure.update_xaxes(tickmode="linear", tick0=0, dtick=1, row=1, col=column)
        label_axes(figure, (1, column), "layer", profile.y)
        for trace in figure.data[before:]:
            trace.showlegend = trace.fill is None or trace.name.startswith("baseline")
    return with_room_for_legend(figure)


def _draw(figure: "Figure", panel: tuple[int, int], profile: Profile, bands: Sequence[str]) -> None:
    effect = profile.effect
    layers = np.flatnonzero(np.isfinite(effect.value[:, 0]))
    random, matched = (effect.baseline(name) for name in (RANDOM, MATCHED))
    least, most = (random.value if end is None else end for end in (random.low, random.high))
    add_band(
        figure, panel, layers, least[layers, 0], most[layers, 0], name=f"baseline: {RANDOM} (range)", color=BASELINE
    )
    most = matched.bar("higher")[layers, 0]
    add_line(figure, panel, layers, most, name=f"baseline: {MATCHED} (largest)", color=BASELINE, dash="dash")
    figure.data[-1].marker.update(symbol="square", size=8)
    add_line(figure, panel, layers, profile.ceiling[layers], name="ceiling: whole activation", color=EXACT, dash="dot")
    others = (own for own in effect.compared if own.name not in (RANDOM, MATCHED))
    for dash, other in zip(("solid", *DASHES[2:]), others, strict=False):  # untrained: over all positions only
        if np.isfinite(level := other.bar("higher")[layers, 0]).any():
            add_line(figure, panel, layers, level, name=f"baseline: {other.name}", color=BASELINE, dash=dash)
            figure.data[-1].marker.update(symbol="diamond", size=9)
    low, high = (end[layers, 0] for end in effect.ends)
    add_band(figure, panel, layers, low, high, name=f"{bands[0]}, 95 % interval", color=MEASURED)
    for band, name in reversed(list(enumerate(bands))):
        dash, label = ("solid", f"{name} positions, 95 % interval") if band == 0 else ("dash", f"{name} of positions")
        color = (MEASURED, *SERIES)[band]
        add_line(figure, panel, layers, effect.value[layers, band], name=label, color=color, dash=dash)
