"""The figure of the sticky-chain experiment: loss by step on both sequences, and the speed-up of each condition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.forest import add_forest
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.theme import panels, with_room_for_legend
from bayesgeom.stats.bootstrap import seed_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@final
@dataclass(frozen=True, kw_only=True)
class ChainCurves:
    """One chain's losses in bits, on the sequence trained on and on the held-out one, and its entropy rate."""

    chain: str
    trained_on: Float[np.ndarray, "condition seed record"]
    held_out: Float[np.ndarray, "condition seed record"]
    floor: float


def em_figure(
    title: str,
    conditions: Sequence[str],
    steps: Int[np.ndarray, " record"],
    chains: Sequence[ChainCurves],
    speeds: tuple[Estimate, Estimate],
) -> "Figure":
    """Draw one row of curves per chain, then the speed-ups of all conditions on both sequences of the first chain."""
    rows = [(f"{of.chain}: trained on", f"{of.chain}: held out") for of in chains]
    titles = (*(text for row in rows for text in row), "Speed-up to SGD 0.01's final loss", "The same, held out")
    figure = panels(title, titles, row_height=380)
    for row, of in enumerate(chains, start=1):
        for column, losses in enumerate((of.trained_on, of.held_out), start=1):
            curves = [_curve(name, losses[condition]) for condition, name in enumerate(conditions)]
            levels = [("entropy rate of the chain", of.floor)]
            add_curves(figure, (row, column), steps, curves, unit="loss (bits)", levels=levels)
            _show_the_middle(figure, (row, column), losses, of.floor)
    bottom = len(chains) + 1
    for column, speed in enumerate(speeds, start=1):
        reached = zip(conditions, np.isfinite(speed.value), strict=True)
        labels = [name if is_reached else f"{name} (not reached)" for name, is_reached in reached]
        add_forest(figure, (bottom, column), labels, speed.value, speed.ends, unit="speed-up (times)", baseline=1.0)
        figure.update_traces(showlegend=False, row=bottom, col=column)
    return with_room_for_legend(figure)


def _curve(name: str, losses: Float[np.ndarray, "seed record"]) -> Curve:
    return Curve(name=name, values=losses.mean(axis=0), band=seed_interval(losses))


def _show_the_middle(
    figure: "Figure", panel: tuple[int, int], losses: Float[np.ndarray, "condition seed record"], floor: float
) -> None:
    """Limit the axis to the range from the lowest loss to the start: an overfitting condition may exceed it."""
    low, high = min(floor, float(losses.mean(axis=1).min())), float(losses[..., 0].max())
    room = 0.1 * (high - low)
    figure.update_yaxes(range=[low - room, high + 2 * room], row=panel[0], col=panel[1])
