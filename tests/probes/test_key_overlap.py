"""Key overlap against loops over tokens and pairs, its views, its nulls and what is missing."""

import math
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom import sites as s
from bayesgeom.activations import Run
from bayesgeom.geometry.cosine import chance_overlap, chance_overlap_centred, welch_bound
from bayesgeom.probes.base import planted_run, planted_trials
from bayesgeom.probes.key_overlap import DRAWS, KeyOverlap, KeyOverlapReport, hypothesis_overlap
from bayesgeom.statistics import bootstrap_weights

LAYERS, N, POSITIONS, HEADS, WIDTH, MODEL = 2, 11, 7, 3, 5, 17
SETS = {"inputs": (9, 1), "hypotheses": (6, 2, 4), "empty": ()}
TOKENS = 10  # ids 0 … 9 occur; id 10 only where a set names it


def keys(rng: np.random.Generator, *, layers: int = LAYERS) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=(layers, N, POSITIONS, HEADS, WIDTH)).astype(np.float32))


def run_of(rng: np.random.Generator, *, sets: dict[str, tuple[int, ...]] = SETS, **extra: torch.Tensor) -> Run:
    tokens = rng.integers(TOKENS, size=(N, POSITIONS))
    trials = planted_trials(np.full((N, 1, 2), 0.5), tokens, token_sets=sets)
    recorded = {s.K: keys(rng)} | {getattr(s, name): values for name, values in extra.items()}
    return planted_run(trials, recorded, seed=3)


def static(rng: np.random.Generator, sets: dict[str, tuple[int, ...]] = SETS) -> dict[str, torch.Tensor]:
    """Weights, the inputs of the named tokens in order of id, and their keys."""
    n_ids = len({i for members in sets.values() for i in members})
    inputs, weights = rng.normal(size=(LAYERS, n_ids, MODEL)), rng.normal(size=(LAYERS, HEADS, WIDTH, MODEL))
    found = {
        "TOKEN_INPUTS": inputs,
        "W_K_GRAM": weights @ weights.swapaxes(2, 3),
        "TOKEN_KEYS": np.einsum("ltm,lhdm->lthd", inputs, weights),
    }
    return {name: torch.from_numpy(values.astype(np.float32)) for name, values in found.items()}


def slow_overlap(vectors: list[np.ndarray], *, is_centred: bool = False) -> float:
    mean = sum(vectors) / len(vectors) if is_centred else 0
    rest = [v - mean for v in vectors]
    cosines = [
        abs(float(a @ b)) / math.sqrt(float(a @ a) * float(b @ b)) for i, a in enumerate(rest) for b in rest[i + 1 :]
    ]
    return sum(cosines) / len(cosines)


def slow_mean_keys(run: Run, site: s.Site, layer: int, head: int, ids: tuple[int, ...], weights: np.ndarray) -> list:
    """The mean key of each token, one occurrence at a time; tokens that weigh nothing are left out."""
    means = []
    for token in ids:
        total, count = np.zeros(WIDTH), 0.0
        for b in range(N):
            for p in range(POSITIONS):
                if int(run.trials.tokens[b, p]) == token:
                    total += weights[b] * run.recorded[site][layer, b, p, head].double().numpy()
                    count += weights[b]
        if count > 0:
            means.append(total / count)
    return means


@pytest.fixture
def everything(rng: np.random.Generator) -> tuple[Run, KeyOverlapReport]:
    run = run_of(rng, K_ROT=keys(rng), **static(rng))
    return run, KeyOverlap().measure(run)


def test_views_are_every_set_in_every_variant_hypotheses_first(everything: tuple[Run, KeyOverlapReport]) -> None:
    _, report = everything
    variants = ("activation", "activation rotated", "weights")
    of_sets = [f"{name} / {variant}" for name in ("hypotheses", "empty", "inputs") for variant in variants]
    assert report.views == (*of_sets, "columns")
    assert report.n_vectors.tolist() == [3, 3, 3, 0, 0, 0, 2, 2, 2, WIDTH] and not report.n_unseen.any()
    assert report.n == N


