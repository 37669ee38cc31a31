"""The figures of dynamics: curves over log steps, and rows with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.heads import add_note
from bayesgeom.dynamics.threshold_steps import stable
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.theme import label_axes, layer_colors, log_axes, name_once, panels, with_room_for_legend

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


@final
@dataclass(frozen=True, kw_only=True)
class Forest:
    """One panel of estimates with intervals, one row each; `otherwise` is shown if there are none.

    `baseline` is the level that intervals are compared with; `verdicts` state in the label why a row has no value.
    """

    title: str
    unit: str
    labels: Sequence[str]
    estimate: Estimate
    verdicts: Sequence[str]
    otherwise: str
    baseline: float = 0.0

    def named(self) -> list[str]:
        """Return the label of each row, and why it has no value."""
        rows = zip(self.labels, self.estimate.value.flat, self.verdicts, strict=True)
        return [label if np.isfinite(value) else f"{label} ({why})" for label, value, why in rows]


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


def forests_figure(title: str, drawn: Sequence[Forest]) -> go.Figure:
    """Draw panels of rows with intervals, two in a row."""
    n_rows = max(1, *(len(own.labels) for own in drawn))
    figure = panels(title, tuple(own.title for own in drawn), row_height=max(340, 160 + 22 * n_rows))
    for index, own in enumerate(drawn):
        panel = (index // 2 + 1, index % 2 + 1)
        values, (low, high) = own.estimate.value.ravel(), own.estimate.ends
        if np.isfinite(values).any():
            ends = (low.ravel(), high.ravel())
            add_forest(figure, panel, own.named(), values, ends, unit=own.unit, baseline=own.baseline)
        else:
            add_note(figure, panel, own.otherwise)
            label_axes(figure, panel, "", "")
    name_once(figure)
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
