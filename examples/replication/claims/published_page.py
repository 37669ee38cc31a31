"""The generated tables and plots of the pages of published claims, from `results/published/`."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from bayesgeom.core import Verdict
from bayesgeom.core.text import interval_text, number_text
from bayesgeom.report.render import markdown
from bayesgeom.stats.bootstrap import seed_interval
from examples.replication.claims.plots import line, svg, text
from examples.replication.published import TABLES

COLORS = ("#1b6ca8", "#c1432e", "#1b7f5c", "#b8860b", "#6b4c9a", "#444444")
HALF, LEAST_APART = 0.5, 0.002  # share of the gap that a network has closed; bits between both families
MATTERS = 0.001  # share of the gap that order must cost
MOST_LAG = 4  # later, the chains have forgotten
_LEFT, _TOP, _WIDTH, _HEIGHT = 70.0, 20.0, 520.0, 260.0  # pixels
Lines = Mapping[str, Iterable[Sequence[tuple[float, float]]]]  # by name, one line for each training


@cache
def rows(claim: str) -> pd.DataFrame:
    """Return the rows of a claim; none if there is no table."""
    path = TABLES / f"{claim}.csv"
    return pd.read_csv(path) if path.is_file() else pd.DataFrame()


def over_seeds(values: Iterable[float]) -> str:
    """Return the mean over seeds with Student's interval."""
    per_seed = np.array([*values], dtype=float)
    ends = interval_text(*map(float, seed_interval(per_seed)))
    return f"{number_text(per_seed.mean())} [{ends}]" if len(per_seed) > 1 else number_text(per_seed[0])


