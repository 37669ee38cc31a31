"""The panels of the length report: errors by position, whole-sequence means, and the excess error by layer."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from bayesgeom.charts.lines import LEAST_BITS, add_band, add_baseline, add_line, add_note, log_baseline, log_floor
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import (
    BASELINE,
    DASHES,
    MEASURED,
    SERIES,
    at_least,
    label_axes,
    log_axes,
)

_N_BASELINES = 1  # only the strongest is drawn: tables list the others
_CROWDED = 30  # number of positions above which markers would hide the line


def length_panels(
    *,
    models: Sequence[str],
    at: tuple[Int[np.ndarray, " place"], str, int],
    curves: tuple[Estimate, Estimate, Estimate, Estimate],
    lengths: Int[np.ndarray, " length"],
    threshold_bits: float,
) -> list[Panel]:
    """Draw KL, entropy error, whole-sequence means and excess by layer; `at`: positions, unit, training length."""
    places, unit, trained = at
    kl, entropy, whole, layers = curves
    drawn = (
        ("KL by position (log scale)", kl, places, unit, "KL(exact ‖ model) (bits)"),
        ("Entropy error by position (log scale)", entropy, places, unit, "|H model − H exact| (bits)"),
        ("KL, mean over whole sequences (log scale)", whole, lengths, "requested length", "mean KL (bits)"),
    )
    panels = list[Panel]()
    for title, own, x, x_title, y_title in drawn:
        panel = Panel.blank(title)
        _add(panel.figure, x, own, models, is_log=True)
        panel.figure.add_vline(x=trained, line={"color": BASELINE, "dash": "dot", "width": 1.5})
        label_axes(panel.figure, x_title, y_title)
        panels.append(panel)
    add_baseline(panels[0].figure, places, threshold_bits, name=f"threshold {threshold_bits:g} bits")
    panels[0].figure.data[-1].line.dash = "2px,6px"
    excess = Panel.blank("Excess beyond the training length, by layer")
    if np.isfinite(layers.value).any():
        _add(excess.figure, np.arange(layers.value.shape[1]), layers, models, is_log=False)
        label_axes(excess.figure, "layer", "KL beyond − KL within (bits)")
    else:
        add_note(excess.figure, "not measured")
    return [*panels, excess]


def _add(
    figure: go.Figure,
    x: Int[np.ndarray, " x"],
    curves: Estimate,
    models: Sequence[str],
    *,
    is_log: bool,
) -> None:
    """Add the models' curves and the mean of each baseline over models."""
    for index, model in enumerate(models):
        color, own = MEASURED if len(models) == 1 else SERIES[index % len(SERIES)], curves[index]
        if not np.isfinite(own.value).any():  # the layers of this model are not read
            continue
        low, high = own.ends
        if np.isfinite(low).all() and np.isfinite(high).all():
            above = np.maximum(low, 0.1 * np.maximum(own.value, _smallest(own.value))) if is_log else low
            add_band(figure, x, above, high, name=f"{model}, 95 % interval", color=color)
            figure.data[-1].showlegend = False
        add_line(figure, x, own.value, name=model, color=color)
        mode = "lines" if len(x) > _CROWDED else "lines+markers"
        figure.data[-1].update(mode=mode)
    for dash, baseline in zip(DASHES, curves.baselines[:_N_BASELINES], strict=False):
        label, level = f"baseline: {baseline.name.replace('_', ' ')}", _mean_over_models(baseline)
        if is_log:
            log_baseline(figure, x, level, name=label, floor=log_floor(curves.value, level))
        else:
            add_baseline(figure, x, level, name=label)
        figure.data[-1].line.dash = dash
    if is_log:
        log_axes(figure)
    else:
        at_least(figure, LEAST_BITS)


def _smallest(values: Float[np.ndarray, " x"]) -> float:
    """Return the smallest positive value."""
    return float(values[values > 0].min()) if (values > 0).any() else 1.0


def _mean_over_models(baseline: Baseline) -> Float[np.ndarray, " x"]:
    """Return the mean level over models at each position, NaN where no model has one."""
    known = np.isfinite(baseline.value)
    total = np.where(known, baseline.value, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / known.sum(axis=0).clip(min=1), np.nan)
