"""Panels of interventions: an effect over layers with its ceiling and controls, and by bands of positions."""

from collections.abc import Sequence

import numpy as np

from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.lines import add_band, add_baseline, add_line, add_note, add_reference
from bayesgeom.core import Reason
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import BASELINE, EXACT, MEASURED, SERIES, label_axes


def profile_panel(
    title: str,
    y: str,
    effect: Estimate,
    name: str,
    *,
    is_folded: bool = False,
    limits: tuple[float, float] = (-np.inf, np.inf),
    is_along: bool = False,
) -> Panel:
    """Draw an effect at all positions over layers, with its ceiling, its baselines, and the range of the first one.

    A single layer is a row of marks, unless `is_along` keeps its axis. Marks beyond the `limits` lie at the edge, which
    the axis says.
    """
    panel, layers = Panel.blank(title, is_folded=is_folded), np.flatnonzero(np.isfinite(effect.value[:, 0]))
    if not len(layers):  # a file of another version lacks the effect
        add_note(panel.figure, Reason.NOT_STORED.label)
        return panel
    if len(layers) == 1 and not is_along:
        only, label = effect[layers, 0], [f"layer {layers[0]}"]
        marks = {f"baseline: {each.name}": each.bar("higher") for each in only.compared}
        marks |= {"ceiling: whole activation": only.ceiling}
        drawn = np.concatenate(list(marks.values()))
        is_beyond = bool(((drawn < limits[0]) | (drawn > limits[1])).any())
        unit = f"{y} (edge: beyond ±{limits[1]:g})" if is_beyond else y
        add_forest(panel.figure, label, only.value, only.ends, unit=unit, levels=marks, limits=limits)
        return panel
    figure, (random, *others) = panel.figure, effect[layers, 0].compared
    least, most = (random.value if end is None else end for end in (random.low, random.high))
    add_band(figure, layers, least, most, name=f"baseline: {random.name} (range)", color=BASELINE)
    for level in (random, *others):
        if np.isfinite(bar := level.bar("higher")).any():
            add_baseline(figure, layers, bar, name=f"baseline: {level.name}")
    if np.isfinite(effect.ceiling[layers, 0]).any():
        add_reference(figure, layers, effect.ceiling[layers, 0], name="ceiling: whole activation", color=EXACT)
    low, high = (end[layers, 0] for end in effect.ends)
    add_line(figure, layers, effect.value[layers, 0], name=name, band=(low, high))
    label_axes(figure, "layer", y)
    levels = np.concatenate([effect.ceiling[layers, 0], *(level.bar("higher") for level in (random, *others))])
    if (levels < limits[0]).any() or (levels > limits[1]).any():  # they would squash all else; the table names them
        figure.update_yaxes(range=limits)
    return panel


def bands_panel(title: str, y: str, effect: Estimate, bands: Sequence[str]) -> Panel:
    """Draw an effect over layers, a line for each band of positions."""
    panel, layers = Panel.blank(title, is_folded=True), np.flatnonzero(np.isfinite(effect.value[:, 0]))
    if len(layers) == 1:
        by_band, labels = effect[layers[0]], [f"{name} positions" for name in bands]
        add_forest(panel.figure, labels, by_band.value, by_band.ends, unit=y)
        return panel
    for band, (name, color) in enumerate(zip(bands, (MEASURED, *SERIES), strict=False)):
        add_line(panel.figure, layers, effect.value[layers, band], name=f"{name} positions", color=color)
    label_axes(panel.figure, "layer", y)
    return panel
