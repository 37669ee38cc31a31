"""Pass thresholds: each measure against its definition by hand, who else passes, chance levels by simulation."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from bayesgeom.core.run import PATTERN, W_K_GRAM, K, Run, V
from bayesgeom.measurements.base import Control, planted_run, planted_trials
from bayesgeom.report.estimate import UNTRAINED
from bayesgeom.stats.bootstrap import bootstrap_weights, jackknife_weights
from bayesgeom.stats.overlap import overlap, pairwise_cosine
from bayesgeom.stats.subspace import standardized
from examples.replication.thresholds import (
    CHANCE,
    MEASURES,
    PassThresholds,
    PassThresholdsReport,
    at_least,
    falls_by_more,
    gaussian_shares,
    overlap_below,
)
from tests.figures import assert_one_meaning_per_color

N, POSITIONS, LAYERS, KV, HEADS, D, MODEL = 31, 7, 3, 2, 4, 5, 97
TOKENS = 6


def run_of(rng: np.random.Generator, *, sets: dict[str, tuple[int, ...]] | None = None) -> Run:
    tokens = rng.integers(TOKENS, size=(N, POSITIONS))
    trials = planted_trials(np.full((N, 2, 2), 0.5), tokens, token_sets=sets or {"hypotheses": (0, 2, 5)})
    columns = rng.normal(size=(LAYERS, KV, D, MODEL))
    weights = rng.random(size=(LAYERS, N, HEADS, 2, POSITIONS)) ** 4
    recorded = {
        V: (rng.normal(size=(LAYERS, N, POSITIONS, KV, D)) + rng.normal(size=(LAYERS, N, POSITIONS, 1, 1)))
        * np.arange(1, D + 1),
        K: rng.normal(size=(LAYERS, N, POSITIONS, KV, D)) + 0.5,
        W_K_GRAM: columns @ columns.swapaxes(2, 3),
        PATTERN: weights / weights.sum(axis=-1, keepdims=True),
    }
    run = planted_run(trials, {site: torch.from_numpy(x) for site, x in recorded.items()}, seed=3)
    return replace(run, spec=replace(run.spec, d_model=MODEL))


def at(report: PassThresholdsReport, measure: str) -> int:
    return report.measures.index(measure)


def mean_cosine(vectors: np.ndarray) -> float:
    found = [abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(vectors, 2)]
    return float(np.mean(found))


def slow_key_overlap(run: Run, layer: int, shares: np.ndarray) -> float:
    keys, tokens = run.at(K)[layer].numpy(), run.trials.tokens.numpy()
    weights = np.broadcast_to(shares[:, None], tokens.shape)
    heads = []
    for head in range(KV):
        means = []
        for token in (0, 2, 5):
            shown = tokens == token
            means.append((keys[shown, head] * weights[shown][:, None]).sum(axis=0) / weights[shown].sum())
        heads.append(mean_cosine(np.stack(means)))
    return float(np.mean(heads))


def test_values_are_the_last_of_the_last_layer_standardized(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = PassThresholds().measure(run)
    last = run.at(V)[-1][:, -1].flatten(1).numpy()
    variances = np.linalg.eigvalsh(np.corrcoef(last.T))
    one, two = (at(report, measure) for measure in ("PC1 of values", "PC1 + PC2 of values"))
    assert float(report.measured[one]) == pytest.approx(variances[-1] / (KV * D), abs=1e-9)
    assert float(report.measured[two]) == pytest.approx(variances[-2:].sum() / (KV * D), abs=1e-9)
    low, high = report.measured[two].ends
    assert low < float(report.measured[two]) < high


def test_noise_has_no_interval_and_still_fails_the_threshold(rng: np.random.Generator) -> None:
    run = run_of(rng)
    noise = torch.from_numpy(rng.normal(size=(LAYERS, N, POSITIONS, 1, 101)))
    report = PassThresholds().measure(replace(run, recorded={**run.recorded, V: noise}))
    assert np.isnan(report.measured.ends[0][:2]).all() and report.verdicts[:2] == ("failed", "failed")


def test_too_few_sequences_leave_the_verdict_undecided(rng: np.random.Generator) -> None:
    run = run_of(rng)
    few = {site: values[:, :7] if site.name != "W_K_gram" else values for site, values in run.recorded.items()}
    report = PassThresholds().measure(replace(run, trials=run.trials.rows(slice(0, 7)), recorded=few))
    text = [report.verdicts[at(report, own)] for own in MEASURES if own != "layers with W_K columns apart"]
    assert all(own.startswith("undecided: no interval") for own in text), text
    assert not report.verdicts[2].startswith("undecided"), "weights are no sample"


def test_overlaps_are_means_over_pairs_then_heads(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = PassThresholds().measure(run)
    even = np.full(N, 1 / N)
    for layer in range(LAYERS):
        assert report.key_overlap[layer] == pytest.approx(slow_key_overlap(run, layer, even), abs=1e-9)
        gram = run.at(W_K_GRAM)[layer].numpy()
        cosines = [
            np.mean([abs(g[i, j]) / np.sqrt(g[i, i] * g[j, j]) for i, j in combinations(range(D), 2)]) for g in gram
        ]
        assert report.column_overlap[layer] == pytest.approx(np.mean(cosines), abs=1e-6)
    apart = at(report, "layers with keys apart")
    assert float(report.measured[apart]) == pytest.approx((report.key_overlap < 0.2).mean())
    (line,) = (own for own in report.headlines() if "layers with keys apart" in own.label)
    assert line.value == float(report.measured[apart]) and report.verdicts[apart].startswith(line.verdict)
    rows = np.array(
        [[slow_key_overlap(run, layer, shares) for layer in range(LAYERS)] for shares in jackknife_weights(N)]
    )
    moved = (bootstrap_weights(N, seed=3) - 1 / N) @ ((N - 1) * (rows[0] - rows[1:]))
    drawn = ((rows[0] + moved) < 0.2).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert report.verdicts[apart].startswith("undecided") == (low <= 0.5 <= high and low < high)
    assert np.isnan(report.measured[apart].ends[0]), "a count of layers has no interval"
    columns = report.measured[at(report, "layers with W_K columns apart")]
    assert np.isnan(columns.ends[0]), "weights are no sample"


def test_attention_is_that_of_the_last_query(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = PassThresholds().measure(run)
    rows = run.at(PATTERN)[:, :, :, -1].numpy()
    entropy = -(rows * np.log2(rows)).sum(axis=-1).mean(axis=(1, 2))
    np.testing.assert_allclose(report.final_entropy_bits, entropy)
    assert float(report.measured[-1]) == pytest.approx(1 - entropy[-1] / entropy[0])


def test_chance_is_of_the_sizes_at_hand(rng: np.random.Generator) -> None:
    report = PassThresholds().measure(run_of(rng))
    assert report.sizes == (
        f"{N} Gaussian points in {KV * D} dimensions",
        f"{N} Gaussian points in {KV * D} dimensions",
        f"{D} directions in {MODEL} dimensions",
        f"3 directions in {D} dimensions",
        f"random scores over {POSITIONS} positions",
    )
    rates = report.passed.baseline(CHANCE).value
    assert rates[2] > 0.9 and rates[4] < 0.05
    chance = report.measured.baseline(CHANCE)
    assert chance.kind == "chance" and chance.value[4] == 0 and 0 < chance.value[0] < chance.value[1] < 1


def test_verdicts_name_baselines_that_pass(rng: np.random.Generator) -> None:
    run = run_of(rng)
    narrow = torch.zeros_like(run.at(PATTERN))
    narrow[..., 0] = 1.0
    pattern = torch.cat([run.at(PATTERN)[:-1], narrow[-1:]])
    falling = replace(run, recorded={**run.recorded, PATTERN: pattern})
    probe = PassThresholds()
    copies = [probe.measure(each) for each in (run, falling, falling)]
    report, alone = probe.measure(falling, copies), probe.measure(falling)
    assert report.passed.baseline(UNTRAINED).value[-1] == pytest.approx(2 / 3) and report.passed.value[-1] == 1
    assert [own.name for own in alone.passed.baselines] == [CHANCE]
    fresh, found = report.measured[-1].baseline(UNTRAINED), [float(copy.measured[-1]) for copy in copies]
    mean, reach = np.mean(found), 4.302653 * np.std(found, ddof=1) * (4 / 3) ** 0.5  # t(0.975, 2), from a table
    assert (fresh.value, fresh.low, fresh.high) == pytest.approx((mean, mean - reach, mean + reach))
    assert [own.name for own in alone.measured.baselines] == [CHANCE]
    assert report.verdicts[-1] == "passed, uninformative: untrained networks pass" and alone.verdicts[-1] == "passed"
    assert report.verdicts[2] == "passed, uninformative: chance and untrained networks pass"
    (apart,) = (line for line in report.headlines() if "layers with W_K columns apart" in line.label)
    assert (apart.verdict, apart.why) == ("passed, uninformative", "chance and untrained networks pass")
    assert copies[0].verdicts[-1] == "failed"
    line = report.headlines()[2]
    assert {name.split("; ")[-1] for name in (level.name for level in line.levels)} == {"0 % pass", "67 % pass"}
    assert all(measure in report.table() for measure in MEASURES)


def test_what_is_not_recorded_is_not_measured(rng: np.random.Generator) -> None:
    run = run_of(rng)
    report = PassThresholds().measure(replace(run, recorded={V: run.at(V)}))
    assert report.verdicts[2:] == ("not measured",) * 3 and np.isnan(report.measured.value[2:]).all()
    assert np.isfinite(report.measured.value[:2]).all() and report.plot().data
    assert_one_meaning_per_color(report.plot())


def test_a_single_sequence_and_a_single_token_give_no_answer(rng: np.random.Generator) -> None:
    run = run_of(rng, sets={"inputs": (1,)})
    report = PassThresholds().measure(run)
    assert report.verdicts[3] == "not measured" and np.isnan(report.key_overlap).all()
    few = {site: values[:, :1] if site.name != "W_K_gram" else values for site, values in run.recorded.items()}
    one = PassThresholds().measure(replace(run, trials=run.trials.rows(slice(0, 1)), recorded=few))
    assert one.n == 1 and np.isnan(one.measured.value[:2]).all()


@pytest.mark.parametrize("control", list(PassThresholds().controls()), ids=lambda own: own.label)
def test_controls_hold(control: Control[PassThresholdsReport]) -> None:
    untrained = [PassThresholds().measure(run) for run in control.untrained]
    assert control.holds(PassThresholds().measure(control.run, untrained))


def test_gaussian_shares_are_those_of_correlation_matrices(rng: np.random.Generator) -> None:
    for n, d in ((41, 7), (7, 41)):
        found = gaussian_shares(n, d, rank=2, draws=40, seed=0)
        assert found.shape == (40, 2) and (found[:, 1] > found[:, 0]).all()
        slow = []
        for _ in range(200):
            spectrum = np.linalg.svd(np.asarray(standardized(torch.from_numpy(rng.normal(size=(n, d))))))[1] ** 2
            slow.append(spectrum[:2].cumsum() / spectrum.sum())
        np.testing.assert_allclose(found.mean(axis=0), np.mean(slow, axis=0), atol=4 * np.std(slow) / math.sqrt(40))


def test_few_points_pass_on_flatness_and_many_do_not() -> None:
    shares = [gaussian_shares(n, 512, rank=2, draws=10, seed=0)[:, 1].mean() for n in (5, 75)]
    assert shares[0] > 0.3 > 0.1 > shares[1]


@pytest.mark.parametrize(("n", "d", "frames"), [(5, 17, 1), (11, 16, 2), (20, 13, 1)])
def test_overlap_of_random_directions_lies_below_the_mark_as_often_as_simulated(
    n: int, d: int, frames: int, rng: np.random.Generator
) -> None:
    vectors = torch.from_numpy(rng.normal(size=(2_000, frames, n, d)))
    simulated = float((overlap(pairwise_cosine(vectors)).mean(dim=1) < 0.2).double().mean())
    assert overlap_below(n, d, frames=frames, below=0.2) == pytest.approx(simulated, abs=0.06)


def test_overlap_of_one_direction_is_unknown_and_of_one_dimension_is_one() -> None:
    assert math.isnan(overlap_below(1, 7, frames=3, below=0.2))
    assert overlap_below(5, 1, frames=1, below=0.2) == 0.0 and overlap_below(5, 1, frames=1, below=1.1) == 1.0


def test_half_of_the_layers_is_a_binomial_tail() -> None:
    each, by_hand = 0.3, 0.0
    for hits in (3, 4, 5):
        by_hand += math.comb(5, hits) * each**hits * (1 - each) ** (5 - hits)
    assert at_least(0.5, 5, each) == pytest.approx(by_hand)
    assert at_least(0.5, 4, 1.0) == 1 and at_least(0.5, 4, 0.0) == 0


def test_a_fall_between_random_layers_is_as_rare_as_simulated(rng: np.random.Generator) -> None:
    def entropy() -> np.ndarray:
        weights = np.exp(rng.normal(size=(4_000, 3, 2)))
        weights /= weights.sum(axis=2, keepdims=True)
        return np.asarray(-(weights * np.log2(weights)).sum(axis=2).mean(axis=1))

    simulated = float((1 - entropy() / entropy() > 0.1).mean())
    assert falls_by_more([2], rows=3, share=0.1, seed=0) == pytest.approx(simulated, abs=0.06)
    assert falls_by_more([37, 39], rows=1_000, share=0.3, seed=0) < 1e-6
    assert math.isnan(falls_by_more([1, 1], rows=7, share=0.3, seed=0))


def test_standardized_coordinates_have_variance_one_and_constants_are_zero(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(11, 3)) * [1, 1e5, 0] + [5, -2, 7.0])
    unit = standardized(points)
    torch.testing.assert_close(unit.mean(dim=0), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(unit.square().mean(dim=0), torch.tensor([1.0, 1, 0], dtype=torch.float64))
