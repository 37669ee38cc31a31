"""Query–key alignment against loops over rows and positions, and what uniform attention must give."""

import itertools
import math
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom import sites as s
from bayesgeom.activations import Run
from bayesgeom.probes.base import planted_run, planted_trials
from bayesgeom.probes.qk_alignment import QKAlignment, QKAlignmentReport
from bayesgeom.statistics import jackknife_weights, statistic_interval
from bayesgeom.trials import Trials

LAYERS, N, POSITIONS, QUERIES, HEADS, KV_HEADS, WIDTH = 3, 11, 7, 5, 4, 2, 13
METRICS = ("mass_excess", "contrast", "auc")


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
                assert vars(report)[metric][at, layer, head] == pytest.approx(expected, abs=2e-5), metric


def test_rows_of_one_kind_say_nothing(rng: np.random.Generator) -> None:
    report = QKAlignment().measure(run_of(rng))
    assert report.rows[1] == report.rows[2] == 0
    for metric in METRICS:
        assert np.isnan(vars(report)[metric][1:3]).all() and np.isnan(vars(report)[f"{metric}_lo"][1:3]).all()
    assert np.isnan(report.layer_trend[1:3]).all() and np.isnan(report.uniform_mass[1:3]).all()


def test_intervals_equal_a_loop_over_resamples(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = QKAlignment().measure(run)
    per_sequence = slow_rows(run, "random", 1, 2)
    for metric in METRICS:
        top = np.array([sum(row[metric] for row in rows) for rows in per_sequence], dtype=float)
        sizes = np.array([len(rows) for rows in per_sequence], dtype=float)
        left_out = np.array([(row @ top) / (row @ sizes) for row in jackknife_weights(N)])
        lo, hi = statistic_interval(left_out, seed=3)
        assert vars(report)[f"{metric}_lo"][0, 1, 2] == pytest.approx(float(lo), abs=2e-4, nan_ok=True)
        assert vars(report)[f"{metric}_hi"][0, 1, 2] == pytest.approx(float(hi), abs=2e-4, nan_ok=True)


def uniform_run(rng: np.random.Generator) -> Run:
    run = run_of(rng)
    visible = (torch.arange(POSITIONS) <= run.trials.scored_positions()[..., None]).float()
    pattern = (visible / visible.sum(-1, keepdim=True))[None, :, None].expand(LAYERS, -1, HEADS, -1, -1)
    k = run.recorded[s.K_ROT][:, :, :1].expand(-1, -1, POSITIONS, -1, -1)  # one key everywhere
    return planted_run(run.trials, run.recorded | {s.PATTERN: pattern, s.K_ROT: k})


def test_uniform_attention_is_the_null(rng: np.random.Generator) -> None:
    report = QKAlignment().measure(uniform_run(rng))
    for metric, null in zip(METRICS, (0, 0, 0.5), strict=True):
        np.testing.assert_allclose(vars(report)[metric][0], null, atol=1e-6)
        np.testing.assert_array_equal(vars(report)[f"{metric}_null"], null)
    assert np.isnan(report.layer_trend[0]), "rounding has no trend"


def test_uniform_mass_is_the_mean_share_of_related_positions(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = QKAlignment().measure(run)
    rows = []
    for b, i in itertools.product(range(N), range(QUERIES)):
        related = run.trials.relations["random"][b, i, : POSITIONS - QUERIES + i + 1]
        if bool(related.any()) and not bool(related.all()):
            rows.append(float(related.double().mean()))
    assert report.uniform_mass[0] == pytest.approx(sum(rows) / len(rows))


def test_what_is_hidden_does_not_count(rng: np.random.Generator) -> None:
    run = run_of(rng)
    later = torch.arange(POSITIONS) > run.trials.scored_positions()[..., None]
    relations = {name: (related | later).numpy() for name, related in run.trials.relations.items()}
    trials = planted_trials(np.full((N, QUERIES, 2), 0.5), run.trials.tokens.numpy(), relations=relations)
    seen, marked = (QKAlignment().measure(planted_run(t, run.recorded)) for t in (run.trials, trials))
    for metric in METRICS:
        np.testing.assert_array_equal(vars(seen)[metric], vars(marked)[metric])


def test_rotating_queries_and_keys_together_changes_nothing(rng: np.random.Generator) -> None:
    run = run_of(rng)
    turn = torch.from_numpy(np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0].astype(np.float32))
    turned = run.recorded | {site: run.recorded[site] @ turn for site in (s.Q_ROT, s.K_ROT)}
    before, after = QKAlignment().measure(run), QKAlignment().measure(planted_run(run.trials, turned, seed=3))
    np.testing.assert_allclose(after.contrast[0], before.contrast[0], atol=1e-5)
    np.testing.assert_allclose(after.auc[0], before.auc[0], atol=2e-3)  # rounding may swap a near tie


def test_relations_complementary_to_each_other_mirror(rng: np.random.Generator) -> None:
    run = run_of(rng)
    relations = {"yes": run.trials.relations["random"].numpy(), "no": ~run.trials.relations["random"].numpy()}
    trials = planted_trials(np.full((N, QUERIES, 2), 0.5), run.trials.tokens.numpy(), relations=relations)
    report = QKAlignment().measure(planted_run(trials, run.recorded))
    for metric, total in zip(METRICS, (0, 0, 1), strict=True):
        np.testing.assert_allclose(vars(report)[metric].sum(axis=0), total, atol=1e-5)
    assert report.uniform_mass.sum() == pytest.approx(1)


def test_layer_trend_is_the_order_of_the_head_means(rng: np.random.Generator) -> None:
    run = run_of(rng, n=31)
    report = QKAlignment().measure(run)
    np.testing.assert_allclose(report.mass_excess_by_layer, report.mass_excess.mean(axis=2))
    order = report.mass_excess_by_layer[0].argsort().argsort() + 1
    expected = 1 - 6 * sum((layer + 1 - rank) ** 2 for layer, rank in enumerate(order)) / (LAYERS * (LAYERS**2 - 1))
    assert report.layer_trend[0] == pytest.approx(expected)
    assert np.isnan(report.layer_trend_lo[0]) or -1 <= report.layer_trend_lo[0] <= report.layer_trend_hi[0] <= 1


def test_initialisation_is_the_mean_over_copies(rng: np.random.Generator) -> None:
    copies = [QKAlignment().measure(run_of(rng)) for _ in range(3)]
    report = QKAlignment().measure(run_of(rng), copies)
    for metric in METRICS:
        mean = np.mean([vars(copy)[metric] for copy in copies], axis=0)
        np.testing.assert_array_equal(vars(report)[f"{metric}_initialisation"], mean)
    most = np.max([np.abs(copy.mass_excess_by_layer).max(axis=1) for copy in copies], axis=0)
    np.testing.assert_array_equal(report.mass_excess_initialisation_most, most)
    assert f"in a copy's own layer up to ±{most[0]:.2g}; uniform" in report.headlines()[0].null_label
    assert "initialisation" in report.headline() and np.isnan(copies[0].auc_initialisation).all()
    assert np.isnan(copies[0].mass_excess_initialisation_most).all()


def test_without_relations_there_is_no_number(rng: np.random.Generator, tmp_path: Path) -> None:
    run = run_of(rng)
    trials = planted_trials(np.full((N, QUERIES, 2), 0.5), run.trials.tokens.numpy())
    report = QKAlignment().measure(planted_run(trials, run.recorded))
    assert report.mass_excess.shape == (0, LAYERS, HEADS) and math.isnan(report.headlines()[0].value)
    assert isinstance(report.figure(), go.Figure)
    report.save(tmp_path / "r")
    np.testing.assert_equal(QKAlignmentReport.load(tmp_path / "r").arrays(), report.arrays())


def test_figure_holds_a_map_per_relation_and_its_null(rng: np.random.Generator) -> None:
    report = QKAlignment().measure(run_of(rng), [QKAlignment().measure(run_of(rng))])
    figure = report.figure()
    names = {trace.name for trace in figure.data}
    assert {"random", "once", "null: uniform attention", "null: initialisation", "null: no difference"} <= names
    maps = [trace for trace in figure.data if isinstance(trace, go.Heatmap)]
    assert len(maps) == 4, "relations without rows have no map"
    assert all(any("null" in tick for tick in trace.colorbar.ticktext) for trace in maps)
    titles = [note.text for note in figure.layout.annotations]
    assert "random: attention above uniform (null: 0)" in titles and "random: AUC of q·k (null: 0.5)" in titles
