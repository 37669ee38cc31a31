"""Intervals of the largest and the smallest of several estimates, on planted effects."""

from typing import get_args

import numpy as np
import pytest
from scipy.stats import norm

from bayesgeom.core.verdict import Reason
from bayesgeom.report.estimate import Estimate
from bayesgeom.stats.bounds import LEAST_PER_ENTRY, Extreme, extreme_interval

K = 37


@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize("stands_out", [0.0, 10.0])
def test_it_holds_the_extreme_where_the_own_interval_of_the_chosen_entry_does_not(
    rng: np.random.Generator, which: str, stands_out: float
) -> None:
    sign = 1 if which == "largest" else -1
    truth = np.zeros(K)
    truth[5] = sign * stands_out
    value = truth + rng.normal(size=(1_000, K))
    at = (sign * value).argmax(axis=1)
    own = np.abs(value[np.arange(1_000), at] - sign * stands_out) < 1.96
    ends = np.array([extreme_interval(v, v - 1.96, v + 1.96, which, n=1_000)[:2] for v in value])  # type: ignore[arg-type]
    holds = (ends[:, 0] <= sign * stands_out) & (sign * stands_out <= ends[:, 1])
    assert holds.mean() > 0.93, "95 %, within three standard errors"
    assert own.mean() < 0.7 if not stands_out else own.mean() > 0.93


def test_the_biased_end_is_the_quantile_for_so_many_entries() -> None:
    value = np.arange(K, dtype=float) * 100
    low, high, _ = extreme_interval(value, value - 1.96, value + 1.96, "largest", n=1_000)
    assert high == value[-1] + 1.96
    assert value[-1] - low == pytest.approx(norm.ppf(1 - 0.05 / K), rel=1e-4)


@pytest.mark.parametrize("nudge", [0.0, 1e-7, -1e-7])
def test_rounding_does_not_choose_between_equal_entries(nudge: float) -> None:
    value = np.array([1.0, 1.0 + nudge, 0.9])
    low, high = np.array([0.2, 0.8, 0.85]), np.array([1.4, 1.1, 0.95])
    assert extreme_interval(value, low, high, "largest", n=64) == (0.2, 1.4, Reason.NONE)
    assert extreme_interval(-value, -high, -low, "smallest", n=64) == (-1.4, -0.2, Reason.NONE)


def test_it_is_never_narrower_than_the_own_interval_of_the_chosen_entry(rng: np.random.Generator) -> None:
    value, low, high = np.array([[1.0, 0.9], [0.0, 0.85], [2.0, 0.95]])
    assert extreme_interval(value, low, high, "largest", n=64) == (0.0, 2.0, Reason.NONE), "not from the other's 0.85"
    assert extreme_interval(value, low, high, "smallest", n=64) == (0.0, 0.95, Reason.NONE)
    for _ in range(100):
        value, width = rng.normal(size=K), np.exp(rng.normal(size=(2, K)))
        ends = value - width[0], value + width[1]
        largest, smallest = (extreme_interval(value, *ends, which, n=1_000) for which in get_args(Extreme))
        for (lo, hi, _), at in ((largest, value.argmax()), (smallest, value.argmin())):
            assert lo <= value[at] - width[0, at] and hi >= value[at] + width[1, at]


def test_skewed_intervals_widen_more_on_their_long_side() -> None:
    value = np.zeros(K)
    even = extreme_interval(value, value - 1, value + 1, "largest", n=1_000)[0]
    assert extreme_interval(value, value - 1, value + 2, "largest", n=1_000)[0] == even
    assert extreme_interval(value, value - 1, value + 0.5, "largest", n=1_000)[0] < even


def test_withheld_intervals_and_small_samples() -> None:
    nan, n = np.nan, 3 * LEAST_PER_ENTRY
    without = np.array([nan, 0.25, 0.125]), np.array([nan, 0.5, 0.25])
    *hidden, reason = extreme_interval(np.array([0.2, 0.3, 0.2]), *without, "largest", n=n)
    assert np.isnan(hidden).all() and reason == Reason.HIDDEN, "it may be the largest"
    unmeasured = extreme_interval(np.array([nan, 0.3, 0.2]), *without, "largest", n=n)
    assert unmeasured == (0.25, 0.5, Reason.NONE), "of two entries the end is that of the interval of its own"
    for which in ("largest", "smallest"):
        *few, reason = extreme_interval(np.zeros(3), -np.ones(3), np.ones(3), which, n=n - 1)  # type: ignore[arg-type]
        assert np.isnan(few).all() and reason == Reason.MANY
        *none, reason = extreme_interval(*np.full((3, 3), nan), which, n=n)  # type: ignore[arg-type]
        assert np.isnan(none).all() and reason == Reason.NONE, "nothing was measured"
    assert np.isfinite(extreme_interval(np.zeros(3), -np.ones(3), np.ones(3), "largest", n=n)[:2]).all()
    assert extreme_interval(np.zeros(3), -np.ones(3), np.zeros(3), "largest", n=n)[1] == 0.0, "an end at the value"
    wider = extreme_interval(np.zeros(3), -np.ones(3), np.ones(3), "largest", n=99, count=24)[0]
    assert wider < extreme_interval(np.zeros(3), -np.ones(3), np.ones(3), "largest", n=99)[0]


def test_an_estimate_gives_index_entry_and_reason() -> None:
    value = np.array([[0.1, np.nan], [0.4, 0.2]])
    own = Estimate.of(value, (value - 0.05, value + 0.05), n=5)
    at, chosen = own.extreme("largest")
    assert (
        at == (1, 0) and float(chosen.value) == 0.4 and np.isnan(chosen.ends[0]) and chosen.reason_at() == Reason.MANY
    )
    hidden = Estimate.of([0.1, 0.4], ([np.nan, 0.3], [np.nan, 0.5]), n=64).extreme("largest")[1]
    assert np.isnan(hidden.ends[0]) and hidden.reason_at() == Reason.HIDDEN
    assert Estimate.of(value).extreme("smallest")[0] == (0, 0) and Estimate.of(value).extreme("smallest")[1].low is None
    for low in (0.25, 0.1, 1 / 3):
        single = Estimate.of([0.7], ([low], [0.75]), n=3).extreme("largest")[1]
        assert tuple(map(float, single.ends)) == (low, 0.75), "one entry is no choice"


def test_a_choice_among_more_entries_widens_the_biased_end() -> None:
    own = Estimate.of([0.5, 0.1], ([0.4, 0.0], [0.6, 0.2]), n=99)
    among_two, among_six = own.extreme("largest")[1], own.extreme("largest", count=6)[1]
    assert float(among_two.ends[0]) == pytest.approx(0.4) and among_six.ends[1] == among_two.ends[1]
    assert float(among_six.ends[0]) == pytest.approx(0.5 - 0.1 * norm.ppf(1 - 0.05 / 6) / norm.ppf(0.975))
