"""Intervals and permutations against slow loops, and the laws that they keep."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logit
from scipy.stats import binom, binomtest

from bayesgeom.core.verdict import Reason
from bayesgeom.stats import bootstrap as statistics
from bayesgeom.stats.bootstrap import (
    bootstrap_weights,
    jackknife_weights,
    linearized_draws,
    mean_interval,
    percentile_interval,
    permutation_p,
    r2_interval,
    ratio_interval,
    shuffled_within_position,
    statistic_interval,
)
from bayesgeom.stats.bounds import FLOAT32_ROUNDING
from bayesgeom.stats.intervals import (
    FEW_LEVEL,
    FEW_LEVEL_SCORE,
    Interval,
    Scale,
    heaviest_tail,
    tail_level,
    tail_stretch,
    tail_weight,
)
from bayesgeom.stats.resampling import resampled_spearman


def resamples(values: np.ndarray, seed: int, draws: int) -> list[np.ndarray]:
    """Each resample written out: every sequence as often as it was drawn."""
    n = len(values)
    counts = np.rint(bootstrap_weights(n, seed=seed, draws=draws) * n).astype(int)
    return [np.repeat(values, row, axis=0) for row in counts]


def twin_quantile(values: list[float], share: float) -> float:
    """Linear between the order statistics around index share · (n − 1)."""
    ordered, at = sorted(values), share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def twin_of_a_ratio(
    top: np.ndarray, bottom: np.ndarray, seed: int, draws: int, *, most: float = 0.025
) -> tuple[float, float]:
    """The bootstrap-t interval of Σ top / Σ bottom, one resample at a time, with the levels that the tails require."""

    def found(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
        ratio = a.sum() / b.sum()
        return ratio, float(np.sqrt(((a - ratio * b) ** 2).mean() / len(a)) / b.mean())

    ratio, error = found(top, bottom)
    pairs = zip(resamples(top, seed, draws), resamples(bottom, seed, draws), strict=True)
    t = [(r - ratio) / e for r, e in (found(a, b) for a, b in pairs)]
    influence = (top - ratio * bottom) / bottom.mean()
    deviations = (influence - np.median(influence))[:, None]
    above, below = (tail_weight(sign * deviations) for sign in (1, -1))
    sides = (above, below), (below, above)
    upper, lower = (min(float(tail_level(*both, len(top))[0]), most) for both in sides)
    up, down = (float(tail_stretch(*both, len(top))[0]) for both in sides)
    return ratio - twin_quantile(t, 1 - lower) * down * error, ratio - twin_quantile(t, upper) * up * error


def test_mean_interval_equals_a_loop_over_resamples(rng: np.random.Generator) -> None:
    values = rng.gamma(2.0, size=(13, 5, 3))
    lo, hi = mean_interval(values, seed=7, draws=101)
    assert lo.shape == hi.shape == (5, 3)
    assert np.isfinite(lo).sum() > 11
    for i, j in zip(*np.nonzero(np.isfinite(lo)), strict=True):
        twin = twin_of_a_ratio(values[:, i, j], np.ones(13), 7, 101)
        assert (lo[i, j], hi[i, j]) == pytest.approx(twin, abs=1e-9)


def test_ratio_interval_equals_a_loop_over_resamples(rng: np.random.Generator) -> None:
    top, bottom = rng.gamma(2.0, size=(13, 5)), 1 + rng.gamma(2.0, size=(13, 5))
    lo, hi = ratio_interval(top, bottom, seed=7, draws=101)
    assert np.isfinite(lo).sum() >= 3
    for i in np.flatnonzero(np.isfinite(lo)):
        assert (lo[i], hi[i]) == pytest.approx(twin_of_a_ratio(top[:, i], bottom[:, i], 7, 101), abs=1e-9)


def test_the_lower_end_of_a_positive_ratio_is_that_of_its_log(rng: np.random.Generator) -> None:
    """With even tails, no end is moved outward: t* of log R is that of R by the delta method, resample by resample."""
    top, bottom = rng.uniform(1, 2, size=(64, 3)), rng.uniform(0.1, 2, size=(64, 3))
    plain, own = ratio_interval(top, bottom, seed=7), ratio_interval(top, bottom, seed=7, is_positive=True)
    np.testing.assert_array_equal(own.hi, plain.hi)
    ratio = top.sum(axis=0) / bottom.sum(axis=0)
    weights = bootstrap_weights(64, seed=7)
    for i in range(3):
        influence = (top[:, i] - ratio[i] * bottom[:, i]) / bottom[:, i].mean()
        assert tail_weight(-(influence - np.median(influence))[:, None])[0] < 0.7
        t = []
        for share in weights:
            again = share @ top[:, i] / (share @ bottom[:, i])
            error = np.sqrt(share @ (top[:, i] - again * bottom[:, i]) ** 2 / 64) / (share @ bottom[:, i])
            t.append(np.log(again / ratio[i]) / (error / again))
        reach = np.quantile(t, 0.975) * np.sqrt((influence**2).mean() / 64)
        assert own.lo[i] == pytest.approx(ratio[i] * np.exp(-reach / ratio[i]), rel=1e-9)


def test_unequal_denominators_leave_a_ratio_positive(rng: np.random.Generator) -> None:
    top, bottom = rng.gamma(4.0, size=(64, 41)), rng.lognormal(0, 2, size=(64, 41))
    plain, own = ratio_interval(top, bottom, seed=7), ratio_interval(top, bottom, seed=7, is_positive=True)
    assert (plain.lo < 0).sum() > 20 and (own.lo > 0).all() and (own.lo < top.sum(axis=0) / bottom.sum(axis=0)).all()


def test_arrival_is_the_stage_from_which_the_ratio_stays_low(rng: np.random.Generator) -> None:
    reference = rng.uniform(0.9, 1.1, size=83)
    falls, returns = (0.5, 0.2, 0.05, 0.01), (0.5, 0.01, 0.5, 0.01)
    never, hardly = (0.5, 0.2, 0.2, 0.2), (0.5, 0.2, 0.2, 0.098)

    def found(shares: tuple[float, ...], spread: float = 0.02) -> tuple[float, tuple[float, float]]:
        noise = rng.uniform(1 - spread, 1 + spread, size=(83, 4))
        kl = noise / noise.mean(axis=0) * reference[:, None] * np.array(shares)
        return statistics.arrival(kl, reference, seed=0)

    assert found(falls) == (2, (2, 2)) and found(returns) == (3, (3, 3))
    assert np.isnan(found(never)[0]) and np.isnan(found(never)[1]).all()
    assert found(hardly, spread=1e-4) == (3, (3, 3)) and found(hardly, spread=0.4)[1] == (3, 4)
    assert np.isnan(statistics.arrival(np.ones((83, 4)), np.zeros(83), seed=0)[0])


def test_intervals_cover_the_truth_as_often_as_they_say(rng: np.random.Generator) -> None:
    lo, hi = mean_interval(rng.exponential(size=(61, 599)), seed=5)
    coverage = np.mean((lo <= 1) & (hi >= 1))  # 599 independent experiments of 61 sequences, mean 1
    assert 0.89 < coverage < 0.98
    assert (lo < hi).all()


def test_too_few_sequences_have_no_interval(rng: np.random.Generator) -> None:
    for n in (1, 2, 7):
        values = rng.gamma(2.0, size=(n, 5, 3))
        for found in (mean_interval(values, seed=0), ratio_interval(values, 1 + values, seed=0)):
            assert found.lo.shape == (5, 3) and np.isnan([found.lo, found.hi]).all()
            assert found.reason((4, 2)) == Reason.FEW
    assert np.isfinite([*mean_interval(rng.gamma(2.0, size=(11, 5)), seed=0)]).all()


def test_the_rule_that_withholds(rng: np.random.Generator) -> None:
    """Rare failures, no failure at all, a heavy tail; and one more failure, or a lighter tail, that is enough."""
    failures = np.zeros((64, 4))
    failures[:3, 1], failures[:7, 2], failures[:8, 3] = 1, 1, 1
    found = mean_interval(failures, seed=0)
    assert np.isfinite(found.lo).tolist() == np.isfinite(found.hi).tolist() == [False, False, False, True]
    assert found.code.tolist() == [Reason.CONSTANT, Reason.FEW_DIFFER, Reason.FEW_DIFFER, Reason.NONE]


def test_few_exceptions_in_a_range_have_the_interval_of_the_worst_case(rng: np.random.Generator) -> None:
    """Clopper and Pearson for 0 and 1; values between cannot move the mean further."""
    failures = np.zeros((64, 3))
    failures[:3, 1], failures[:8, 2] = 1, 1
    found = mean_interval(failures, seed=0, bounds=(0.0, 1.0))
    assert found.code.tolist() == [Reason.CONSERVATIVE, Reason.CONSERVATIVE, Reason.NONE]
    assert found.lo.tolist()[:2] == [0, 0]
    exact = [float(binomtest(k, 64).proportion_ci(0.95, method="exact").high) for k in (0, 3)]
    np.testing.assert_allclose(found.hi[:2], exact)
    mirrored = mean_interval(1 - failures[:, :2], seed=0, bounds=(0.0, 1.0))
    np.testing.assert_allclose([1 - mirrored.hi, 1 - mirrored.lo], [found.lo[:2], found.hi[:2]])
    signed = mean_interval(failures[:, 0], seed=0, bounds=(-1.0, 1.0))
    assert float(signed.hi) == -float(signed.lo) == pytest.approx(exact[0])
    share = statistic_interval(jackknife_weights(64) @ failures, seed=0, bounds=(0.0, 1.0))
    np.testing.assert_allclose([share.lo[:2], share.hi[:2]], [found.lo[:2], found.hi[:2]], atol=1e-12)
    rate, n, covered = 0.02, 64, 0
    for _ in range(199):
        lo, hi = mean_interval((rng.random(n) < rate) * rng.random(n), seed=0, bounds=(0.0, 1.0))
        covered += bool(lo <= rate / 2 <= hi)
    assert covered > 190


def test_each_entry_of_an_array_has_the_reason_that_it_has_alone(rng: np.random.Generator) -> None:
    x = np.log((np.arange(400) + 0.5) / (399.5 - np.arange(400)))
    columns = np.stack([np.exp(3.9 * x), rng.normal(size=400), np.zeros(400)], axis=1)
    alone = [mean_interval(own, seed=0).reason() for own in columns.T]
    assert mean_interval(columns, seed=0).code.tolist() == alone == [Reason.HEAVY_TAIL, Reason.NONE, Reason.CONSTANT]


@pytest.mark.parametrize("center", [0.0, 0.3, 1.0])
def test_values_that_differ_by_rounding_alone_are_equal(center: float, rng: np.random.Generator) -> None:
    """One processor returns 0, another 1e-19 or 4e-16: neither the interval nor the reason depends on it."""
    equal = mean_interval(np.full(67, center), seed=1)
    for noise in (1e-19, 1e-17, 4e-16):
        found = mean_interval(center + noise * rng.normal(size=67), seed=1)
        assert (int(found.code), int(found.n_different)) == (int(equal.code), 0)
        assert [*map(float, found)] == pytest.approx([*map(float, equal)], abs=1e-15, nan_ok=True)
    mixed = np.r_[1e-17 * rng.normal(size=60), rng.uniform(size=7)]
    assert mean_interval(mixed, seed=1).reason() == Reason.FEW_DIFFER
    assert mean_interval(1e-19 * rng.normal(size=67), seed=1, noise=0).code == Reason.NONE, (
        "of another scale, such as 1e-20"
    )
    assert mean_interval(1e-13 * rng.normal(size=67), seed=1).code == Reason.NONE, "larger than rounding"
    share = jackknife_weights(67) @ (center + 4e-16 * rng.normal(size=67))
    assert int(statistic_interval(share, seed=1).n_different) == 0, "pseudo-values multiply rounding by n"


def nudged(values: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """The values with a relative error of 1e-7, a rounding in float32."""
    return values * (1 + 1e-7 * (1 if kind == "common" else rng.choice([-1.0, 1.0], size=values.shape)))


def paired(one: np.ndarray, other: np.ndarray) -> Interval:
    noise = FLOAT32_ROUNDING * (np.abs(one) + np.abs(other)).max(axis=0)
    return mean_interval(other - one, seed=1, noise=noise)


def inputs_with_ties(n: int, rng: np.random.Generator) -> Iterator[tuple[Callable[..., Interval], list[np.ndarray]]]:
    """Accuracies, their differences, KL, shares and jackknife statistics: 101 columns each."""
    size, weights = (n, 101), jackknife_weights(n)
    kl, level = rng.lognormal(-3, rng.uniform(0.3, 2.5, 101), size), rng.gamma(4.0, 0.25, size)
    x, y = rng.normal(size=(2, *size)) + rng.normal(size=size)
    for n_answers in (1, 4, 19):
        one, other = rng.binomial(n_answers, 0.7, size) / n_answers, rng.binomial(n_answers, 0.8, size) / n_answers
        yield paired, [one, np.where(rng.random(size) < rng.random(101), one, other)]
        yield partial(mean_interval, seed=1, bounds=(0.0, 1.0)), [one]
        yield partial(statistic_interval, seed=1), [weights @ one]
        counts = rng.integers(0, n_answers + 1, size)
        yield partial(ratio_interval, seed=1), [rng.binomial(counts, 0.8).astype(float), counts.astype(float)]
    yield partial(mean_interval, seed=1), [kl]
    yield partial(mean_interval, seed=1), [np.where(rng.random(size) < 0.5, 0.7, 0.2)]
    yield paired, [kl, kl * rng.lognormal(0, 0.5, size)]
    yield partial(r2_interval, seed=1), [np.where(rng.random(size) < 0.5, 0.0, kl), level]
    yield partial(ratio_interval, seed=1, is_positive=True), [kl, level]
    yield partial(statistic_interval, seed=1, scale="share"), [weights @ x**2 / (weights @ x**2 + weights @ y**2)]
    slope = (weights @ (x * y)) / np.sqrt((weights @ x**2) * (weights @ y**2))
    yield partial(statistic_interval, seed=1, scale="correlation"), [slope]


@pytest.mark.parametrize("n", [16, 64])
@pytest.mark.parametrize("kind", ["elementwise", "common"])
def test_rounding_in_float32_moves_no_interval(kind: str, n: int, rng: np.random.Generator) -> None:
    """Ends move by at most 1 % of the width, and reasons not at all, in 999 of 1,000."""
    n_moved = n_all = 0
    for interval, inputs in inputs_with_ties(n, rng):
        before, after = interval(*inputs), interval(*(nudged(own, kind, rng) for own in inputs))
        width = before.hi - before.lo
        move = np.fmax(np.abs(after.lo - before.lo), np.abs(after.hi - before.hi))
        is_moved = (before.code != after.code) | (move > 0.01 * width + 1e-6 * (width == 0))
        n_moved, n_all = n_moved + int(is_moved.sum()), n_all + is_moved.size
    assert n_all > 1_900 and n_moved <= n_all // 1_000


def test_ties_up_to_rounding_are_ties(rng: np.random.Generator) -> None:
    """As many differ, and the score interval is that of the levels; a small spread is none of rounding."""
    levels = np.r_[np.zeros(40), np.ones(24)]
    near = 0.3 + 0.5 * levels + 3e-8 * rng.normal(size=64)
    twin = binomtest(24, 64).proportion_ci(0.95, method="wilson")
    np.testing.assert_allclose(tuple(mean_interval(near, seed=0)), 0.3 + 0.5 * np.array(twin), atol=1e-6)
    assert int(mean_interval(near, seed=0).n_different) == 24
    grid = rng.integers(-2, 3, size=64) * (rng.random(64) < 0.4) / 6
    noisy = mean_interval(grid + 3e-8 * rng.normal(size=64), seed=0)
    np.testing.assert_allclose(tuple(noisy), tuple(mean_interval(grid, seed=0)), atol=1e-6)
    for values in (0.9 + 1e-5 * rng.normal(size=256), jackknife_weights(256) @ (0.9999 + 3e-4 * rng.normal(size=256))):
        found = mean_interval(values, seed=0) if len(values) == 256 else statistic_interval(values, seed=0)
        assert found.code == Reason.NONE and found.lo < found.hi and found.n_different > 240


def test_the_tail_weight_has_no_step_at_a_tie(rng: np.random.Generator) -> None:
    others, tie = 1 + rng.exponential(size=21), np.array([1e-3])
    nearest = np.geomspace(1e-4, 1e-1, 2_000)
    weights = np.array([tail_weight(np.r_[others, own, np.zeros(20)][:, None], tie)[0] for own in nearest])
    steps = np.abs(np.diff(weights))
    assert weights[0] == tail_weight(others[:, None])[0] != weights[-1] and steps.max() < 0.01 * np.ptp(weights)


def test_a_tail_heavier_than_any_measured_has_no_interval() -> None:
    """Quantiles of lognormal values: the tail weight is proportional to σ, and the limit falls with n."""
    assert heaviest_tail(64) == pytest.approx(3.0) and heaviest_tail(9) == heaviest_tail(64)
    assert heaviest_tail(64) > heaviest_tail(257) > heaviest_tail(2_003) > 1.9
    for n in (67, 257):
        x = np.log((np.arange(n) + 0.5) / (n - np.arange(n) - 0.5))  # logistic, in place of normal, quantiles
        weights = {scale: float(tail_weight((np.exp(scale * x) - 1)[:, None])[0]) for scale in np.arange(0.5, 4, 0.1)}
        below = max(scale for scale, weight in weights.items() if weight <= heaviest_tail(n))
        assert mean_interval(np.exp(below * x), seed=0).reason() == Reason.NONE
        heavy = mean_interval(np.exp((below + 0.1) * x), seed=0)
        assert np.isnan(heavy.lo) and heavy.reason() == Reason.HEAVY_TAIL
        both = np.concatenate([np.exp((below + 0.1) * x), -np.exp((below + 0.1) * x)])
        assert mean_interval(both, seed=0).reason() == Reason.NONE, "as heavy on both sides is not skewed"


def test_a_small_sample_allows_for_an_infinite_variance() -> None:
    """A tail weight of 1.2 may be that of Pareto values with index 1.5, of which 90 % were covered before at n = 64."""
    tail, light = np.array([1.2]), np.array([0.4])
    factors = [float(tail_stretch(tail, light, n)[0]) for n in (64, 257, 2_003)]
    assert factors[0] == pytest.approx(2) and 1 < factors[2] < 1.01 < factors[1] < 1.2
    assert float(tail_stretch(tail, tail, 64)[0]) == 1, "errors of two equally heavy tails partly cancel"
    values = 1 + np.random.default_rng(7).pareto(1.5, size=(61, 1_009))
    lo, hi = mean_interval(values, seed=1)
    assert np.isfinite(lo).all() and 0.9 < ((lo <= 3) & (hi >= 3)).mean() < 0.97


def test_the_level_is_that_of_each_end(rng: np.random.Generator) -> None:
    values = rng.normal(size=(101, 503))
    inner, outer = (mean_interval(values, seed=1, level=level) for level in (0.1, 0.025))
    assert (outer.lo < inner.lo).all() and (inner.hi < outer.hi).all()
    assert 0.75 < ((inner.lo <= 0) & (inner.hi >= 0)).mean() < 0.85


@pytest.mark.parametrize("failures", [8, 12, 13, 31, 59])
def test_values_at_two_levels_have_the_score_interval(failures: int) -> None:
    """Wilson's; wider while 12 or fewer differ, since the rule of 8 shows samples that overestimate rare failures."""
    level = 1 - 2 * FEW_LEVEL_SCORE if failures < 13 or failures > 67 - 13 else 0.95
    twin = binomtest(failures, 67).proportion_ci(level, method="wilson")
    values = (np.arange(67) < failures) * 1.0
    np.testing.assert_allclose(tuple(mean_interval(values, seed=0)), twin, atol=1e-12)
    np.testing.assert_allclose(tuple(mean_interval(2 + 3 * values, seed=0)), 2 + 3 * np.array(twin), atol=1e-12)
    np.testing.assert_allclose(tuple(ratio_interval(values, 0 * values + 2, seed=0)), np.array(twin) / 2, atol=1e-12)
    values[0] = 1.1
    assert not np.allclose(tuple(mean_interval(values, seed=0)), twin, atol=1e-3), "three levels are resampled"


