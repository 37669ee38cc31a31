"""The answer of a diagnosis: planted predictors for every verdict, its numbers against loops, and its sentences."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.measurements.base import planted_run, planted_trials
from bayesgeom.measurements.calibration import POSITION, UNIFORM, Calibration, CalibrationReport
from bayesgeom.report.answer import (
    N_COPIES,
    Answer,
    answer_details,
    answer_of,
    answer_text,
    gate_text,
    untrained_level,
    verdict_of,
)
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import UNTRAINED, Baseline, Estimate
from bayesgeom.report.tables import headline_of
from bayesgeom.stats.behavior import tempering
from tests.report.planted import planted

N, POSITIONS, ANSWERS = 67, 3, 5
UNKNOWN = Estimate.of(np.nan)


@pytest.fixture
def exact(rng: np.random.Generator) -> np.ndarray:
    """Exact predictives that are far from uniform, and uniform on average."""
    return rng.dirichlet(np.full(ANSWERS, 0.5), size=(N, POSITIONS))


def measured(exact: np.ndarray, model: np.ndarray) -> CalibrationReport:
    trials = planted_trials(exact, np.random.default_rng(1).integers(7, size=(len(exact), POSITIONS)))
    run = planted_run(trials, {}, model=torch.from_numpy(model))
    return replace(Calibration().measure(run), gap_closed_by_copies=np.zeros(N_COPIES))


def answered(exact: np.ndarray, model: np.ndarray) -> Answer:
    found = Diagnosis.of(measured(exact, model)).answer
    assert found is not None
    return found


def normalized(weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def kl_of(exact: np.ndarray, model: np.ndarray) -> np.ndarray:
    return np.asarray((exact * np.log2(exact / model)).sum(axis=2).mean(axis=1))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.99, 1.0, "matches"),
        (0.9899, 1.0, "close"),
        (0.9, 1.0, "close"),
        (0.8999, 0.999, "partly"),
        (1e-5, 0.5, "partly"),
        (1e-7, 0.5, "no better"),  # rounding
        (0.0, 0.5, "no better"),
        (-0.5, 0.0, "no better"),
        (-0.5, -1e-7, "no better"),
        (-0.5, -1e-5, "worse"),
        (np.nan, np.nan, "undecided"),
    ],
)
def test_the_lower_end_decides(low: float, high: float, verdict: str) -> None:
    assert verdict_of(Estimate.of(0.5, (low, high), n=64)) == verdict


def test_a_share_that_all_sequences_have_decides_itself() -> None:
    withheld = (np.nan, np.nan)
    assert verdict_of(Estimate.of(1.0, withheld, n=64, reason=Reason.CONSTANT)) == Verdict.MATCHES
    assert verdict_of(Estimate.of(0.999, withheld, n=64, reason=Reason.HEAVY_TAIL)) == Verdict.UNDECIDED
    assert verdict_of(Estimate.of(1.0, (0.95, 1.0), n=64)) == Verdict.MATCHES, "no sequence differs from exact"
    assert verdict_of(Estimate.of(1.0, (0.4, 1.0), n=5)) == Verdict.PARTLY, "of five"


def test_the_row_of_a_perfect_model_says_what_the_answer_says(exact: np.ndarray) -> None:
    constant = Estimate.of(0.0, (np.nan, np.nan), reason=Reason.CONSTANT)
    for level, verdict in ((0.5, Verdict.YES), (0.0, Verdict.UNDECIDED)):
        kl = replace(constant, baselines=(Baseline.of("baseline", UNIFORM, level),))
        assert replace(measured(exact, exact), kl_bits=kl).headlines()[0].verdict == verdict


@pytest.mark.parametrize(
    ("exact_share", "verdict"),
    [(1.0, "matches"), (0.99, "matches"), (0.85, "close"), (0.5, "partly"), (0.05, "partly")],
)
def test_mixed_with_uniform_the_exact_predictor_closes_a_part_of_the_gap(
    exact_share: float, verdict: str, exact: np.ndarray
) -> None:
    model = exact_share * exact + (1 - exact_share) / ANSWERS
    found = answered(exact, model)
    assert (found.verdict, found.baseline, found.explains) == (verdict, UNIFORM, True)
    flat = kl_of(exact, np.full_like(exact, 1 / ANSWERS))
    assert found.baseline_kl_bits == found.uniform_kl_bits == pytest.approx(flat.mean())
    assert float(found.gap_closed) == pytest.approx(1 - kl_of(exact, model).mean() / flat.mean(), abs=1e-6)
    low, high = map(float, found.gap_closed.ends)
    assert low <= float(found.gap_closed) <= high <= 1 or exact_share == 1, "0 bits in every sequence: no interval"


def test_the_answers_of_other_sequences_are_no_better_or_worse(exact: np.ndarray, rng: np.random.Generator) -> None:
    noise = normalized(np.exp(0.01 * rng.normal(size=exact.shape)))
    assert answered(exact, noise).verdict == Verdict.NO_BETTER
    other = answered(exact, np.roll(exact, 1, axis=0))
    assert other.verdict == Verdict.WORSE and not other.explains and not other.is_confidence_named
    assert float(other.confidence) > 5, "nearly uniform is the best temperature, and no better than uniform"


def test_a_predictor_of_the_base_rate_is_no_better_than_position_alone(rng: np.random.Generator) -> None:
    rates = np.array([8.0, 2.0, 1.0, 0.5, 0.5])
    exact = rng.dirichlet(rates, size=(N, POSITIONS))
    rate = np.broadcast_to(rates / rates.sum(), exact.shape).copy()
    found = answered(exact, rate)
    assert (found.verdict, found.baseline) == (Verdict.NO_BETTER, POSITION)
    assert found.baseline_kl_bits == pytest.approx(kl_of(exact, rate).mean(), rel=0.03)
    assert found.baseline_kl_bits < found.uniform_kl_bits / 2
    assert measured(exact, rate).gap_closed[1].ends[0] > 0, "uniform alone would have called it partly"
    assert answered(exact[:10], rate[:10]).baseline == UNIFORM, "ten sequences are too few for a mean of five answers"
    better = answered(exact, normalized(np.sqrt(exact * rate)))
    assert (better.verdict, better.baseline) == (Verdict.PARTLY, POSITION)


@pytest.mark.parametrize(
    ("closed", "verdict"),
    [
        (np.full(N_COPIES, 0.0), "partly"),
        (np.linspace(0.1, 0.3, N_COPIES), "partly"),
        (np.linspace(0.1, 0.6, N_COPIES), "no better"),
        (np.linspace(0.1, 0.3, N_COPIES - 1), "closes"),
        (np.full(N_COPIES, 0.3), "closes"),
        (np.array([*np.linspace(0.1, 0.3, N_COPIES), -np.inf]), "closes"),
        (np.zeros(0), "closes"),
    ],
    ids=["as uniform", "worse", "wide spread", "too few", "all the same", "one infinite", "none"],
)
def test_what_untrained_networks_may_do_as_well_is_not_partly(
    closed: np.ndarray, verdict: str, exact: np.ndarray
) -> None:
    report = replace(measured(exact, 0.5 * exact + 0.5 / ANSWERS), gap_closed_by_copies=closed)
    found = answer_of({"calibration": report})
    assert found is not None and found.n_copies == len(closed)
    low = float(found.gap_closed.ends[0])
    assert 0.6 < low < 0.69, "the single best copy is worse"
    level, shown = found.untrained_level, answer_text(found)
    assert (found.verdict, found.explains) == (verdict, verdict != "no better")
    assert math.isnan(level) if verdict == "closes" else (low > level) == (verdict == "partly")
    if verdict == "no better":
        assert found.level == (UNTRAINED, (1 - level) * found.baseline_kl_bits)
        assert shown.startswith("No: not shown to be better than untrained networks (0.")
    if verdict == "closes":
        assert shown.startswith(
            "Closes 69 % [68, 70] of the gap between uniform and exact; not compared with untrained"
        )


def test_the_level_is_passed_by_one_untrained_network_in_a_thousand() -> None:
    """Simulated: the logarithm of the KL of every copy, and of the network in question, is normal."""
    draws = np.random.default_rng(0).normal(-0.5, 0.2, size=(20_000, N_COPIES + 1))
    levels = np.array([untrained_level(1 - np.exp(row[:-1])) for row in draws])
    passed = np.mean(1 - np.exp(draws[:, -1]) > levels)
    assert abs(passed - 0.001) < 4 * math.sqrt(0.001 / len(draws)), "four standard errors"
    assert levels.max() < 1 and 0.6 < np.median(levels) < 0.9


def test_a_predictor_that_rules_out_what_happens_is_worse(exact: np.ndarray) -> None:
    model = exact.copy()
    model[3, 1] = np.eye(ANSWERS)[exact[3, 1].argmax()]
    found = answered(exact, model)
    assert found.verdict == Verdict.WORSE and math.isinf(float(found.kl_bits)) and not found.is_confidence_named
    assert answer_text(found).startswith("No: worse than uniform (∞ against 0.")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_confidence_is_that_of_the_planted_temperature(temperature: float, exact: np.ndarray) -> None:
    found = answered(exact, normalized(exact ** (1 / temperature)))
    assert float(found.confidence) == pytest.approx(1 / temperature)
    assert found.is_confidence_named == (temperature != 1)


def test_confidence_equals_a_search(exact: np.ndarray, rng: np.random.Generator) -> None:
    model = normalized(exact * np.exp(rng.normal(size=exact.shape)))
    found = tempering(exact, np.log(model))
    powers = np.linspace(0.2, 1.2, 1_001)
    levels = [float(kl_of(exact, normalized(model**power)).mean()) for power in powers]
    assert 1 / found.confidence == pytest.approx(powers[np.argmin(levels)], abs=1e-3)
    assert found.gain_bits == pytest.approx(kl_of(exact, model).mean() - min(levels), abs=1e-6)
    low, high = map(float, found.interval)
    assert low < found.confidence < high < 1.3 * low


def test_impossible_answers_have_no_part_in_confidence(exact: np.ndarray) -> None:
    some = normalized(np.where(exact < 0.1, 0.0, exact))
    with np.errstate(divide="ignore"):
        assert tempering(some, 2 * np.log(some)).confidence == pytest.approx(2)
        assert math.isnan(tempering(exact, np.log(some)).confidence), "q = 0 where p > 0 at every temperature"
        even = normalized((some > 0).astype(float))
        flat = tempering(even, np.log(even))
    assert math.isnan(flat.confidence) and flat.interval.reason() == Reason.FLAT, "no temperature changes these"


def test_confidence_without_information_is_infinite(exact: np.ndarray) -> None:
    assert tempering(exact, -np.log(exact)).confidence == math.inf


@pytest.mark.parametrize("share_right", [1.0, 0.9, 0.5])
def test_labels_have_no_confidence(share_right: float, exact: np.ndarray, rng: np.random.Generator) -> None:
    """Their best temperature is 0 for a model that is always right, whatever it states."""
    labels = np.eye(ANSWERS)[exact.argmax(axis=2)]
    is_right = rng.random((N, POSITIONS, 1)) < share_right
    model = 0.9 * np.where(is_right, labels, np.roll(labels, 1, axis=2)) + 0.1 / ANSWERS
    found = tempering(labels, np.log(model))
    assert math.isnan(found.confidence) and found.interval.reason() == Reason.MISSING
    answer = answered(labels, model)
    assert not answer.is_confidence_named and math.isnan(float(answer.confidence))
    assert "confiden" not in answer_text(answer) + answer_details(answer)
    one_open = labels.copy()
    one_open[0, 0] = 1 / ANSWERS
    assert tempering(one_open, np.log(model)).confidence >= 0, "a single exact probability between 0 and 1 defines it"


def given(verdict: Verdict, closed: float, kl: float, **known: object) -> Answer:
    """An answer to a question whose uniform predictor has 0.42 bits."""
    own = Answer(
        verdict=verdict,
        gap_closed=Estimate.of(closed, (np.nan, np.nan), reason=Reason.FEW),
        kl_bits=Estimate.of(kl, (0.5 * kl, 2 * kl)),
        baseline=UNIFORM,
        baseline_kl_bits=0.42,
        uniform_kl_bits=0.42,
        confidence=Estimate.of(4.6, (4.0, 5.0)),
        is_confidence_named=False,
        off_answer_prob=0.01,
    )
    return replace(own, **known)  # type: ignore[arg-type]


def test_the_answer_is_one_sentence() -> None:
    matches = given(Verdict.MATCHES, 0.9981, 0.002)
    assert answer_text(matches) == "Matches the exact posterior: closes 99.8 % of the gap between uniform and exact."
    assert answer_text(given(Verdict.CLOSE, 0.935, 0.03)).startswith("Close to the exact posterior: closes 93.5 % of")
    partly = given(Verdict.PARTLY, 0.3, 0.3, baseline=POSITION, is_confidence_named=True)
    assert answer_text(partly) == (
        "Partly: closes 30 % of the gap between position alone and exact, but is overconfident (4.6)."
    )
    level = given(Verdict.NO_BETTER, -0.01, 0.4201)
    assert answer_text(level) == "No: no better than uniform (0.4201 against 0.42 bits)."
    wide = replace(level, kl_bits=Estimate.of(0.2))
    assert answer_text(wide).startswith("No: not shown to be better than uniform (")
    worse = given(Verdict.WORSE, -1.5, 1.07, is_confidence_named=True)
    assert answer_text(worse) == "No: worse than uniform (1.07 against 0.42 bits) and overconfident (4.6)."
    under = replace(worse, confidence=Estimate.of(0.25))
    assert answer_text(under).endswith("and underconfident (0.25).")
    few = given(Verdict.UNDECIDED, 0.45, 0.2)
    assert answer_text(few) == (
        "Undecided: closes 45 % of the gap between uniform and exact, without an interval (too few)."
    )


def test_the_details_say_what_stands_behind_it() -> None:
    own = given(Verdict.MATCHES, 0.9981, 0.002)
    assert (
        answer_details(own)
        == "KL 0.002 [0.001 … 0.004] bits (uniform 0.42); confidence 4.6 [4 … 5], where 1 is exact, at little cost."
    )
    assert answer_details(replace(own, is_confidence_named=True)).endswith("where 1 is exact.")
    assert answer_details(replace(own, confidence=Estimate.of(1.1, (0.9, 1.2)))).endswith("where 1 is exact.")
    outside = replace(own, off_answer_prob=0.12, confidence=UNKNOWN, baseline=POSITION, baseline_kl_bits=0.3)
    assert answer_details(outside) == ("KL 0.002 [0.001 … 0.004] bits (position alone 0.3, uniform 0.42).")
    assert answer_text(outside).endswith(
        "between position alone and exact; 12 % of the probability is not on the answers."
    )
    level = [Baseline.of("permutation", "other sequences", 0.1)]
    for ends, text in (
        ([0.9, 0.9, 0.9], "uses evidence more than 8 steps old (0.98 of the exact weight)."),
        ([0.9, 0.9, 0.05], "uses evidence more than 1 step old (0.98 of the exact weight)."),
        ([0.9, 0.2, 0.05], "uses the evidence (0.98 of the exact weight)."),
        ([0.2, 0.05, 0.05], "uses the evidence in part (0.98 of the exact weight)."),
        ([0.05, 0.05, 0.05], "no use of the evidence is shown."),
    ):
        slope = Estimate.of(np.full(3, 0.98), (ends, np.ones(3)), baselines=level)
        assert answer_details(replace(own, response=slope, ages=(0, 1, 8))).endswith(f"; {text}")


def test_the_answer_comes_first_and_survives_a_file(exact: np.ndarray, tmp_path: Path) -> None:
    diagnosis = Diagnosis.of(measured(exact, 0.5 * exact + 0.5 / ANSWERS))
    diagnosis.save(tmp_path / "run")
    loaded = Diagnosis.load(tmp_path / "run")
    assert diagnosis.answer is not None and loaded.answer is not None
    assert [answer_text(own) for own in (loaded.answer, diagnosis.answer)] == [diagnosis.summary().splitlines()[1]] * 2
    assert answer_text(diagnosis.answer) in loaded._repr_html_()


def test_without_a_posterior_there_is_no_answer(rng: np.random.Generator) -> None:
    other = Diagnosis.of(planted(rng))
    assert other.answer is None and not gate_text(None, planted(rng)) and answer_of({}) is None
    assert other.summary() == str(planted(rng)), "the answer of its only report"


def test_numbers_on_activations_come_last_where_they_explain_no_inference(
    exact: np.ndarray, rng: np.random.Generator
) -> None:
    reports = {"planted": planted(rng), "calibration": measured(exact, np.roll(exact, 1, axis=0))}
    diagnosis = Diagnosis(reports=reports, skipped={}, provenance={})
    answer = diagnosis.answer
    assert answer is not None
    assert gate_text(answer, reports["planted"]) and not gate_text(answer, reports["calibration"])
    lines = diagnosis.summary().splitlines()
    order = [lines.index(text) for text in ("calibration", gate_text(answer, reports["planted"]), "planted")]
    assert order == sorted(order) and lines[1] == answer_text(answer)
    good = Diagnosis(reports={**reports, "calibration": measured(exact, exact)}, skipped={}, provenance={})
    assert good.answer is not None and gate_text(good.answer, reports["planted"]) == ""
    assert good.summary().index("planted") < good.summary().index("calibration"), "in the order of the reports"


@pytest.mark.parametrize(("value", "verdict"), [(0.667, "barely"), (0.7, "yes"), (0.65, "no")])
def test_a_small_margin_is_barely_one(value: float, verdict: str, exact: np.ndarray) -> None:
    level = Baseline.of("baseline", "uniform", 0.656)
    own = Estimate.of([value] * 2, ([value - 0.005] * 2, [value + 0.005] * 2), baselines=[level], n=64)
    assert headline_of(replace(measured(exact, exact), accuracy=own), "accuracy", (0,)).verdict == verdict
