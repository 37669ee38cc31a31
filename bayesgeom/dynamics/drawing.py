"""The panels of dynamics: curves over log steps."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.lines import add_note
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import layer_colors, log_axes

_MAX_CURVES = 9  # number of colors


def curves_panel(
    title: str,
    steps: Sequence[str],
    curves: Sequence[Curve],
    unit: str,
    *,
    levels: Sequence[tuple[str, float | Float[np.ndarray, " step"]]] = (),
    is_log: bool = False,
    is_folded: bool = False,
) -> Panel:
    """Draw curves over log steps, with levels for comparison."""
    panel = Panel.blank(title, is_folded=is_folded)
    if any(np.isfinite(curve.values).any() for curve in curves):
        at = np.array([int(step) for step in steps])
        add_curves(panel.figure, at, curves[:_MAX_CURVES], unit=unit, levels=levels, log_steps=True)
    else:
        add_note(panel.figure, "not measured")
    if is_log:
        log_axes(panel.figure)
    return panel


def by_run(runs: Sequence[str], own: Estimate, first: Float[np.ndarray, "run 1"] | float = 1.0) -> list[Curve]:
    """Return a curve per training with its band, divided by `first`."""
    rows = zip(runs, own.value / first, *(end / first for end in own.ends), strict=True)
    return [Curve(name=name, values=values, band=(low, high)) for name, values, low, high in rows]


def by_layer(values: Float[np.ndarray, "run step layer"]) -> list[Curve]:
    """Return a curve per layer, the mean over trainings."""
    rows = zip(values.mean(axis=0).T, layer_colors(values.shape[-1]), strict=False)
    return [Curve(name=f"layer {layer}", values=own, color=color) for layer, (own, color) in enumerate(rows)]


def of_baselines(name: str, baselines: Sequence[Baseline]) -> list[tuple[str, Float[np.ndarray, " step"]]]:
    """Return baselines that change over steps, as means over trainings."""
    return [(f"baseline: {own.name} ({name})", own.value.mean(axis=0)) for own in baselines]


def levels_of(own: Estimate) -> list[tuple[str, float]]:
    """Return baselines that are the same at every snapshot."""
    return [(f"baseline: {level.name}", float(level.value.flat[0])) for level in own.baselines]
