"""Calibration against a loop over sequences and positions, its bounds, and the nulls that it stands beside."""

import math

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom.core.behavior import predicted_behaviour
from bayesgeom.core.memory import window_scores
from bayesgeom.core.run import Run
from bayesgeom.probes.base import planted_run, planted_trials
from bayesgeom.probes.calibration import Calibration, CalibrationReport
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.sticky_markov import StickyMarkov

N, POSITIONS, ANSWERS = 13, 5, 7


def planted(rng: np.random.Generator, *, noise: float = 0.5) -> tuple[Run, np.ndarray, np.ndarray]:
    """A run, the exact predictive that it is held against, and what the model said."""
    exact = rng.dirichlet(np.ones(ANSWERS), size=(N, POSITIONS))
    said = exact * np.exp(noise * rng.normal(size=exact.shape))
    said /= said.sum(axis=-1, keepdims=True)
    trials = planted_trials(exact, rng.integers(11, size=(N, POSITIONS)))
    return planted_run(trials, {}, model=torch.from_numpy(said), seed=3), exact, said


def entropy(p: np.ndarray) -> float:
    return -sum(x * math.log2(x) for x in p if x > 0)


def test_every_scalar_equals_a_loop(rng: np.random.Generator) -> None:
    run, exact, said = planted(rng)
    report = Calibration().measure(run)
    cells = [(i, j) for i in range(N) for j in range(POSITIONS)]
    gaps = {(i, j): entropy(said[i, j]) - entropy(exact[i, j]) for i, j in cells}
    of_means = [abs(sum(gaps[i, j] for i in range(N)) / N) for j in range(POSITIONS)]
    expected = {
        "entropy_mae_bits": sum(abs(gap) for gap in gaps.values()) / len(cells),
        "entropy_mae_of_means_bits": sum(of_means) / POSITIONS,
        "kl_bits": sum((exact[c] * np.log2(exact[c] / said[c])).sum() for c in cells) / len(cells),
        "total_variation": sum(np.abs(exact[c] - said[c]).sum() / 2 for c in cells) / len(cells),
        "leak": 0.0,
        "accuracy": sum(float(said[c].argmax() == exact[c].argmax()) for c in cells) / len(cells),
        "exact_accuracy": 1.0,  # planted trials answer with the most probable one
        "log_loss_gap_bits": sum(np.log2(exact[c].max() / said[c][exact[c].argmax()]) for c in cells) / len(cells),
    }
    for name, value in expected.items():
        assert vars(report)[name] == pytest.approx(value, abs=1e-9), name


def test_every_profile_equals_a_loop(rng: np.random.Generator) -> None:
    run, exact, said = planted(rng)
    report = Calibration().measure(run)
    for j in range(POSITIONS):
        model, posterior = [entropy(p) for p in said[:, j]], [entropy(p) for p in exact[:, j]]
        errors = [abs(a - b) for a, b in zip(model, posterior, strict=True)]
        assert report.model_entropy_bits_by_position[j] == pytest.approx(sum(model) / N)
        assert report.exact_entropy_bits_by_position[j] == pytest.approx(sum(posterior) / N)
        assert report.entropy_mae_bits_by_position[j] == pytest.approx(sum(errors) / N)
        kl = [(p * np.log2(p / q)).sum() for p, q in zip(exact[:, j], said[:, j], strict=True)]
        assert report.kl_bits_by_position[j] == pytest.approx(sum(kl) / N)
        lo, hi = mean_interval(np.array(errors), seed=3)
        assert report.entropy_mae_bits_by_position_lo[j] == pytest.approx(float(lo), nan_ok=True)
        assert report.entropy_mae_bits_by_position_hi[j] == pytest.approx(float(hi), nan_ok=True)
    np.testing.assert_allclose(report.example_exact_entropy_bits, [[entropy(p) for p in row] for row in exact[:4]])


