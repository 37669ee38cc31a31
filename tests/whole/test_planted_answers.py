"""Planted predictors, and what the first sentence says of each: the table of cases of the answer, with its color.

`planted_answers.md` has 24 predictors of five tasks; here are those of other tasks, and what the rules turn on.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

import bayesgeom
from bayesgeom.core import InvalidArgument, NonFinite
from bayesgeom.core.run import Trials
from bayesgeom.core.verdict import Verdict
from bayesgeom.measurements.base import planted_run
from bayesgeom.measurements.calibration import Calibration, CalibrationReport
from bayesgeom.report.answer import Answer, answer_details, answer_of, answer_text
from bayesgeom.report.report import Report
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.stats.windows import window_predictives
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.linear_regression import LinearRegression
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.tasks.sticky_markov import StickyMarkov
from tests.whole.planted_answers import PREDICTORS, TABLE, TASKS, rows

N = 512
MESS3 = Mess3(x=0.05, a=0.85, length=16)
SLOW = StickyMarkov(n_states=3, self_probability=0.95, noise=0.5, length=24)
UNTRAINED = np.linspace(-0.02, 0.01, 8)  # shares that planted copies close

Predictor = Callable[[Int64[Tensor, "batch pos"]], Float64[Tensor, "batch pos answer"]]


def answered(reports: Mapping[str, Report]) -> Answer:
    """The answer next to planted copies."""
    report = reports["calibration"]
    assert isinstance(report, CalibrationReport)
    found = answer_of({**reports, "calibration": replace(report, gap_closed_by_copies=UNTRAINED)})
    assert found is not None
    return found


def of_symbols(task: Mess3 | StickyMarkov, predictor: Predictor, n: int = N) -> Answer:
    """The answer of a predictor that is run, with the evidence response."""

    def model(tokens: Tensor) -> Tensor:
        return predictor(tokens).log()

    return answered(bayesgeom.diagnose(model, task, n=n, probes=["calibration", "evidence_response"]).reports)


def of_predictions(trials: Trials, predicted: Tensor, task: WindTunnel, off: float = 0.0) -> Answer:
    """The answer of predictions, without an evidence response."""
    run = planted_run(trials, {}, model=predicted)
    seen = replace(run.behavior, off_answer_prob=np.full_like(run.behavior.off_answer_prob, off))
    levels = {name: predicted_behavior(trials, own) for name, own in task.baseline_predictives(trials).items()}
    return answered({"calibration": Calibration().measure(replace(run, behavior=seen, baseline_behaviors=levels))})


def exact_of(task: Mess3 | StickyMarkov, tokens: Tensor) -> Tensor:
    return seen_by(task, tokens, tokens.shape[1])


def seen_by(task: Mess3 | StickyMarkov, tokens: Tensor, width: int) -> Tensor:
    """The exact observer of the last `width` symbols, of sequences of any length."""
    trials = replace(task, length=tokens.shape[1]).trials(torch.nn.functional.pad(tokens, (0, 1)))
    return next(islice(window_predictives(trials, "stationary"), min(width, tokens.shape[1]), None))


def tempered(probs: Tensor, temperature: float) -> Tensor:
    sharp = probs ** (1 / temperature)
    return sharp / sharp.sum(dim=-1, keepdim=True)


def bag(tokens: Tensor) -> Tensor:
    """Shares of the symbols so far, sharpened: a state that never moves."""
    shown = torch.nn.functional.one_hot(tokens, SLOW.d_vocab).double().cumsum(dim=1)
    return (2 * shown).softmax(dim=-1).clamp_min(1e-12)


CASES: dict[str, tuple[Mess3 | StickyMarkov, Predictor, str, str]] = {
    "slow, exact": (
        SLOW,
        lambda t: exact_of(SLOW, t),
        "Matches the exact posterior: closes 100 % [99.4, 100] of",
        "good",
    ),
    "sharp": (MESS3, lambda t: tempered(exact_of(MESS3, t), 0.7), ", but is overconfident (1.4).", "amber"),
    "window 4": (SLOW, lambda t: seen_by(SLOW, t, 4), "; so does an observer of the last 4 symbols.", "amber"),
    "in part": (
        SLOW,
        lambda t: 0.3 * exact_of(SLOW, t) + 0.7 * seen_by(SLOW, t, 2),
        "; uses evidence older than 4 (slope 0.3 [0.3 … 0.3]), but is no more accurate than an observer of the last 4 ",
        "amber",
    ),
    "a bag of symbols": (SLOW, bag, "No: ", "bad"),
}


def numbers(lines: list[str]) -> tuple[list[str], list[float]]:
    """The words of lines, and their numbers."""
    parts = re.split(r"(\d+(?:\.\d+)?)", "\n".join(lines))
    return parts[::2], [float(part) for part in parts[1::2]]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_table_of_planted_predictors_says_what_is_said(task: WindTunnel) -> None:
    """Digits may differ where another processor rounds differently: `python -m tests.whole.planted_answers`."""
    stored = next(part for part in TABLE.read_text().split("\n## ") if part.startswith(str(task)))
    (words, found), (stored_words, values) = map(numbers, (rows(task), f"## {stored.strip()}".split("\n")))
    assert words == stored_words
    assert found == pytest.approx(values, rel=0.02)


def test_the_table_is_of_24_predictors_and_five_tasks() -> None:
    parts = TABLE.read_text().split("\n## ")
    assert len(PREDICTORS) == 24 and len(TASKS) == 5
    for task, part in zip(TASKS, parts[1:], strict=True):
        names = [line.split(" | ")[0].removeprefix("| ") for line in part.strip().split("\n")[4:]]
        known = [*PREDICTORS, "untrained transformer", "untrained GRU"]
        assert part.startswith(str(task)) and sorted(", ".join(names).split(", ")) == sorted(known)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_a_predictor_that_is_run_gets_its_sentence(name: str) -> None:
    task, predictor, text, tone = CASES[name]
    found = of_symbols(task, predictor)
    assert (text in answer_text(found), found.tone) == (True, tone), answer_text(found)
    assert ("an observer" in answer_text(found)) == ("an observer" in text)


def test_without_an_evidence_response_older_evidence_is_not_measured() -> None:
    model = bayesgeom.as_model(lambda tokens: exact_of(MESS3, tokens).log())
    found = answered(bayesgeom.diagnose(model, MESS3, n=64, probes=["calibration"]).reports)
    says = "; so does an observer of the last 4 symbols, use of older evidence not measured."
    assert answer_text(found).endswith(says) and found.tone == "amber"
    assert found.older_verdict == Verdict.NOT_MEASURED


def test_the_header_alone_is_no_better_than_the_prior() -> None:
    task = HMM(length=7)
    trials = task.sample(N, seed=0)
    prior = task.baseline_predictives(trials)["prior"]
    found = of_predictions(trials, prior, task)
    assert (found.verdict, found.baseline, found.tone) == (Verdict.NO_BETTER, "prior", "bad"), answer_text(found)
    assert found.uniform_kl_bits > 1.2 * found.baseline_kl_bits, "the header closes a part of the gap from uniform"
    exact = of_predictions(trials, trials.at_scored(trials.predictive), task)
    assert answer_text(exact).startswith(
        "Matches the exact posterior: closes 100 % [99.4, 100] of the gap between prior"
    )


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_a_coin_leaves_no_gap(shift: float) -> None:
    task = Process(np.array([[[0.8]], [[0.2]]]), length=8)
    trials = task.sample(N, seed=0)
    found = of_predictions(trials, trials.at_scored(trials.predictive) + shift * torch.tensor([-1.0, 1.0]), task)
    assert (found.verdict, found.tone, found.explains) == (Verdict.NO_GAP, "open", False)
    assert answer_text(found).startswith("No gap to close: without any evidence KL is "), answer_text(found)
    assert float(found.kl_bits) == pytest.approx(0.0 if not shift else 0.8 * np.log2(8 / 7) + 0.2 * np.log2(2 / 3))


@pytest.mark.parametrize(
    ("off", "verdict", "tone"), [(0.04, "matches", "good"), (0.3, "matches", "amber"), (0.999, "partly", "amber")]
)
def test_what_is_off_the_answers_is_named(off: float, verdict: str, tone: str) -> None:
    task = Dice(n_faces=5, length=7)
    trials = task.sample(N, seed=0)
    found = of_predictions(trials, trials.at_scored(trials.predictive), task, off)
    says = answer_text(found)
    assert (found.verdict, found.tone) == (verdict, tone), says
    assert ("of the probability is not on the answers" in says) == (off > 0.05)
    whole = " (KL over the whole vocabulary 9.97 bits); in a text task, the prompt may be at fault."
    assert says.endswith(whole) == (off > 0.5)


@pytest.mark.parametrize(("n", "n_failing"), [(128, 0), (N, 4)])
def test_rare_failures_are_counted(n: int, n_failing: int) -> None:
    task = Dice(n_faces=5, length=7)
    trials = task.sample(n, seed=0)
    model = trials.at_scored(trials.predictive).clone()
    model[:n_failing] = 1 / 5
    found = of_predictions(trials, model, task)
    assert found.failure_rate is not None and float(found.failure_rate) == n_failing / n
    low, high = map(float, found.gap_closed.ends)
    if n_failing:
        assert found.verdict == Verdict.CLOSE and low < 0.985 < high < 1
        assert "0.8 % of 512 sequences are as bad as uniform or worse (at most 2.0 %)" in answer_details(found)
    else:
        assert (low, high) == (1 - 3 / n, 1.0) and found.verdict == Verdict.MATCHES
        assert "none of 128 sequences is as bad as uniform (at most 2.3 % of all are)" in answer_details(found)


@pytest.mark.parametrize(
    ("task", "name", "text"),
    [
        (AssociativeRecall(n_pairs=2, n_keys=5, n_values=5, n_queries=3), "last_pair", "; so does “last pair”."),
        (LinearRegression(n_inputs=5, n_bins=5, n_points=7), "ridge", "; so does “ridge”."),
        (Dice(n_faces=3, length=11), "forgetting", "; so does “forgetting”."),
    ],
)
def test_a_shortcut_is_named(task: WindTunnel, name: str, text: str) -> None:
    trials = task.sample(N, seed=0)
    exact, shortcut = trials.at_scored(trials.predictive), task.baseline_predictives(trials)[name]
    found = of_predictions(trials, shortcut, task)
    assert answer_text(found).endswith(text) and found.tone == "amber", answer_text(found)
    better = of_predictions(trials, exact, task)
    assert (better.verdict, better.shortcut, better.tone) == (Verdict.MATCHES, "", "good")


def test_confidence_needs_an_interval_that_excludes_1() -> None:
    task = Dice(n_faces=3, length=11)
    trials = task.sample(48, seed=0)
    exact, rng = trials.at_scored(trials.predictive), np.random.default_rng(0)
    powers = torch.from_numpy(rng.choice([0.4, 3.0], size=(48, 1, 1)))
    found = of_predictions(trials, tempered(exact, 1.0) ** powers / (exact**powers).sum(-1, keepdim=True), task)
    low, high = map(float, found.confidence.ends)
    assert not low <= 1 <= high or not found.is_confidence_named


def test_a_constant_predictor_closes_nothing() -> None:
    """Its KL is that of uniform up to rounding in float32."""
    task = Dice(n_faces=3, length=8)
    found = bayesgeom.diagnose(lambda tokens: torch.zeros(*tokens.shape, 3), task, n=64, probes=["calibration"]).answer
    assert found is not None and found.verdict == Verdict.NO_BETTER and 0 < float(found.gap_closed) < 1e-6


def test_certain_predictions_are_closest_to_no_confidence() -> None:
    """Where the exact answer is one-hot, or uniform on a set, no finite temperature of a mixture is best."""
    task = Bijection(n_values=5, n_pairs=12, repeats=True)
    trials = task.sample(N, seed=0)
    found = of_predictions(trials, 0.8 * trials.at_scored(trials.predictive) + 0.2 / 5, task)
    assert float(found.confidence) == 0 and "confident" not in answer_text(found)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_too_few_sequences_have_their_code(n: int) -> None:
    task = Dice(n_faces=3, length=8)
    net = bayesgeom.TransformerConfig(d_vocab=3, n_ctx=8, n_layers=1, n_heads=1, d_model=8, d_mlp=8).build(seed=0)
    found = bayesgeom.diagnose(net, task, n=n, n_untrained=1, ablations=True)
    assert (found.answer is not None and found.summary() and not found.answer.explains) or n < 8
    assert found.answer.verdict == Verdict.UNDECIDED or n == 8
    assert ("evidence_response" in found.skipped) == (n == 1)
    trials = task.sample(n, seed=0)
    exact = of_predictions(trials, trials.at_scored(trials.predictive), task)
    assert exact.verdict == (Verdict.NO_BETTER if n <= 3 else Verdict.PARTLY), "3 of n may fail"
    assert "not shown" in answer_text(exact) or n > 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda logits: logits * torch.nan, "returned NaN or infinite logits. Check its weights"),
        (lambda logits: logits.index_fill(0, torch.tensor([0]), torch.nan), "NaN or infinite logits"),
        (lambda logits: logits.index_fill(2, torch.tensor([1]), -torch.inf), "NaN or infinite logits"),
        (lambda logits: logits.softmax(-1), "returns probabilities, not logits: return their logarithms"),
    ],
)
def test_bad_predictions_are_refused_in_one_sentence(change: Callable[[Tensor], Tensor], says: str) -> None:
    def model(tokens: Tensor) -> Tensor:
        return change((torch.nn.functional.one_hot(tokens, 3).double().cumsum(dim=1) + 1).log())

    with pytest.raises((NonFinite, InvalidArgument), match=says):
        bayesgeom.diagnose(model, Dice(n_faces=3, length=8), n=16)


def test_logits_need_no_normalization() -> None:
    def model(tokens: Tensor) -> Tensor:
        return (7 * (torch.nn.functional.one_hot(tokens, 3).double().cumsum(dim=1) + 1)).log()

    found = bayesgeom.diagnose(model, Dice(n_faces=3, length=8), n=64, probes=["calibration"]).answer
    assert found is not None and float(found.kl_bits) == pytest.approx(0, abs=1e-12)
