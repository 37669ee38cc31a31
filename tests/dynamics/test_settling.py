"""What settles when, which first, and what falls again: on curves whose answer is known."""

import math

import numpy as np
import pytest

from bayesgeom.dynamics.settling import (
    NO_FALL,
    dissociation,
    fall,
    frame_moment,
    largest_fall,
    measuring,
    precision_by_share,
    precision_moment,
)
from bayesgeom.dynamics.threshold_steps import ThresholdStep
from bayesgeom.stats.bootstrap import seed_interval

STEPS = (0, 10, 20, 40, 80)


def test_moments_are_first_snapshots_and_the_ones_before() -> None:
    distance = np.array([1.0, 0.5, 0.1, 0.2, 0.0])
    assert frame_moment(STEPS, distance) == ThresholdStep(20.0, 10.0)
    assert precision_moment(STEPS, np.array([4.0, 3.0, 2.1, 2.0, 1.0])) == ThresholdStep(40.0, 20.0)
    assert precision_by_share(STEPS, np.array([11.0, 3.0, 2.1, 2.0, 1.0])) == ThresholdStep(40.0, 20.0)
    assert precision_by_share(STEPS, np.array([11.0, 2.0, 2.1, 2.0, 1.0])) == ThresholdStep(10.0, 1.0)


def test_what_never_changes_has_no_moment() -> None:
    flat = np.ones(5)
    assert all(math.isnan(of(STEPS, flat).step) for of in (precision_moment, precision_by_share))
    assert math.isnan(frame_moment(STEPS, np.zeros(5)).step) and math.isnan(
        frame_moment(STEPS, np.full(5, np.nan)).step
    )
    assert math.isnan(precision_by_share(STEPS, np.arange(5.0)).step)


def test_the_interval_holds_what_the_spacing_allows() -> None:
    later, earlier = [ThresholdStep(80.0, 40.0)] * 3, [ThresholdStep(20.0, 10.0)] * 3
    found = dissociation(later, earlier)
    assert found.per_run == pytest.approx(2.0) and (found.lo, found.hi) == (1.0, 3.0)
    assert found.verdict(first="the frame", second="precision") == "the frame is first, by a factor of 4"
    back = dissociation(earlier, later)
    assert back.verdict(first="the frame", second="precision") == "precision is first, by a factor of 4"


def test_the_interval_over_seeds_is_students() -> None:
    later = [ThresholdStep(step, step) for step in (16.0, 32.0, 128.0)]
    found = dissociation(later, [ThresholdStep(2.0, 2.0)] * 3)
    lo, hi = seed_interval(np.array([3.0, 4.0, 6.0]))
    assert (found.mean, found.lo, found.hi) == pytest.approx((13 / 3, float(lo), float(hi)))


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ([ThresholdStep(80.0, 40.0)] * 2, "2 trainings, and at least 3"),
        ([ThresholdStep(40.0, 20.0)] * 3, "the interval holds 0"),
        ([ThresholdStep(80.0, 40.0)] * 2 + [ThresholdStep(math.nan, math.nan)], "in 1 of 3 trainings"),
    ],
)
def test_what_cannot_be_decided_says_why(later: list[ThresholdStep], reason: str) -> None:
    found = dissociation(
        later, [ThresholdStep(20.0, 10.0) if len(later) == 2 else ThresholdStep(40.0, 20.0)] * len(later)
    )
    verdict = found.verdict(first="the frame", second="precision")
    assert verdict.startswith("cannot decide") and reason in verdict


def test_the_largest_fall_is_that_of_all_pairs(rng: np.random.Generator) -> None:
    for _ in range(20):
        curve = rng.normal(size=7)
        start, end = largest_fall(curve)
        assert start <= end
        assert curve[start] - curve[end] == max(curve[i] - curve[j] for i in range(7) for j in range(i, 7))


def noisy(curve: list[float], rng: np.random.Generator, *, runs: int, sd: float = 0.01) -> np.ndarray:
    """The curve in several trainings, with noise of this size at each step."""
    return np.asarray(np.array(curve) + sd * rng.normal(size=(runs, 5)))


def test_a_dip_is_there_and_a_rise_has_none(rng: np.random.Generator) -> None:
    dip = fall(noisy([0, 3, 5, 3, 6], rng, runs=5))
    assert (dip.start, dip.end, dip.verdict) == (2, 3, "there")
    assert dip.size == pytest.approx(2, abs=0.05) and dip.lo < 2 < dip.hi
    assert dip.share == pytest.approx(1 / 3, abs=0.01)
    rising = fall(noisy([0, 1, 2, 3, 4], rng, runs=5))
    assert (rising.size, rising.verdict) == (0, NO_FALL) and math.isnan(rising.lo)
    assert fall(noisy([5, 4, 3, 2, 1], rng, runs=5)).verdict == "no rise"
    small = fall(noisy([0, 3, 5, 4.9, 6], rng, runs=5))
    assert small.verdict == "not there" and small.lo > 0
    assert fall(noisy([0, 3, 5, 4.4, 6], rng, runs=5, sd=0.3)).verdict == "cannot decide"


def test_the_first_half_chooses_steps_and_the_others_measure() -> None:
    first, second = [0.0, 3.0, 5.0, 3.0, 6.0], [0.0, 4.0, 1.0, 5.0, 4.0]
    found = fall(np.array([first, first, second, [0.0, 4.0, 1.4, 5.0, 4.0], second]))
    assert (found.start, found.end) == (2, 3), "not 1 and 2, where the measured trainings fall most"
    own = np.array([1.0 - 5.0, 1.4 - 5.0, 1.0 - 5.0])
    assert (found.size, found.lo, found.hi) == pytest.approx((own.mean(), *map(float, seed_interval(own))))
    assert found.rise == np.array([first, first, second, [0.0, 4.0, 1.4, 5.0, 4.0], second]).mean(axis=0).max()
    np.testing.assert_array_equal(measuring(np.arange(3)), [1, 2])


def test_an_unmeasured_curve_has_no_verdict() -> None:
    assert fall(np.full((3, 5), np.nan)).verdict == "not measured"


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_trainings_give_a_fall_no_verdict(runs: int, rng: np.random.Generator) -> None:
    found = fall(noisy([0, 3, 5, 3, 6], rng, runs=runs))
    assert found.size == pytest.approx(2, abs=0.05) and math.isnan(found.lo) and math.isnan(found.hi)
    assert found.verdict == "cannot decide: fewer than 3 trainings"
    assert fall(noisy([0, 1, 2, 3, 4], rng, runs=runs)).verdict == "cannot decide: fewer than 3 trainings"


def test_noise_alone_is_no_fall(rng: np.random.Generator) -> None:
    """Each training falls somewhere, but not where the others do; the interval holds 0 in about 95 % of data sets."""
    curves = np.linspace(0, 0.1, 5) + rng.normal(size=(400, 6, 5))
    found = [fall(own) for own in curves]
    assert sum(own.verdict == "there" for own in found) <= 0.05 * len(found)
    held = [own.lo <= -0.025 * (own.end - own.start) <= own.hi for own in found if own.start < own.end]
    assert np.mean(held) == pytest.approx(0.95, abs=0.03)