def test_scalars_are_the_means_of_their_profiles(rng: np.random.Generator) -> None:
    report = Calibration().measure(planted(rng)[0])
    for name in ("entropy_mae_bits", "kl_bits", "total_variation", "leak"):
        assert vars(report)[name] == pytest.approx(vars(report)[f"{name}_by_position"].mean(), abs=1e-12)
    assert report.n == N


def test_means_first_hides_errors_of_opposite_sign() -> None:
    exact = np.tile([0.5, 0.5], (2, 1, 1)) * np.ones((2, 3, 1))
    said = np.stack([np.tile([0.7, 0.3], (3, 1)), np.tile([0.5, 0.5], (3, 1))])
    exact[1], exact[0] = [0.7, 0.3], [0.5, 0.5]  # too sure by as much as it is too vague
    trials = planted_trials(exact, np.zeros((2, 3), dtype=int))
    report = Calibration().measure(planted_run(trials, {}, model=torch.from_numpy(said)))
    assert report.entropy_mae_of_means_bits == pytest.approx(0, abs=1e-12)
    assert report.entropy_mae_bits == pytest.approx(1 - entropy(np.array([0.7, 0.3])))


@pytest.mark.parametrize("noise", [0.0, 0.1, 2.0])
def test_bounds(noise: float, rng: np.random.Generator) -> None:
    report = Calibration().measure(planted(rng, noise=noise)[0])
    assert 0 <= report.entropy_mae_of_means_bits <= report.entropy_mae_bits + 1e-12
    assert report.kl_bits >= -1e-12 and 0 <= report.total_variation <= 1 and 0 <= report.leak <= 1
    assert 2 * report.total_variation**2 / math.log(2) <= report.kl_bits + 1e-12, "Pinsker"
    for name, (lo, hi) in report.intervals.items():
        if not math.isnan(lo):
            assert lo <= vars(report)[name] + 1e-12 and vars(report)[name] <= hi + 1e-12, name
    assert report.intervals.keys() >= report.no_interval.keys() or not report.no_interval


def null_run(task: WindTunnel, n: int) -> Run:
    """The exact predictor itself on a task, with the task's null predictors beside it."""
    trials = task.sample(n, seed=1)
    exact = predicted_behaviour(trials, trials.at_scored(trials.predictive))
    nulls = {name: predicted_behaviour(trials, p) for name, p in task.null_predictives(trials).items()}
    base = planted_run(planted_trials(np.full((1, 1, 2), 0.5), np.zeros((1, 1), dtype=int)), {})
    held = vars(base) | {"behaviour": exact, "exact_behaviour": exact, "null_behaviours": nulls}
    return Run(**held | {"windows": window_scores(trials)})


def test_nulls_of_the_bijection_are_the_papers_own() -> None:
    report = Calibration().measure(null_run(Bijection(), 11))
    expected = np.mean([math.log2(20) - math.log2(20 - s) for s in range(19)])
    assert report.null_entropy_mae_bits["uniform"] == pytest.approx(expected)
    assert round(report.null_entropy_mae_bits["uniform"], 4) == round(report.nulls["kl_bits"], 4) == 1.1073
    error, kl = report.headlines()[:2]
    assert (error.metric, error.value, error.null_label) == (
        "entropy_mae_bits",
        pytest.approx(0),
        "constant; uniform 1.11",
    )
    assert error.null == report.nulls["entropy_mae_bits"] == report.null_entropy_mae_bits["constant"] < 0.75
    assert (kl.null, kl.null_label) == (report.nulls["kl_bits"], "uniform"), "a constant entropy has no KL"
    assert report.predictors == ("uniform", "constant"), "uniform is drawn first"


def test_without_a_uniform_predictor_kl_has_a_null_too() -> None:
    report = Calibration().measure(null_run(StickyMarkov(n_states=3, length=11), 101))
    error, kl = report.headlines()[:2]
    assert kl.null == min(report.null_kl_bits.values()) > 0
    assert kl.null_label.startswith("window 4 "), "either start: the stationary distribution of this chain is uniform"
    assert error.null == min(report.null_entropy_mae_bits.values()) and "constant" in error.null_label


