"""Calibration against a loop over sequences and positions, its bounds, and its baselines."""

import math
import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from bayesgeom.core.run import Run
from bayesgeom.core.verdict import Reason
from bayesgeom.measurements.base import planted_chain, planted_run, planted_trials
from bayesgeom.measurements.calibration import SCORES, Calibration
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.tables import records_of
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.windows import deciding_window, window_predictives, window_scores
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.sticky_markov import StickyMarkov

N, POSITIONS, ANSWERS = 13, 5, 7


def planted(rng: np.random.Generator, *, noise: float = 0.5) -> tuple[Run, np.ndarray, np.ndarray]:
    """A run, the exact predictive that it is held against, and what the model said."""
    exact = rng.dirichlet(np.ones(ANSWERS), size=(N, POSITIONS))
    text = exact * np.exp(noise * rng.normal(size=exact.shape))
    text /= text.sum(axis=-1, keepdims=True)
    trials = planted_trials(exact, rng.integers(11, size=(N, POSITIONS)))
    return planted_run(trials, {}, model=torch.from_numpy(text), seed=3), exact, text


def entropy(p: np.ndarray) -> float:
    return float(-sum(x * math.log2(x) for x in p if x > 0))


def test_every_scalar_equals_a_loop(rng: np.random.Generator) -> None:
    run, exact, text = planted(rng)
    report = Calibration().measure(run)
    cells = [(i, j) for i in range(N) for j in range(POSITIONS)]
    gaps = {(i, j): entropy(text[i, j]) - entropy(exact[i, j]) for i, j in cells}
    of_means = [abs(sum(gaps[i, j] for i in range(N)) / N) for j in range(POSITIONS)]
    expected = {
        "entropy_mae_bits": sum(abs(gap) for gap in gaps.values()) / len(cells),
        "kl_bits": sum((exact[c] * np.log2(exact[c] / text[c])).sum() for c in cells) / len(cells),
        "total_variation": sum(np.abs(exact[c] - text[c]).sum() / 2 for c in cells) / len(cells),
        "off_answer_prob": 0.0,
        "log_loss_gap_bits": sum(np.log2(exact[c].max() / text[c][exact[c].argmax()]) for c in cells) / len(cells),
    }
    found = {row.metric: row.value for row in records_of(report) if row.metric in expected}
    assert found == pytest.approx(expected, abs=1e-9)
    assert report.entropy_mae_of_means_bits == pytest.approx(sum(of_means) / POSITIONS, abs=1e-9)
    accuracy = sum(float(text[c].argmax() == exact[c].argmax()) for c in cells) / len(cells)
    named = dict(zip(report.sources, report.accuracy.value, strict=True))
    assert named == pytest.approx({"exact": 1, "model": accuracy}), "planted trials answer with the most probable one"


def test_every_profile_equals_a_loop(rng: np.random.Generator) -> None:
    run, exact, text = planted(rng)
    report = Calibration().measure(run)
    for j in range(POSITIONS):
        model, posterior = [entropy(p) for p in text[:, j]], [entropy(p) for p in exact[:, j]]
        errors = [abs(a - b) for a, b in zip(model, posterior, strict=True)]
        expected = {"exact": sum(posterior) / N, "model": sum(model) / N}
        assert dict(zip(report.sources, report.entropy_bits_by_position[:, j], strict=True)) == pytest.approx(expected)
        error = report.entropy_mae_bits_by_position[j]
        assert float(error) == pytest.approx(sum(errors) / N)
        kl = [(p * np.log2(p / q)).sum() for p, q in zip(exact[:, j], text[:, j], strict=True)]
        assert report.kl_bits_by_position.value[j] == pytest.approx(sum(kl) / N)
        for of, values in ((error, errors), (report.kl_bits_by_position[j], kl)):
            low, high = mean_interval(np.array(values), seed=3)
            assert of.ends == pytest.approx((float(low), float(high)), nan_ok=True)
    examples = [[[entropy(p) for p in row] for row in of[:4]] for of in (exact, text)]
    np.testing.assert_allclose(report.example_entropy_bits, examples)


