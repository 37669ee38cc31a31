"""Attention entropy and consistency against loops over rows, their bounds, and when they say nothing."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom.core import run as s
from bayesgeom.core.run import Run
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.measurements.attention_entropy import (
    OTHER,
    UNIFORM,
    AttentionEntropy,
    AttentionEntropyReport,
    _is_uniform,
)
from bayesgeom.measurements.base import planted_masks, planted_run, planted_trials
from bayesgeom.report.storage import parts_of
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.tasks.bijection import Bijection

LAYERS, N, POSITIONS, HEADS, HYPOTHESES = 3, 11, 7, 2, 5
IDS = (6, 1, 3, 0, 4)  # token of each hypothesis; ids 2 and 5 stand for none


def run_of(rng: np.random.Generator, *, n_queries: int = POSITIONS, ids: tuple[int, ...] | None = IDS) -> Run:
    """Random attention; with all positions scored, the first row sees one position only."""
    tokens = rng.integers(7, size=(N, POSITIONS))
    exact = rng.dirichlet(np.ones(HYPOTHESES), size=(N, n_queries))
    trials = planted_trials(exact, tokens, token_sets={} if ids is None else {"hypotheses": ids})
    scores = torch.from_numpy(2 * rng.normal(size=(LAYERS, N, HEADS, n_queries, POSITIONS)))
    visible = torch.arange(POSITIONS) <= trials.scored_positions()[..., None]
    pattern = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1).float()
    return planted_run(trials, {s.PATTERN: pattern}, seed=3)


def slow_entropy(p: list[float]) -> float:
    return -sum(x * math.log2(x) for x in p if x > 0)


def slow_consistency(row: list[float], tokens: list[int], belief: list[float]) -> float:
    """1 − total variation, with what is on no hypothesis as one more outcome that has no belief."""
    mass = [sum(a for a, token in zip(row, tokens, strict=True) if token == i) for i in IDS]
    rest = 1 - sum(mass)
    return 1 - (sum(abs(m - b) for m, b in zip(mass, belief, strict=True)) + rest) / 2


def consistencies(run: Run, layer: int, head: int) -> np.ndarray:
    """Sequence by query position."""
    pattern, belief = run.recorded[s.PATTERN][layer, :, head], run.trials.at_scored(run.trials.belief)
    return np.array(
        [
            [
                slow_consistency(pattern[b, q].tolist(), run.trials.tokens[b].tolist(), belief[b, q].tolist())
                for q in range(pattern.shape[1])
            ]
            for b in range(N)
        ]
    )


def test_entropy_equals_a_loop(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = AttentionEntropy().measure(run)
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        pattern = run.recorded[s.PATTERN][layer, :, head].double()
        bits = [[slow_entropy(pattern[b, q].tolist()) for q in range(POSITIONS)] for b in range(N)]
        own = report.entropy_bits[layer, head]
        assert float(own) == pytest.approx(np.mean(bits), abs=1e-5)
        shares = [[bits[b][q] / math.log2(q + 1) for q in range(1, POSITIONS)] for b in range(N)]
        assert float(report.entropy_share[layer, head]) == pytest.approx(np.mean(shares), abs=1e-5)
        low, high = mean_interval(np.mean(bits, axis=1), seed=3)
        assert own.ends == pytest.approx((float(low), float(high)), abs=1e-5)
    widest = report.entropy_bits.baseline(UNIFORM).value
    np.testing.assert_allclose(widest, np.mean(np.log2(np.arange(1, POSITIONS + 1))))
    np.testing.assert_array_equal(report.entropy_share.baseline(UNIFORM).value, 1)


def test_reduction_is_of_the_head_means(rng: np.random.Generator) -> None:
    report = AttentionEntropy().measure(run_of(rng))
    bits = report.entropy_bits.value
    assert float(report.reduction) == pytest.approx(1 - bits[-1].mean() / bits[0].mean())
    np.testing.assert_allclose(report.entropy_bits_by_layer.value, bits.mean(axis=1))
    low, high = report.reduction.ends
    assert low < float(report.reduction) < high
    assert [(own.name, float(own.value)) for own in report.reduction.baselines] == [("uniform in every layer", 0)]


@pytest.mark.parametrize("n_queries", [POSITIONS, 3])
def test_consistency_equals_a_loop(rng: np.random.Generator, n_queries: int) -> None:
    run = run_of(rng, n_queries=n_queries)
    report = AttentionEntropy().measure(run)
    assert report.note == "" and report.n == N
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        rows = consistencies(run, layer, head)
        own = report.consistency[layer, head]
        assert float(own) == pytest.approx(rows.mean(), abs=1e-5)
        expected = np.quantile(rows, [0.05, 0.25, 0.5, 0.75, 0.95])
        np.testing.assert_allclose(report.consistency_quantiles[:, layer, head], expected, atol=1e-5)
        low, high = mean_interval(rows.mean(axis=1), seed=3)
        assert own.ends == pytest.approx((float(low), float(high)), abs=1e-5)
    assert float(report.consistency_last_layer) == pytest.approx(report.consistency.value[-1].mean())
    greatest = next(line for line in report.headlines() if line.metric == "consistency")
    assert greatest.value == report.consistency.value.max() and "most consistent head" in greatest.label
    assert math.isnan(greatest.low) and greatest.reason == Reason.MANY


def test_uniform_attention_and_the_most_possible_equal_a_loop(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = AttentionEntropy().measure(run)
    belief, uniform, reachable = run.trials.at_scored(run.trials.belief), [], []
    for b, q in itertools.product(range(N), range(POSITIONS)):
        tokens, posterior = run.trials.tokens[b].tolist(), belief[b, q].tolist()
        row = [1 / (q + 1)] * (q + 1) + [0.0] * (POSITIONS - q - 1)
        uniform.append(slow_consistency(row, tokens, posterior))
        reachable.append(sum(p for i, p in zip(IDS, posterior, strict=True) if i in tokens[: q + 1]))
    for own in (report.consistency, report.consistency_last_layer):
        np.testing.assert_allclose(own.baseline(UNIFORM).value, np.mean(uniform), atol=1e-6)
    assert report.most_possible_consistency == pytest.approx(np.mean(reachable), abs=1e-6)
    assert (report.consistency.value <= report.most_possible_consistency + 1e-6).all()


def test_shuffled_attention_keeps_what_position_decides_alone(rng: np.random.Generator) -> None:
    n, queries = 200, 2
    tokens = np.concatenate([np.argsort(rng.random((n, 5)), axis=1), np.full((n, queries), 6)], axis=1)
    exact = rng.dirichlet(np.ones(5), size=(n, queries))
    trials = planted_trials(exact, tokens, token_sets={"hypotheses": range(5)})
    own = np.zeros((n, queries, 7))
    np.put_along_axis(own, np.repeat(tokens[:, None, :5].argsort(axis=2), queries, axis=1), exact, axis=2)
    fixed = np.broadcast_to(own[:1], own.shape)
    pattern = torch.from_numpy(np.stack([own, fixed])[:, :, None].astype(np.float32))
    report = AttentionEntropy().measure(planted_run(trials, {s.PATTERN: pattern}))
    other = report.consistency.baseline(OTHER)
    assert report.consistency.value[0, 0] == pytest.approx(1, abs=1e-5) and other.kind == "permutation"
    pairs = [(i, j) for i in range(n) for j in range(n)]
    expected = np.mean(
        [np.minimum(exact[i, q], exact[j, q][np.argsort(rng.random(5))]).sum() for i, j in pairs[::41] for q in (0, 1)]
    )
    assert other.value[0, 0] == pytest.approx(expected, abs=0.04)
    assert other.value[1, 0] == pytest.approx(report.consistency.value[1, 0], abs=1e-5)


def test_in_the_bijection_without_repeats_consistency_cannot_be_other_than_zero(rng: np.random.Generator) -> None:
    task = Bijection(n_values=7, n_pairs=5)
    trials = task.sample(13, seed=1)
    scores = torch.from_numpy(rng.normal(size=(2, 13, 3, 5, 9)))
    hidden = torch.arange(9) > trials.scored_positions()[..., None]
    pattern = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1).float()
    report = AttentionEntropy().measure(planted_run(trials, {s.PATTERN: pattern}))
    assert report.most_possible_consistency == 0 and not report.consistency.value.any()
    line = report.headlines()[1]
    assert math.isnan(line.value) and report.note == line.verdict == Verdict.UNDEFINED
    assert math.isnan(float(report.consistency_over_other_last_layer))


def test_with_repeats_the_stored_value_can_be_attended_to() -> None:
    trials = Bijection(n_values=3, n_pairs=11, repeats=True).sample(17, seed=2)
    stored = trials.relations["stored_value"].float()
    itself = torch.nn.functional.one_hot(trials.scored_positions(), trials.tokens.shape[1]).float()
    row = torch.where(stored.any(-1, keepdim=True), stored / stored.sum(-1, keepdim=True).clamp_min(1), itself)
    pattern = torch.stack([itself, row])[:, :, None]
    report = AttentionEntropy().measure(planted_run(trials, {s.PATTERN: pattern}))
    assert 0.3 < report.most_possible_consistency <= 1 and report.note == ""
    returned = float(stored.any(-1).double().mean())
    assert report.consistency.value[:, 0].tolist() == pytest.approx([0, returned], abs=1e-6)


@pytest.mark.parametrize("ids", [None, (6, 1, 3)])
def test_without_tokens_for_every_hypothesis_consistency_is_nan(
    rng: np.random.Generator, ids: tuple[int, ...] | None, tmp_path: Path
) -> None:
    report = AttentionEntropy().measure(run_of(rng, ids=ids))
    assert report.note == Verdict.NOT_MEASURED
    own = report.consistency
    for values in (own.value, *own.ends, own.baseline(OTHER).value, report.consistency_quantiles):
        assert np.isnan(values).all()
    assert math.isfinite(float(report.reduction))
    metrics = ["reduction", "consistency_over_other_last_layer", "entropy_bits_by_layer", "entropy_share"]
    assert [line.metric for line in report.headlines()] == metrics
    assert math.isnan(report.headlines()[1].value) and report.headlines()[1].verdict == Verdict.NOT_MEASURED
    assert isinstance(report.plot(), go.Figure)
    report.save(tmp_path / "r")
    restored = AttentionEntropyReport.load(tmp_path / "r")
    np.testing.assert_equal(parts_of(restored)[1], parts_of(report)[1])
    np.testing.assert_equal(parts_of(restored)[0], parts_of(report)[0])


def test_a_single_layer_reduces_nothing(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = AttentionEntropy().measure(planted_run(run.trials, {s.PATTERN: run.recorded[s.PATTERN][:1]}))
    assert math.isnan(float(report.reduction))


def test_consistency_over_another_sequence_equals_a_loop(rng: np.random.Generator) -> None:
    run = run_of(rng, n_queries=3)
    report = AttentionEntropy().measure(run)
    pattern, belief = run.recorded[s.PATTERN], run.trials.at_scored(run.trials.belief)
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        own = consistencies(run, layer, head).mean(axis=1)
        other = [
            np.mean(
                [
                    slow_consistency(
                        pattern[layer, b, head, q].tolist(),
                        run.trials.tokens[(b + 1) % N].tolist(),
                        belief[(b + 1) % N, q].tolist(),
                    )
                    for q in range(3)
                ]
            )
            for b in range(N)
        ]
        over = report.consistency_over_other[layer, head]
        assert report.consistency.baseline(OTHER).value[layer, head] == pytest.approx(np.mean(other), abs=1e-5)
        assert float(over) == pytest.approx(np.mean(own - other), abs=1e-5)
        low, high = mean_interval(own - np.array(other), seed=3)
        assert over.ends == pytest.approx((float(low), float(high)), abs=1e-5)
    assert report.identified


def test_a_posterior_that_only_position_decides_is_not_identified(rng: np.random.Generator) -> None:
    exact = np.tile(rng.dirichlet(np.ones(HYPOTHESES), size=(1, 3)), (N, 1, 1))
    tokens = np.tile(rng.integers(7, size=POSITIONS), (N, 1))
    tokens[0, -1] = 5 - 3 * (tokens[0, -1] == 5)  # a token that stands for no hypothesis, in one sequence: no matter
    tokens[:, -1] = np.where(np.isin(tokens[:, -1], IDS), 5, tokens[:, -1])
    trials = planted_trials(exact, tokens, token_sets={"hypotheses": IDS})
    report = AttentionEntropy().measure(planted_run(trials, {s.PATTERN: run_of(rng, n_queries=3).recorded[s.PATTERN]}))
    assert not report.identified and report.note == Verdict.NOT_IDENTIFIED
    assert math.isnan(report.headlines()[1].value) and report.headlines()[1].verdict == Verdict.NOT_IDENTIFIED


def test_masks_and_sums_decide_on_uniform_attention() -> None:
    """The planted masks hold with their masks and rows, and not with a causal mask, or with a sink in the row."""
    planted = {own.label.partition(",")[0]: own for own in planted_masks()}
    for own in planted.values():
        assert _is_uniform(own, AttentionEntropy().measure(own.run)), own.label
    window = planted["window of 4"]
    naive = AttentionEntropy().measure(replace(window.run, masks=()))
    assert naive.entropy_share.value.item() == pytest.approx(0.563, abs=5e-4) and not _is_uniform(window, naive)
    assert naive.entropy_bits.baseline(UNIFORM).value.item() == pytest.approx(3.677, abs=5e-4)
    sink = planted["sink of score 0"]
    row = sink.run.at(s.PATTERN)[0, 0, 0].double()
    bits = [slow_entropy(own.tolist()) for own in row]
    assert np.mean(bits) == pytest.approx(2.658, abs=5e-4)
    assert AttentionEntropy().measure(sink.run).entropy_bits.value.item() == pytest.approx(2.766, abs=5e-4)
    half = planted["bfloat16"]
    bits = [slow_entropy(own.tolist()) for own in half.run.at(s.PATTERN)[0, 0, 0].double()]
    most = np.mean(np.log2(range(1, 33)))
    assert np.mean(bits) > most + 1e-3
    assert AttentionEntropy().measure(half.run).entropy_bits.value.item() <= most


def test_consistency_is_of_what_a_layer_sees() -> None:
    """Two layers with the same pattern; the second one sees the last two positions only, where there is one token."""
    rng = np.random.default_rng(0)
    tokens = np.tile(np.array([0, 1, 2, 0]), (9, 1))
    exact = rng.dirichlet(np.ones(3), size=(9, 1))
    trials = planted_trials(exact, tokens, token_sets={"hypotheses": range(3)})
    row = torch.tensor([0.0, 0.0, 0.5, 0.5]).expand(2, 9, 1, 1, -1)
    causal, narrow = torch.ones(4, 4, dtype=torch.bool).tril(), torch.zeros(4, 4, dtype=torch.bool)
    narrow[3, 2:] = True
    report = AttentionEntropy().measure(planted_run(trials, {s.PATTERN: row}, masks=[causal, narrow]))
    p = exact[:, 0]
    uniform = [np.minimum([0.5, 0.25, 0.25], p).sum(axis=1).mean(), np.minimum([0.5, 0, 0.5], p).sum(axis=1).mean()]
    assert report.consistency.baseline(UNIFORM).value[:, 0] == pytest.approx(uniform)
    assert report.most_possible_consistency == pytest.approx(p[:, [0, 2]].sum(axis=1).mean())
    assert report.entropy_share.value[:, 0] == pytest.approx([0.5, 1.0])
    assert float(report.reduction) == pytest.approx(-1.0), "of the shares"
