"""Query–key alignment against loops over rows and positions, and what uniform attention must give."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom.core import run as s
from bayesgeom.core.run import Run, Trials
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.measurements.base import planted_run, planted_trials
from bayesgeom.measurements.qk_alignment import (
    SHIFTS,
    QKAlignment,
    QKAlignmentReport,
    _farthest,
    _planted_run,
    _planted_trials,
    _preference,
)
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.storage import parts_of, quantities_of
from bayesgeom.stats.bootstrap import jackknife_weights, statistic_interval
from bayesgeom.stats.bounds import within_bounds
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM

LAYERS, N, POSITIONS, QUERIES, HEADS, KV_HEADS, WIDTH = 3, 11, 7, 5, 4, 2, 13
METRICS = ("mass_excess", "contrast", "auc")


def estimates(report: QKAlignmentReport) -> dict[str, Estimate]:
    """The metrics by the names that the slow twins use."""
    return dict(zip(METRICS, (report.mass_excess, report.contrast, report.auc), strict=True))


def over_other(report: QKAlignmentReport) -> tuple[Estimate, ...]:
    return report.mass_over_other, report.contrast_over_other, report.auc_over_other


def trials_of(rng: np.random.Generator, n: int = N) -> Trials:
    """Relations that hold at random, everywhere, nowhere, and in a single sequence."""
    random = rng.random((n, QUERIES, POSITIONS)) < 0.4
    once = random & (np.arange(n) == 3)[:, None, None]
    relations = {"random": random, "all": np.ones_like(random), "none": np.zeros_like(random), "once": once}
    tokens = rng.integers(5, size=(n, POSITIONS))
    return planted_trials(np.full((n, QUERIES, 2), 0.5), tokens, relations=relations)


def softmaxed(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)


def run_of(rng: np.random.Generator, *, n: int = N, has_ties: bool = False, seed: int = 3) -> Run:
    """Random queries and keys, whole numbers where ties are wanted; keys are shared by two heads each."""
    trials = trials_of(rng, n)
    shapes = ((LAYERS, n, QUERIES, HEADS, WIDTH), (LAYERS, n, POSITIONS, KV_HEADS, WIDTH))
    q, k = (torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes)
    if has_ties:
        q, k = q.sign(), k.sign()
    visible = torch.arange(POSITIONS) <= trials.scored_positions()[..., None]
    scores = torch.einsum("lbqhd,lbkhd->lbhqk", q, k.repeat_interleave(2, dim=3))
    pattern = torch.stack([softmaxed(layer, visible) for layer in scores])
    return planted_run(trials, {s.Q_ROT: q, s.K_ROT: k, s.PATTERN: pattern}, seed=seed)


def slow_row(pattern: list[float], q: np.ndarray, keys: np.ndarray, related: list[bool]) -> dict[str, float] | None:
    """The three metrics of one attention row; None where it sees only one kind of position."""
    n = len(related)
    if len(set(related)) < 2:
        return None
    scores = [float(q @ k) for k in keys]
    cosines = [score / math.sqrt(float(q @ q) * float(k @ k)) for score, k in zip(scores, keys, strict=True)]
    there, elsewhere = [i for i in range(n) if related[i]], [i for i in range(n) if not related[i]]
    wins = [(scores[i] > scores[j]) + (scores[i] == scores[j]) / 2 for i in there for j in elsewhere]
    return {
        "mass_excess": sum(pattern[i] for i in there) - len(there) / n,
        "contrast": sum(cosines[i] for i in there) / len(there) - sum(cosines[i] for i in elsewhere) / len(elsewhere),
        "auc": sum(wins) / len(wins),
    }


def slow_rows(run: Run, relation: str, layer: int, head: int) -> list[list[dict[str, float]]]:
    """Per sequence, the rows that say something."""
    q, k, pattern = (run.recorded[site][layer].double().numpy() for site in (s.Q_ROT, s.K_ROT, s.PATTERN))
    found: list[list[dict[str, float]]] = []
    for b in range(len(run.trials)):
        rows = []
        for i in range(QUERIES):
            seen = POSITIONS - QUERIES + i + 1
            related = run.trials.relations[relation][b, i, :seen].tolist()
            rows.append(slow_row(pattern[b, head, i, :seen].tolist(), q[b, i, head], k[b, :seen, head // 2], related))
        found.append([row for row in rows if row is not None])
    return found


@pytest.mark.parametrize("has_ties", [False, True])
def test_metrics_equal_a_loop(rng: np.random.Generator, has_ties: bool) -> None:
    run = run_of(rng, has_ties=has_ties)
    report = QKAlignment().measure(run)
    assert report.relations == ("random", "all", "none", "once") and report.n == N
    for at, relation in ((0, "random"), (3, "once")):
        for layer, head in itertools.product(range(LAYERS), range(HEADS)):
            rows = [row for of_sequence in slow_rows(run, relation, layer, head) for row in of_sequence]
            assert report.rows[at] == len(rows) > 0
            for metric in METRICS:
                expected = sum(row[metric] for row in rows) / len(rows)
                assert estimates(report)[metric].value[at, layer, head] == pytest.approx(expected, abs=2e-5), metric


def test_rows_of_one_kind_say_nothing(rng: np.random.Generator) -> None:
    report = QKAlignment().measure(run_of(rng))
    assert report.rows[1] == report.rows[2] == 0
    for own in estimates(report).values():
        assert np.isnan(own.value[1:3]).all() and np.isnan(own.ends[0][1:3]).all()
    assert np.isnan(report.layer_trend.value[1:3]).all() and np.isnan(report.uniform_mass[1:3]).all()


def test_intervals_equal_a_loop_over_resamples(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = QKAlignment().measure(run)
    per_sequence = slow_rows(run, "random", 1, 2)
    for metric in METRICS:
        top = np.array([sum(row[metric] for row in rows) for rows in per_sequence], dtype=float)
        sizes = np.array([len(rows) for rows in per_sequence], dtype=float)
        left_out = np.array([(row @ top) / (row @ sizes) for row in jackknife_weights(N)])
        lo, hi = statistic_interval(left_out, seed=3)
        own = estimates(report)[metric][0, 1, 2]
        *ends, _ = within_bounds(own.value, np.asarray(lo), np.asarray(hi), quantities_of(type(report))[metric].range)
        np.testing.assert_allclose(own.ends, ends, atol=2e-4)


def uniform_run(rng: np.random.Generator) -> Run:
    run = run_of(rng)
    visible = (torch.arange(POSITIONS) <= run.trials.scored_positions()[..., None]).float()
    pattern = (visible / visible.sum(-1, keepdim=True))[None, :, None].expand(LAYERS, -1, HEADS, -1, -1)
    k = run.recorded[s.K_ROT][:, :, :1].expand(-1, -1, POSITIONS, -1, -1)  # one key everywhere
    return planted_run(run.trials, run.recorded | {s.PATTERN: pattern, s.K_ROT: k})


def test_uniform_attention_is_at_its_level(rng: np.random.Generator) -> None:
    report = QKAlignment().measure(uniform_run(rng))
    for own, level in zip(estimates(report).values(), (0, 0, 0.5), strict=True):
        np.testing.assert_allclose(own.value[0], level, atol=1e-6)
        np.testing.assert_array_equal(own.baselines[0].value, level)
    assert np.isnan(report.layer_trend.value[0]), "rounding has no trend"


def test_rounding_among_equal_scores_is_no_evidence(rng: np.random.Generator) -> None:
    """Keys that differ in their last bit, and in favor of the related positions: the AUC would be 1."""
    run = uniform_run(rng)
    q, k = torch.ones_like(run.recorded[s.Q_ROT]), torch.ones_like(run.recorded[s.K_ROT])
    related = run.trials.relations["random"][:, -1]  # as the last query has it
    k = k * (1 + 2.0**-23 * related.float())[None, :, :, None, None]
    assert bool(((q[0, 0, 0, 0] * k[0, 0, :, 0]).sum(-1) > q.shape[-1]).any()), "the scores do differ"
    near = planted_run(run.trials, run.recorded | {s.Q_ROT: q, s.K_ROT: k})
    np.testing.assert_allclose(QKAlignment().measure(near).auc.value[0], 0.5, atol=1e-6)
    real = k * (1 + 1e-3 * related.float())[None, :, :, None, None]
    apart = planted_run(run.trials, run.recorded | {s.Q_ROT: q, s.K_ROT: real})
    assert QKAlignment().measure(apart).auc.value[0].min() > 0.6


def test_uniform_mass_is_the_mean_share_of_related_positions(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = QKAlignment().measure(run)
    rows = []
    for b, i in itertools.product(range(N), range(QUERIES)):
        related = run.trials.relations["random"][b, i, : POSITIONS - QUERIES + i + 1]
        if bool(related.any()) and not bool(related.all()):
            rows.append(float(related.double().mean()))
    assert report.uniform_mass[0] == pytest.approx(sum(rows) / len(rows))


def test_layer_trend_is_the_order_of_the_head_means(rng: np.random.Generator) -> None:
    run = run_of(rng, n=31)
    report = QKAlignment().measure(run)
    np.testing.assert_allclose(report.mass_excess_by_layer.value, report.mass_excess.value.mean(axis=2))
    by_layer = report.mass_over_other_by_layer.value
    np.testing.assert_allclose(by_layer, report.mass_over_other.value.mean(axis=2))
    order = by_layer[0].argsort().argsort() + 1
    expected = 1 - 6 * sum((layer + 1 - rank) ** 2 for layer, rank in enumerate(order)) / (LAYERS * (LAYERS**2 - 1))
    trend = report.layer_trend[0]
    assert float(trend) == pytest.approx(expected)
    assert trend.reason_at() in (Reason.FEW, Reason.CONSERVATIVE)
    assert (trend.baselines[0].low, trend.baselines[0].high) == (-1, 1), "1.96 / √2 is beyond the range"


def test_without_relations_there_is_no_number(rng: np.random.Generator, tmp_path: Path) -> None:
    run = run_of(rng)
    trials = planted_trials(np.full((N, QUERIES, 2), 0.5), run.trials.tokens.numpy())
    report = QKAlignment().measure(planted_run(trials, run.recorded))
    assert report.mass_excess.value.shape == (0, LAYERS, HEADS) and math.isnan(report.headlines()[0].value)
    assert isinstance(report.plot(), go.Figure)
    report.save(tmp_path / "r")
    np.testing.assert_equal(parts_of(QKAlignmentReport.load(tmp_path / "r"))[1], parts_of(report)[1])


def other_row(run: Run, relation: str, layer: int, head: int, shift: int) -> list[tuple[float, ...]]:
    """Per row, the metrics minus those with the relation of another sequence, where both are known."""
    q, k, pattern = (run.recorded[site][layer].double().numpy() for site in (s.Q_ROT, s.K_ROT, s.PATTERN))
    found = []
    for b, i in itertools.product(range(N), range(QUERIES)):
        seen = POSITIONS - QUERIES + i + 1
        rows = [
            slow_row(
                pattern[b, head, i, :seen].tolist(),
                q[b, i, head],
                k[b, :seen, head // 2],
                run.trials.relations[relation][of, i, :seen].tolist(),
            )
            for of in (b, (b - shift) % N)
        ]
        if rows[0] is not None and rows[1] is not None:
            found.append(tuple(rows[0][metric] - rows[1][metric] for metric in METRICS))
    return found


def test_the_baseline_equals_a_loop_over_other_sequences(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = QKAlignment().measure(run)
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        rows = [row for shift in SHIFTS for row in other_row(run, "random", layer, head, shift)]
        found = [own.value[0, layer, head] for own in over_other(report)]
        np.testing.assert_allclose(found, np.mean(rows, axis=0), atol=3e-5)
        assert report.rows_over_other[0] == len(rows) // len(SHIFTS) < report.rows[0]
    of_rows = f"({report.rows_over_other[0]} of {report.rows[0]} rows)"
    assert any(line.label.endswith(of_rows) for line in report.headlines()), "they are the rows of the level"
    differs = (run.trials.relations["random"] != run.trials.relations["random"].roll(1, 0)).double()
    visible = torch.arange(POSITIONS) <= run.trials.scored_positions()[..., None]
    assert report.mask_difference[0] == pytest.approx(float(differs[visible].mean()), abs=1e-6)
    low, high = report.mass_over_other[0].ends
    assert (low < report.mass_over_other.value[0]).all() and (report.mass_over_other.value[0] < high).all()


def bijection_run(weights: Callable[[torch.Tensor, Trials], torch.Tensor], *, repeats: bool) -> Run:
    """One layer and head with these attention weights on sequences of a bijection; q and k are one and the same."""
    trials = Bijection(n_values=7, n_pairs=11 if repeats else 5, repeats=repeats).sample(61, seed=1)
    n_pos = trials.tokens.shape[1]
    itself = torch.nn.functional.one_hot(trials.scored_positions(), n_pos).float()
    visible = torch.arange(n_pos) <= trials.scored_positions()[..., None]
    scores = weights(itself, trials)
    pattern = (20 * scores).masked_fill(~visible, -torch.inf).softmax(-1)[None, :, None]
    k = torch.eye(n_pos)[None, None, :, None].expand(1, 61, -1, -1, -1)
    return planted_run(trials, {s.Q_ROT: scores[None, :, :, None] + 1e-3, s.K_ROT: k, s.PATTERN: pattern})


@pytest.mark.parametrize("repeats", [False, True])
def test_used_values_are_not_identified_and_attention_to_itself_scores_nothing(repeats: bool) -> None:
    """Against uniform attention such a head avoids used values by far; which positions they hold is always the same."""
    report = QKAlignment().measure(bijection_run(lambda itself, _: itself, repeats=repeats))
    at = report.relations.index("used_value")
    assert report.mass_excess.value[at, 0, 0] < -0.35
    assert report.identified[at] == 0 and report.mask_difference[at] == 0
    assert all(own.value[at, 0, 0] == 0 for own in over_other(report))
    assert np.isnan(report.layer_trend.value[at])
    text = [line for line in report.headlines() if line.label.startswith("used value")]
    assert len(text) == 1 and math.isnan(text[0].value)
    assert text[0].verdict == report.verdict(at) == Verdict.NOT_IDENTIFIED
    if repeats:
        stored = report.relations.index("stored_value")
        assert report.identified[stored] == 1 and abs(report.mass_over_other.value[stored, 0, 0]) < 0.01
        assert report.verdict(stored) == Verdict.AT_BASELINE


def test_a_head_that_follows_the_evidence_is_above_its_baseline() -> None:
    run = bijection_run(lambda _, trials: trials.relations["stored_value"].float(), repeats=True)
    report = QKAlignment().measure(run)
    at = report.relations.index("stored_value")
    assert report.verdict(at) == Verdict.ABOVE and report.mass_over_other.ends[0][at, 0, 0] > 0.4
    assert report.auc_over_other.value[at, 0, 0] > 0.3 and report.contrast_over_other.value[at, 0, 0] > 0.2
    assert report.headlines()[0].label.startswith("stored value: attention above baseline, layer 0")


def test_an_effect_in_one_direction_is_no_evidence_for_the_other() -> None:
    """The layer farthest from 0 is positive and uncertain; another layer is surely negative."""
    own = Estimate.of([0.30, -0.28, 0.0], ([-0.2, -0.29, -0.01], [0.8, -0.27, 0.01]), n=64)
    layer, chosen = _farthest(own)
    assert layer == 0 and chosen.ends[0] < -0.2 and chosen.ends[1] == 0.8
    mirrored = Estimate.of(-own.value, (-own.ends[1], -own.ends[0]), n=64)
    layer, below = _farthest(mirrored)
    assert layer == 0 and (below.ends[0], below.ends[1]) == (-chosen.ends[1], -chosen.ends[0])


def test_a_layer_without_an_interval_is_undecided_and_one_exactly_at_the_baseline_is_not() -> None:
    """Six sequences: too few for an interval; attention that is uniform differs from the baseline in none of them."""
    task = Bijection(n_values=7, n_pairs=5, repeats=True)
    trials = task.sample(6, seed=0)
    relation = next(name for name in trials.relations if trials.relations[name].any())
    related = trials.relations[relation].double()
    n, n_scored, n_pos = related.shape
    visible = torch.arange(n_pos) <= trials.scored_positions()[..., None]
    text = []
    for scores in (5 * related, torch.zeros_like(related)):
        pattern = softmaxed(scores[:, None], visible)[None]
        flat = torch.ones(1, n, n_scored, 1, 2)
        keys = torch.ones(1, n, n_pos, 1, 2)
        report = QKAlignment().measure(planted_run(trials, {s.Q_ROT: flat, s.K_ROT: keys, s.PATTERN: pattern}))
        text.append(report.verdict(report.relations.index(relation)))
    assert text == [Verdict.UNDECIDED, Verdict.AT_BASELINE]


def test_header_rows_and_the_current_symbol_are_not_identified() -> None:
    trials = HMM(n_states=2, n_symbols=3, length=5).sample(13, seed=0)
    n_pos = trials.tokens.shape[1]
    q = torch.zeros(1, 13, 5, 1, 2) + 1.0
    k = torch.ones(1, 13, n_pos, 1, 2)
    pattern = torch.full((1, 13, 1, 5, n_pos), 1 / n_pos)
    report = QKAlignment().measure(planted_run(trials, {s.Q_ROT: q, s.K_ROT: k, s.PATTERN: pattern}))
    found = dict(zip(report.relations, report.identified.tolist(), strict=True))
    assert found == {"emission_of_symbol": 1, "transition_entries": 0, "current_symbol": 0, "earlier_symbol": 0}


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [([], "above"), ([0.001], "undecided"), ([0.001, 0.002, 0.003], "above"), ([0.0, 0.3, 0.6], "at baseline")],
)
def test_the_spread_of_untrained_networks_decides(levels: list[float], verdict: str, rng: np.random.Generator) -> None:
    trials = _planted_trials(n=61)
    run = _planted_run(trials, _preference(trials)[None])
    report = QKAlignment().measure(run)
    copies = [
        replace(
            report, mass_over_other_by_layer=report.mass_over_other_by_layer.mapped(lambda own, by=by: own * 0 + by)
        )
        for by in levels
    ]
    found = QKAlignment().measure(run, copies)
    assert 0.3 < float(found.mass_over_other_by_layer.value[0, 0]) < 0.9 and found.verdict(0) == verdict
