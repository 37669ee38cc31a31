"""Coverage of every interval in use, on planted data whose true value is known.

Each row draws data sets, computes the interval that the package reports, and counts how often it holds the truth:
1,000 data sets for means, 200 for statistics that take longer, of 64, 256 and 2,000 sequences. Columns:

- shown: share of the data sets that have an interval;
- coverage where shown: how many of these intervals hold the truth. A reader meets no other intervals, so this decides;
- wrong, of all: intervals that do not hold the truth, as a share of all data sets, shown or not. A rule that withholds
  often is seldom wrong by this count, so it decides nothing.

The two differ because withholding selects. Of the samples of a heavy-tailed population, a rule on the tail keeps those
that look light-tailed, and these underestimate the mean. A rule on the number of failures keeps samples with too many.
No rule that sees only the sample can undo that, so the intervals that are shown have to allow for it.

Verdicts:

- passes: the 95 % binomial interval of the coverage, where an interval is shown, meets 92–97 %. Intervals of extremes
  promise at least 95 %, because no rule on single intervals is exact both where one entry stands out and where all are
  alike; they also pass above 97 %;
- no interval: no data set shows one, and the reason that the report gives is printed;
- withheld: fewer than 5 % of the data sets show one, and the upper end of the 95 % binomial interval of "wrong,
  of all" is at most 5 %. How many of those shown hold the truth is printed;
- LIMIT: covers too seldom for a reason that no sample shows. Of all samples of 64 sequences 27 % hold none of the
  failures that occur in 2 % of them, and look as if there were none. [Concepts](../docs/concepts.md#intervals) states
  this limit;
- FAILS: anything else, with what is wrong. Such a statistic must not have an interval at that size.

Among many rows of 200 data sets each, some fail by chance. A row of 64 or more sequences that fails with 200 is
therefore measured once more, with 2,000 new data sets of another seed, and these alone decide (`CONFIRMING`). Both
lines stay in the table. A row of 1,000 data sets is not measured again.

Rows of means, ratios of means and one correlation are also measured below 64 sequences, where the aim is not promised.
A row that fails there is counted apart. [Concepts](../docs/concepts.md#intervals) states how far it falls short.

Rare failures are the case in which a rule cannot do better. With 8 failures among 64 sequences an interval is shown,
and with 7 it is not. At a rate of 5 % one data set in 70 has 8 or more, and its interval lies above 5 %. The same
sample at a rate of 12 % has a correct interval. A higher limit moves the problem to a higher rate. Given that it is
shown, no interval can cover there. What a reader risks is the share of all data sets that show a wrong interval, and
"withheld" demands that it is below the 5 % that any 95 % interval risks.

The script is not named `coverage.py`. Its folder comes first on the search path of every script in it, so `import
coverage` there would import this script instead of the package of that name.

The rows are in `interval_means.py`, `interval_readouts.py`, `interval_keys.py`, `interval_curves.py` and
`interval_extremes.py`. Those that begin with "before" are what is no longer reported, for comparison. Every row has a
seed of its own.

    python benchmarks/interval_coverage.py              # all rows, some minutes on a quiet machine; printed as they end
    python benchmarks/interval_coverage.py --quick      # fewer data sets, 64 and 256 sequences, no shipped model: 1 min
    python benchmarks/interval_coverage.py --rows mean  # rows whose name holds this text
"""

import argparse
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from interval_curves import bounds_above, bounds_converged, curve_rows, fall_row, trend_row
from interval_extremes import extreme_row, extreme_rows
from interval_keys import key_rows, layers_apart
from interval_means import Draw, mean_row, mean_rows, percentile_row, pools, populations
from interval_readouts import best_map, overlap_row, read_out_rows, spearman_row
from interval_row import FEW_SIZES, SIZES, Row
from scipy.stats import binomtest

from bayesgeom.core.verdict import Reason

LOW, HIGH = 0.92, 0.97
CONFIRMING = 2_000  # data sets that decide a row that failed with fewer than half as many
RISK = 0.05  # share of all data sets that may show a wrong interval
ROUNDING = 1e-9
QUICK_SIZES, QUICK_MANY, QUICK_FEW = (64, 256), 200, 20


def all_rows(kept: Path | None, *, is_quick: bool) -> Iterator[Row]:
    """Means first, which are cheap, then the rest; the KL of shipped models last, since it takes the models a while."""
    named = list(populations({}))
    yield from mean_rows(named)
    yield from read_out_rows()
    yield from key_rows()
    yield from curve_rows()
    yield from extreme_rows()
    yield from earlier_rows(named)
    if is_quick:
        return
    for name, draw, truth in list(populations(pools(kept)))[len(named) :]:
        yield mean_row(name, draw, truth)
        yield percentile_row(name, draw, truth)


