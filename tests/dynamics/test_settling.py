"""What settles when, which first, and what falls again: on curves whose answer is known."""

import math

import numpy as np
import pytest

from bayesgeom.dynamics.settling import (
    dissociation,
    fall,
    frame_moment,
    largest_fall,
    precision_by_share,
    precision_moment,
)
from bayesgeom.dynamics.threshold_steps import ThresholdStep
from bayesgeom.stats.bootstrap import jackknife_weights, seed_interval

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
    """The curve, and the curve without each of 31 sequences, whose mean has this standard error."""
    noise = rng.normal(size=(runs, 31, 5))
    noise = sd * np.sqrt(31) * (noise - noise.mean(axis=1, keepdims=True))
    return np.asarray(jackknife_weights(31) @ (np.array(curve) + noise))


def test_a_dip_is_there_and_a_rise_has_none(rng: np.random.Generator) -> None:
    dip = fall(noisy([0, 3, 5, 3, 6], rng, runs=1), seed=0)
    assert (dip.start, dip.end, dip.size, dip.verdict) == (2, 3, pytest.approx(2.0), "there")
    assert dip.share == pytest.approx(1 / 3) and dip.lo < 2 < dip.hi
    rising = fall(noisy([0, 1, 2, 3, 4], rng, runs=1), seed=0)
    assert (rising.size, rising.lo, rising.hi, rising.verdict) == (0, 0, 0, "not there")
    assert fall(noisy([5, 4, 3, 2, 1], rng, runs=1), seed=0).verdict == "no rise"
    small = fall(noisy([0, 3, 5, 4.9, 6], rng, runs=1), seed=0)
    assert small.verdict == "not there" and small.lo > 0
    assert fall(noisy([0, 3, 5, 4.4, 6], rng, runs=1, sd=0.2), seed=0).verdict == "cannot decide"


def test_an_unmeasured_curve_has_no_verdict() -> None:
    assert fall(np.full((2, 9, 5), np.nan), seed=0).verdict == "not measured"
    alone = np.full((1, 9, 5), np.nan)
    alone[0, 0] = [0, 3, 5, 3, 6]
    assert fall(alone, seed=0).verdict == "cannot decide: no interval"


def test_too_few_sequences_give_a_fall_no_verdict(rng: np.random.Generator) -> None:
    few = np.asarray(jackknife_weights(5) @ ([0, 3, 5, 3, 6] + 0.01 * rng.normal(size=(1, 5, 5))))
    found = fall(few, seed=0)
    assert found.size == pytest.approx(2, abs=0.05) and found.verdict == "cannot decide: no interval"


def test_over_seeds_the_others_choose_the_steps(rng: np.random.Generator) -> None:
    curves = np.stack([noisy([0, 3, 5, 3 + own, 6], rng, runs=1)[0] for own in (-0.2, 0.0, 0.2)])
    found = fall(curves, seed=0)
    assert found.size == pytest.approx(2.0) and found.verdict == "there"
    assert (found.lo, found.hi) == pytest.approx(tuple(map(float, seed_interval(np.array([2.2, 2.0, 1.8])))))
    # Noise alone: each falls somewhere, but not where the others do.
    noise = np.concatenate([np.linspace(0, 0.1, 5) + rng.normal(size=(8, 1, 5)), rng.normal(size=(8, 9, 5))], axis=1)
    assert fall(noise, seed=0).verdict != "there"