def test_few_different_sequences_have_wider_intervals(rng: np.random.Generator) -> None:
    values = np.zeros((67, 2))
    values[:9, 0], values[:13, 1] = rng.gamma(2.0, size=9), rng.gamma(2.0, size=13)
    lo, hi = mean_interval(values, seed=7, draws=101)
    for j, most in enumerate((FEW_LEVEL, 0.025)):
        twin = twin_of_a_ratio(values[:, j], np.ones(67), 7, 101, most=most)
        assert (lo[j], hi[j]) == pytest.approx(twin, abs=1e-9)


@pytest.mark.parametrize("n", [64, 256, 2_000])
def test_the_rule_of_eight_does_not_spoil_what_it_shows(n: int) -> None:
    """Exact coverage over all numbers of failures, where an interval is shown: no rate of failures is left out."""
    counts = np.arange(61)
    lo, hi = mean_interval((np.arange(n)[:, None] < counts) * 1.0, seed=0)
    for expected in (4.0, 4.25, 4.5, 5.0, 5.5, 6.4, 8.0, 10.0, 12.8, 16.0, 19.2, 25.0):
        chance, rate = binom.pmf(counts, n, expected / n), expected / n
        is_shown = chance[np.isfinite(lo)].sum()
        covered = chance[(lo <= rate) & (rate <= hi)].sum() / is_shown
        assert covered < 0.985 and (covered > 0.905 if is_shown > 0.075 else is_shown * (1 - covered) < 0.013)


