"""The generated tables and plots of the pages of published claims, from `results/published/`."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64
from scipy.special import rel_entr

from bayesgeom.core import Verdict
from bayesgeom.core.text import number_text, percent_text
from bayesgeom.report.render import markdown
from bayesgeom.stats.bootstrap import seed_interval
from examples.replication.claims.plots import line, svg, text
from examples.replication.published import TABLES

COLORS = ("#1b6ca8", "#c1432e", "#1b7f5c", "#b8860b", "#6b4c9a", "#444444")
HALF, LEAST_APART = 0.5, 0.002  # share of the gap that a network has closed; bits between both families
MATTERS, PUBLISHED = 0.001, 0.011  # share of the gap that order must cost; the smaller published cost, in bits
_FAMILIES, _KL = ("joint", "factored", "added"), ("kl_before", "kl_after")
MOST_LAG = 4  # later, the chains have forgotten
_LEFT, _TOP, _WIDTH, _HEIGHT = 70.0, 20.0, 520.0, 260.0  # pixels
Lines = Mapping[str, Iterable[Sequence[tuple[float, float]]]]  # by name, one line for each training


@cache
def rows(claim: str) -> pd.DataFrame:
    """Return the rows of a claim; none if there is no table."""
    path = TABLES / f"{claim}.csv"
    return pd.read_csv(path) if path.is_file() else pd.DataFrame()


def over_seeds(values: Iterable[float], *, is_log: bool = False) -> str:
    """Return the mean over seeds with Student's interval; with `is_log`, those of the logarithms."""
    per_seed = np.array([*values], dtype=float)
    scaled = np.log(per_seed) if is_log else per_seed
    if not len(per_seed) or np.isnan(per_seed).all():
        return "–"
    numbers = [float(np.exp(own) if is_log else own) for own in (scaled.mean(), *seed_interval(scaled))]
    return short(numbers[0]) + (f" [{' … '.join(map(short, numbers[1:]))}]" if len(per_seed) > 1 else "")


def short(value: Any) -> str:
    """Return a number with two significant digits, three from 0.1 on."""
    return number_text(float(f"{value:.{2 if abs(value) < 0.1 else 3}g}"))


def counted(verdicts: Sequence[str]) -> str:
    """Return the verdict that all networks share, or the number of networks of each."""
    counts = {own: verdicts.count(own) for own in sorted(set(verdicts))}
    return verdicts[0] if len(counts) == 1 else "; ".join(f"{own}: {n} of {len(verdicts)}" for own, n in counts.items())


def early(network: pd.DataFrame) -> pd.DataFrame:
    """Return the snapshots that decide: half the gap is closed, training goes on, and the families are apart."""
    is_early = (network.kl <= (1 - HALF) * network.gap) & (network.step < network.step.max())
    return network[is_early & (network.apart >= LEAST_APART)]


def factors_early(network: pd.DataFrame) -> str:
    """Return the verdict on one training: whether it is nearer to factored than to joint observers, and to sums."""
    nearer = (found := early(network))[found.lower > 0]
    if len(nearer):
        return "holds" if (nearer.margin_lower > 0).any() else "not identified"
    return "does not hold" if (found.upper < 0).all() else "at the threshold"


def factoring() -> str:
    """Return, by dependence and architecture, the largest early difference, and that of the trained network."""
    found = list[tuple[str, ...]]()
    for (epsilon, architecture), own in rows("factoring").groupby(["epsilon", "architecture"]):
        networks = [of for _, of in own.groupby("seed")]
        best = [(of := early(network)).loc[of.difference.idxmax()] for network in networks]
        last = [network.iloc[-1] for network in networks]
        steps = ", ".join(f"{at.step:.0f}" for at in best)
        differences = [over_seeds(at[name] for at in best) for name in ("difference", "apart")]
        left = " / ".join(short(np.mean([at[f"left_{name}"] for at in best])) for name in _FAMILIES)
        end, verdicts = over_seeds(at.difference for at in last), counted([*map(factors_early, networks)])
        found.append((number_text(epsilon), architecture, steps, *differences, left, end, verdicts))
    snapshots = pd.concat([early(network) for _, network in rows("factoring").groupby("network")])
    above, below = snapshots[snapshots.lower > 0], sum(snapshots.upper < 0)
    kinds = "; ".join(f"{kind}: {n}" for kind, n in above.architecture.value_counts().items())
    observed = (
        f"Of {len(snapshots)} early snapshots, {len(above)} lie above 0 ({kinds or 'none'}) by their interval, "
        f"{len(snapshots) / 40:.1f} would by chance, and {below} lie below. Those of one training are not independent."
    )
    head = ("difference", "if it were factored", "joint / factored / added", "at the end")
    return f"{observed}\n\n{markdown(('ε', 'network', 'step', *head, 'verdict'), found)}"


