"""The figure of the relabeling report: error per sequence before and after, and the difference by position."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.theme import BASELINE, MEASURED, label_axes, log_axes, panels, with_room_for_legend


def relabeling_figure(
    title: str,
    *,
    before: Float[np.ndarray, " sequence"],
    after: Float[np.ndarray, " sequence"],
    difference: Estimate,
    bound: float,
) -> go.Figure:
    """Draw one point per sequence on log axes with y = x, and the mean difference by position with the bound."""
    figure = panels(title, ("One point per sequence (log scales)", "Difference along the sequence"))
    figure.add_trace(
        go.Scatter(
            x=before,
            y=after,
            mode="markers",
            marker={"color": MEASURED, "size": 5, "opacity": 0.6},
            name="sequences",
            hovertemplate="before %{x:.3e}, after %{y:.3e}<extra></extra>",
        ),
        row=1,
        col=1,
    )
    seen = np.concatenate([before, after])
    positive = seen[seen > 0] if (seen > 0).any() else np.ones(1)
    ends = [float(positive.min()), float(positive.max())]
    figure.add_trace(
        go.Scatter(
            x=ends, y=ends, mode="lines", line={"color": BASELINE, "dash": "dash"}, name="y = x: names do not matter"
        ),
        row=1,
        col=1,
    )
    log_axes(figure, (1, 1), "xy")
    label_axes(figure, (1, 1), "KL before (bits)", "KL after (bits)")
    x = np.arange(1, len(difference.value) + 1)
    add_band(figure, (1, 2), x, *difference.ends, name="95 % interval")
    add_line(figure, (1, 2), x, difference.value, name="KL after − before")
    for level, name in ((bound, "bound of the verdict"), (-bound, "the bound below")):
        add_baseline(figure, (1, 2), x, level, name=name)
    figure.data[-1].showlegend = False
    label_axes(figure, (1, 2), "scored position (1 is the first)", "KL after − before (bits)")
    return with_room_for_legend(figure)