def earlier_rows(named: Iterable[tuple[str, Draw, float]]) -> Iterator[Row]:
    """What is no longer reported, for comparison."""
    yield trend_row("distinct layers", np.array([0.0, 0.6, 1.4, 2.1, 2.9, 3.6]))
    yield trend_row("two layers alike", np.array([0.0, 0.05, 0.3, 0.25, 0.6, 0.9]))
    yield Row("before: bounds of the first position above a threshold", "nothing any more", bounds_above)
    yield Row("before: share of layers with keys apart", "nothing any more", layers_apart)
    yield Row("before: bounds of tokens to converge", "nothing any more", bounds_converged)
    for name, draw, truth in named:
        if any(word in name for word in ("σ = 2.0", "failures in 1%", "failures in 5%")):
            yield percentile_row(name, draw, truth)
    yield spearman_row(0.0, is_absolute=True)
    yield overlap_row("random, 0.7^i", 0.7 ** np.arange(24.0), np.inf)
    yield overlap_row("near, 0.7^i", 0.7 ** np.arange(24.0), 0.3)
    yield overlap_row("near, 1/i", 1 / np.arange(1.0, 25), 0.3)
    for n_entries in (6, 36):
        yield extreme_row("alike", np.ones(n_entries), "largest", is_own=True)
    for drop in (0.0, 0.1):
        yield fall_row(drop, n_trainings=1)
        for n_trainings in (3, 5):
            yield fall_row(drop, n_trainings=n_trainings, is_left_out=True)
    yield Row("before: R² of the best linear map, d = 128", "nothing any more", best_map, sizes=(160,))


def verdict(covered: int, n_shown: int, m: int, why: str, *, limit: str, is_at_least: bool) -> str:
    """By the rule in this file's docstring; `why` is the most frequent reason for showing no interval."""
    if not n_shown:
        return f"no interval: {why}"
    if n_shown < 0.05 * m:
        most = binomtest(n_shown - covered, m).proportion_ci(0.95, method="wilson").high
        text = f"in all but {n_shown / m:.1%}, of which {covered} of {n_shown} hold the truth: {why}"
        return f"withheld {text}" if most <= RISK else f"FAILS: wrong in up to {most:.1%} of all; withheld {text}"
    reach = binomtest(covered, n_shown).proportion_ci(0.95, method="wilson")
    if reach.low <= HIGH and reach.high >= LOW:
        return "passes"
    if is_at_least and reach.low > HIGH:
        return "passes: at least 95 % is promised"
    if limit and reach.high < LOW:
        return f"LIMIT: covers too seldom; {limit}"
    text = "covers too often" if reach.low > HIGH else "covers too seldom"
    return f"FAILS: {text}" + (f"; withheld elsewhere: {why}" if n_shown < m else "")


def measured(row: Row, n: int, m: int, *, branch: int = 0) -> str:
    """One line of the table; another `branch` draws other data sets."""
    rng = np.random.default_rng((zlib.crc32(row.name.encode()), n, *([branch] if branch else [])))
    (lo, hi, code), truth = row.measure(n, m, rng)
    is_shown = code if code.dtype == bool else np.isin(code, (Reason.NONE, Reason.CONSERVATIVE))
    # An end that equals the true value, as of ranks, differs from it by rounding.
    slack = ROUNDING * abs(truth)
    holds = is_shown & (lo <= truth + slack) & (truth <= hi + slack)
    covered, n_shown = int(holds.sum()), int(is_shown.sum())
    why = row.why
    if n_shown < m and code.dtype != bool:
        why = str(Reason(int(np.bincount(code[~is_shown]).argmax())))
    cover = f"{covered / n_shown:.3f}" if n_shown else "–"
    wrong = f"{(n_shown - covered) / m:.3f}"
    limit = row.limit if n <= SIZES[0] else ""
    text = verdict(covered, n_shown, m, why, limit=limit, is_at_least=row.is_at_least)
    text += f" ({m:,} new data sets decide)" if branch else ""
    name = row.name.replace("|", "\\|")  # a bar would end the cell
    return f"| {name:58s} | {n} | {n_shown / m:.0%} | {cover} | {wrong} | {text} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", type=int, default=1_000, help="data sets of rows that are cheap")
    parser.add_argument("--few", type=int, default=200, help="data sets of the other rows")
    parser.add_argument("--kept", type=Path, help="an .npz file that keeps the KL of shipped models between runs")
    parser.add_argument("--rows", nargs="+", default=[""], help="only rows whose name contains one of these texts")
    parser.add_argument("--quick", action="store_true", help="fewer data sets, fewer sizes, no shipped model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    many, few = (QUICK_MANY, QUICK_FEW) if arguments.quick else (arguments.many, arguments.few)
    started, failed, few_failed, n_rows = time.perf_counter(), 0, 0, 0
    print(f"| {'statistic':58s} | n | shown | coverage where shown | wrong, of all | |")
    print("|---|---|---|---|---|---|", flush=True)
    for row in all_rows(arguments.kept, is_quick=arguments.quick):
        if not any(text in row.name for text in arguments.rows):
            continue
        for n in row.sizes:
            if arguments.quick and row.sizes in (SIZES, FEW_SIZES) and n not in QUICK_SIZES:
                continue
            m, is_reported = many if row.is_cheap else few, not row.name.startswith("before")
            line = measured(row, n, m)
            print(line, flush=True)
            if is_reported and "FAILS" in line and n >= 64 and 2 * m < CONFIRMING and not arguments.quick:
                line = measured(row, n, CONFIRMING, branch=1)
                print(line, flush=True)
            is_failed = is_reported and "FAILS" in line
            n_rows, failed, few_failed = n_rows + is_reported, failed + is_failed, few_failed + (is_failed and n < 64)
    print(f"\n{failed} of {n_rows} rows fail, {few_failed} of them below 64; {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
