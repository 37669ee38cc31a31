"""The audit: each planted predictor is caught by its own part; the statistics equal slow twins; refusals."""

import itertools
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
import bayesgeom.measurements.audit as audit_module
from bayesgeom.core.errors import InvalidArgument, TaskMismatch, UnknownName
from bayesgeom.core.progress import phases_shown
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.measurements.audit import EXACT, AuditReport
from bayesgeom.measurements.audit_parts import (
    information_curve,
    kl_in_bits,
    log_odds_slope,
    martingale_gaps,
    mixture,
    nearest_discount,
    order_statistics,
)
from bayesgeom.report.findings import sentence
from bayesgeom.report.storage import parts_of, quantities_of
from bayesgeom.selftest.audits import PLANTED, PlantedAudit, planted_audits
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.evidence import BoundEvidence, LabeledEvidence
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.prompts import Prompts
from tests.families import saved
from tests.measurements.test_evidence_response import lively
from tests.tasks.tokenizers import word_tokenizer

RNG = np.random.default_rng(0)
N, A = 23, 3


def probabilities(*shape: int) -> np.ndarray:
    return RNG.dirichlet(np.ones(A), size=shape)


@cache
def planted() -> dict[str, PlantedAudit]:
    return {own.name: own for own in planted_audits(n=128)}


@pytest.mark.parametrize("name", [name for name, _, _ in PLANTED])
def test_each_planted_predictor_is_caught_by_its_own_part(name: str) -> None:
    own = planted()[name]
    assert own.passed, own.numbers()
    caught = {"overconfident": "confidence", "forgetful": "discount", "order-sensitive": "order_spread"}
    if name in caught:
        part = own.report.estimate(caught[name])
        low, high = part.ends
        assert not low <= part.ceiling <= high


@pytest.mark.parametrize("name", [name for name, _, _ in PLANTED])
def test_a_predictor_is_named_only_if_its_mixture_leaves_little(name: str) -> None:
    named = {"exact": EXACT, "forgetful": "forgetting", "plug-in": "plug_in", "memorizing": "pool of three"}
    own = planted()[name].report
    assert own.answer().values.get("predictor") == named.get(name)
    titles = [panel.title for panel in own.panels()]
    assert any("No mixture of predictors is near" in title for title in titles) == (name not in named)


def test_the_martingale_gap_appends_every_answer() -> None:
    """After one flip of two, each sequence has the same single step."""
    coin = Dice(n_faces=2, length=2)
    first = 4 / 5  # the exact 2/3 at temperature 1/2
    assert coin.n_continued == 1

    def overconfident(flips: torch.Tensor) -> torch.Tensor:
        counts = torch.nn.functional.one_hot(flips, 2).double().cumsum(dim=1) + 1
        return 2 * counts.log()

    after_same, after_other = 9 / 10, 1 / 2  # counts 3 and 1, and 2 and 2
    gap = abs(first * after_same + (1 - first) * after_other - first)
    found = bayesgeom.audit(overconfident, coin, n=16, parts=["martingale"])
    assert float(found.martingale_gap) == pytest.approx(gap) and float(found.martingale_drift) == pytest.approx(gap)


def test_the_cost_of_a_large_model_comes_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(audit_module, "LARGE", 1)
    with phases_shown():
        found = bayesgeom.audit(lively(), n=12)
    first, *others = capsys.readouterr().err.splitlines()
    n_answers, n_ages, n_orders = 5, len(found.ages), 8
    runs = 12 * (1 + n_ages + n_answers + 2 + n_orders)
    assert re.fullmatch(rf"  audit of 12 prompts: \d+ s \({runs} runs\)", first)
    assert sum(int(line.split("(")[1].split()[0]) for line in others) <= runs


def test_a_number_out_of_its_range_fails_the_selftest() -> None:
    assert not replace(planted()["exact"], expected={"regret": (1.0, 2.0)}).passed


