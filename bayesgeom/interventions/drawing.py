"""Panels of interventions: an effect over layers with its ceiling and controls, and by bands of positions."""

from collections.abc import Sequence

import numpy as np

from bayesgeom.charts.lines import add_band, add_baseline, add_line, add_reference
from bayesgeom.report import BASELINE, EXACT, MEASURED, SERIES, Estimate, Panel, label_axes


def profile_panel(title: str, y: str, effect: Estimate, name: str, *, is_folded: bool = False) -> Panel:
    """Draw an effect at all positions over layers, with its ceiling, its baselines, and the range of the first one."""
    panel, layers = Panel.blank(title, is_folded=is_folded), np.flatnonzero(np.isfinite(effect.value[:, 0]))
    figure, (random, *others) = panel.figure, effect[layers, 0].compared
    least, most = (random.value if end is None else end for end in (random.low, random.high))
    add_band(figure, layers, least, most, name=f"baseline: {random.name} (range)", color=BASELINE)
    for own in (random, *others):
        if np.isfinite(level := own.bar("higher")).any():
            add_baseline(figure, layers, level, name=f"baseline: {own.name}")
    if np.isfinite(effect.ceiling[layers, 0]).any():
        add_reference(figure, layers, effect.ceiling[layers, 0], name="ceiling: whole activation", color=EXACT)
    low, high = (end[layers, 0] for end in effect.ends)
    add_line(figure, layers, effect.value[layers, 0], name=name, band=(low, high))
    label_axes(figure, "layer", y)
    return panel


def bands_panel(title: str, y: str, effect: Estimate, bands: Sequence[str]) -> Panel:
    """Draw an effect over layers, a line for each band of positions."""
    panel, layers = Panel.blank(title, is_folded=True), np.flatnonzero(np.isfinite(effect.value[:, 0]))
    for band, (name, color) in enumerate(zip(bands, (MEASURED, *SERIES), strict=False)):
        add_line(panel.figure, layers, effect.value[layers, band], name=f"{name} positions", color=color)
    label_axes(panel.figure, "layer", y)
    return panel
