"""Intervals and permutations against slow loops, and the laws that they keep."""

import tracemalloc

import numpy as np
import pytest

from bayesgeom import statistics
from bayesgeom.statistics import (
    bootstrap_weights,
    mean_interval,
    percentile_interval,
    ratio_interval,
    shuffled_within_position,
    with_bounds,
)


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


def test_mean_interval_equals_a_loop_over_resamples(rng: np.random.Generator) -> None:
    values = rng.gamma(2.0, size=(13, 5, 3))
    lo, hi = mean_interval(values, seed=7, draws=101)
    assert lo.shape == hi.shape == (5, 3)
    means = [sample.mean(axis=0) for sample in resamples(values, seed=7, draws=101)]
    for i in range(5):
        for j in range(3):
            entries = [float(mean[i, j]) for mean in means]
            assert lo[i, j] == pytest.approx(twin_quantile(entries, 0.025), abs=1e-12)
            assert hi[i, j] == pytest.approx(twin_quantile(entries, 0.975), abs=1e-12)


def test_ratio_interval_equals_a_loop_over_resamples(rng: np.random.Generator) -> None:
    top, bottom = rng.gamma(2.0, size=(13, 5)), 1 + rng.gamma(2.0, size=(13, 5))
    lo, hi = ratio_interval(top, bottom, seed=7, draws=101)
    pairs = zip(resamples(top, 7, 101), resamples(bottom, 7, 101), strict=True)
    ratios = [a.sum(axis=0) / b.sum(axis=0) for a, b in pairs]
    for i in range(5):
        entries = [float(ratio[i]) for ratio in ratios]
        assert lo[i] == pytest.approx(twin_quantile(entries, 0.025), abs=1e-12)
        assert hi[i] == pytest.approx(twin_quantile(entries, 0.975), abs=1e-12)


def test_ratios_are_resampled_together(rng: np.random.Generator) -> None:
    bottom = 1 + rng.gamma(2.0, size=(17, 3))
    lo, hi = ratio_interval(0.7 * bottom, bottom, seed=1)
    np.testing.assert_allclose(np.stack([lo, hi]), 0.7, atol=1e-12)


def test_weights_are_shares_of_whole_sequences() -> None:
    weights = bootstrap_weights(7, seed=3, draws=101)
    assert weights.shape == (101, 7)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(weights * 7, np.round(weights * 7), atol=1e-12)
    assert np.abs(weights.mean(axis=0) - 1 / 7).max() < 0.05


