"""Read-outs with baselines: one number along layers or counts, with its interval and gray levels."""

from collections.abc import Mapping, Sequence

import numpy as np

from bayesgeom.charts.heads import add_note
from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import BASELINE, label_axes


def readout_panel(
    title: str, axes: tuple[str, str], ticks: Sequence[str], own: Estimate, dashes: Mapping[str, str], *, before: str
) -> Panel:
    """Draw an estimate along its only axis, which `ticks` name; its baseline `before` is one step before the first."""
    panel = Panel.blank(title, height=360)
    figure, steps = panel.figure, range(len(own.value))
    if not np.isfinite(own.value).any():
        add_note(figure, "not defined here")
        return panel
    if np.isfinite(own.ends).all(axis=0).any():
        add_band(figure, steps, *own.ends, name="95 % interval")
    add_line(figure, steps, own.value, name="measured")
    start = [float(level.value[0]) for level in own.baselines if level.name == before and np.isfinite(level.value[0])]
    for level in own.baselines:
        if level.name != before and np.isfinite(level.value).any():
            add_baseline(figure, steps, level.value, name=f"baseline: {level.name}")
            figure.data[-1].line.dash = dashes[level.name]
    places, texts = list(steps), list(ticks)
    if start:
        add_line(figure, [-1], np.array(start), name=before, color=BASELINE)
        figure.data[-1].update(mode="markers", marker_symbol="diamond")
        places, texts = [-1, *places], [before, *texts]
    every = -(-len(texts) // 9)
    figure.update_xaxes(tickvals=places[::every], ticktext=texts[::every])
    label_axes(figure, *axes)
    return panel