def order() -> str:
    """Return, by network, what the order of flips costs at the end, and the KL of a predictor of shares."""
    table, verdicts, found = rows("order"), costs_by_flips(), list[tuple[str, ...]]()
    middle, longest = verdicts.columns
    for name, own in table.groupby("positions", sort=False):
        at_middle, at_longest = (_last(own[own.flips == flips]) for flips in (middle, longest))
        last = at_longest if len(at_longest) else at_middle
        numbers = (last.kl_of_all, last.kl, at_middle.gain, at_longest.gain, last.gain / last.kl)
        judged = [counted([*verdicts[flips][own.network.unique()].dropna()]) or "–" for flips in verdicts]
        label = str(name) if len(at_longest) else f"{name} ({middle} flips)"
        found.append((label, *(over_seeds(values, is_log=True) for values in numbers), *judged))
    both, floors = verdicts.dropna(), share_floors(longest)
    counts = [counted([*both[flips]]) for flips in both]
    found.append((f"all {len(both)} trained on {longest} flips", *["–"] * 5, *counts))
    found.append(("share of heads", f"{floors.mean():.4f}", *["–"] * 6))
    above = sum(_last(table[table.flips == longest]).lower > PUBLISHED)
    size = f"The cost of {longest} flips is above the published {PUBLISHED} bits in {above or 'none'} of them."
    costs, judged = ([f"{of} {flips} flips" for flips in verdicts] for of in ("cost of", "verdict at"))
    head = ("network", "KL of all flips", "KL of the last", *costs, "share of KL", *judged)
    return f"{size}\n\n{markdown(head, found)}"


def costs_by_flips() -> pd.DataFrame:
    """Return the verdict on each trained network by the number of flips but the fewest; NaN if it saw fewer."""
    last = _last(rows("order"))
    last = last[last.flips > last.flips.min()]
    judged = last.assign(verdict=[order_costs(at) for _, at in last.iterrows()])
    return judged.pivot(index="network", columns="flips", values="verdict")


def order_verdicts() -> list[str]:
    """Return the verdict on each network that saw the most flips, or that it depends on their number."""
    networks = costs_by_flips().dropna().to_numpy()
    return [of[0] if len({*of}) == 1 else "depends on the number of flips" for of in networks]


def share_floors(longest: int) -> Float64[np.ndarray, " flips"]:
    """Return the KL after 1 to `longest` flips of a coin of the predictor that sees only the share of heads.

    Of all such predictors its mean over flips is the least. The bias is uniform, so that after n flips all numbers of
    heads are equally likely, and heads follow k of n with probability (k + 1) / (n + 2). The best prediction from a
    share is the mean of these over all n that it can come from.
    """
    flips = np.repeat(np.arange(1, longest + 1), np.arange(2, longest + 2))
    heads = np.concatenate([np.arange(n + 1) for n in range(1, longest + 1)])
    exact, weights = (heads + 1) / (flips + 2), 1 / (flips + 1)
    share = np.unique(heads / flips, return_inverse=True)[1]
    best = (np.bincount(share, weights * exact) / np.bincount(share, weights))[share]
    kl = (rel_entr(exact, best) + rel_entr(1 - exact, 1 - best)) / math.log(2)
    return np.bincount(flips, weights * kl)[1:]


