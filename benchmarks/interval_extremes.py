"""Rows of `interval_coverage.py`: the largest and the smallest of several effects, measured on the same sequences."""

from collections.abc import Iterator

import numpy as np
from interval_row import Ends, Row, shown

from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.bounds import Extreme, extreme_interval

USED_BY = "headlines and claims on the largest, or the smallest, of several entries"
SHARED = 0.5  # of the log of an effect: what sequences have in common, whatever is ablated


def extreme_rows() -> Iterator[Row]:
    """Effects that are alike, that differ by degrees, and one that stands out; skewed as KL increases are."""
    for n_entries in (2, 6, 36, 144):
        alike = np.ones(n_entries)
        yield extreme_row("alike", alike, "largest")
        yield extreme_row("alike", alike, "smallest")
    for n_entries in (6, 36):
        by_degrees = np.linspace(1.0, 1.5, n_entries)
        yield extreme_row("by degrees", by_degrees, "largest")
        yield extreme_row("by degrees", by_degrees, "smallest")
        stands_out = np.where(np.arange(n_entries) == 1, 3.0, 1.0)
        yield extreme_row("one stands out", stands_out, "largest")
        yield extreme_row("one stands out", 1 / stands_out, "smallest")


def extreme_row(name: str, means: np.ndarray, which: Extreme, *, is_own: bool = False) -> Row:
    """The interval of the extreme mean; `is_own`: that of the chosen entry, as if it were no choice."""

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        ends = np.array([_ends(means, n, which, rng, is_own=is_own) for _ in range(m)]).T
        return (ends[0], ends[1], ~np.isnan(ends[0])), float(means.max() if which == "largest" else means.min())

    label = f"{which} of {len(means)} effects, {name}"
    if is_own:
        return Row(f"before: own interval of the {label}", "nothing any more", measure)
    why = "too few sequences for so many entries"
    return Row(f"extreme: {label}", USED_BY, measure, why=why, is_at_least=True)


def _ends(means: np.ndarray, n: int, which: Extreme, rng: np.random.Generator, *, is_own: bool) -> tuple[float, float]:
    """The interval of one data set: effects of every entry on every sequence, lognormal with a shared factor."""
    logs = np.sqrt(SHARED) * rng.normal(size=(n, 1)) + np.sqrt(1 - SHARED) * rng.normal(size=(n, len(means)))
    effects = means * np.exp(logs - 0.5)
    value, (low, high, _) = effects.mean(axis=0), shown(mean_interval(effects, seed=1))
    if not is_own:
        return extreme_interval(value, low, high, which, n=n)[:2]
    chosen = int(value.argmax() if which == "largest" else value.argmin())
    return float(low[chosen]), float(high[chosen])