def test_activation_views_equal_a_loop(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    for view, site, ids in (
        ("hypotheses / activation", s.K, SETS["hypotheses"]),
        ("hypotheses / activation rotated", s.K_ROT, SETS["hypotheses"]),
        ("inputs / activation", s.K, SETS["inputs"]),
    ):
        at = report.views.index(view)
        for layer, head in np.ndindex(LAYERS, HEADS):
            means = slow_mean_keys(run, site, layer, head, ids, np.ones(N))
            assert report.overlap[at, layer, head] == pytest.approx(slow_overlap(means), abs=1e-5)
            expected = slow_overlap(means, is_centred=True)
            assert report.overlap_centred[at, layer, head] == pytest.approx(expected, abs=1e-5)


def test_intervals_equal_a_loop_over_resamples(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    drawn = [
        slow_overlap(slow_mean_keys(run, s.K, 1, 2, SETS["hypotheses"], weights))
        for weights in bootstrap_weights(N, seed=3, draws=DRAWS)
    ]
    bias = np.mean(drawn) - report.overlap[0, 1, 2]
    assert report.overlap_bias[0, 1, 2] == pytest.approx(bias, abs=1e-5)
    ends = (np.quantile(drawn, [0.025, 0.975]) - bias).clip(0, 1)
    np.testing.assert_allclose([report.overlap_lo[0, 1, 2], report.overlap_hi[0, 1, 2]], ends, atol=1e-5)
    assert np.isnan(report.overlap_lo[[2, 9]]).all(), "weights are no sample"


def test_few_noisy_sequences_bias_the_overlap_and_leave_it_inside_its_interval(rng: np.random.Generator) -> None:
    """Keys on one line under noise that is as long as they are: every resample is noisier, and less parallel."""
    n, n_items, width = 8, 31, 17
    tokens = np.tile(np.arange(n_items), (n, 1))
    trials = planted_trials(np.ones((n, 1, 1)), tokens, token_sets={"hypotheses": range(n_items)})
    keys = torch.from_numpy(1.0 + rng.normal(size=(1, n, n_items, 1, width))).float()
    report = KeyOverlap().measure(planted_run(trials, {s.K: keys}))
    low, found, high = (float(values.item()) for values in (report.overlap_lo, report.overlap, report.overlap_hi))
    assert low < found < high < found - report.overlap_bias.item(), "a percentile interval would end below it"
    lo, hi = report.intervals["first_layer_overlap"]
    assert lo < report.first_layer_overlap < hi


def test_static_views_equal_a_loop(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    order = sorted(SETS["inputs"] + SETS["hypotheses"])
    token_keys, weights = run.recorded[s.TOKEN_KEYS].double().numpy(), run.recorded[s.W_K_GRAM].double().numpy()
    for layer, head in np.ndindex(LAYERS, HEADS):
        frame = [token_keys[layer, order.index(i), head] for i in SETS["hypotheses"]]
        assert report.overlap[2, layer, head] == pytest.approx(slow_overlap(frame), abs=1e-6)
        gram = weights[layer, head]
        cosines = [abs(gram[i, j]) / math.sqrt(gram[i, i] * gram[j, j]) for i in range(WIDTH) for j in range(i)]
        assert report.overlap[9, layer, head] == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)


def test_nulls_are_those_of_each_views_size(everything: tuple[Run, KeyOverlapReport]) -> None:
    _, report = everything
    widths, counts = [WIDTH] * 9 + [MODEL], report.n_vectors.tolist()
    np.testing.assert_allclose(report.overlap_null, [chance_overlap(d) for d in widths])
    centred = [chance_overlap_centred(n, d) for n, d in zip(counts, widths, strict=True)]
    np.testing.assert_allclose(report.overlap_centred_null, centred)
    np.testing.assert_allclose(report.welch, [welch_bound(n, d) for n, d in zip(counts, widths, strict=True)])


def test_headline_scalars_are_layer_0_of_the_first_view(everything: tuple[Run, KeyOverlapReport]) -> None:
    _, report = everything
    assert report.first_layer_overlap == pytest.approx(report.overlap[0, 0].mean(), abs=1e-9)
    assert report.first_layer_overlap_least == report.overlap[0, 0].min()
    assert report.first_layer_overlap_centred == pytest.approx(report.overlap_centred[0, 0].mean(), abs=1e-9)
    lo, hi = report.intervals["first_layer_overlap"]
    assert lo < hi
    assert report.nulls["first_layer_overlap_least"] == pytest.approx(chance_overlap(WIDTH))
    first = report.headlines()[0]
    assert "layer 0, hypotheses / activation" in first.label and "initialisation" not in first.null_label


def test_the_overlap_alone_is_the_reports(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    view, overlap = hypothesis_overlap(run)
    assert view == report.views[0]
    assert np.array_equal(overlap, report.overlap[0])


def test_random_projection_of_one_direction_is_one_and_of_many_is_chance(rng: np.random.Generator) -> None:
    sets = {"hypotheses": tuple(range(TOKENS))}
    extra = static(rng, sets)
    extra["TOKEN_INPUTS"][0] = torch.arange(1.0, TOKENS + 1)[:, None] * torch.ones(MODEL)
    wide = torch.zeros(LAYERS, TOKENS, MODEL)
    wide[1, :, :TOKENS] = torch.eye(TOKENS)
    extra["TOKEN_INPUTS"][1] = wide[1]
    report = KeyOverlap().measure(run_of(rng, sets=sets, **extra))
    at = report.views.index("hypotheses / weights")
    assert report.overlap_random_projection[at, 0] == pytest.approx(1, abs=1e-6)
    assert report.overlap_random_projection[at, 1] == pytest.approx(chance_overlap(WIDTH), abs=0.03)
    assert report.overlap_random_projection_lo[at, 1] < report.overlap_random_projection_hi[at, 1]
    assert np.isnan(report.overlap_random_projection[report.views.index("columns")]).all()


def test_initialisation_is_the_mean_over_copies_by_view(rng: np.random.Generator) -> None:
    copies = [KeyOverlap().measure(run_of(rng, W_K_GRAM=static(rng)["W_K_GRAM"])) for _ in range(2)]
    report = KeyOverlap().measure(run_of(rng, **static(rng)), copies)
    for i, view in enumerate(report.views):
        if view.endswith("weights"):
            assert np.isnan(report.overlap_initialisation[i]).all()
        else:
            both = np.mean([copy.overlap[copy.views.index(view)] for copy in copies], axis=0)
            np.testing.assert_array_equal(report.overlap_initialisation[i], both)
    untrained = np.mean([copy.overlap_centred[0, 0].mean() for copy in copies])
    assert report.first_layer_initialisation["first_layer_overlap_centred"] == pytest.approx(untrained)
    found = [copy.overlap[0, 0].mean() for copy in copies]
    beside = f"initialisation {np.mean(found):.3g}, copies {min(found):.3g} … {max(found):.3g}; random directions"
    assert beside in report.headline()


def test_rotated_keys_are_a_view_only_where_they_differ(rng: np.random.Generator) -> None:
    run = run_of(rng)
    same = planted_run(run.trials, run.recorded | {s.K_ROT: run.recorded[s.K].clone()})
    assert not any("rotated" in view for view in KeyOverlap().measure(same).views)


def test_tokens_never_shown_are_left_out_and_counted(rng: np.random.Generator) -> None:
    sets = {"hypotheses": (2, TOKENS, 4, 6, TOKENS + 1)}
    run = run_of(rng, sets=sets)
    shown = {"hypotheses": (2, 4, 6)}
    trials = planted_trials(np.full((N, 1, 2), 0.5), run.trials.tokens.numpy(), token_sets=shown)
    seen = planted_run(trials, run.recorded, seed=3)
    report, expected = KeyOverlap().measure(run), KeyOverlap().measure(seen)
    assert (report.n_vectors[0], report.n_unseen[0]) == (3, 2)
    np.testing.assert_allclose(report.overlap, expected.overlap, atol=1e-6)
    np.testing.assert_allclose(report.overlap_null, expected.overlap_null)


def test_without_named_tokens_the_answer_is_nan(rng: np.random.Generator, tmp_path: Path) -> None:
    report = KeyOverlap().measure(run_of(rng, sets={}))
    assert report.views == ("no tokens named",) and math.isnan(report.first_layer_overlap)
    assert np.isnan(report.overlap).all() and report.headlines()
    assert isinstance(report.figure(), go.Figure)
    report.save(tmp_path / "r")
    np.testing.assert_equal(KeyOverlapReport.load(tmp_path / "r").arrays(), report.arrays())


def test_heads_of_one_layer_do_not_mix(rng: np.random.Generator) -> None:
    run = run_of(rng)
    turned = run.recorded[s.K].clone()
    rotation = torch.from_numpy(np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0].astype(np.float32))
    turned[1, :, :, 2] = turned[1, :, :, 2] @ rotation
    turned[0, :, :, 1] *= 7
    before, after = (KeyOverlap().measure(planted_run(run.trials, {s.K: k})) for k in (run.recorded[s.K], turned))
    np.testing.assert_allclose(after.overlap, before.overlap, atol=1e-5)
    np.testing.assert_allclose(after.overlap_centred, before.overlap_centred, atol=1e-5)


def test_figure_shows_every_view_its_chance_and_the_untrained(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    figure = KeyOverlap().measure(run, [report]).figure()
    titles = [note.text for note in figure.layout.annotations]
    assert any(title.startswith("hypotheses / weights (random W_K: ") and "(chance: " in title for title in titles)
    names = {trace.name for trace in figure.data}
    assert {"null: random directions", "null: initialisation", "mean |cosine|", "mean key removed"} <= names
    maps = [trace for trace in figure.data if isinstance(trace, go.Heatmap)]
    assert len(maps) == 7, "the three views of the empty set have no map"
    assert all(any("null" in tick for tick in trace.colorbar.ticktext) for trace in maps)
    np.testing.assert_array_equal(maps[0].z, report.overlap[0])