def _last(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each network at the end of its training."""
    return table[table.step == table.groupby("network").step.transform("max")]


def order_costs(last: Any) -> str:
    """Return the verdict on a trained network: whether the cost is above 0.1 % of the gap."""
    level = MATTERS * last.gap
    return "holds" if last.lower > level else "does not hold" if last.upper < level else "at the threshold"


def forcing() -> str:
    """Return the contrast and, by process and architecture, the KL before and after, and the movement at lag 1."""
    table, found = rows("forcing"), list[tuple[str, ...]]()
    left = [at.kl_after / at.kl_before for at in (swapped(network, 0) for _, network in table.groupby("network"))]
    fallen = f"in {sum(share < 1 for share in left)} of {len(left)} networks, by at least {percent_text(1 - max(left))}"
    contrast = f"LSTMs, in contrast: {counted(forcing_verdicts('lstm'))}."
    published = f"At lag 0, KL falls {fallen}."
    for name, own in table.groupby(table.network.map(process_of)):
        networks = [of for _, of in own.groupby("seed")]
        first, later = ([swapped(network, lag) for network in networks] for lag in (0, 1))
        kl = [" → ".join(over_seeds(at[name] for at in of) for name in _KL) for of in (first, later)]
        moved = [over_seeds(at[level] for at in later) for level in ("movement", "whole", "variance-matched")]
        found.append((str(name), *kl, *moved, counted([*map(forces, networks)])))
    head = ("KL at lag 0", "KL at lag 1", "movement at lag 1", "whole activation", "matched (mean)", "verdict")
    return f"{contrast} {published}\n\n{markdown(('network', *head), found)}"


def process_of(network: str) -> str:
    """Return process and architecture of a training, without its seed."""
    return network.partition("-seed")[0]


def swapped(network: pd.DataFrame, lag: int) -> Any:
    """Return the row at a lag of the layer whose swap moves the next answer most, but for those by construction."""
    edited = network[network.verdict != Verdict.BY_CONSTRUCTION]
    layer = edited[edited.lag == 1].set_index("layer").movement.idxmax()
    return edited[(edited.layer == layer) & (edited.lag == lag)].iloc[0]


def forces(network: pd.DataFrame) -> str:
    """Return the verdict on one network: whether the swap in the layer that is shown sets a state."""
    by_code: dict[str, str] = {Verdict.SETS: "holds", Verdict.WRITES: "does not hold"}
    return by_code.get(swapped(network, 1).verdict, "undecided")


def forcing_verdicts(architecture: str = "transformer") -> list[str]:
    """Return the verdict on each network of an architecture; the claim is about transformers."""
    networks = rows("forcing").groupby("network")
    return [forces(network) for name, network in networks if process_of(str(name)).endswith(architecture)]


def forcing_plot() -> str:
    """Return the chart: movement by lag, in the layer whose swap moves the next answer most."""
    table = rows("forcing")
    series: dict[str, list[list[tuple[float, float]]]] = {}
    for name, own in table.groupby("network"):
        points = [(1.0 + lag, swapped(own, lag).movement) for lag in sorted(own.lag.unique()) if lag <= MOST_LAG]
        series.setdefault(process_of(str(name)), []).append(points)
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
    longest = table[(table.flips == table.flips.max()) & (table.step > 0)]
    series = {
        str(name): [[*zip(own.kl, np.log10(own.gain), strict=True)] for _, own in of.groupby("network")]
        for name, of in longest.groupby("positions", sort=False)
    }
    levels = (math.floor(np.log10(longest.gain.min())), math.ceil(np.log10(longest.gain.max())))
    ticks = range(levels[0], levels[1] + 1)
    title = f"Cost of the order of {longest.flips.max()} flips (bits), at each snapshot"
    return chart(title, "KL (bits)", series, ticks, power=10)


def chart(title: str, x_title: str, series: Lines, ticks: Sequence[float], *, power: float = 0) -> str:
    """Return lines over a logarithmic axis; with `power`, points whose heights are logarithms of that base."""
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
        parts.append(text(at(x, 0)[0], _TOP + _HEIGHT + 17, short(x), anchor="middle"))
    for i, ((name, lines), color) in enumerate(zip(series.items(), COLORS, strict=False)):
        for points in lines:
            ends = [at(x, min(max(y, min(ticks)), max(ticks))) for x, y in points]
            joined = [] if power else itertools.pairwise(ends)
            parts += [line(*a, *b, color, width=2) for a, b in joined]
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in ends]
        parts.append(text(_LEFT + _WIDTH + 14, _TOP + 14 + 20 * i, name, color=color))
    return svg(title, 720, _TOP + _HEIGHT + 46, parts)


def _part(
    name: str, table: Callable[[], str], verdicts: Callable[[], Sequence[str]], *, on: str = ""
) -> Callable[[], str]:
    def made() -> str:
        return f"**Verdict**{on}: {counted(verdicts())}.\n\n{table()}\n\n![{name}](plots/{name}.svg)"

    return lambda: made() if len(rows(name)) else "Not measured yet."


def _each(name: str, verdict: Callable[[pd.DataFrame], str]) -> Callable[[], Sequence[str]]:
    return lambda: [verdict(of) for _, of in rows(name).groupby("network")]


PARTS: Mapping[str, Callable[[], str]] = {
    "factoring": _part("factoring", factoring, _each("factoring", factors_early)),
    "order": _part("order", order, order_verdicts),
    "forcing": _part("forcing", forcing, forcing_verdicts, on=" on transformers"),
}
DRAWN: Mapping[str, Callable[[], str]] = {"factoring": factoring_plot, "order": order_plot, "forcing": forcing_plot}


def plots() -> dict[str, str]:
    """Return the plot of every claim that was measured."""
    return {name: draw() for name, draw in DRAWN.items() if len(rows(name))}