def test_statistics_equal_loops() -> None:
    own, before, after = probabilities(N), probabilities(N), probabilities(N, A)
    gaps, drifts = martingale_gaps(own, before, after)
    orders, exact = probabilities(5, N), probabilities(N)
    spread, gain, deviation = order_statistics(exact, np.log(orders))
    for row in range(N):
        mean = sum(own[row, y] * after[row, y] for y in range(A))
        assert gaps[row] == pytest.approx(sum(abs(mean - before[row])) / 2)
        assert drifts[row] == pytest.approx((mean - before[row])[before[row].argmax()])
        assert deviation[row] == pytest.approx(np.std(orders[:, row, exact[row].argmax()], ddof=1))
        pairs = [abs(one[row] - two[row]).sum() / 2 for one, two in itertools.combinations(orders, 2)]
        assert spread[row] == pytest.approx(np.mean(pairs))
        each = np.mean([kl_in_bits(exact[row], np.log(one[row])) for one in orders])
        assert (
            gain[row] == pytest.approx(each - kl_in_bits(exact[row], np.log(orders[:, row].mean(axis=0))))
            and gain[row] > 0
        )
    p = np.array([0.5, 0.5, 0.0])
    assert kl_in_bits(p, np.log([0.25, 0.5, 0.25])) == pytest.approx(0.5)
    with np.errstate(divide="ignore"):
        assert kl_in_bits(p, np.log([0.5, 0.5, 0.0])) == 0 and math.isinf(kl_in_bits(p, np.log([0.0, 0.5, 0.5])))


def test_averaging_gains_where_probabilities_round_to_zero() -> None:
    log_model = np.array([[[0.0, -1000.0]], [[0.0, -2000.0]]])
    _, gain, _ = order_statistics(np.array([[0.5, 0.5]]), log_model)
    assert gain == pytest.approx([0.5 * (500 / math.log(2) - 1)], rel=1e-9)


def test_information_is_told_with_its_slope_and_its_curvature() -> None:
    bits, weights = RNG.gamma(1.0, size=(64, 5)), RNG.random((64, 5))
    slope, curvature = information_curve(bits, 0.7 * bits + RNG.normal(size=bits.shape) / 50, weights, seed=0)
    assert float(slope) == pytest.approx(0.7, abs=0.01) and slope.ends[0] < 0.7 < slope.ends[1]
    assert curvature.ends[0] < 0 < curvature.ends[1]
    concave = information_curve(bits, bits - 0.05 * bits**2, weights, seed=0)[1]
    assert float(concave) == pytest.approx(-0.05)
    alike, flat = information_curve(np.ones_like(bits), bits, weights, seed=0)
    assert np.isfinite(alike.value) and flat.reason_at() == Reason.FLAT
    assert information_curve(0 * bits, bits, weights, seed=0)[0].reason_at() == Reason.FLAT


def test_log_odds_are_regressed_with_an_intercept() -> None:
    exact = RNG.beta(2, 2, size=(64, 5))
    odds = 3 * np.log(exact / (1 - exact)) + 0.8 + RNG.normal(size=exact.shape) / 10
    model = np.stack([-np.log1p(np.exp(-odds)), -np.log1p(np.exp(odds))], axis=-1)
    found = log_odds_slope(np.stack([exact, 1 - exact], axis=-1), model, seed=0)
    x = np.log(exact / (1 - exact)).ravel()
    assert float(found) == pytest.approx(np.polyfit(x, odds.ravel(), 1)[0]) and found.ends[0] < 3 < found.ends[1]
    certain = np.stack([np.ones_like(exact), np.zeros_like(exact)], axis=-1)
    assert log_odds_slope(certain, model, seed=0).reason_at() == Reason.MISSING


def test_a_mixture_is_found_and_predictors_that_are_alike_share_a_weight() -> None:
    first, second, third = (RNG.dirichlet(np.ones(A), size=(200, 2)) for _ in range(3))
    known = {"first": first, "second": second, "like the first": 0.99 * first + 0.01 / A, "third": third}
    weights, left = mixture(0.6 * first + 0.4 * second, known, seed=0)
    assert weights.value[[0, 1, 3]] == pytest.approx([0.6, 0.4, 0.0], abs=1e-3) and left.max() < 1e-4
    assert np.isnan(weights.value[2]) and weights.reason_at((2,)) == Reason.ALIKE
    noisy = np.stack([RNG.dirichlet(60 * row) for row in (0.6 * first + 0.4 * second).reshape(-1, A)])
    found = mixture(noisy.reshape(first.shape), known, seed=0)[0]
    assert found.ends[0][0] < 0.6 < found.ends[1][0] and 0.02 < found.ends[1][0] - found.ends[0][0] < 0.2


