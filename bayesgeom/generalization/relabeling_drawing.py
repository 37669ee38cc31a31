"""The panels of the relabeling report: error per sequence before and after, and the difference by position."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import BASELINE, MEASURED, label_axes, log_axes


def relabeling_panels(
    before: Float[np.ndarray, " sequence"], after: Float[np.ndarray, " sequence"], difference: Estimate, bound: float
) -> list[Panel]:
    """Draw one point per sequence on log axes with y = x, and the mean difference by position with the bound."""
    points, along = Panel.blank("One point per sequence (log scales)"), Panel.blank("Difference along the sequence")
    points.figure.add_trace(
        go.Scatter(
            x=before,
            y=after,
            mode="markers",
            marker={"color": MEASURED, "size": 5, "opacity": 0.6},
            name="sequences",
            hovertemplate="before %{x:.3e}, after %{y:.3e}<extra></extra>",
        )
    )
    seen = np.concatenate([before, after])
    positive = seen[seen > 0] if (seen > 0).any() else np.ones(1)
    ends, line = [float(positive.min()), float(positive.max())], {"color": BASELINE, "dash": "dash"}
    points.figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=line, name="y = x: names do not matter"))
    log_axes(points.figure, "xy")
    label_axes(points.figure, "KL before (bits)", "KL after (bits)")
    x = np.arange(1, len(difference.value) + 1)
    add_band(along.figure, x, *difference.ends, name="95 % interval")
    add_line(along.figure, x, difference.value, name="KL after − before")
    for level, name in ((bound, "bound of the verdict"), (-bound, "the bound below")):
        add_baseline(along.figure, x, level, name=name)
    along.figure.data[-1].showlegend = False
    label_axes(along.figure, "scored position (1 is the first)", "KL after − before (bits)")
    return [points, along]