def test_scores_of_sequences_are_the_means_of_their_positions(rng: np.random.Generator) -> None:
    run, exact, text = planted(rng)
    report, seen = Calibration().measure(run), run.behavior
    scores = dict(zip(SCORES, report.sequence_scores.T, strict=True))
    assert report.sequence_scores.shape == (N, len(SCORES)) and report.sequence_scores.dtype == np.float64
    for i in range(N):
        kl = [(p * np.log2(p / q)).sum() for p, q in zip(exact[i], text[i], strict=True)]
        assert scores["kl_bits"][i] == pytest.approx(sum(kl) / POSITIONS, rel=1e-6)
        assert scores["cross_entropy_bits"][i] == pytest.approx(-seen.answer_log2[i].mean(), rel=1e-6)
    for name in ("kl_bits", "entropy_mae_bits", "total_variation", "off_answer_prob"):
        assert scores[name].mean() == pytest.approx(float(report.estimate(name)), rel=1e-6)
    assert scores["accuracy"].mean() == pytest.approx(report.accuracy.value[report.sources.index("model")], rel=1e-6)
    gap = scores["cross_entropy_bits"].mean() + run.exact_behavior.answer_log2.mean()
    assert gap == pytest.approx(float(report.log_loss_gap_bits), abs=1e-6)


def test_intervals_of_scalars_are_over_sequences(rng: np.random.Generator) -> None:
    run, exact, text = planted(rng)
    report = Calibration().measure(run)
    per_sequence = (exact * np.log2(exact / text)).sum(axis=2).mean(axis=1)
    low, high = mean_interval(per_sequence, seed=3)
    assert report.kl_bits.ends == pytest.approx((float(low), float(high))) and low < high
    assert report.kl_bits.resampled == "sequences"


def test_means_first_hides_errors_of_opposite_sign() -> None:
    exact = np.tile([0.5, 0.5], (2, 1, 1)) * np.ones((2, 3, 1))
    text = np.stack([np.tile([0.7, 0.3], (3, 1)), np.tile([0.5, 0.5], (3, 1))])
    exact[1], exact[0] = [0.7, 0.3], [0.5, 0.5]  # too sure by as much as it is too vague
    trials = planted_trials(exact, np.zeros((2, 3), dtype=int))
    report = Calibration().measure(planted_run(trials, {}, model=torch.from_numpy(text)))
    assert report.entropy_mae_of_means_bits == pytest.approx(0, abs=1e-12)
    assert float(report.entropy_mae_bits) == pytest.approx(1 - entropy(np.array([0.7, 0.3])))


def baseline_run(task: WindTunnel, n: int) -> Run:
    """The exact predictor itself on a task, with the task's predictors that compute nothing beside it."""
    trials = task.sample(n, seed=1)
    exact = predicted_behavior(trials, trials.at_scored(trials.predictive))
    baselines = {name: predicted_behavior(trials, p) for name, p in task.baseline_predictives(trials).items()}
    base = planted_run(planted_trials(np.full((1, 1, 2), 0.5), np.zeros((1, 1), dtype=int)), {})
    fields = vars(base) | {"behavior": exact, "exact_behavior": exact, "baseline_behaviors": baselines}
    return Run(**fields | {"windows": window_scores(trials)})


def levels(own: Estimate) -> dict[str, float]:
    """Levels of all baselines of a scalar, by name."""
    return {baseline.name: float(baseline.value) for baseline in own.baselines}


def test_baselines_of_the_bijection_are_the_papers_own() -> None:
    report = Calibration().measure(baseline_run(Bijection(), 11))
    expected = np.mean([math.log2(20) - math.log2(20 - s) for s in range(19)])
    assert levels(report.entropy_mae_bits)["uniform"] == pytest.approx(expected)
    assert round(levels(report.entropy_mae_bits)["uniform"], 4) == round(levels(report.kl_bits)["uniform"], 4) == 1.1073
    kl, error = report.headlines()[:2]
    assert (kl.metric, error.metric) == ("kl_bits", "entropy_mae_bits") and error.value == pytest.approx(0)
    assert "(constant); 1.107 (uniform)" in str(error) and levels(report.entropy_mae_bits)["constant"] < 0.75
    assert "(uniform)" in str(kl), "a constant entropy has no KL"
    assert [own.name for own in report.entropy_mae_bits_by_position.baselines] == ["uniform", "constant"], "first drawn"


def test_without_a_uniform_predictor_kl_has_a_baseline_too() -> None:
    report = Calibration().measure(baseline_run(StickyMarkov(n_states=3, length=11), 101))
    hardest = report.kl_bits.hardest_baseline("lower")
    assert hardest is not None and float(hardest.value) == min(levels(report.kl_bits).values()) > 0
    assert hardest.name.startswith("window 6 "), "either start: this chain's stationary distribution is uniform"
    kl, error = report.headlines()[:2]
    assert f"({hardest.name}" in str(kl) and "constant" in str(error)


