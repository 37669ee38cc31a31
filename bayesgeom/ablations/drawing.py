"""The panels of an ablation report: a map of heads, and KL increases with intervals by kind and by position."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.heads import add_heads
from bayesgeom.charts.lines import LEAST_BITS, add_baseline, add_line
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import SERIES, at_least, label_axes

_N_LINES, _HEIGHT = 5, 460


def head_panel(by_head: Float[np.ndarray, "layer head"], mode: str) -> Panel:
    """Draw the KL increase of each head that was ablated alone."""
    panel = Panel.blank(f"Heads, {mode} ablation (baseline: 0)", height=_HEIGHT)
    add_heads(panel.figure, by_head, unit="KL increase (bits)", baseline=0.0)
    return panel


def forest_panel(title: str, labels: Sequence[str], increase: Estimate, n: int) -> Panel:
    """Draw the largest of `n` KL increases of one kind; each kind has its own axis, as blocks cost more than heads."""
    panel = Panel.blank(f"{_few(title, len(labels), n)}, largest first", height=_HEIGHT)
    add_forest(panel.figure, labels, increase.value, increase.ends, unit="KL increase (bits)", baseline=0.0)
    return panel


def position_panel(title: str, labels: Sequence[str], by_position: Float[np.ndarray, "row position"], n: int) -> Panel:
    """Draw the largest of `n` KL increases of one kind by scored position."""
    panel = Panel.blank(f"{_few(title, _N_LINES, n)}, along the sequence", height=_HEIGHT)
    scored = range(1, by_position.shape[1] + 1)
    add_baseline(panel.figure, scored, 0.0, name="baseline: no effect")
    for label, increase, color in zip(labels[:_N_LINES], by_position, SERIES, strict=False):
        add_line(panel.figure, scored, increase, name=label, color=color)
    at_least(panel.figure, LEAST_BITS)
    label_axes(panel.figure, "scored position (1 is the first)", "KL increase (bits)")
    return panel


def _few(title: str, shown: int, n: int) -> str:
    """Return the title of a panel that shows some of a group."""
    return title if n <= shown else f"{title}, {shown} of {n}"
