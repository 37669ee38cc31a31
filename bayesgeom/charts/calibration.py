"""The calibration chart: entropy against position, its error and baselines, and single sequences."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.lines import LEAST_BITS, add_band, add_line, add_reference, log_baseline, log_floor
from bayesgeom.report import DASHES, MEASURED, Panel, at_least, label_axes, log_axes

N_DRAWN = 3  # of the baselines: more gray lines cannot be told apart, and tables list them
_POSITION = "scored position (1 is the first)"
_ALIKE = 0.01  # of the range of entropies: the width of a line


def calibration_panels(
    *,
    exact: Float[np.ndarray, " position"],
    model: Float[np.ndarray, " position"],
    error: Float[np.ndarray, " position"],
    error_band: tuple[Float[np.ndarray, " position"], Float[np.ndarray, " position"]],
    baselines: Mapping[str, Float[np.ndarray, " position"]],
    examples: tuple[Float[np.ndarray, "example position"], Float[np.ndarray, "example position"]],
) -> list[Panel]:
    """Draw mean entropies, the error on a log scale with its three strongest baselines, and two example sequences.

    Sequences whose curves coincide with the mean, as where entropy depends on the position alone, are not drawn again.
    """
    x, means = np.arange(1, len(exact) + 1), np.stack([exact, model])
    apart = np.abs(np.stack(examples) - means[:, None]).max(initial=0.0)
    is_alike = bool(apart <= _ALIKE * max(float(np.ptp(means)), LEAST_BITS))
    note = "Single sequences have the same curves." * is_alike
    drawn = Panel.blank("Entropy error and its strongest baselines (log scale)")
    add_band(drawn.figure, x, *error_band, name="95 % interval")
    add_line(drawn.figure, x, error, name="model")
    strongest = sorted(baselines, key=lambda name: float(np.nan_to_num(baselines[name], nan=np.inf).mean()))[:N_DRAWN]
    floor = log_floor(error, baselines[strongest[0]] if strongest else error)
    for dash, name in zip(DASHES, strongest, strict=False):
        log_baseline(drawn.figure, x, baselines[name], name=f"baseline: {name}", floor=floor)
        drawn.figure.data[-1].line.dash = dash
    log_axes(drawn.figure)
    label_axes(drawn.figure, _POSITION, "|H model − H exact| (bits)")
    found = [_entropies("Entropy, mean over sequences", exact, model, note), drawn]
    titles = ("One sequence", "Another sequence")
    pairs = [] if is_alike else zip(titles, *(values[:2] for values in examples), strict=False)
    return [*found, *(_entropies(*own) for own in pairs)]


def _entropies(
    title: str, exact: Float[np.ndarray, " position"], model: Float[np.ndarray, " position"], note: str = ""
) -> Panel:
    panel, x = Panel.blank(title, note=note), np.arange(1, len(exact) + 1)
    add_reference(panel.figure, x, exact, name="exact")
    add_line(panel.figure, x, model, name="model", color=MEASURED)
    at_least(panel.figure, LEAST_BITS)
    label_axes(panel.figure, _POSITION, "entropy (bits)")
    return panel
