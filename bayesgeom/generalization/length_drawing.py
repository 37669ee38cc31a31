"""The figure of the length report: errors by position, whole-sequence means, and the excess error by layer."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from bayesgeom.charts.heads import add_note
from bayesgeom.charts.lines import LEAST_BITS, add_band, add_baseline, add_line, log_baseline, log_floor
from bayesgeom.results.captions import caption_of, with_captions
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.theme import (
    BASELINE,
    DASHES,
    MEASURED,
    SERIES,
    at_least,
    label_axes,
    log_axes,
    panels,
    with_room_for_legend,
)

_N_BASELINES = 1  # only the strongest is drawn: tables list the others
_UNREAD = "only the layers of bayesgeom's own transformers are read"
_READ = "Every layer's residual is read through the output; the error appears where the excess first exceeds 0."
_CROWDED = 30  # number of positions above which markers would hide the line


def length_figure(
    title: str,
    *,
    models: Sequence[str],
    at: tuple[Int[np.ndarray, " place"], str, int],
    curves: tuple[Estimate, Estimate, Estimate, Estimate],
    lengths: Int[np.ndarray, " length"],
    threshold_bits: float,
) -> go.Figure:
    """Draw KL, entropy error, whole-sequence means and excess by layer; `at`: positions, unit, training length."""
    places, unit, trained = at
    kl, entropy, whole, layers = curves
    titles = (
        "KL by position (log scale)",
        "Entropy error by position (log scale)",
        "KL, mean over whole sequences (log scale)",
        "Excess beyond the training length, by layer",
    )
    figure = panels(title, titles)
    n_layers = layers.value.shape[1]
    drawn = ((kl, places), (entropy, places), (whole, lengths), (layers, np.arange(n_layers)))
    is_read = bool(np.isfinite(layers.value).any())
    for number, (own, x) in enumerate(drawn if is_read else drawn[:-1]):
        _add(figure, (1 + number // 2, 1 + number % 2), x, own, models, is_log=number < 3)
    for column in (1, 2):
        figure.add_vline(x=trained, line={"color": BASELINE, "dash": "dot", "width": 1.5}, row=1, col=column)
    figure.add_vline(x=trained, line={"color": BASELINE, "dash": "dot", "width": 1.5}, row=2, col=1)
    add_baseline(figure, (1, 1), places, threshold_bits, name=f"threshold {threshold_bits:g} bits")
    figure.data[-1].line.dash = "2px,6px"
    label_axes(figure, (1, 1), unit, "KL(exact ‖ model) (bits)")
    label_axes(figure, (1, 2), unit, "|H model − H exact| (bits)")
    label_axes(figure, (2, 1), "requested length", "mean KL (bits)")
    if not is_read:
        add_note(figure, (2, 2), _UNREAD)
        return with_room_for_legend(figure)
    label_axes(figure, (2, 2), "layer", "KL beyond − KL within (bits)")
    return with_captions(with_room_for_legend(figure), ("", "", "", f"{_READ} {caption_of(figure, 'x4')}".strip()))


def _add(
    figure: go.Figure,
    panel: tuple[int, int],
    x: Int[np.ndarray, " x"],
    curves: Estimate,
    models: Sequence[str],
    *,
    is_log: bool,
) -> None:
    """Add the models' curves and the mean of each baseline over models; each name appears once in the legend."""
    for index, model in enumerate(models):
        color, own = MEASURED if len(models) == 1 else SERIES[index % len(SERIES)], curves[index]
        if not np.isfinite(own.value).any():  # the layers of this model are not read
            continue
        low, high = own.ends
        if np.isfinite(low).all() and np.isfinite(high).all():
            above = np.maximum(low, 0.1 * np.maximum(own.value, _smallest(own.value))) if is_log else low
            add_band(figure, panel, x, above, high, name=f"{model}, 95 % interval", color=color)
            figure.data[-1].showlegend = False
        add_line(figure, panel, x, own.value, name=model, color=color)
        mode = "lines" if len(x) > _CROWDED else "lines+markers"
        figure.data[-1].update(mode=mode, showlegend=panel == (1, 1))
    for dash, baseline in zip(DASHES, curves.baselines[:_N_BASELINES], strict=False):
        seen = {trace.name for trace in figure.data if trace.showlegend is not False}
        label, level = f"baseline: {baseline.name.replace('_', ' ')}", _mean_over_models(baseline)
        if is_log:
            log_baseline(figure, panel, x, level, name=label, floor=log_floor(curves.value, level))
        else:
            add_baseline(figure, panel, x, level, name=label)
        figure.data[-1].update(line_dash=dash, showlegend=figure.data[-1].name not in seen)
    if is_log:
        log_axes(figure, panel)
    else:
        at_least(figure, panel, LEAST_BITS)


def _smallest(values: Float[np.ndarray, " x"]) -> float:
    """Return the smallest positive value."""
    return float(values[values > 0].min()) if (values > 0).any() else 1.0


def _mean_over_models(baseline: Baseline) -> Float[np.ndarray, " x"]:
    """Return the mean level over models at each position, NaN where no model has one."""
    known = np.isfinite(baseline.value)
    total = np.where(known, baseline.value, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / known.sum(axis=0).clip(min=1), np.nan)