def test_a_seed_decides_the_interval(rng: np.random.Generator) -> None:
    values = rng.normal(size=(31, 3))
    first, again, other = (mean_interval(values, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_intervals_cover_the_truth_as_often_as_they_say(rng: np.random.Generator) -> None:
    lo, hi = mean_interval(rng.exponential(size=(61, 599)), seed=5)
    coverage = np.mean((lo <= 1) & (hi >= 1))  # 599 independent experiments of 61 sequences, mean 1
    assert 0.89 < coverage < 0.98
    assert (lo < hi).all()


def test_one_sequence_has_no_interval(rng: np.random.Generator) -> None:
    values = rng.gamma(2.0, size=(1, 5, 3))
    weights = bootstrap_weights(1, seed=0)
    bounds = (*mean_interval(values, seed=0), *ratio_interval(values, 1 + values, seed=0))
    for bound in (*bounds, *percentile_interval(np.tensordot(weights, values, axes=1))):
        assert bound.shape == (5, 3) and np.isnan(bound).all()
    assert np.isfinite(mean_interval(rng.gamma(2.0, size=(2, 5)), seed=0)).all()


def test_constant_data_leave_nothing_uncertain() -> None:
    lo, hi = mean_interval(np.full((11, 3), 0.3), seed=0)
    np.testing.assert_allclose(np.stack([lo, hi]), 0.3, atol=1e-12)


def test_paired_differences_are_surer_than_the_parts(rng: np.random.Generator) -> None:
    shared = 10 * rng.normal(size=101)
    first, second = shared + 0.1, shared + 0.01 * rng.normal(size=101)
    lo, hi = mean_interval(first - second, seed=0)
    alone_lo, alone_hi = mean_interval(first, seed=0)
    assert lo > 0.09 and hi < 0.11 and alone_hi - alone_lo > 1
    shifted = mean_interval(first, seed=0)[0] - mean_interval(first - 0.5, seed=0)[0]
    assert shifted == pytest.approx(0.5, abs=1e-12), "one seed draws the same sequences for both"


def test_positions_of_a_sequence_stay_together(rng: np.random.Generator) -> None:
    one = rng.normal(size=(29, 1))
    lo, hi = mean_interval(np.repeat(one, 7, axis=1).mean(axis=1), seed=0)
    alone = mean_interval(one[:, 0], seed=0)
    np.testing.assert_allclose((lo, hi), alone, atol=1e-12, err_msg="seven copies of one number are one number")


def test_level_widens_the_interval(rng: np.random.Generator) -> None:
    draws = rng.normal(size=(1_009, 3))
    (lo, hi), (wide_lo, wide_hi) = percentile_interval(draws, level=0.5), percentile_interval(draws, level=0.99)
    assert (wide_lo < lo).all() and (hi < wide_hi).all()
    assert ((draws > lo) & (draws < hi)).mean(axis=0) == pytest.approx(0.5, abs=0.01)


def test_missing_numbers_stay_missing(rng: np.random.Generator) -> None:
    values = rng.normal(size=(11, 3))
    values[4, 1] = np.nan
    for bound in mean_interval(values, seed=0):
        assert np.isnan(bound).tolist() == [False, True, False]
    for bound in ratio_interval(np.zeros((11, 3)), np.array([1.0, 0.0, 2.0]) * np.ones((11, 3)), seed=0):
        assert np.isnan(bound).tolist() == [False, True, False], "0 / 0 is no number, and no warning"


def test_many_sequences_are_resampled_in_runs(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_UNITS", 7)
    values = rng.gamma(2.0, size=(31, 3))  # runs of five, and a last one of one
    runs = [values[start : start + 5] for start in range(0, 31, 5)]
    counts = np.rint(bootstrap_weights(7, seed=2, draws=101) * 7).astype(int)
    means = [
        np.concatenate([run for run, c in zip(runs, row, strict=True) for _ in range(c)]).mean(0) for row in counts
    ]
    for bound, share in zip(mean_interval(values, seed=2, draws=101), (0.025, 0.975), strict=True):
        expected = [twin_quantile([float(mean[j]) for mean in means], share) for j in range(3)]
        np.testing.assert_allclose(bound, expected, atol=1e-12)


def test_runs_of_sequences_give_intervals_of_the_same_width(rng: np.random.Generator) -> None:
    values = rng.exponential(size=(5 * statistics.MAX_UNITS, 3))
    lo, hi = mean_interval(values, seed=0)
    np.testing.assert_allclose(hi - lo, 2 * 1.96 / np.sqrt(len(values)), rtol=0.12)


def peak_bytes(n: int) -> int:
    values = np.ones(n)
    tracemalloc.start()
    mean_interval(values, seed=0, draws=101)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_number_of_sequences() -> None:
    assert peak_bytes(20_011) < 1.15 * peak_bytes(2_000)


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


def test_shuffling_is_uniform_over_sequences(rng: np.random.Generator) -> None:
    label = np.repeat(np.arange(3)[:, None], 6_007, axis=1)
    came_from = shuffled_within_position(label, rng)
    shares = np.array([[(came_from[to] == origin).mean() for origin in range(3)] for to in range(3)])
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)


def test_bounds_leave_the_estimate_out(rng: np.random.Generator) -> None:
    drawn = rng.normal(size=(102, 5, 3))
    drawn[0] = 1e6
    found = with_bounds("damage", drawn)
    assert found.keys() == {"damage", "damage_lo", "damage_hi"}
    np.testing.assert_array_equal(found["damage"], drawn[0])
    np.testing.assert_array_equal((found["damage_lo"], found["damage_hi"]), percentile_interval(drawn[1:]))
    assert found["damage_hi"].max() < 1e3
