"""Pools of chains: does a network memorize the chains of the pool, or infer those of each sequence?"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from bayesgeom.report.estimate import Estimate
from bayesgeom.scorecards.cell import OBSERVERS, SEQUENCES
from bayesgeom.stats.bootstrap import seed_interval

if TYPE_CHECKING:
    import pandas as pd

    from bayesgeom.report.panels import Panel


def pool_weights(cells: "pd.DataFrame") -> "pd.DataFrame":
    """Return the weights of the two observers: a row for each pool, architecture, seed, step and kind of sequences.

    `pool` is the number of chains. Weights are those of the nearest mixture of predictors; they need not sum to 1. Only
    trainings at the best rate are listed.

    Args:
        cells: The table of `Scorecard.cells`.
    """
    table = cells[cells["quantity"].isin(OBSERVERS) & cells["is_best"]]
    table = table.rename(columns={"setting": "sequences", "quantity": "observer"})
    pool = table["world"].str.extract(r"(\d+)$", expand=False).astype(float)
    return table.assign(pool=pool).sort_values(["architecture", "pool", "seed", "step"])


def crossing(cells: "pd.DataFrame", architecture: str) -> Estimate:
    """Return the number of chains in the pool at which both observers have the same weight on new chains.

    It is interpolated in the logarithm of the pool, in each seed. The interval is over seeds. NaN if the weights do not
    cross in one of them.

    Args:
        cells: The table of `Scorecard.cells`.
        architecture: The architecture.
    """
    table = pool_weights(cells)
    table = table[(table["architecture"] == architecture) & (table["sequences"] == SEQUENCES[1])]
    last = table.groupby(["seed", "pool", "observer"])["value"].last().unstack("observer")
    found = [
        _zero(
            np.log2(rows.index.get_level_values("pool").to_numpy()),
            (rows[OBSERVERS[1]] - rows[OBSERVERS[0]]).to_numpy(),
        )
        for _, rows in last.groupby("seed")
    ]
    if not found or any(map(math.isnan, found)):
        return Estimate.of(np.nan)
    low, high = seed_interval(np.array(found))
    return Estimate.of(2 ** np.mean(found), (2**low, 2**high), n=len(found))


def _zero(x: Float64[np.ndarray, " pool"], y: Float64[np.ndarray, " pool"]) -> float:
    """Return where a line through the points first rises through 0; NaN if it does not."""
    for at in range(len(x) - 1):
        if y[at] < 0 <= y[at + 1]:
            return float(x[at] - y[at] * (x[at + 1] - x[at]) / (y[at + 1] - y[at]))
    return math.nan


def pool_panels(cells: "pd.DataFrame") -> Iterator["Panel"]:
    """Draw the weights at the end by pool, then by step for each pool; nothing without pools."""
    from bayesgeom.charts.lines import add_line
    from bayesgeom.report.panels import Panel
    from bayesgeom.report.theme import SERIES, label_axes

    table = pool_weights(cells)
    table = table[table["sequences"] == SEQUENCES[1]]
    for architecture, rows in table.groupby("architecture"):
        place = crossing(cells, str(architecture))
        at = "" if math.isnan(float(place)) else f"; they cross at {place.text()} chains"
        by_pool = Panel.blank(f"{architecture}: weight on new chains, by the number of chains in training{at}")
        ends = (
            rows.groupby(["observer", "pool", "seed"])[["value", "lower", "upper"]].last().groupby(["observer", "pool"])
        )
        for observer, color in zip(OBSERVERS, SERIES, strict=False):
            mean, low, high = (
                ends["value"].mean()[observer],
                ends["lower"].min()[observer],
                ends["upper"].max()[observer],
            )
            add_line(
                by_pool.figure,
                mean.index.to_numpy(),
                mean.to_numpy(),
                name=observer,
                color=color,
                band=(low.to_numpy(), high.to_numpy()),
            )
        by_step = Panel.blank(f"{architecture}: generalizing weight on new chains, by step", is_folded=True)
        first = rows[(rows["seed"] == 0) & (rows["observer"] == OBSERVERS[1]) & (rows["step"] > 0)]
        for (pool, line), color in zip(first.groupby("pool"), [*SERIES, *SERIES], strict=False):
            add_line(
                by_step.figure,
                line["step"].to_numpy(),
                line["value"].to_numpy(),
                name=f"{pool:.0f} chains",
                color=color,
            )
        for panel, title in ((by_pool, "chains in the pool"), (by_step, "step")):
            settings: dict[str, Any] = {"type": "log"}
            panel.figure.update_xaxes(**settings)
            label_axes(panel.figure, title, "weight in the nearest mixture")
            yield panel