@pytest.mark.parametrize("sigma", [1.0, 1.5])
def test_means_of_skewed_values_are_covered_where_percentiles_do_not(rng: np.random.Generator, sigma: float) -> None:
    values, mean = rng.lognormal(0, sigma, size=(127, 601)), np.exp(sigma**2 / 2)
    lo, hi = mean_interval(values, seed=5)
    known = np.isfinite(lo)
    covered = ((lo <= mean) & (mean <= hi))[known].mean()
    low, high = percentile_interval(bootstrap_weights(127, seed=5) @ values)
    before = ((low <= mean) & (mean <= high)).mean()
    assert known.mean() > 0.9 and 0.91 < covered < 0.985 and before < covered - 0.02


def test_a_fixed_map_keeps_its_r2(rng: np.random.Generator) -> None:
    error, spread = rng.gamma(2.0, 0.1, size=(31, 5)), rng.gamma(2.0, 1.0, size=(31, 5))
    lo, hi = r2_interval(error, spread, seed=3)
    low, high = ratio_interval(error, spread, seed=3)
    np.testing.assert_allclose((lo, hi), (1 - high, 1 - low))


def test_the_jackknife_of_a_mean_is_the_interval_of_the_mean(rng: np.random.Generator) -> None:
    values = rng.gamma(2.0, size=(31, 5))
    weights = jackknife_weights(31)
    assert weights.shape == (32, 31) and np.allclose(weights.sum(axis=1), 1)
    found = statistic_interval(weights @ values, seed=3)
    np.testing.assert_allclose(tuple(found), tuple(mean_interval(values, seed=3)), atol=1e-9)


