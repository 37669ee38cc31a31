"""The break at the training length, the critical length and the ratio, on planted errors whose answers are known."""

import numpy as np
import pytest

from bayesgeom.core.verdict import Reason
from bayesgeom.generalization.curves import (
    LARGEST_WITHIN,
    critical_length,
    discontinuity,
    extrapolation_ratio,
    floor_bits,
    strongest,
    tokens_to_converge,
    whole_means,
)
from bayesgeom.report.estimate import Baseline, codes_of, stacked

AT = np.arange(1, 32)
TRAINED = 13


def planted(rng: np.random.Generator, *, step: float, slope: float = 0.01, n: int = 53) -> np.ndarray:
    """A line along the sequence, a step at the training length, and noise that sequences share along themselves."""
    line = 0.1 + slope * AT + step * (AT > TRAINED)
    return line + rng.normal(scale=0.02, size=(n, 1)) + rng.normal(scale=0.01, size=(n, len(AT)))


@pytest.mark.parametrize("step", [0.0, 0.3, -0.05])
def test_the_jump_is_the_step_and_not_the_slope(step: float, rng: np.random.Generator) -> None:
    found = discontinuity(planted(rng, step=step, slope=0.03), AT, TRAINED, seed=0)
    low, high = found.ends
    assert float(found) == pytest.approx(step, abs=0.015) and low <= step <= high and found.n == 53
    assert 0 < found.baseline(LARGEST_WITHIN).value < 0.015, "nothing happens at the last places within"


def test_the_prediction_is_that_of_least_squares(rng: np.random.Generator) -> None:
    errors = planted(rng, step=0.2)
    line = np.polyfit(AT[8:13], errors.mean(axis=0)[8:13], 1)
    found = errors.mean(axis=0)[13] - np.polyval(line, 14)
    assert float(discontinuity(errors, AT, TRAINED, seed=0)) == pytest.approx(found, abs=1e-12)


def test_uneven_places_are_where_they_are(rng: np.random.Generator) -> None:
    at = np.array([0, 1, 2, 5, 11, 23])
    errors = 0.2 + 0.05 * at + rng.normal(scale=1e-4, size=(7, 6))
    assert float(discontinuity(errors, at, 5, seed=0)) == pytest.approx(0, abs=1e-3)
    assert np.isnan(discontinuity(errors, at, 0, seed=0).value), "no line through one place"


def test_the_critical_length_is_the_first_over_the_threshold(rng: np.random.Generator) -> None:
    errors = planted(rng, step=0.5, slope=0.0)
    assert critical_length(errors, AT, 0.3, seed=0).value == TRAINED + 1
    assert float(critical_length(errors, AT, 5.0, seed=0)) == np.inf
    near = planted(rng, step=0.0, slope=0.01)
    found = critical_length(near, AT, near.mean(axis=0)[19], seed=0)
    assert float(found) == next(at for at in AT if near[:, at - 1].mean() > near[:, 19].mean())
    assert (
        found.reason_at() == Reason.CONSERVATIVE
        and found.ends[0] <= found.value <= found.ends[1]
        and found.ends[0] < found.ends[1]
    )
    assert (codes_of(stacked([found, found])) == Reason.CONSERVATIVE).all()


def test_the_ratio_and_its_baseline(rng: np.random.Generator) -> None:
    errors = np.where(AT > TRAINED, 0.6, 0.2) * rng.uniform(0.9, 1.1, size=(53, 1))
    shortcut = Baseline.of("baseline", "prior", np.where(AT > TRAINED, 3.0, 2.0))
    found = extrapolation_ratio(errors, AT, TRAINED, shortcut, seed=0)
    assert (found.value, found.baseline("prior").value) == (pytest.approx(3), pytest.approx(1.5))
    assert found.ends == (pytest.approx(3), pytest.approx(3)), "paired: every sequence has the same ratio"


def test_whole_sequence_means_dilute_the_break(rng: np.random.Generator) -> None:
    errors = planted(rng, step=1.0, slope=0.0)
    means = whole_means(errors, AT, (13, 14, 31), is_prefix=True, seed=0)
    whole, (low, high) = means.value, means.ends
    expected = [errors[:, :length].mean() for length in (13, 14, 31)]
    np.testing.assert_allclose(whole, expected, atol=1e-12)
    assert whole[1] - whole[0] < 0.1 < 0.9 < errors[:, 13].mean() and (low < whole).all() and (whole < high).all()
    at_each = whole_means(errors, AT, (13, 14, 31), is_prefix=False, seed=0).value
    np.testing.assert_allclose(at_each, errors.mean(axis=0)[[12, 13, 30]], atol=1e-12)


def test_the_strongest_predictor_has_the_least_finite_kl() -> None:
    levels = {"a": np.array([0.5, 0.7]), "b": np.array([0.1, np.inf]), "c": np.array([0.2, 0.3])}
    assert strongest(levels) == "c"


def test_convergence_is_when_the_mean_comes_near_its_floor(rng: np.random.Generator) -> None:
    curve = np.array([2.0, 1.5, 1.2, 1.07, 1.03, 1.01, 1.0, 1.0, 1.0, 1.0, 1.0])
    entropies = curve + rng.normal(scale=0.003, size=(97, 11))
    assert floor_bits(entropies) == pytest.approx(1.0, abs=0.01)
    assert [tokens_to_converge(entropies, t, seed=0).value for t in (0.05, 0.15, 3.0)] == [5, 4, 1]
    near = tokens_to_converge(entropies, 0.03, seed=0)
    assert near.reason_at() == Reason.CONSERVATIVE and near.ends[0] <= near.value <= near.ends[1] == 6


def test_of_one_sequence_no_place_has_an_interval(rng: np.random.Generator) -> None:
    errors = planted(rng, step=0.5, n=1)
    places = critical_length(errors, AT, 0.5, seed=0), tokens_to_converge(errors, 0.05, seed=0)
    assert all(np.isfinite(place.value) and np.isnan(place.ends).all() for place in places)
