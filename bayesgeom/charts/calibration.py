"""The calibration chart: entropy against position, its error and baselines, and single sequences."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import LEAST_BITS, add_band, add_baseline, add_line, add_reference
from bayesgeom.results.theme import DASHES, MEASURED, at_least, label_axes, log_axes, panels, with_room_for_legend

_POSITION = "scored position (1 is the first)"


def calibration_figure(
    *,
    title: str,
    exact: Float[np.ndarray, " position"],
    model: Float[np.ndarray, " position"],
    error: Float[np.ndarray, " position"],
    error_band: tuple[Float[np.ndarray, " position"], Float[np.ndarray, " position"]],
    baselines: Mapping[str, Float[np.ndarray, " position"]],
    examples: tuple[Float[np.ndarray, "example position"], Float[np.ndarray, "example position"]],
) -> go.Figure:
    """Draw four panels: mean entropies, error on a log scale, and the first two example sequences."""
    x = np.arange(1, len(exact) + 1)
    titles = (
        "Entropy, mean over sequences",
        "Entropy error and its baselines (log scale; zeros are not drawn)",
        "One sequence",
        "Another sequence",
    )
    figure = panels(title, titles)
    _entropies(figure, (1, 1), exact, model)
    add_band(figure, (1, 2), x, *error_band, name="95 % interval")
    add_line(figure, (1, 2), x, error, name="model")
    floor = _floor(error)
    for index, (name, level) in enumerate(baselines.items()):
        add_baseline(figure, (1, 2), x, np.where(level > floor, level, np.nan), name=f"baseline: {name}")
        figure.data[-1].line.dash = DASHES[index % len(DASHES)]
    log_axes(figure, (1, 2))
    label_axes(figure, (1, 2), _POSITION, "|H model − H exact| (bits)")
    for column, sequence in enumerate(zip(*(values[:2] for values in examples), strict=True), start=1):
        _entropies(figure, (2, column), *sequence)
    figure.update_traces(showlegend=False)
    for trace in figure.data[:2] + tuple(t for t in figure.data if (t.name or "").startswith("baseline")):
        trace.showlegend = True
    return with_room_for_legend(figure)


def _floor(error: Float[np.ndarray, " position"]) -> float:
    """Return the level below which a baseline counts as zero, because a log scale could not show it."""
    return 0.1 * float(error[error > 0].min(initial=np.inf)) if (error > 0).any() else 0.0


def _entropies(
    figure: go.Figure,
    panel: tuple[int, int],
    exact: Float[np.ndarray, " position"],
    model: Float[np.ndarray, " position"],
) -> None:
    x = np.arange(1, len(exact) + 1)
    add_reference(figure, panel, x, exact, name="exact")
    add_line(figure, panel, x, model, name="model", color=MEASURED)
    at_least(figure, panel, LEAST_BITS)
    label_axes(figure, panel, _POSITION, "entropy (bits)")
