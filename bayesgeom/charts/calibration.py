"""The calibration chart: entropy against position, its error and baselines, and single sequences."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import LEAST_BITS, add_band, add_line, add_reference, log_baseline, log_floor
from bayesgeom.results.theme import DASHES, MEASURED, at_least, label_axes, log_axes, panels, with_room_for_legend

N_DRAWN = 3  # of the baselines: more gray lines cannot be told apart, and tables list them
_POSITION = "scored position (1 is the first)"
_ALIKE = 0.01  # of the range of entropies: the width of a line


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
    """Draw mean entropies, the error on a log scale with its three strongest baselines, and two example sequences.

    Sequences whose curves coincide with the mean, as where entropy depends on the position alone, are not drawn again.
    """
    x, means = np.arange(1, len(exact) + 1), np.stack([exact, model])
    apart = np.abs(np.stack(examples) - means[:, None]).max(initial=0.0)
    is_alike = bool(apart <= _ALIKE * max(float(np.ptp(means)), LEAST_BITS))
    mean = f"Entropy, mean over sequences{' (single sequences have the same curves)' * is_alike}"
    titles = (mean, "Entropy error and its strongest baselines (log scale)", "One sequence", "Another sequence")
    figure = panels(title, titles[: 2 if is_alike else 4])
    _entropies(figure, (1, 1), exact, model)
    add_band(figure, (1, 2), x, *error_band, name="95 % interval")
    add_line(figure, (1, 2), x, error, name="model")
    strongest = sorted(baselines, key=lambda name: float(np.nan_to_num(baselines[name], nan=np.inf).mean()))[:N_DRAWN]
    floor = log_floor(error, baselines[strongest[0]] if strongest else error)
    for dash, name in zip(DASHES, strongest, strict=False):
        log_baseline(figure, (1, 2), x, baselines[name], name=f"baseline: {name}", floor=floor)
        figure.data[-1].line.dash = dash
    log_axes(figure, (1, 2))
    label_axes(figure, (1, 2), _POSITION, "|H model − H exact| (bits)")
    drawn = [values[: 0 if is_alike else 2] for values in examples]
    for column, sequence in enumerate(zip(*drawn, strict=True), start=1):
        _entropies(figure, (2, column), *sequence)
    figure.update_traces(showlegend=False)
    for trace in figure.data[:2] + tuple(t for t in figure.data if (t.name or "").startswith("baseline")):
        trace.showlegend = True
    return with_room_for_legend(figure)


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