def test_evidence_that_rules_out_has_no_discount() -> None:
    exact = probabilities(N, 4)
    assert nearest_discount(lambda _: exact, exact, seed=0)[0].reason_at() == Reason.FLAT


def test_parts_that_do_not_apply_say_why() -> None:
    found = bayesgeom.audit(lively(HMM(n_states=3, n_symbols=2, length=7, floor=0.1, grid=0.1)), n=24)
    for name in ("martingale_gap", "order_spread", "discount", "information_slope"):
        assert np.isnan(found.estimate(name).value) and found.estimate(name).reason_at() == Reason.NOT_EXCHANGEABLE
    assert np.isfinite(found.regret_bits.value) and np.isfinite(found.response.value[0])
    assert found.log_odds_slope.reason_at() == Reason.NOT_BINARY
    lines = {line.metric: line for line in found.headlines()}
    assert (lines["order_spread"].verdict, lines["order_spread"].why) == (Verdict.NOT_MEASURED, "order matters")


@pytest.mark.parametrize("part", ["regret", "confidence", "discount", "strategy"])
def test_parts_of_one_pass_can_be_named_and_cost_nothing_more(part: str) -> None:
    none, one, both = (bayesgeom.audit(lively(), n=24, parts=parts) for parts in ((), [part], [part, "order"]))
    for name, values in parts_of(none)[1].items():
        np.testing.assert_array_equal(parts_of(one)[1][name], values)
    assert np.isfinite(both.order_spread.value) and both.martingale_gap.reason_at() == Reason.NOT_COMPUTED


def test_parts_that_were_not_requested_are_not_run() -> None:
    whole, one_pass = (bayesgeom.audit(lively(), n=24, parts=parts) for parts in (("order",), ()))
    assert one_pass.order_spread.reason_at() == whole.martingale_gap.reason_at() == Reason.NOT_COMPUTED
    assert one_pass.response.reason_at((0,)) == Reason.NOT_COMPUTED and np.isfinite(whole.order_spread.value)
    assert one_pass.regret_bits.value == whole.regret_bits.value
    assert not {"order_spread", "response"} & {line.metric for line in one_pass.headlines()}
    assert len(one_pass.panels()) == 2


def test_recorded_predictions_give_what_needs_no_other_sequence(tmp_path: Path) -> None:
    model = lively()
    folder = bayesgeom.capture(model, out=tmp_path / "capture", n=16, sites=["resid_pre"], seed=3)
    found, direct = bayesgeom.audit(folder, n=128), bayesgeom.audit(model, n=16, seed=3)
    assert found.n == 16 and found.regret_bits.value == pytest.approx(direct.regret_bits.value, rel=1e-5)
    assert found.response.reason_at((0,)) == found.order_spread.reason_at() == Reason.RECORDED
    assert found.weights.value == pytest.approx(direct.weights.value, abs=1e-3, nan_ok=True)


def test_the_audit_of_a_network_runs_every_part_and_draws_it() -> None:
    found, again = bayesgeom.audit(lively(), n=24), bayesgeom.audit(lively(), n=24)
    assert found == again and found.predictors[0] == EXACT
    assert 0 < float(found.martingale_gap) < 1 and 0 < float(found.order_spread) < 1
    assert found.regret_bits.value == found.regret_bits_by_position.value[-1]
    drawn = {trace.name: trace for panel in found.panels() for trace in panel.figure.data}
    assert drawn["model"] is not None and EXACT in drawn
    weights = found.weights_by_position.value
    assert np.nansum(weights, axis=0) == pytest.approx(np.ones(weights.shape[1]))


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba"])
def test_families_are_audited_in_full(family: str, tmp_path: Path) -> None:
    found = bayesgeom.audit(saved(family, tmp_path), Bijection(n_values=5, n_pairs=4), n=12)
    missing = {name for name in quantities_of(AuditReport) if np.isnan(found.estimate(name).value).all()}
    assert missing == {"log_odds_slope", "discount", "discount_gain_bits"}


