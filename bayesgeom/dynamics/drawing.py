"""The figure of dynamics: curves over log steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.heads import add_note
from bayesgeom.dynamics.threshold_steps import stable
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.theme import layer_colors, log_axes, panels, with_room_for_legend

_MAX_CURVES = 9  # number of colors


@final
@dataclass(frozen=True, kw_only=True)
class Curves:
    """One panel of curves over steps, with levels for comparison."""

    title: str
    unit: str
    curves: Sequence[Curve]
    levels: Sequence[tuple[str, float | Float[np.ndarray, " step"]]] = ()
    is_log: bool = False


def curves_figure(title: str, steps: Sequence[str], drawn: Sequence[Curves]) -> go.Figure:
    """Draw panels of curves over log steps, two in a row."""
    figure = panels(title, tuple(own.title for own in drawn), row_height=340)
    at = np.array([int(step) for step in steps])
    for index, own in enumerate(drawn):
        panel = (index // 2 + 1, index % 2 + 1)
        if any(np.isfinite(curve.values).any() for curve in own.curves):
            shown = own.curves[:_MAX_CURVES]
            add_curves(figure, panel, at, shown, unit=own.unit, levels=own.levels, log_steps=True)
        else:
            add_note(figure, panel, "not measured: not available for this architecture")
        if own.is_log:
            log_axes(figure, panel)
    return with_room_for_legend(figure)


def by_run(runs: Sequence[str], own: Estimate, first: Float[np.ndarray, "run 1"] | float = 1.0) -> list[Curve]:
    """Return a curve per training with its band, divided by `first`."""
    rows = zip(runs, own.value / first, *(end / first for end in own.ends), strict=True)
    return [Curve(name=name, values=values, band=(low, high)) for name, values, low, high in rows]


def by_layer(values: Float[np.ndarray, "run step layer"]) -> list[Curve]:
    """Return a curve per layer, the mean over trainings."""
    rows = zip(values.mean(axis=0).T, layer_colors(values.shape[-1]), strict=False)
    return [Curve(name=f"layer {layer}", values=own, color=color) for layer, (own, color) in enumerate(rows)]


def stable_from(
    what: str, steps: Sequence[str], names: Sequence[str], distances: Float[np.ndarray, "name step"]
) -> str:
    """Return from which step on each distance stays within a tenth of its first value, as a caption; "" if unknown."""
    if not np.isfinite(distances).all(axis=1).any():
        return ""
    at = [int(step) for step in steps]
    found = {name: stable(at, own).step for name, own in zip(names, distances, strict=True)}
    texts = (f"{f'step {step:,.0f}' if step > 0 else 'the last snapshot'} ({name})" for name, step in found.items())
    return f"{what.capitalize()} stay within a tenth of their first distance to the last from {', '.join(texts)} on."


def of_baselines(name: str, baselines: Sequence[Baseline]) -> list[tuple[str, Float[np.ndarray, " step"]]]:
    """Return baselines that change over steps, as means over trainings."""
    return [(f"baseline: {own.name} ({name})", own.value.mean(axis=0)) for own in baselines]


def levels_of(own: Estimate) -> list[tuple[str, float]]:
    """Return baselines that are the same at every snapshot."""
    return [(f"baseline: {level.name}", float(level.value.flat[0])) for level in own.baselines]
