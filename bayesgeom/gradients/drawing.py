"""The panels of the gradient laws: maps per head, and advantage by attention, by layer."""

from typing import Literal

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.heads import add_heads
from bayesgeom.charts.lines import add_baseline, add_line, add_note
from bayesgeom.gradients.tally import OTHER
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import label_axes, log_axes, series

_LAYERS_SHOWN = 2  # pages fold the panels of other layers
_FEWEST_PAIRS = 20  # minimum number of pairs in a bin for a meaningful mean
_HEIGHT = 330


def correlation_panel(title: str, values: Float[np.ndarray, "layer head"]) -> Panel:
    """Draw a rank correlation per layer and head."""
    panel = Panel.blank(title, height=_HEIGHT)
    add_heads(panel.figure, values, unit="rank correlation", baseline=0.0, limits=(-1.0, 1.0))
    return panel


def norm_panel(
    title: str, values: Float[np.ndarray, "layer head"], head: Literal["head", "key head"] = "head"
) -> Panel:
    """Draw norms per layer and head on a log scale; zero norms are blank."""
    panel = Panel.blank(title, height=_HEIGHT)
    logs = np.log10(np.where(values > 0, values, np.nan))
    known = np.isfinite(logs).any()
    limits = (float(np.nanmin(logs)) - 0.01, float(np.nanmax(logs)) + 0.01) if known else None
    add_heads(panel.figure, logs, unit="log10 nats", baseline=float("nan"), limits=limits, head=head)
    return panel


def binned_panel(
    layer: int,
    edges: Float[np.ndarray, " edge"],
    found: Float[np.ndarray, "head bin"],
    other: Float[np.ndarray, "head bin"],
    pairs: Float[np.ndarray, "head bin"],
) -> Panel:
    """Draw mean relative advantage by attention relative to uniform attention, of a layer: a line per head.

    Args:
        layer: The layer.
        edges: log2 of attention over uniform attention.
        found: The advantage in each bin.
        other: The same with another sequence's advantage.
        pairs: Number of pairs of positions in each bin; bins with few are omitted.
    """
    title = f"Layer {layer}: advantage against attention"
    panel = Panel.blank(title, height=_HEIGHT, is_folded=layer >= _LAYERS_SHOWN)
    figure, x = panel.figure, 2.0 ** np.concatenate([edges - 0.5, edges[-1:] + 0.5])
    is_enough = pairs >= _FEWEST_PAIRS
    if not is_enough.any():
        add_note(figure, "too few pairs to draw")
        return panel
    named = f"{OTHER} (in the line's color)"
    add_baseline(figure, x[:1], np.full(1, np.nan), name=named)  # for the legend alone
    for head, (values, count) in enumerate(zip(other, is_enough, strict=True)):
        add_baseline(figure, x, np.where(count, values, np.nan), name=named, color=series(head)["color"])
        figure.data[-1].update(showlegend=False, line_width=1)
    for head, (values, count) in enumerate(zip(found, is_enough, strict=True)):
        add_line(figure, x, np.where(count, values, np.nan), name=f"head {head}", **series(head))
    log_axes(figure, "x")
    label_axes(figure, "attention / uniform attention", "advantage (row's rms)")
    return panel
