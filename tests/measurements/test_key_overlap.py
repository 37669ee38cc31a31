"""Key overlap against loops over tokens and pairs; its views, levels and verdicts, and what is missing."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom import TransformerConfig, diagnose
from bayesgeom.core import run as s
from bayesgeom.core.run import Run
from bayesgeom.core.verdict import Reason
from bayesgeom.measurements.base import planted_run, planted_trials
from bayesgeom.measurements.key_overlap import (
    RANDOM_DIRECTIONS,
    RANDOM_W_K,
    KeyOverlap,
    KeyOverlapReport,
)
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.report.estimate import UNTRAINED, Baseline, Estimate, codes_of
from bayesgeom.report.storage import parts_of
from bayesgeom.stats.bootstrap import jackknife_weights
from bayesgeom.stats.overlap import (
    chance_overlap,
    chance_overlap_centered,
    cross_fitted_overlap,
    mean_overlap_interval,
    overlap,
    overlap_rows,
    pairwise_cosine,
    welch_bound,
)
from bayesgeom.tasks.bijection import Bijection

LAYERS, N, POSITIONS, HEADS, WIDTH, MODEL = 2, 11, 7, 3, 5, 17
SETS = {"inputs": (9, 1), "hypotheses": (6, 2, 4), "empty": ()}
TOKENS = 10  # ids 0 … 9 occur; id 10 only where a set names it


def keys(rng: np.random.Generator, *, layers: int = LAYERS) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=(layers, N, POSITIONS, HEADS, WIDTH)).astype(np.float32))


def run_of(rng: np.random.Generator, *, sets: dict[str, tuple[int, ...]] = SETS, **extra: torch.Tensor) -> Run:
    tokens = rng.integers(TOKENS, size=(N, POSITIONS))
    trials = planted_trials(np.full((N, 1, 2), 0.5), tokens, token_sets=sets)
    of_token = torch.from_numpy(4 * rng.normal(size=(TOKENS, HEADS, WIDTH))).float()
    recorded = {s.K: keys(rng) + of_token[tokens]} | {getattr(s, name): values for name, values in extra.items()}
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


def slow_overlap(vectors: list[np.ndarray], *, is_centered: bool = False) -> float:
    mean = sum(vectors) / len(vectors) if is_centered else 0
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


def at_of(report: KeyOverlapReport, token_set: str, variant: str) -> tuple[int, int]:
    return report.token_sets.index(token_set), report.variants.index(variant)


def test_axes_are_every_set_inputs_first_and_every_variant(everything: tuple[Run, KeyOverlapReport]) -> None:
    _, report = everything
    assert report.token_sets == ("inputs", "hypotheses", "empty", "columns")
    assert report.variants == ("activation", "activation rotated", "weights")
    assert report.n_vectors.tolist() == [[2] * 3, [3] * 3, [0] * 3, [0, 0, WIDTH]] and not report.n_unseen.any()
    assert report.measured == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (3, 2)]
    assert np.isnan(report.overlap.value[3, :2]).all(), "columns are in the weights alone"
    assert report.n == N


def test_activation_views_equal_a_loop(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    for name, variant, site in (
        ("hypotheses", "activation", s.K),
        ("hypotheses", "activation rotated", s.K_ROT),
        ("inputs", "activation", s.K),
    ):
        at, ids = at_of(report, name, variant), SETS[name]
        for layer, head in np.ndindex(LAYERS, HEADS):
            means = slow_mean_keys(run, site, layer, head, ids, np.ones(N))
            assert report.overlap.value[*at, layer, head] == pytest.approx(slow_overlap(means), abs=1e-5)
            expected = slow_overlap(means, is_centered=True)
            assert report.centered_overlap.value[*at, layer, head] == pytest.approx(expected, abs=1e-5)


def test_intervals_equal_a_loop_that_leaves_out_each_sequence(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    frames = [slow_mean_keys(run, s.K, 1, 2, SETS["hypotheses"], weights) for weights in jackknife_weights(N)]
    of_both, kinks = overlap_rows(lambda: [torch.from_numpy(np.array(frames))])
    rows, kink = of_both[:, 0], kinks[0]
    at = at_of(report, "hypotheses", "activation")
    bias = (N - 1) * (rows[1:].mean() - rows[0]) + kink
    assert report.overlap_bias[*at, 1, 2] == pytest.approx(bias, abs=1e-4)
    ends = mean_overlap_interval(rows, np.asarray(kink), seed=3)
    found = [float(end[*at, 1, 2]) for end in report.overlap.ends]
    np.testing.assert_allclose(found, [float(ends.lo), float(ends.hi)], atol=1e-4)
    assert found[0] < found[1]
    of_weights = report.overlap[[0, 1, 3], 2]
    np.testing.assert_array_equal(of_weights.ends, [of_weights.value] * 2, err_msg="weights are no sample")
    assert of_weights.reason is None


SMALL = TransformerConfig(d_vocab=40, n_ctx=38, n_layers=1, n_heads=2, d_model=64, d_mlp=64, positions="rotary")


def rows_of_layer_0(model: Transformer, *, n: int, n_untrained: int) -> dict[str, str]:
    """Return the verdicts on keys that are the same in every sequence, by label."""
    report = diagnose(model, Bijection(), n=n, n_untrained=n_untrained, probes="key_overlap")["key_overlap"]
    return {line.label: line.verdict for line in report.headlines() if "rotated" not in line.label}


@pytest.mark.exhaustive  # builds and reads 72 networks
def test_an_untrained_network_does_not_beat_the_levels() -> None:
    """A mean of two heads lies just below the expectation of its level in half of the networks; that is no finding."""
    rows = [rows_of_layer_0(SMALL.build(seed=seed), n=64, n_untrained=2) for seed in range(100, 124)]
    n_yes = {label: sum(row[label] == "yes" for row in rows) for label in rows[0]}
    assert len(n_yes) == 10 and max(n_yes.values()) <= 1, n_yes


def test_a_network_with_orthogonal_keys_beats_every_level() -> None:
    """Keys and values are unit vectors that each head maps to orthogonal keys; rows of W_K are orthogonal, too."""
    untrained, planted = SMALL.build(seed=1), SMALL.build(seed=1)
    with torch.no_grad():
        planted.get_parameter("embed.weight").copy_(torch.eye(40, 64))
        head = torch.eye(32, 64) + torch.cat([torch.zeros(32, 20), torch.eye(32, 44)], dim=1)
        head[20:] = torch.eye(64)[40:52]
        planted.get_parameter("blocks.0.attn.W_K.weight").copy_(torch.cat([head, head]))
    assert set(rows_of_layer_0(planted, n=64, n_untrained=2).values()) == {"yes"}
    assert "yes" not in rows_of_layer_0(untrained, n=64, n_untrained=2).values()


@pytest.mark.parametrize(
    ("heads", "verdict"),
    [((-1, -1), "yes"), ((-1, 0), "undecided"), ((0, 0), "undecided"), ((-1, 1), "undecided"), ((1, 1), "no")],
)
def test_the_verdict_of_a_row_agrees_with_its_heads(heads: tuple[int, int], verdict: str) -> None:
    n_items, width = 11, 13
    trials = planted_trials(np.ones((7, 1, 1)), np.tile(np.arange(n_items), (7, 1)), token_sets={"inputs": range(11)})
    random = torch.from_numpy(np.random.default_rng(4).normal(size=(n_items, width)))
    frames = {-1: torch.eye(n_items, width, dtype=torch.float64), 0: random, 1: torch.ones(n_items, width)}
    inputs, w_k = torch.eye(n_items), torch.stack([frames[sign].T for sign in heads]).float()
    gram, token_keys = w_k @ w_k.swapaxes(1, 2), torch.einsum("tm,hdm->thd", inputs, w_k)
    static = {s.TOKEN_INPUTS: inputs, s.W_K_GRAM: gram, s.TOKEN_KEYS: token_keys}
    recorded = {site: values[None] for site, values in static.items()}
    recorded[s.K] = token_keys.repeat(1, 7, 1, 1, 1)
    report = KeyOverlap().measure(planted_run(trials, recorded, seed=3))
    at = at_of(report, "inputs", "weights")
    for name in (RANDOM_W_K, RANDOM_DIRECTIONS):
        assert report.verdict(name)[*at, 0].tolist() == list(heads)
    line = report.headlines()[report.measured.index(at)]
    assert (line.verdict, report.headlines()[0].verdict) == (verdict, verdict), "recorded keys are the same"
    counts = (heads.count(-1), heads.count(0), heads.count(1))
    assert report.n_by_level(at) == dict.fromkeys((RANDOM_W_K, RANDOM_DIRECTIONS), counts)


def test_there_is_no_interval_where_noise_in_the_means_takes_off_more_than_it_spans(rng: np.random.Generator) -> None:
    """Keys on one line under noise that is as long as they are: with any number of sequences they seem to part."""
    n, n_items, width = 31, 13, 17
    tokens = np.tile(np.arange(n_items), (n, 1))
    trials = planted_trials(np.ones((n, 1, 1)), tokens, token_sets={"hypotheses": range(n_items)})
    keys = torch.from_numpy(1.0 + rng.normal(size=(1, n, n_items, 1, width))).float()
    report = KeyOverlap().measure(planted_run(trials, {s.K: keys}))
    own = report.overlap[0, 0, 0, 0]
    free = float(own) - report.overlap_bias.item()
    assert abs(free - 1) < abs(float(own) - 1) / 3, "the keys themselves are parallel"
    assert np.isnan(own.ends).all() and np.isnan(report.mean_overlap[0, 0, 0].ends).all(), "an interval would end above"
    line = report.headlines()[0]
    assert (line.interval, line.verdict) == ("", "undecided") and line.reason == Reason.BIASED
    assert math.isnan(report.verdict(RANDOM_DIRECTIONS)[0, 0, 0, 0])


def test_keys_that_are_the_same_in_every_sequence_are_exact(rng: np.random.Generator) -> None:
    """As in layer 0 without positions: nothing is left to chance, also where the overlap is exactly 0 or 1."""
    n, n_items, width = 17, 11, 13
    trials = planted_trials(
        np.full((n, 1, 2), 0.5), np.tile(np.arange(n_items), (n, 1)), token_sets={"inputs": range(n_items)}
    )
    heads = np.stack([np.eye(n_items, width), np.ones((n_items, width)), rng.normal(size=(n_items, width))], axis=1)
    k = torch.from_numpy(np.tile(heads, (1, n, 1, 1, 1))).float()
    report = KeyOverlap().measure(planted_run(trials, {s.K: k}))
    low, high = report.overlap.ends
    np.testing.assert_allclose(low, report.overlap.value, atol=1e-6)
    np.testing.assert_array_equal(low, high)
    assert report.verdict(RANDOM_DIRECTIONS)[0, 0, 0].tolist() == [-1, 1, 0]


def test_static_views_equal_a_loop(everything: tuple[Run, KeyOverlapReport]) -> None:
    run, report = everything
    order = sorted(SETS["inputs"] + SETS["hypotheses"])
    token_keys, weights = run.recorded[s.TOKEN_KEYS].double().numpy(), run.recorded[s.W_K_GRAM].double().numpy()
    for layer, head in np.ndindex(LAYERS, HEADS):
        frame = [token_keys[layer, order.index(i), head] for i in SETS["hypotheses"]]
        assert report.overlap.value[1, 2, layer, head] == pytest.approx(slow_overlap(frame), abs=1e-6)
        gram = weights[layer, head]
        cosines = [abs(gram[i, j]) / math.sqrt(gram[i, i] * gram[j, j]) for i in range(WIDTH) for j in range(i)]
        assert report.overlap.value[3, 2, layer, head] == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)


def test_levels_of_random_directions_are_those_of_each_views_size(everything: tuple[Run, KeyOverlapReport]) -> None:
    _, report = everything
    widths, counts = np.array([[WIDTH] * 3] * 3 + [[MODEL] * 3]), report.n_vectors
    is_known = report.n_vectors > 1
    expected = np.where(is_known, np.vectorize(lambda width: chance_overlap(int(width)))(widths), np.nan)
    np.testing.assert_allclose(report.level(RANDOM_DIRECTIONS)[..., 0, 0], expected, atol=0.04)
    centered = np.vectorize(lambda n, width: chance_overlap_centered(int(n), int(width)))(counts, widths)
    found = report.level(RANDOM_DIRECTIONS, is_centered=True)
    np.testing.assert_allclose(found[..., 0, 0], np.where(is_known, centered, np.nan), atol=0.04)
    has_keys = np.array([[True] * 3] * 3 + [[False, False, True]])
    squared = report.orthogonality.baseline(RANDOM_DIRECTIONS).value[..., 0, 0]
    np.testing.assert_allclose(squared, np.where(has_keys, 1 - widths**-0.5, np.nan))
    assert not report.largest_centered_overlap.baselines, "its expectation is not known"
    np.testing.assert_allclose(
        report.welch,
        np.where(has_keys, np.vectorize(lambda n, width: welch_bound(int(n), int(width)))(counts, widths), np.nan),
    )


def test_random_w_k_of_one_direction_is_one_and_of_many_is_chance(rng: np.random.Generator) -> None:
    sets = {"hypotheses": tuple(range(TOKENS))}
    extra = static(rng, sets)
    extra["TOKEN_INPUTS"][0] = torch.arange(1.0, TOKENS + 1)[:, None] * torch.ones(MODEL)
    wide = torch.zeros(LAYERS, TOKENS, MODEL)
    wide[1, :, :TOKENS] = torch.eye(TOKENS)
    extra["TOKEN_INPUTS"][1] = wide[1]
    report = KeyOverlap().measure(run_of(rng, sets=sets, **extra))
    at, level = at_of(report, "hypotheses", "weights"), report.overlap.baseline(RANDOM_W_K)
    np.testing.assert_allclose(level.value[*at, 0], 1, atol=1e-6)
    np.testing.assert_allclose(level.value[*at, 1], chance_overlap(WIDTH), atol=0.03)
    assert level.low is not None and level.high is not None
    assert (level.low[*at, 1] < level.value[*at, 1]).all() and (level.value[*at, 1] < level.high[*at, 1]).all()
    below = report.verdict(RANDOM_W_K)[*at, 0]
    assert (below == -1).all(), "keys are orthogonal where the embedding alone has one direction"
    assert np.isnan(level.value[report.token_sets.index("columns")]).all()
    recorded = level.value[at_of(report, "hypotheses", "activation")]
    assert np.isfinite(recorded[0]).all() and np.isnan(recorded[1]).all(), "deeper keys are not of bare embeddings"


@pytest.mark.parametrize(
    ("heads", "of_mean", "verdict"),
    [((-1, 0), "yes", "undecided"), ((-1, 1), "no", "undecided"), ((-1, -1), "yes", "yes"), ((1, 1), "no", "no")],
)
def test_recorded_keys_are_judged_by_head(heads: tuple[int, int], of_mean: str, verdict: str) -> None:
    """The mean over a nearly orthogonal head and a random one beats every level; the random head does not."""
    n_items, width, n = 11, 13, 17
    trials = planted_trials(
        np.full((n, 1, 2), 0.5), np.tile(np.arange(n_items), (n, 1)), token_sets={"inputs": range(n_items)}
    )
    rng = np.random.default_rng(3)
    random = rng.normal(size=(n_items, width))
    frames = {-1: 0.05 + np.eye(n_items, width), 0: random, 1: 1 + 0.5 * random}
    own = np.stack([frames[sign] for sign in heads], axis=1)
    k = torch.from_numpy(np.tile(own, (1, n, 1, 1, 1)) + 0.01 * rng.normal(size=(1, n, n_items, 2, width)))
    report = KeyOverlap().measure(planted_run(trials, {s.K: k.float()}))
    assert report.verdict(RANDOM_DIRECTIONS)[0, 0, 0].tolist() == list(heads)
    mean, line = report.mean_overlap[0, 0, 0], report.headlines()[0]
    assert float(mean.ends[1] - mean.ends[0]) > 1e-6 and str(mean.clears("lower")) == of_mean
    assert line.verdict == verdict


def test_a_head_without_an_interval_is_not_below_every_level(
    everything: tuple[Run, KeyOverlapReport],
) -> None:
    """Without an interval a head can lie below untrained networks and have no verdict on random directions."""
    _, report = everything
    full = np.ones(report.overlap.value.shape)
    of_name = ((UNTRAINED, 0.9), (RANDOM_DIRECTIONS, 0.1))
    levels = [Baseline.of("baseline", name, at * full, low=at * full, high=at * full) for name, at in of_name]
    own = Estimate.of(0.05 * full, (np.nan * full, np.nan * full), baselines=levels)
    planted = replace(report, overlap=own, overlap_bias=0 * full, cross_fitted_overlap=0.15 * full, n=17)
    at = at_of(planted, "inputs", "activation")
    assert (planted.verdict(UNTRAINED)[at] == -1).all() and np.isnan(planted.verdict(RANDOM_DIRECTIONS)[at]).all()
    assert planted.verdict_of_heads(at) == "undecided"


def test_noise_alone_is_not_below_chance(rng: np.random.Generator) -> None:
    """Parallel keys under strong noise lie below every level; two halves of the sequences show that it is the noise."""
    n, n_items, width = 8, 11, 13
    trials = planted_trials(
        np.full((n, 1, 2), 0.5), np.tile(np.arange(n_items), (n, 1)), token_sets={"inputs": range(n_items)}
    )
    keys = 1.0 + 4 * rng.normal(size=(1, n, n_items, 1, width))
    copy = planted_run(trials, {s.K: torch.ones(1, n, n_items, 1, width)})
    report = KeyOverlap().measure(
        planted_run(trials, {s.K: torch.from_numpy(keys).float()}), [KeyOverlap().measure(copy)]
    )
    least = report.overlap.baseline(UNTRAINED).low
    assert least is not None and report.overlap.value[0, 0, 0, 0] < least[0, 0, 0, 0] - 0.1, (
        "a naive comparison says below"
    )
    assert np.isnan(report.overlap.ends[0][0, 0, 0, 0]), "mean keys that are mostly noise have no interval"
    assert report.cross_fitted_overlap[0, 0, 0, 0] > report.overlap.value[0, 0, 0, 0] + 0.1


def test_the_cross_fitted_overlap_equals_a_loop(rng: np.random.Generator) -> None:
    one = rng.normal(size=(3, 5, 7)) + 2
    other = one + 0.1 * rng.normal(size=one.shape)
    found = cross_fitted_overlap(torch.from_numpy(one), torch.from_numpy(other))
    for b in range(3):
        cosines = []
        for i, j in itertools.combinations(range(5), 2):
            up = (one[b, i] @ other[b, j] + one[b, j] @ other[b, i]) / 2
            cosines.append(abs(up / math.sqrt((one[b, i] @ other[b, i]) * (one[b, j] @ other[b, j]))))
        assert float(found[b]) == pytest.approx(np.mean(np.minimum(cosines, 1)), abs=1e-9)
    same = cross_fitted_overlap(torch.from_numpy(one), torch.from_numpy(one))
    np.testing.assert_allclose(same, overlap(pairwise_cosine(torch.from_numpy(one))), atol=1e-12)


def test_more_keys_than_dimensions_have_a_welch_bound_in_the_headline(rng: np.random.Generator) -> None:
    sets = {"inputs": tuple(range(TOKENS))}
    report = KeyOverlap().measure(run_of(rng, sets=sets))
    bound = welch_bound(TOKENS, WIDTH)
    levels = {level.name: level.value for level in report.headlines()[0].levels}
    assert bound > 0 and levels["Welch bound"] == pytest.approx(bound)


def test_rotated_keys_are_a_variant_only_where_they_differ(rng: np.random.Generator) -> None:
    run = run_of(rng)
    same = planted_run(run.trials, run.recorded | {s.K_ROT: run.recorded[s.K].clone()})
    assert KeyOverlap().measure(same).variants == ("activation",)


def test_tokens_never_shown_are_left_out_and_counted(rng: np.random.Generator) -> None:
    sets = {"hypotheses": (2, TOKENS, 4, 6, TOKENS + 1)}
    run = run_of(rng, sets=sets)
    shown = {"hypotheses": (2, 4, 6)}
    trials = planted_trials(np.full((N, 1, 2), 0.5), run.trials.tokens.numpy(), token_sets=shown)
    seen = planted_run(trials, run.recorded, seed=3)
    report, expected = KeyOverlap().measure(run), KeyOverlap().measure(seen)
    assert (report.n_vectors.item(), report.n_unseen.item()) == (3, 2)
    np.testing.assert_allclose(report.overlap.value, expected.overlap.value, atol=1e-6)
    np.testing.assert_allclose(report.level(RANDOM_DIRECTIONS), expected.level(RANDOM_DIRECTIONS))


def test_without_named_tokens_the_answer_is_nan(rng: np.random.Generator, tmp_path: Path) -> None:
    report = KeyOverlap().measure(run_of(rng, sets={}))
    assert report.token_sets == ("no tokens named",) and math.isnan(report.mean_overlap.value[0, 0, 0])
    assert report.n_by_level((0, 0)) == {} and report.headlines()[0].levels == () and not report.headlines()[0].verdict
    assert np.isnan(report.overlap.value).all() and report.headlines()
    assert isinstance(report.plot(), go.Figure)
    report.save(tmp_path / "r")
    np.testing.assert_equal(parts_of(KeyOverlapReport.load(tmp_path / "r"))[1], parts_of(report)[1])


@pytest.mark.parametrize(("n_values", "n_heads", "n"), [(5, 3, 16), (3, 2, 16), (3, 2, 64)])
def test_weights_scaled_by_their_rounding_move_no_interval(n_values: int, n_heads: int, n: int) -> None:
    """Few distinct sequences tie the pseudo-values, which multiply the rounding of the keys by n."""
    config = TransformerConfig(d_vocab=2 * n_values, n_ctx=5, n_layers=2, n_heads=n_heads, d_model=4 * n_heads, d_mlp=8)
    found = list[KeyOverlapReport]()
    for scale in (1.0, 1 + 1e-7, 1 - 1e-7):
        model = config.build(seed=0)
        with torch.no_grad():
            for own in model.parameters():
                own *= scale
        diagnosis = diagnose(model, Bijection(n_values=n_values, n_pairs=3), probes="key_overlap", n=n, n_untrained=0)
        found.append(diagnosis[KeyOverlapReport])
    for name in ("overlap", "centered_overlap", "mean_overlap", "mean_centered_overlap"):
        before, *others = (own.estimate(name) for own in found)
        width = before.ends[1] - before.ends[0]
        assert np.isfinite(width).any()
        for after in others:
            assert np.array_equal(codes_of(after), codes_of(before))
            move = np.fmax(*(np.abs(new - old) for new, old in zip(after.ends, before.ends, strict=True)))
            assert not (move > 0.01 * width + 1e-6).any()
