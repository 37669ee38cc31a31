"""The evidence response: its numbers against loops, its verdicts, planted predictors, and its place in a diagnosis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import pytest
import torch
from jaxtyping import Float64
from torch import Tensor

import bayesgeom
import bayesgeom.measurements.evidence_response as measurement
from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.core.observers import exact_beliefs
from bayesgeom.core.run import Trials
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.measurements.evidence_response import (
    ALIGNED,
    FORGETTING,
    LEVEL_NAME,
    MIXED,
    SHARP,
    WINDOW,
    EvidenceResponse,
    EvidenceResponseReport,
    chance_level,
    evidence_response,
    known_changes,
    response_report,
    response_until_decided,
    response_verdict,
)
from bayesgeom.measurements.running import at_last
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.report.answer import answer_details
from bayesgeom.report.findings import sentence
from bayesgeom.selftest.responses import planted_responses
from bayesgeom.stats.bootstrap import bounded_ratio_interval
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.hmm import HMM, SLOW

TASK = Bijection(n_values=5, n_pairs=7, repeats=True)
SLOW_TASK = HMM(n_states=3, n_symbols=2, length=13, floor=0.1, grid=0.1, stay=0.8)
N = 37


def lively(task: WindTunnel = TASK, seed: int = 0) -> HookedModel:
    """A random transformer whose weights are large enough to depend on its input."""
    config = TransformerConfig(d_vocab=task.d_vocab, n_ctx=task.n_pos, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
    module = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return HookedModel(module, task=task, name="lively")


def changes(rng: np.random.Generator, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    exact = rng.normal(size=(n, 5))
    return 0.6 * exact + 0.1 * rng.normal(size=(n, 5)), exact


def test_slope_and_level_match_loops(rng: np.random.Generator) -> None:
    model, exact = changes(rng)
    every, every_exact = changes(rng)
    found = response_report(["0", "3"], [every, model], {"exact": [every_exact, exact]}, is_single=False, seed=1)
    above = below = 0.0
    for row, own in zip(model, exact, strict=True):
        above += sum(a * b for a, b in zip(row, own, strict=True))
        below += sum(b * b for b in own)
    assert found.slope.value[1] == pytest.approx(above / below)
    assert found.relative_slope.value[1] == pytest.approx(above / below / found.slope.value[0])
    assert found.exact_change[1] == pytest.approx(np.sqrt(np.mean([b * b for own in exact for b in own])))
    level = found.slope.baseline(LEVEL_NAME).value[1]
    assert level == pytest.approx(chance_level(model, exact, seed=1)) and 0 < level < 0.4
    low, high = found.slope.ends[0][1], found.slope.ends[1][1]
    assert low < found.slope.value[1] < high and high - low < 0.1


def test_few_sequences_that_carry_the_change_give_no_interval(rng: np.random.Generator) -> None:
    model, exact = changes(rng)
    rare = exact * (np.arange(N) < 7)[:, None]
    found = response_report(["0", "3"], [model, model], {"exact": [exact, rare]}, is_single=False, seed=1)
    assert np.isnan(found.slope.ends[0]).tolist() == [False, True] and found.verdicts[1] == Verdict.UNDECIDED
    assert found.slope.reason_at((1,)) == Reason.FEW_DIFFER


@pytest.mark.slow
def test_intervals_cover_the_slope_in_old_evidence(rng: np.random.Generator) -> None:
    """In 1,000 draws of 96 sequences of the slow chain; percentile intervals cover down to 89 %."""
    ages, many, covered = (10, 16, 20), 3_000, list[float]()
    _, known = slow_changes(ages, n=many)
    noise = [rng.normal(scale=0.5 * exact.std(), size=exact.shape) for exact in known["exact"]]
    known["noisy"] = [0.4 * exact + other for exact, other in zip(known["exact"], noise, strict=True)]
    for name in (FORGETTING, SHARP, "noisy"):
        for model, exact in zip(known[name], known["exact"], strict=True):
            along, size = (model * exact).sum(axis=1), np.square(exact).sum(axis=1)
            rows = rng.integers(many, size=(96, 1_000))
            low, high = bounded_ratio_interval(along[rows], size[rows], seed=1)
            truth = along.sum() / size.sum()
            covered.append(float(((low <= truth) & (truth <= high)).mean()))
    assert 0.92 <= np.mean(covered) <= 0.97 and min(covered) > 0.9 and max(covered) < 0.98


def slow_changes(ages: Sequence[int], n: int) -> tuple[list[Trials], dict[str, list[np.ndarray]]]:
    """Return sequences of the slow chain, first as drawn, and the changes of known predictors."""
    trials, back = SLOW.sample(n, seed=0), torch.arange(SLOW.n_evidence, 0, -1)
    replaced = [SLOW.replace_evidence(trials, back <= age, torch.Generator().manual_seed(100 + age)) for age in ages]
    return [trials, *replaced], known_changes(trials, replaced)


def test_a_bag_of_symbols_moves_but_not_as_bayes() -> None:
    """The filter whose state never moves has a slope above 1 in old evidence, and changes in other directions."""
    ages = (0, 10, 16, 20)
    (first, *others), known = slow_changes(ages, n=240)

    def bag(trials: Trials) -> np.ndarray:
        assert trials.observers is not None
        still = replace(trials.observers.filter, moved=trials.observers.filter.weighed)
        return still.answers(exact_beliefs(still, len(trials), trials.n_scored))[:, -1].numpy()

    moved = [bag(other) - bag(first) for other in others]
    found = response_report([str(age) for age in ages], moved, known, is_single=False, seed=0)
    assert {found.verdict_at(age) for age in ages} == {Verdict.NOT_AS_BAYES}
    assert (found.slope.value[1:] > 1).all() and (found.cosine.ends[1] < ALIGNED).all()
    assert sentence(found.answer()).startswith("Moves, but not as Bayes: evidence older than 10 changes the answers")
    for at, (model, exact) in enumerate(zip(moved, known["exact"], strict=True)):
        cosine = (model * exact).sum() / np.sqrt((model**2).sum() * (exact**2).sum())
        assert found.cosine.value[at] == pytest.approx(cosine)


COIN = Dice(n_faces=2, length=11)


def biased(flips: Tensor) -> Tensor:
    """A tenth of the exact answers, and nine tenths on the first face."""
    counts = torch.nn.functional.one_hot(flips, 2).double().cumsum(dim=1) + 1
    return (0.1 * counts / counts.sum(dim=2, keepdim=True) + 0.9 * torch.tensor([1.0, 0.0])).log()


def test_predictions_that_are_no_better_than_a_baseline_transport_nothing() -> None:
    found = evidence_response(biased, COIN, ages=[4], n=64)
    assert found.slope.value == pytest.approx([0.1, 0.1]) and found.cosine.value == pytest.approx([1, 1])
    assert set(found.verdicts) == {Verdict.UNDECIDED}
    (low, high), level = found.slope[1].ends, found.slope.baseline(LEVEL_NAME).value[1]
    verdict = response_verdict((float(low), float(high)), level, found.exact_change[1], 1.0)
    assert verdict == (Verdict.IN_PART if level < 0.1 else Verdict.NOT_SHOWN)


@pytest.mark.exhaustive
def test_untrained_networks_transport_nothing() -> None:
    """Their answers follow the last symbol, with slopes up to 1 where all evidence is drawn again."""
    model, slopes = bayesgeom.as_model("sticky-small"), list[float]()
    for seed in range(3):
        network = model.untrained_copy(seed)
        found = evidence_response(network, model.task, ages=[1], n=64)
        assert {Verdict.TRANSPORTS, Verdict.IN_PART}.isdisjoint(found.verdicts)
        slopes.append(float(found.slope.value[0]))
    assert max(slopes) > 0.15
    diagnosis = bayesgeom.diagnose(network, model.task, n=64, probes=["calibration", "evidence_response"])
    assert diagnosis.answer is not None and not diagnosis.answer.explains
    assert {Verdict.TRANSPORTS, Verdict.IN_PART}.isdisjoint(diagnosis[EvidenceResponseReport].verdicts)
    assert "evidence" not in answer_details(diagnosis.answer)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mess3-small", "dice-transformer", "sticky-small", "change-point-transformer"])
def test_untrained_networks_of_shipped_shapes_transport_nothing(name: str) -> None:
    model = bayesgeom.as_model(name)
    for seed in range(3):
        found = evidence_response(model.untrained_copy(1_000 + seed), model.task, n=96)
        assert {Verdict.TRANSPORTS, Verdict.IN_PART}.isdisjoint(found.verdicts), (seed, found.verdicts)


def test_sequences_are_added_where_the_interval_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "FIRST_N", 16)
    monkeypatch.setattr(measurement, "MOST_N", 64)
    model = lively(SLOW_TASK)
    found = evidence_response(model, ages=[1, 8])
    assert set(found.n_by_age) <= {16, 32, 64} and found.n == max(found.n_by_age) == found.slope.n
    for at, n in enumerate(found.n_by_age):
        alone = evidence_response(model, ages=[1, 8], n=int(n))
        assert float(found.slope.value[at]) == pytest.approx(float(alone.slope.value[at]), rel=1e-3, abs=1e-6)
        assert float(found.cosine.ends[0][at]) == pytest.approx(float(alone.cosine.ends[0][at]), rel=1e-3, abs=1e-6)
        width = float(found.slope.ends[1][at] - found.slope.ends[0][at])
        assert n == 64 or width <= 0.2 or found.verdicts[at] == Verdict.NOT_IDENTIFIED
    decided = response_until_decided(model, SLOW_TASK, 8, seed=0)
    assert decided.ages == ("0", "8")
    assert decided.verdict_at(8) != Verdict.UNDECIDED or decided.n_by_age[1] == 64


def test_no_sequence_is_paired_with_itself() -> None:
    exact = np.eye(11)
    assert chance_level(exact, exact, seed=0) == 0


@pytest.mark.parametrize(
    ("interval", "level", "change", "cosine", "verdict"),
    [
        ((0.52, 0.9), 0.1, 0.2, 0.9, Verdict.TRANSPORTS),
        ((0.52, 0.9), 0.6, 0.2, 0.9, Verdict.UNDECIDED),
        ((0.52, 0.9), 0.1, 0.0029, 0.9, Verdict.NOT_IDENTIFIED),
        ((0.52, 0.9), 0.1, 0.2, 0.49, Verdict.NOT_AS_BAYES),
        ((1.7, 1.99), 0.1, 0.2, 0.9, Verdict.TRANSPORTS),
        ((1.7, 2.01), 0.1, 0.2, 0.9, Verdict.UNDECIDED),
        ((2.01, 2.2), 0.1, 0.2, 0.9, Verdict.NOT_AS_BAYES),
        ((0.11, 0.49), 0.1, 0.2, 0.9, Verdict.IN_PART),
        ((0.11, 0.51), 0.1, 0.2, 0.9, Verdict.UNDECIDED),
        ((0.11, 0.51), 0.1, 0.2, 0.3, Verdict.NOT_AS_BAYES),
        ((0.04, 0.2), 0.01, 0.2, 0.9, Verdict.NOT_SHOWN),
        ((0.09, 0.49), 0.1, 0.2, 0.9, Verdict.NOT_SHOWN),
        ((0.0, 0.0), 0.0, 0.2, np.nan, Verdict.NOT_SHOWN),
        ((np.nan, np.nan), 0.1, 0.2, 0.9, Verdict.UNDECIDED),
    ],
)
def test_verdicts(interval: tuple[float, float], level: float, change: float, cosine: float, verdict: Verdict) -> None:
    assert response_verdict(interval, level, change, cosine) == verdict
    no_better = response_verdict(interval, level, change, cosine, is_better=False)
    if verdict in (Verdict.TRANSPORTS, Verdict.IN_PART):
        assert no_better == Verdict.UNDECIDED
    else:
        assert no_better == verdict


def test_planted_predictors_have_their_known_slopes() -> None:
    found = {own.name: own for own in planted_responses()}
    assert all(own.passed for own in found.values())
    mixed, window = found[MIXED].report, found[WINDOW].report
    np.testing.assert_allclose(mixed.slope.value, 0.8)
    np.testing.assert_allclose(mixed.relative_slope.value, 1.0)
    assert window.slope.value[2] == 0 and window.slope.ends[0][2] == window.slope.ends[1][2] == 0
    assert found[MIXED].row() == (MIXED, "0.80", "0.80", "0.80", "1.00", "1.00", Verdict.TRANSPORTS)


def test_a_response_out_of_its_range_fails_the_selftest() -> None:
    wrong = next(planted_responses())
    assert wrong.passed and not replace(wrong, expected=((0.0, 0.5),) * 3).passed
    assert not replace(wrong, verdicts=(Verdict.NOT_SHOWN,)).passed


def test_the_report_is_that_of_a_loop_over_the_module() -> None:
    model = lively()
    found = evidence_response(model, ages=[2], n=23, seed=3)
    again = evidence_response(model, ages=[2], n=23, seed=3)
    assert found == again and found.ages == ("0", "2") and found.n == 23
    assert found.provenance["arguments"]["ages"] == [0, 2]
    other = evidence_response(model, ages=[2], n=23, seed=4)
    assert other.slope.value[1] != found.slope.value[1]


def test_the_last_scored_position_alone_is_scored() -> None:
    trials = SLOW_TASK.sample(7, seed=0)
    found = at_last(trials)
    assert found.n_scored == 1 and (found.scored_positions()[:, 0] == trials.scored_positions()[:, -1]).all()
    assert torch.equal(found.at_scored(found.predictive)[:, 0], trials.at_scored(trials.predictive)[:, -1])


def test_single_pieces_have_the_age_of_their_panel() -> None:
    found = evidence_response(lively(SLOW_TASK), ages=[1, 13], single=True, n=11)
    assert found.is_single and found.ages == ("0", "1", "13")
    labels = {line.label for line in found.headlines()}
    assert labels == {"slope, all evidence", "slope, evidence of age 1", "slope, evidence of age 13"}


@pytest.mark.parametrize(
    ("ages", "n", "message"),
    [([6], 11, r"ages must be between 1 and 5 for .*, got 6"), ([-1], 11, r"got -1"), ([2], 1, r"at least 2.*got 1")],
)
def test_impossible_arguments_are_refused(ages: Sequence[int], n: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        evidence_response(lively(), ages=ages, n=n)


@final
@dataclass(frozen=True, kw_only=True)
class Bare(WindTunnel):
    """A task of another package that cannot draw its evidence again."""

    name: ClassVar[str] = "bare"

    @property
    def d_vocab(self) -> int:
        return TASK.d_vocab

    @property
    def n_pos(self) -> int:
        return TASK.n_pos

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return TASK.draw(n, generator)

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        return TASK.draw_pair(n, generator)

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        return TASK.baseline_predictives(trials)

    def token_labels(self) -> Sequence[str]:
        return TASK.token_labels()


def test_a_task_without_replacement_gets_a_code() -> None:
    diagnosis = bayesgeom.diagnose(lively(), Bare(), n=16, n_untrained=0)
    assert "cannot be drawn again" in diagnosis.inapplicable["evidence_response"]
    with pytest.raises(TaskMismatch, match=r"replace_evidence"):
        evidence_response(lively(), Bare(), n=16)


def test_a_diagnosis_holds_the_response_and_reuses_its_pass() -> None:
    model = lively(SLOW_TASK)
    diagnosis = bayesgeom.diagnose(model, n=96, n_untrained=0)
    found = diagnosis[EvidenceResponseReport]
    assert found.n == EvidenceResponse().n and found.ages == ("0", "1", "2", "4", "8")
    alone = evidence_response(model, n=EvidenceResponse().n)
    np.testing.assert_allclose(found.slope.value, alone.slope.value, atol=1e-6)
    assert found.verdicts == alone.verdicts


def test_a_diagnosis_leaves_the_response_out_on_request() -> None:
    found = bayesgeom.diagnose(lively(), n=16, n_untrained=0, probes=["calibration"])
    assert "evidence_response" not in {*found, *found.skipped, *found.inapplicable}
    some = bayesgeom.diagnose(lively(), n=16, n_untrained=0, probes=["calibration", "evidence_response"])
    assert set(some) == {"calibration", "evidence_response"} and some["evidence_response"].n == 16
    assert set(bayesgeom.diagnose(lively(), n=16, n_untrained=1, probes="relabeling")) == {"relabeling"}
    with pytest.raises(TaskMismatch, match=r"replace_evidence"):
        bayesgeom.diagnose(lively(), Bare(), n=16, probes="evidence_response")


def test_a_capture_cannot_be_run_again(tmp_path: Path) -> None:
    model = lively()
    folder = bayesgeom.capture(model, out=tmp_path / "capture", n=16, sites=["resid_pre"])
    assert "holds its own sequences only" in bayesgeom.diagnose(folder, n_untrained=0).skipped["evidence_response"]
    with pytest.raises(InvalidArgument, match=r"evidence_response requires predictions on further.* is a capture"):
        evidence_response(folder)


INDEPENDENT = {  # another implementation, n = 240: interval of the slope on evidence older than 10, 16 and 20 symbols
    "slow-hmm-transformer": ((0.83, 0.94), (0.69, 0.92), (0.50, 0.81)),
    "slow-hmm-mamba": ((0.40, 0.58), None, (0.04, 0.26)),
    "slow-hmm-lstm": ((0.05, 0.19), (0.02, 0.16), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INDEPENDENT)
def test_slow_chains_agree_with_another_implementation(name: str) -> None:
    found = evidence_response(name, ages=[10, 16, 20], n=240)
    for index, theirs in enumerate(INDEPENDENT[name], start=1):
        if theirs is not None:
            low, high = found.slope.ends[0][index], found.slope.ends[1][index]
            assert low < theirs[1] and theirs[0] < high, (name, found.ages[index], low, high)
    levels = found.slope.baseline(LEVEL_NAME).value[1:]
    assert (levels > 0.02).all() and (levels < 0.15).all()
    assert (found.exact_change > 0.02).all()


def test_every_different_sequence_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = lively(SLOW_TASK), list[torch.Tensor]()
    logits = type(model).logits

    def counted(self: HookedModel, trials: Trials) -> torch.Tensor:
        seen.append(trials.tokens)
        return logits(self, trials)

    whole = evidence_response(model, n=23, ages=[1, 2, 8])
    monkeypatch.setattr(type(model), "logits", counted)
    again = evidence_response(model, n=23, ages=[1, 2, 8])
    rows = torch.cat(seen)
    assert again == whole and len(rows) == len(rows.unique(dim=0)) < 23 * 5