def counted(verdicts: Sequence[str]) -> str:
    """Return the verdict on all networks, or how many hold."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "; ".join(
        f"{own} in {verdicts.count(own)} of {len(verdicts)}" for own in sorted(set(verdicts), reverse=True)
    )


def early(network: pd.DataFrame) -> pd.DataFrame:
    """Return the snapshots that decide: half the gap is closed, training goes on, and the families are apart."""
    is_early = (network.kl <= (1 - HALF) * network.gap) & (network.step < network.step.max())
    return network[is_early & (network.apart >= LEAST_APART)]


def factors_early(network: pd.DataFrame) -> str:
    """Return the verdict on one training."""
    nearer = (found := early(network))[found.lower > 0]
    if len(nearer):
        return "holds" if (nearer.left_factored < nearer.left_added).any() else "not identified"
    return "does not hold" if (found.upper < 0).all() else "at the threshold"


def factoring() -> str:
    """Return, by dependence and architecture, the largest early difference, and that of the trained network."""
    found = list[tuple[str, ...]]()
    for (epsilon, architecture), own in rows("factoring").groupby(["epsilon", "architecture"]):
        networks = [of for _, of in own.groupby("seed")]
        best = [(of := early(network)).loc[of.difference.idxmax()] for network in networks]
        last = [network.iloc[-1] for network in networks]
        found.append(
            (
                number_text(epsilon),
                architecture,
                ", ".join(f"{at.step:.0f}" for at in best),
                *(over_seeds(at[name] for at in best) for name in ("difference", "apart")),
                " / ".join(number_text(np.mean([at[f"left_{name}"] for at in best])) for name in _FAMILIES),
                over_seeds(at.difference for at in last),
                counted([*map(factors_early, networks)]),
            )
        )
    head = (
        "ε",
        "network",
        "step",
        "difference",
        "of a factored network",
        "joint / factored / added",
        "at the end",
        "verdict",
    )
    return markdown(head, found)


_FAMILIES = ("joint", "factored", "added")


def order() -> str:
    """Return, by positional encoding, what the order of 32 flips costs at the end and at equal KL."""
    table, found = rows("order"), list[tuple[str, ...]]()
    flips = table.flips.max()
    longest = table[table.flips == flips]
    level = longest[longest.step == longest.step.max()].kl.max()
    for positions, own in longest.groupby("positions", sort=False):
        networks = [of for _, of in own.groupby("seed")]
        last = [network.iloc[-1] for network in networks]
        found.append(
            (
                positions,
                over_seeds(at.kl for at in last),
                over_seeds(at.gain for at in last),
                over_seeds(at.gain / at.kl for at in last),
                over_seeds(at_level(network, level) for network in networks),
                counted([*map(order_costs, last)]),
            )
        )
    head = ("positions", "KL", "cost of order", "share of KL", f"cost at KL {number_text(level)}", "verdict")
    return markdown(head, found)


def at_level(network: pd.DataFrame, level: float) -> float:
    """Return the cost of order where the KL last fell to a level, interpolated between snapshots on logarithms."""
    kl, gain = np.log(network.kl.to_numpy()), np.log(network.gain.to_numpy())
    after = int(np.flatnonzero(kl > math.log(level))[-1]) + 1 if (kl > math.log(level)).any() else 0
    if after in (0, len(kl)):
        return float(np.exp(gain[min(after, len(kl) - 1)]))
    return float(np.exp(np.interp(math.log(level), kl[[after, after - 1]], gain[[after, after - 1]])))


def order_costs(last: Any) -> str:
    """Return the verdict on a trained network: whether the cost is above 0.1 % of the gap."""
    level = MATTERS * last.gap
    return "holds" if last.lower > level else "does not hold" if last.upper < level else "at the threshold"


def forcing() -> str:
    """Return, by process and architecture, the KL to the forced answers before and after, and the movement at lag 1."""
    table, found = rows("forcing"), list[tuple[str, ...]]()
    process = table.network.str.extract(r"^(\w+-\w+)")[0]
    for name, own in table.groupby(process):
        networks = [of for _, of in own.groupby("seed")]
        first, later = ([swapped(network, lag) for network in networks] for lag in (0, 1))
        kl = (
            f"{over_seeds(at.kl_before for at in of)} → {over_seeds(at.kl_after for at in of)}" for of in (first, later)
        )
        found.append(
            (
                str(name),
                *kl,
                *(over_seeds(at[level] for at in later) for level in ("movement", "variance-matched", "output")),
                counted([*map(forces, networks)]),
            )
        )
    head = ("network", "KL at lag 0", "KL at lag 1", "movement at lag 1", "matched subspaces", "last layer", "verdict")
    return markdown(head, found)


def swapped(network: pd.DataFrame, lag: int) -> Any:
    """Return the row at a lag of the layer whose swap moves the next answer most, but for those by construction."""
    edited = network[network.verdict != Verdict.BY_CONSTRUCTION]
    layer = edited[edited.lag == 1].set_index("layer").movement.idxmax()
    return edited[(edited.layer == layer) & (edited.lag == lag)].iloc[0]


def forces(network: pd.DataFrame) -> str:
    """Return the verdict on one network: whether the swap in some layer sets a state."""
    own = set(network.verdict) - {Verdict.BY_CONSTRUCTION}
    return "holds" if Verdict.SETS in own else "does not hold" if own == {Verdict.WRITES} else "undecided"


def forcing_plot() -> str:
    """Return the chart: movement by lag, in the layer whose swap moves the next answer most."""
    table = rows("forcing")
    series: dict[str, list[list[tuple[float, float]]]] = {}
    for name, own in table.groupby("network"):
        points = [(1.0 + lag, swapped(own, lag).movement) for lag in sorted(own.lag.unique()) if lag <= MOST_LAG]
        series.setdefault("-".join(str(name).split("-")[:2]), []).append(points)
    return chart("Movement toward the continued filter", "1 + lag", series, (-0.5, 0.0, 0.5, 1.0))


def factoring_plot() -> str:
    """Return the chart: difference as a share of that of a factored network, by step."""
    table = rows("factoring")
    seen = table[table.apart >= LEAST_APART]
    series = {
        str(name): [[*zip(own.step, own.difference / own.apart, strict=True)] for _, own in of.groupby("network")]
        for name, of in seen.groupby("architecture")
    }
    return chart("Nearer to factored (1) or to joint observers (−1)", "training step", series, (-1.5, 0.0, 1.0))


def order_plot() -> str:
    """Return the chart: cost of order by KL, along each training."""
    table = rows("order")
    longest = table[table.flips == table.flips.max()]
    series = {
        str(name): [[*zip(own.kl, np.log10(own.gain), strict=True)] for _, own in of.groupby("network")]
        for name, of in longest.groupby("positions", sort=False)
    }
    levels = (math.floor(np.log10(longest.gain.min())), math.ceil(np.log10(longest.gain.max())))
    return chart("Cost of the order of 32 flips (bits)", "KL (bits)", series, range(levels[0], levels[1] + 1), power=10)


def chart(title: str, x_title: str, series: Lines, ticks: Sequence[float], *, power: float = 0) -> str:
    """Return lines over a logarithmic axis; with `power`, heights are logarithms of that base."""
    logs = [math.log10(x) for lines in series.values() for points in lines for x, _ in points]
    low, high = min(logs), max(logs)

    def at(x: float, y: float) -> tuple[float, float]:
        place = (math.log10(x) - low) / (high - low)
        height = (y - min(ticks)) / (max(ticks) - min(ticks))
        return _LEFT + _WIDTH * place, _TOP + _HEIGHT * (1 - height)

    parts = [text(_LEFT, _TOP - 6, title), text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 34, x_title, anchor="middle")]
    for y in ticks:
        height = at(10**low, y)[1]
        label = number_text(power**y if power else y)
        parts += [
            line(_LEFT, height, _LEFT + _WIDTH, height, "#e3e3e3"),
            text(_LEFT - 8, height + 4, label, anchor="end"),
        ]
    for x in 10.0 ** np.linspace(low, high, 5):
        parts.append(text(at(x, 0)[0], _TOP + _HEIGHT + 17, f"{x:.2g}", anchor="middle"))
    for i, ((name, lines), color) in enumerate(zip(series.items(), COLORS, strict=False)):
        for points in lines:
            ends = [at(x, min(max(y, min(ticks)), max(ticks))) for x, y in points]
            parts += [line(*a, *b, color, width=2) for a, b in itertools.pairwise(ends)]
        parts.append(text(_LEFT + _WIDTH + 14, _TOP + 14 + 20 * i, name, color=color))
    return svg(title, 720, _TOP + _HEIGHT + 46, parts)


def _part(name: str, table: Callable[[], str], caption: str) -> Callable[[], str]:
    return lambda: f"{table()}\n\n![{caption}](plots/{name}.svg)" if len(rows(name)) else "Not measured yet."


PARTS: Mapping[str, Callable[[], str]] = {
    "factoring": _part("factoring", factoring, "Which family of observers is nearer, by step"),
    "order": _part("order", order, "Cost of order by KL, along each training"),
    "forcing": _part("forcing", forcing, "Movement of later answers toward the forced ones"),
}
DRAWN: Mapping[str, Callable[[], str]] = {"factoring": factoring_plot, "order": order_plot, "forcing": forcing_plot}


def plots() -> dict[str, str]:
    """Return the plot of every claim that was measured."""
    return {name: draw() for name, draw in DRAWN.items() if len(rows(name))}
