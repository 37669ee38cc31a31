"""Estimates: shapes that fit, verdicts against baselines, and files that hold every part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, final

import numpy as np
import pytest

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.files import decoded_json
from bayesgeom.core.verdict import Reason
from bayesgeom.report.estimate import (
    Baseline,
    Better,
    Estimate,
    Share,
    codes_of,
    mean_estimate,
    of_untrained,
    smooth_estimate,
    stacked,
    with_ceiling,
    within,
)
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import estimate_of, estimate_parts, quantities_of
from bayesgeom.report.tables import Headline
from bayesgeom.stats.bootstrap import jackknife_weights, mean_interval, statistic_interval

UNIFORM = Baseline.of("chance", "uniform", 0.5, low=0.4, high=0.6)
SHUFFLED = Baseline.of("permutation", "shuffled", 0.1)


@pytest.mark.parametrize(
    ("ends", "better", "verdict"),
    [
        ((0.7, 0.9), "higher", "yes"),
        ((0.55, 0.9), "higher", "undecided"),  # above the mean of the draws, not above the most of them
        ((0.2, 0.3), "higher", "no"),
        ((0.01, 0.05), "lower", "yes"),
        ((0.05, 0.2), "lower", "undecided"),
        ((0.45, 0.5), "lower", "no"),  # below one baseline, above the other
        ((math.nan, math.nan), "higher", "undecided"),
        ((0.7, 0.9), "", "undecided"),
    ],
)
def test_the_interval_decides_against_every_baseline(ends: tuple[float, float], better: Better, verdict: str) -> None:
    value = float(np.mean(ends)) if math.isfinite(ends[0]) else 0.8
    own = Estimate.of(value, ends, n=17, baselines=[UNIFORM, SHUFFLED])
    assert str(own.clears(better)) == verdict


def test_without_an_interval_nothing_is_decided() -> None:
    assert str(Estimate.of(0.7, baselines=[UNIFORM]).clears("higher")) == "undecided"
    assert str(Estimate.of(0.0, baselines=[UNIFORM]).clears("higher")) == "undecided"
    assert str(Estimate.of(math.nan, baselines=[UNIFORM]).clears("higher")) == "undecided"


def test_an_exact_value_has_two_equal_ends() -> None:
    assert str(Estimate.of(0.7, (0.7, 0.7), baselines=[UNIFORM]).clears("higher")) == "yes"
    assert str(Estimate.of(0.7, (0.7, 0.7)).clears("higher")) == "undecided", "nothing to beat"
    unknown = Baseline.of("baseline", "unknown", math.nan)
    assert str(Estimate.of(0.7, (0.7, 0.7), baselines=[unknown]).clears("higher")) == "undecided"
    assert str(Estimate.of(0.7, (0.7, 0.7), baselines=[unknown, UNIFORM]).clears("higher")) == "yes"


def test_a_share_that_can_be_zero_beats_nothing() -> None:
    worse = Baseline.of("baseline", "worse", -0.77)
    own = Estimate.of([-0.03, 0.01, 0.2], ([-0.04, -0.01, 0.1], [-0.02, 0.03, 0.3]), baselines=[worse])
    assert own.clears("higher").tolist() == ["undecided", "undecided", "yes"]
    below = Estimate.of([-0.9], ([-1.0], [-0.8]), baselines=[worse])
    assert below.clears("higher").tolist() == ["no"] and below.clears("lower").tolist() == ["yes"]


def test_entries_have_verdicts_of_their_own(rng: np.random.Generator) -> None:
    values = rng.normal(size=(3, 5))
    own = Estimate.of(values, (values - 0.1, values + 0.2), baselines=[Baseline.of("chance", "zero", 0.0)])
    found = own.clears("higher")
    for at in np.ndindex(values.shape):
        expected = "yes" if values[at] - 0.1 > 0 else "no" if values[at] + 0.2 < 0 else "undecided"
        assert found[at] == expected == str(own[at].clears("higher"))


def test_the_hardest_baseline_is_the_one_that_reaches_furthest() -> None:
    own = Estimate.of(0.3, baselines=[UNIFORM, SHUFFLED])
    assert (own.hardest_baseline("higher"), own.hardest_baseline("lower")) == (own.baselines[0], own.baselines[1])
    wide = Baseline.of("chance", "wide", 0.2, low=0.0, high=0.9)
    found = Estimate.of(0.3, baselines=[UNIFORM, wide]).hardest_baseline("higher")
    assert found is not None and found.name == "wide"
    assert Estimate.of(0.3).hardest_baseline("higher") is None


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"interval of shape \(3,\) does not fit an estimate of shape \(2,\)"):
        Estimate.of(np.zeros(2), (np.zeros(3), np.zeros(3)))
    with pytest.raises(InvalidArgument, match="uniform of shape"):
        Estimate.of(np.zeros(2), baselines=[Baseline.of("chance", "uniform", np.zeros(5))])
    with pytest.raises(TypeError, match="0-dimensional"):
        float(Estimate.of(np.zeros(2)))
    with pytest.raises(InvalidArgument, match="no baseline is named 'chance'; there are: uniform"):
        Estimate.of(0.0, baselines=[UNIFORM]).baseline("chance")


def test_a_baseline_of_a_layer_holds_for_each_of_its_heads() -> None:
    by_layer = np.array([[0.25], [0.5]])
    own = Estimate.of(np.zeros((2, 3)), baselines=[Baseline.of("chance", "uniform", by_layer)])
    np.testing.assert_array_equal(own.baseline("uniform").value, np.repeat(by_layer, 3, axis=1))
    assert own[1, 2].baseline("uniform").value == 0.5


def test_a_mean_has_the_interval_of_the_bootstrap(rng: np.random.Generator) -> None:
    values = rng.normal(size=(41, 3))
    own, (low, high) = mean_estimate(values, seed=7), mean_interval(values, seed=7)
    np.testing.assert_array_equal(own.value, values.mean(axis=0))
    np.testing.assert_array_equal(np.stack(own.ends), np.stack([low, high]))
    assert (own.n, own.resampled) == (41, "sequences")
    few = mean_estimate(np.ones(5), seed=0)
    assert bool(few.is_withheld) and few.reason_at() == Reason.CONSTANT


def test_a_smooth_statistic_has_the_interval_of_its_jackknife(rng: np.random.Generator) -> None:
    values, weights = rng.normal(size=31), jackknife_weights(31)
    draws = np.exp(weights @ values)
    own, (low, high) = smooth_estimate(draws, seed=3, n=31), statistic_interval(draws, seed=3)
    assert float(own) == draws[0] and tuple(map(float, own.ends)) == (float(low), float(high))


def test_untrained_networks_are_one_baseline_with_the_bounds_of_a_further_one() -> None:
    assert of_untrained([]) == ()
    (alone,) = of_untrained([0.25])
    assert (alone.value, alone.low, alone.high) == (0.25, None, None), "one copy has no spread"
    (own,) = of_untrained([np.array([1.0, 5.0]), np.array([3.0, 2.0]), np.array([5.0, 2.0])])
    reach = 4.302653 * np.array([2.0, 3**0.5]) * (4 / 3) ** 0.5  # t(0.975, 2), from a table
    np.testing.assert_allclose([own.value, own.low, own.high], [[3, 3], 3 - reach, 3 + reach], rtol=1e-6)


def test_the_bound_of_untrained_networks_is_exceeded_by_one_in_forty_more(rng: np.random.Generator) -> None:
    values = rng.normal(size=(20_000, 4))
    (level,) = of_untrained(list(values[:, :3].T))
    assert level.high is not None and level.low is not None
    # Standard error of a share of 0.025 of 20,000: 0.0011.
    assert np.mean(values[:, 3] > level.high) == pytest.approx(0.025, abs=0.005)
    assert np.mean(values[:, 3] < level.low) == pytest.approx(0.025, abs=0.005)
    assert np.mean(values[:, 3] > values[:, :3].max(axis=1)) > 0.2, "the best of three is no bound"


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((0.6, 0.7), "yes"), ((0.45, 0.55), "undecided"), ((0.35, 0.4), "undecided"), ((0.1, 0.2), "no")],
)
def test_the_bound_of_untrained_networks_decides_for_and_their_mean_against(
    ends: tuple[float, float], verdict: str
) -> None:
    levels = of_untrained([0.26, 0.3, 0.34])  # mean 0.3, bound 0.4987
    assert Estimate.of(sum(ends) / 2, ends, baselines=levels).clears("higher") == verdict


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_every_part_is_stored(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    values = rng.normal(size=(5, *shape))
    levels = [
        Baseline.of("chance", "a", values[3]),
        Baseline.of("baseline", "b", values[4], low=values[0], high=values[1]),
    ]
    own = Estimate.of(
        values[0], (np.full(shape, np.nan), np.full(shape, np.nan)), n=13, baselines=levels, reason=Reason.FEW
    )
    data, arrays = estimate_parts("x", own)
    again = estimate_of("x", decoded_json(data), arrays, "here")
    assert (again.resampled, again.n) == ("sequences", 13) and (codes_of(again) == Reason.FEW).all()
    np.testing.assert_equal([again.value, *again.ends], [own.value, *own.ends])
    for one, other in zip(again.baselines, own.baselines, strict=True):
        assert (one.kind, one.name) == (other.kind, other.name)
        np.testing.assert_equal([one.value, one.low, one.high], [other.value, other.low, other.high])
    assert bool(arrays) == bool(shape), "scalars stand in the JSON file"


@pytest.mark.parametrize(
    "damage",
    [
        {"value": "array"},
        {"baselines": [{"name": "a", "value": 0.0, "low": None, "high": None}]},
        {"reason": "heavy tail"},
    ],
    ids=str,
)
def test_damaged_parts_are_refused_by_name(damage: dict[str, object], tmp_path: Path) -> None:
    data, arrays = estimate_parts("kl_bits", Estimate.of(0.25, (0.125, 0.5), n=3, baselines=[UNIFORM]))
    with pytest.raises(OutputFault, match="here: field 'kl_bits' holds no estimate"):
        estimate_of("kl_bits", decoded_json({**data, **damage}), arrays, "here")


def test_a_ceiling_is_no_baseline_to_beat() -> None:
    level = Baseline.of("chance", "random subspaces", 0.1)
    own = with_ceiling(Estimate.of([0.5, 0.2], ([0.4, 0.0], [0.6, 0.4]), baselines=[level]), [0.9, math.nan])
    assert own.ceiling.tolist()[0] == 0.9 and np.isnan(own.ceiling[1])
    assert own.clears("higher").tolist() == ["yes", "undecided"]
    assert own.compared == own.baselines[:1] and own[0].hardest_baseline("higher").name == "random subspaces"  # type: ignore[union-attr]
    assert np.isnan(Estimate.of([0.5, 0.2]).ceiling).all()


@final
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Accuracies(Report):
    """For tests."""

    name: ClassVar[str] = "accuracies"
    title: ClassVar[str] = "Accuracies"
    accuracy: Annotated[Estimate, Share("layer")]

    def headlines(self) -> Sequence[Headline]:
        return ()

    def panels(self) -> Sequence[Panel]:
        return ()


def test_intervals_of_a_report_end_at_the_range_of_their_quantity() -> None:
    ends = ([0.8, 0.87, -0.1, np.nan], [0.95, 1.0, 0.3, np.nan])
    own = Accuracies(accuracy=Estimate.of([0.9, 0.896, 0.1, 0.5], ends, n=31), n=31).accuracy
    np.testing.assert_array_equal(own.ends, [[0.8, 0.87, 0, np.nan], [0.95, 1.0, 0.3, np.nan]])
    assert codes_of(own).tolist() == [Reason.NONE, Reason.CONSERVATIVE, Reason.CONSERVATIVE, Reason.NOT_COMPUTED]
    np.testing.assert_array_equal(within(own, 0.0, 1.0).ends, own.ends)


def test_why_an_interval_was_withheld_before_is_kept() -> None:
    own = within(Estimate.of([0.9, 0.5], ([0.8, np.nan], [1.1, np.nan]), reason=Reason.BIASED), 0.0, 1.0)
    assert codes_of(own).tolist() == [Reason.CONSERVATIVE, Reason.BIASED]


def test_a_code_agrees_with_its_interval() -> None:
    own = Estimate.of([0.9, 0.5, np.nan], ([0.8, np.nan, np.nan], [1.0, np.nan, np.nan]), reason=Reason.CONSERVATIVE)
    assert codes_of(own).tolist() == [Reason.CONSERVATIVE, Reason.NOT_COMPUTED, Reason.NONE]
    assert replace(own, low=np.full(3, 0.1), high=np.full(3, 0.2), reason=None).reason is None
    assert own[1].reason_at() == Reason.NOT_COMPUTED and own[0].reason_at() == Reason.CONSERVATIVE
    assert Estimate.of([0.5, 0.25], reason=None).reason is None


def test_stacked_estimates_keep_the_reasons_of_their_entries(rng: np.random.Generator) -> None:
    x = np.log((np.arange(400) + 0.5) / (399.5 - np.arange(400)))
    parts = [mean_estimate(own, seed=0) for own in (np.exp(3.9 * x), rng.normal(size=400), np.ones(400))]
    assert codes_of(stacked(parts)).tolist() == [Reason.HEAVY_TAIL, Reason.NONE, Reason.CONSTANT]
    assert (mean_estimate(np.exp(3.9 * x)[:, None] * np.ones(7), seed=0).reason == Reason.HEAVY_TAIL).all()


def test_a_value_outside_its_range_is_missing_with_a_reason() -> None:
    level = Baseline.of("chance", "another", [0.5, -3.0, 0.25], low=[0.25, -4.0, 0.125], high=[0.75, 0.5, 1.5])
    values, ends = [0.5, -2_488.0, 1.2], ([0.25, -3_000.0, 1.1], [0.75, -2_000.0, 1.3])
    own = within(Estimate.of(values, ends, n=64, baselines=[level]), 0.0, 1.0)
    np.testing.assert_array_equal(own.value, [0.5, np.nan, np.nan])
    assert [own.reason_at((i,)) for i in range(3)] == [Reason.NONE, Reason.OUT_OF_RANGE, Reason.OUT_OF_RANGE]
    assert np.isnan(own.ends)[:, 1:].all() and not np.isnan(own.ends)[:, 0].any()
    found = own.baselines[0]
    np.testing.assert_array_equal(found.value, [0.5, np.nan, 0.25])
    assert found.low is not None and found.high is not None
    np.testing.assert_array_equal([found.low, found.high], [[0.25, 0.0, 0.125], [0.75, 0.5, 1.0]])
    exact = within(Estimate.of([2.0, 0.5]), 0.0, 1.0)
    assert np.isnan(exact.value[0]) and exact.reason_at((0,)) == Reason.OUT_OF_RANGE and exact.value[1] == 0.5


@pytest.mark.parametrize("excess", [1e-16, 6e-8, 3e-7, 5e-6])
def test_rounding_beyond_a_bound_is_the_bound(excess: float) -> None:
    own = within(Estimate.of([1 + excess, -excess, 0.5], ([0.9, -excess, 0.25], [1 + excess, 0.1, 0.75])), 0.0, 1.0)
    assert own.value.tolist() == [1.0, 0.0, 0.5]
    assert own.reason_at((2,)) == Reason.NONE


@pytest.mark.exhaustive
def test_every_report_holds_only_values_in_their_ranges() -> None:
    """Few sequences, on which fits carry nothing over: an R² of −153, a share of −2,488 and an AUC of 1.0000002."""
    outside = 0
    for name in ("hmm-s5", "sticky-small"):
        for n in (2, 5):
            for report in bayesgeom.diagnose(name, n=n, n_untrained=1).values():
                for field, quantity in quantities_of(type(report)).items():
                    own, (least, greatest) = report.estimate(field), quantity.range
                    for values in (own.value, *own.ends, *(level.value for level in own.baselines)):
                        known = values[~np.isnan(values)]
                        assert ((known >= least) & (known <= greatest)).all(), (report.name, field)
                    outside += int((codes_of(own) == Reason.OUT_OF_RANGE).sum())
    assert outside > 0


def test_a_difference_within_rounding_of_a_baseline_decides_nothing() -> None:
    level = Baseline.of("chance", "uniform attention", 3.0)
    values = [3.0 - 2e-7, 2.99, 3.0 + 2e-7, 3.01]
    exact = Estimate.of(values, (values, values), baselines=[level])
    assert exact.clears("lower").tolist() == ["undecided", "yes", "undecided", "no"]
    small = Baseline.of("baseline", "uniform", 2e-5)
    assert str(Estimate.of(1.9e-5, (1.8e-5, 1.95e-5), baselines=[small]).clears("lower")) == "yes", "it is relative"
