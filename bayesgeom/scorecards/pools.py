"""Pools of chains: does a network memorize the chains of the pool, or infer those of each sequence?"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

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
    found = list[float]()
    for _, rows in last.groupby("seed"):
        pools = np.log2(rows.index.get_level_values("pool").to_numpy())
        ahead = (rows[OBSERVERS[1]] - rows[OBSERVERS[0]]).to_numpy()
        rises = np.flatnonzero((ahead[:-1] < 0) & (ahead[1:] >= 0))
        if not len(rises):
            return Estimate.of(np.nan)
        at = slice(rises[0], rises[0] + 2)
        found.append(float(np.interp(0.0, ahead[at], pools[at])))
    if not found:
        return Estimate.of(np.nan)
    low, high = seed_interval(np.array(found))
    return Estimate.of(2 ** np.mean(found), (2**low, 2**high), n=len(found))


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
        ends = rows.groupby(["observer", "pool", "seed"]).last().groupby(["observer", "pool"])
        ends = ends.agg({"value": "mean", "lower": "min", "upper": "max"})
        for observer, color in zip(OBSERVERS, SERIES, strict=False):
            pools, (mean, low, high) = ends.loc[observer].index.to_numpy(), ends.loc[observer].to_numpy().T
            add_line(by_pool.figure, pools, mean, name=observer, color=color, band=(low, high))
        by_step = Panel.blank(f"{architecture}: generalizing weight on new chains, by step", is_folded=True)
        first = rows[(rows["seed"] == 0) & (rows["observer"] == OBSERVERS[1]) & (rows["step"] > 0)]
        for (pool, line), color in zip(first.groupby("pool"), [*SERIES, *SERIES], strict=False):
            steps, values = line[["step", "value"]].to_numpy().T
            add_line(by_step.figure, steps, values, name=f"{pool:.0f} chains", color=color)
        for panel, title in ((by_pool, "chains in the pool"), (by_step, "step")):
            panel.figure.update_xaxes(type="log")
            label_axes(panel.figure, title, "weight in the nearest mixture")
            yield panel