def test_the_leading_baseline_of_the_hmm_is_the_hardest_to_beat() -> None:
    report = Calibration().measure(baseline_run(HMM(), 499))
    widest = (
        f"window {deciding_window(report.window_kl_bits.value, float(report.equivalent_window_symbols))} stationary"
    )
    for line, own in zip(report.headlines(), (report.kl_bits, report.entropy_mae_bits), strict=False):
        assert f"({widest}); " in str(line) and str(line).count("window") == 5, "of each width the better one"
        found = [float(part.split(" ")[0].replace("−", "-")) for part in line.baselines]
        assert found == sorted(found) and len(found) >= 8, "the strongest baseline first"
        assert min(levels(own).values()) == levels(own)[widest] < 0.005
        assert len(levels(own)) >= 11 and line.verdict == "yes", "exact in every sequence"
    error = report.headlines()[1]
    assert re.search(r"; 0\.1\d+ \(constant\)", str(error)) and re.search(r"; 0\.4\d* \(uniform\)", str(error))


def test_a_model_is_compared_with_the_narrowest_window_that_it_does_not_beat() -> None:
    """`hmm-s5` was said to beat its strongest baseline, four symbols, where five symbols are closer than the model."""
    slow = planted_chain(stay=0.985, seed=0)
    for width in (3, 5, 7):
        window = next(islice(window_predictives(slow, "stationary"), width, None))
        report = Calibration().measure(planted_run(slow, {}, model=window))
        expected = [] if width <= 4 else [f"window {width} stationary"]
        for own in (report.kl_bits, report.entropy_mae_bits):
            named = [name for name in levels(own) if name.startswith("window")]
            assert named == expected, "this planted run has no baselines of its own"
            assert width <= 4 or own.clears("lower").item() != "yes", "it cannot beat itself"
    # A little off in every sequence: what the filter itself diverges by is rounding, and depends on the processor.
    exact = slow.at_scored(slow.predictive)
    close = Calibration().measure(planted_run(slow, {}, model=0.999 * exact + 0.001 / exact.shape[-1]))
    assert set(levels(close.kl_bits)) <= {"window 10 stationary", "position alone"}
    assert close.kl_bits.clears("lower").item() == "yes" and float(close.equivalent_window_symbols) == 43


@pytest.mark.parametrize("outside", [0.64, 0.04])
def test_probability_outside_the_answers_is_a_headline(rng: np.random.Generator, outside: float) -> None:
    """SmolLM2 has 53 to 100 % of its probability outside the answers, which its KL leaves out."""
    run, *_ = planted(rng)
    behavior = replace(run.behavior, off_answer_prob=np.full_like(run.behavior.off_answer_prob, outside))
    report = Calibration().measure(replace(run, behavior=behavior))
    line = next(line for line in report.headlines() if line.metric == "off_answer_prob")
    assert line.value == pytest.approx(outside)
    assert float(report.kl_bits) == float(Calibration().measure(run).kl_bits), "it renormalizes over the answers"


def test_an_exactly_right_model_has_the_same_report_on_every_processor(rng: np.random.Generator) -> None:
    """Rounding of the model's probabilities decides neither an interval nor the verdict: no exception was observed."""
    trials = planted_chain(stay=0.985, seed=0)
    exact = trials.at_scored(trials.predictive)
    for ulps in (0, 1, 2):
        steps = torch.from_numpy(rng.integers(-ulps, ulps + 1, size=exact.shape)) * torch.finfo(torch.float64).eps
        report = Calibration().measure(planted_run(trials, {}, model=exact * (1 + steps)))
        for own in (report.kl_bits, report.entropy_mae_bits, report.total_variation):
            assert abs(float(own)) < 1e-15 and own.clears("lower").item() == "undecided"
            is_share = own is report.total_variation
            assert own.reason_at() == (Reason.CONSERVATIVE if is_share else Reason.CONSTANT)
        assert float(report.equivalent_window_symbols) == 43, "tested with paired differences, so it is decided"


@pytest.mark.parametrize(("symbols", "width"), [(0.0, 0), (2.0, 2), (3.0, 3), (5.0, 3), (math.nan, 3)])
def test_no_window_wider_than_those_that_differ_from_the_posterior_decides(symbols: float, width: int) -> None:
    kl_bits = np.array([[0.5, 0.2, 0.1, 2e-6, 9e-7, 0.0], [0.6, 0.1, 0.2, 3e-6, 9e-7, 0.0]])
    assert deciding_window(kl_bits, symbols) == width