def test_a_text_task_is_audited_with_its_labels_and_words() -> None:
    task = LabeledEvidence(k_max=4, reliability=0.8, n_words=7).bind(word_tokenizer(), d_vocab=257)
    assert isinstance(task, BoundEvidence)
    labels = torch.tensor(task.label_ids)

    def overconfident(tokens: torch.Tensor) -> torch.Tensor:
        """The exact log-odds of the next label, doubled; other ids are impossible."""
        shown = (tokens[..., None] == labels).double().cumsum(dim=1)
        logits = torch.full((*tokens.shape, 257), -200.0, dtype=torch.float64)
        logits[..., labels] = 2 * task._answer(task._belief(shown)).log()
        return logits

    found = bayesgeom.audit(overconfident, task, n=32)
    assert float(found.log_odds_slope) == pytest.approx(2) and float(found.confidence) == pytest.approx(2)
    assert float(found.order_spread) == 0 and float(found.martingale_gap) > 0.001
    assert float(found.off_answer_prob) < 1e-9 and "off_answer_prob" not in [own.metric for own in found.headlines()]
    leaky = bayesgeom.audit(lambda tokens: torch.zeros(*tokens.shape, 257), task, n=9, parts=[])
    line = next(own for own in leaky.headlines() if own.metric == "off_answer_prob")
    assert line.value == pytest.approx(255 / 257) and line.baseline == 0
    assert np.isfinite(found.discount.value)
    assert sentence(leaky.answer()).endswith("99.2 % of the probability is not on the answers.")


class TestRefusals:
    def test_small_numbers(self) -> None:
        with pytest.raises(InvalidArgument, match="n must be at least 2, got 1"):
            bayesgeom.audit(lively(), n=1)

    @pytest.mark.parametrize("found", [np.ones((2, 2)), "text", torch.ones(2, 7, 5)])
    def test_predictors_that_return_no_probabilities(self, found: Any) -> None:
        with pytest.raises(InvalidArgument, match=r"predictor 'own' must return"):
            bayesgeom.audit(lively(), predictors={"own": lambda trials: found})

    def test_tensors_that_carry_gradients_or_few_digits_are_probabilities(self) -> None:
        task, half = Dice(n_faces=2, length=3), torch.full((9, 3, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
        known: dict[str, Any] = {"own": lambda trials: half[: len(trials)]}
        report = bayesgeom.audit(lambda tokens: torch.zeros(*tokens.shape, 2), task, n=9, predictors=known, parts=[])
        assert float(report.mixture_kl_bits) == 0 and "own" in report.predictors

    def test_names_of_other_predictors(self) -> None:
        with pytest.raises(InvalidArgument, match=r"predictor 'exact' has the name of another: .*uniform are taken"):
            bayesgeom.audit(lively(), predictors={"exact": lambda trials: trials.at_scored(trials.predictive)})

    def test_predictors_that_are_no_mapping(self) -> None:
        with pytest.raises(InvalidArgument, match=r"predictors must be"):
            bayesgeom.audit(lively(), predictors=[3])  # type: ignore[arg-type]

    def test_parts_that_do_not_exist(self) -> None:
        with pytest.raises(UnknownName, match=r"part of the audit.*'oder'.*order"):
            bayesgeom.audit(lively(), parts=["oder"])

    def test_tasks_without_a_posterior(self) -> None:
        task = Prompts(texts=("a word",)).bind(word_tokenizer(), d_vocab=257)
        with pytest.raises(TaskMismatch, match=r"exact posterior; 'prompts' has none"):
            bayesgeom.audit(lambda tokens: torch.zeros(*tokens.shape, 257), task)

    def test_other_sequences_than_those_of_a_capture(self, tmp_path: Path) -> None:
        folder = bayesgeom.capture(lively(), out=tmp_path / "capture", n=16, sites=["resid_pre"], seed=3)
        with pytest.raises(InvalidArgument, match=r"was captured with seed 3, got 4"):
            bayesgeom.audit(folder, seed=4)


def test_an_audit_in_a_diagnosis_is_that_of_the_function() -> None:
    """More sequences than are recorded: the recorded ones are audited, and no run is taken for another part's."""
    found = bayesgeom.diagnose("dice-transformer", n=256, n_untrained=0, probes=["audit", "calibration"])
    report = found[AuditReport]
    alone = bayesgeom.audit("dice-transformer", n=report.n)
    assert set(found) == {"audit", "calibration"} and report.n < found["calibration"].n
    for name in quantities_of(AuditReport):
        value, other = report.estimate(name), alone.estimate(name)
        assert value.n == other.n, name
        np.testing.assert_allclose(value.value, other.value, rtol=1e-4, atol=1e-6, err_msg=name)