def test_there_is_no_interval_where_the_bias_exceeds_the_uncertainty(rng: np.random.Generator) -> None:
    weights, noise = jackknife_weights(31), rng.normal(size=(31, 2, 47))
    one, other = (weights @ (0.3 + noise[:, i]) for i in (0, 1))  # noisy means of two equal directions
    cosine = (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    rows = np.stack([cosine, weights @ rng.uniform(size=31)], axis=1)
    pseudo = 31 * logit(rows[0]) - 30 * logit(rows[1:])
    found = statistic_interval(rows, seed=5, scale="share")
    assert pseudo[:, 0].mean() - logit(cosine[0]) > 2 * pseudo[:, 0].std() / np.sqrt(31)
    assert found.code.tolist() == [Reason.BIASED, Reason.NONE] and np.isnan(found.lo[0]) and np.isnan(found.hi[0])
    assert found.lo[1] < rows[0, 1] < found.hi[1]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(9, 40),
    sigma=st.floats(0.05, 2.5),
    power=st.sampled_from([-1.0, 0.5, 2.0, 5.0]),
    scale=st.sampled_from(["plain", "correlation", "share"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_an_interval_contains_its_estimate_strictly_or_does_not_exist(
    n: int, sigma: float, power: float, scale: Scale, seed: int
) -> None:
    """Powers of means of skewed samples: their bias is at times larger than their uncertainty."""
    means = jackknife_weights(n) @ np.random.default_rng(seed).lognormal(0, sigma, size=(n, 23))
    own = (means**power).mean(axis=1)
    rows = own if scale == "plain" else own / (1 + own)
    found = statistic_interval(rows, seed=1, scale=scale)
    if found.code == Reason.NONE:
        assert found.lo < rows[0] < found.hi
    else:
        assert np.isnan([found.lo, found.hi]).all() and found.reason()


@pytest.mark.parametrize("scale", ["plain", "correlation", "share"])
def test_a_statistic_that_no_sequence_changes_is_exact(scale: Scale) -> None:
    found = statistic_interval(np.full(32, 0.3), seed=1, scale=scale)
    assert found.code == Reason.NONE and (float(found.lo), float(found.hi)) == (0.3, 0.3)


def test_groups_are_left_out_where_sequences_are_many() -> None:
    weights = jackknife_weights(11, most=3)
    assert weights.shape == (4, 11)
    assert [row.tolist().count(0.0) for row in weights] == [0, 4, 4, 3]
    np.testing.assert_allclose(weights.sum(axis=1), 1)


def test_correlations_keep_their_sign_and_cover_zero(rng: np.random.Generator) -> None:
    weights, inside = jackknife_weights(37), 0
    for _ in range(199):
        x, y = rng.normal(size=(2, 37, 3)) + rng.normal(size=(2, 37, 1))
        lo, hi = statistic_interval(resampled_spearman(x, y, weights), seed=1, scale="correlation")
        assert -1 < lo < hi < 1
        inside += bool(lo <= 0 <= hi)
    assert 0.89 < inside / 199 < 0.99
    falling = statistic_interval(resampled_spearman(x, 0.2 * y - x, weights), seed=1, scale="correlation")
    assert falling.hi < 0


def test_permutation_p_counts_what_reaches_as_far(rng: np.random.Generator) -> None:
    permuted = np.array([[0.1, -0.9], [-0.5, 0.2], [0.3, 0.1]])
    np.testing.assert_allclose(permutation_p(np.array([0.3, np.nan]), permuted), [0.75, np.nan])
    found = rng.normal(size=1_009)
    p = permutation_p(found, rng.normal(size=(99, 1_009)))
    assert 0.03 < (p <= 0.05).mean() < 0.07 and p.min() >= 0.01


def test_linearized_draws_scatter_as_resamples_do(rng: np.random.Generator) -> None:
    values = rng.gamma(2.0, size=(31, 5))
    drawn = linearized_draws(jackknife_weights(31) @ values, seed=3, draws=101)
    np.testing.assert_allclose(drawn, bootstrap_weights(31, seed=3, draws=101) @ values, atol=1e-9)


def test_missing_numbers_stay_missing(rng: np.random.Generator) -> None:
    values = rng.normal(size=(11, 3))
    values[4, 1] = np.nan
    for bound in mean_interval(values, seed=0):
        assert np.isnan(bound).tolist() == [False, True, False]
    for bound in ratio_interval(np.ones((11, 3)), np.array([2.0, 0.0, 2.0]) * np.ones((11, 3)), seed=0):
        assert np.isnan(bound).tolist() == [False, True, False], "0 / 0 is no number, and no warning"


def test_many_sequences_are_resampled_in_runs(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_UNITS", 11)
    values = rng.gamma(2.0, size=(31, 3))  # runs of three, and a last one of one
    sums, sizes = (
        np.stack([part[start : start + 3].sum(axis=0) for start in range(0, 31, 3)])
        for part in (values, values * 0 + 1)
    )
    lo, hi = mean_interval(values, seed=2, draws=101)
    for j in range(3):
        assert (lo[j], hi[j]) == pytest.approx(twin_of_a_ratio(sums[:, j], sizes[:, j], 2, 101), abs=1e-9)


def test_shuffling_keeps_every_positions_values(rng: np.random.Generator) -> None:
    values = rng.normal(size=(13, 5, 3))
    before = values.copy()
    shuffled = shuffled_within_position(values, rng)
    assert np.array_equal(values, before) and shuffled.shape == (13, 5, 3)
    for position in range(5):
        assert sorted(map(tuple, shuffled[:, position])) == sorted(map(tuple, values[:, position]))


def test_shuffling_treats_positions_apart(rng: np.random.Generator) -> None:
    label = np.repeat(np.arange(101)[:, None], 7, axis=1)
    shuffled = shuffled_within_position(label, rng)
    orders = {tuple(shuffled[:, position]) for position in range(7)}
    assert len(orders) == 7 and tuple(range(101)) not in orders
    assert np.array_equal(
        shuffled_within_position(label, np.random.default_rng(5)),
        shuffled_within_position(label, np.random.default_rng(5)),
    )


def test_cached_weights_are_those_drawn_and_read_only() -> None:
    for n in (1, 7, 257):
        once, again = (bootstrap_weights(n, seed=5, draws=11) for _ in range(2))
        assert np.array_equal(once, again, equal_nan=True)
    slow = np.random.default_rng(5).multinomial(7, np.full(7, 1 / 7), size=11) / 7
    assert np.array_equal(bootstrap_weights(7, seed=5, draws=11), slow)
    with pytest.raises(ValueError, match="read-only"):
        bootstrap_weights(7, seed=5, draws=11)[0] = 0