def test_the_leading_null_of_the_hmm_is_the_hardest_to_beat() -> None:
    lines = Calibration().measure(null_run(HMM(), 499)).headlines()[:2]
    assert all(line.null_label.startswith("window 4 stationary; ") and line.null < 0.005 for line in lines)
    assert all("window" not in line.null_label[8:] for line in lines), "of windows the best one alone"
    assert "constant 0.1" in lines[0].null_label and "uniform 0.4" in lines[0].null_label


def test_nulls_of_the_hmm_are_the_papers_own() -> None:
    found = Calibration().measure(null_run(HMM(), 1_999)).null_entropy_mae_bits
    known = {"uniform": 0.41, "constant": 0.19, "likelihood_only": 0.16}
    assert {name: found[name] for name in known} == {name: pytest.approx(v, abs=0.02) for name, v in known.items()}


def test_the_constant_null_is_the_best_constant(rng: np.random.Generator) -> None:
    run, exact, _ = planted(rng)
    entropies = np.array([[entropy(p) for p in row] for row in exact])
    best = min(np.abs(entropies - level).mean() for level in np.linspace(0, math.log2(ANSWERS), 5_001))
    assert Calibration().measure(run).null_entropy_mae_bits["constant"] == pytest.approx(best, abs=1e-3)


def test_fresh_copies_give_the_initialisation_null(rng: np.random.Generator) -> None:
    copies = [Calibration().measure(planted(rng, noise=noise)[0]) for noise in (1.0, 2.0)]
    report = Calibration().measure(planted(rng)[0], copies)
    for null, field in ((report.null_entropy_mae_bits, "entropy_mae_bits"), (report.null_kl_bits, "kl_bits")):
        assert null["initialisation"] == pytest.approx(np.mean([vars(copy)[field] for copy in copies]))
    assert "initialisation" not in Calibration().measure(planted(rng)[0]).null_kl_bits


def test_null_profiles_follow_their_labels() -> None:
    report = Calibration().measure(null_run(HMM(n_states=3, n_symbols=2, length=5), 101))
    windows = tuple(sorted(f"window_{w}_{start}" for w in range(1, 5) for start in ("uniform", "stationary")))
    assert report.predictors == ("uniform", "constant", "likelihood_only", "stationary", *windows)
    for name, profile in zip(report.predictors, report.null_entropy_mae_bits_by_position, strict=True):
        assert profile.shape == (5,) and profile.mean() == pytest.approx(report.null_entropy_mae_bits[name])
    rows = [row for row in report.records() if row.metric == "null_entropy_mae_bits_by_position"]
    assert [(row.variant, row.position) for row in rows] == [(p, i) for p in report.predictors for i in range(5)]


def traces(figure: go.Figure, axis: str) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if (trace.yaxis or "y") == axis}


def test_the_figure_draws_the_stored_numbers() -> None:
    report: CalibrationReport = Calibration().measure(null_run(HMM(n_states=3, n_symbols=2, length=5), 101))
    figure = report.figure()
    entropies, errors = traces(figure, "y"), traces(figure, "y2")
    assert list(entropies["exact"].x) == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(entropies["exact"].y, report.exact_entropy_bits_by_position)
    np.testing.assert_array_equal(entropies["model"].y, report.model_entropy_bits_by_position)
    np.testing.assert_array_equal(errors["model"].y, report.entropy_mae_bits_by_position)
    levels = dict(zip(report.predictors, report.null_entropy_mae_bits_by_position, strict=True))
    for name in ("uniform", "constant", "likelihood_only", "stationary"):
        np.testing.assert_array_equal(errors[f"null: {name.replace('_', ' ')}"].y, levels[name])
    drawn = [name for name in errors if "window" in name]
    assert len(drawn) == 4, "the stronger start of each width"
    for axis, example in (("y3", 0), ("y4", 1)):
        np.testing.assert_array_equal(traces(figure, axis)["exact"].y, report.example_exact_entropy_bits[example])
        np.testing.assert_array_equal(traces(figure, axis)["model"].y, report.example_model_entropy_bits[example])