def test_baselines_of_the_hmm_are_the_papers_own() -> None:
    found = levels(Calibration().measure(baseline_run(HMM(), 1_999)).entropy_mae_bits)
    known = {"uniform": 0.41, "constant": 0.19, "likelihood only": 0.16}
    assert {name: found[name] for name in known} == {name: pytest.approx(v, abs=0.02) for name, v in known.items()}


def test_the_constant_baseline_is_the_best_constant(rng: np.random.Generator) -> None:
    run, exact, _ = planted(rng)
    entropies = np.array([[entropy(p) for p in row] for row in exact])
    best = min(np.abs(entropies - level).mean() for level in np.linspace(0, math.log2(ANSWERS), 5_001))
    assert levels(Calibration().measure(run).entropy_mae_bits)["constant"] == pytest.approx(best, abs=1e-3)


def test_profiles_of_baselines_follow_their_names() -> None:
    report = Calibration().measure(baseline_run(HMM(n_states=3, n_symbols=2, length=5), 101))
    windows = tuple(sorted(f"window {w} {start}" for w in range(1, 5) for start in ("uniform", "stationary")))
    baselines = report.entropy_mae_bits_by_position.baselines
    names = ("uniform", "constant", "likelihood only", "prior", "stationary", *windows)
    assert tuple(own.name for own in baselines) == names == tuple(levels(report.entropy_mae_bits))
    for own in baselines:
        assert own.value.shape == (5,)
        assert own.value.mean() == pytest.approx(levels(report.entropy_mae_bits)[own.name])


def test_window_observers_stand_in_labeled_rows() -> None:
    report = Calibration().measure(baseline_run(HMM(n_states=3, n_symbols=2, length=5), 101))
    records = records_of(report, metric="window_kl_bits")
    rows = {(row.places["window_start"], row.places["window"]): row.value for row in records}
    assert rows["stationary", 1] == pytest.approx(levels(report.kl_bits)["window 1 stationary"], abs=1e-6)
    assert list(rows) == [(start, int(w)) for start in report.window_starts for w in report.windows]
    low, high = (end[1, :4] for end in report.window_kl_bits.ends)
    own = report.window_kl_bits.value[1, :4]
    assert (low < own).all() and (own < high).all(), "observers of up to three symbols"
    gain = report.window_gain_bits
    np.testing.assert_allclose(gain.value, report.window_kl_bits.value.min(axis=0) - float(report.kl_bits), atol=1e-9)
    assert gain.clears("higher")[0] == "yes" and float(report.equivalent_window_symbols) > 0


def test_the_equivalent_window_has_no_verdict() -> None:
    report = Calibration().measure(baseline_run(HMM(n_states=3, n_symbols=2, length=5), 101))
    line = next(line for line in report.headlines() if line.metric == "equivalent_window_symbols")
    assert line.verdict == "" and line.value == report.equivalent_window_symbols.value
    without = Calibration().measure(baseline_run(Bijection(n_values=5, n_pairs=4), 11))
    assert not any(line.metric == "equivalent_window_symbols" for line in without.headlines())


def test_the_reliability_curve_has_the_mean_exact_probability_of_each_stated_one(rng: np.random.Generator) -> None:
    exact = rng.dirichlet(np.ones(3), size=(41, 5))
    trials = planted_trials(exact, rng.integers(7, size=(41, 5)))
    honest = Calibration().measure(planted_run(trials, {}))
    np.testing.assert_allclose(honest.reliability[0], honest.reliability[1])
    assert honest.bins[0] == "0 … 0.1" and len(honest.bins) == honest.reliability.shape[1] == 10
    sharp = exact**3 / (exact**3).sum(axis=2, keepdims=True)
    found = Calibration().measure(planted_run(trials, {}, model=torch.from_numpy(sharp)))
    for at, name in enumerate(found.bins):
        low, high = map(float, name.split(" … "))
        chosen = (sharp >= low) & (sharp < high)
        assert found.reliability[0, at] == pytest.approx(sharp[chosen].mean())
        assert found.reliability[1, at] == pytest.approx(exact[chosen].mean())
    stated, mean, low, high = found.reliability[:, -1]
    assert low < mean < high < stated and found.reliability[0, 0] < found.reliability[1, 0]  # overconfident
    assert found.panels()[-1].title == f"Reliability: where the model says {stated:.0%}, exact is {mean:.0%}"
