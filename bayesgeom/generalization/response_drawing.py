"""The panels of the evidence response: slope and relative slope by age, with the level and known predictors."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import label_axes, series


def response_panels(
    ages: Sequence[str],
    slope: Estimate,
    relative: Estimate,
    predictors: Mapping[str, Float[np.ndarray, " age"]],
    *,
    is_single: bool,
) -> list[Panel]:
    """Draw both slopes by age, evenly spaced; predictors with known behavior are pale dashed lines."""
    raw = Panel.blank("Slope of the model's change in the exact change", is_wide=True)
    scaled = Panel.blank("Relative slope: divided by that of all evidence", is_wide=True)
    x = np.arange(len(ages), dtype=float)
    for panel, own in ((raw, slope), (scaled, relative)):
        add_band(panel.figure, x, *own.ends, name="95 % interval")
        add_line(panel.figure, x, own.value, name="model")
        add_baseline(panel.figure, x, 1.0, name="exact observer")
    for level in slope.baselines:
        add_baseline(raw.figure, x, level.value, name=f"level: {level.name}")
    for index, (name, values) in enumerate(predictors.items()):
        color = series(index + 1)["color"]
        add_baseline(raw.figure, x, values, name=name, color=color)
        with np.errstate(invalid="ignore"):
            add_baseline(scaled.figure, x, values / values[0], name=name, color=color)
    place = (
        "age of the replaced piece of evidence"
        if is_single
        else "pieces of evidence that stay; older ones are replaced"
    )
    for panel, label in ((raw, "slope"), (scaled, "relative slope")):
        label_axes(panel.figure, place, label)
        panel.figure.layout.xaxis.update(
            tickvals=x.tolist(), ticktext=["all replaced" if a == "0" else a for a in ages]
        )
    return [raw, scaled]
