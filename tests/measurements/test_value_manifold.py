"""Value manifold: what counts as a point, where baselines and intervals come from, and what has no answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.core.run import ATTN_OUT, RESID_POST, Run, V, Z
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.measurements import value_manifold
from bayesgeom.measurements.base import planted_run
from bayesgeom.measurements.value_manifold import SHUFFLE, STANDARDIZED, ValueManifold, ValueManifoldReport
from bayesgeom.report.estimate import codes_of
from bayesgeom.stats.intervals import Interval
from bayesgeom.stats.manifold import cloud_statistics, shuffled_scale
from bayesgeom.stats.regression import absolute_interval
from bayesgeom.stats.subspace import covariance, principal_axes, variance_shares
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM

N, LAYERS, HEADS, D_HEAD, D = 29, 2, 3, 5, 7
OVERALL, WITHIN = range(2)
REPEATS, DISTINCT = Bijection(n_values=11, n_pairs=7, repeats=True), Bijection(n_values=11, n_pairs=7)


def lively(task: WindTunnel = REPEATS, *, n: int = N, seed: int = 0) -> Run:
    """Noise at every site."""
    trials, rng = task.sample(n, seed=seed), np.random.default_rng(seed)
    p, all_p = trials.n_scored, trials.tokens.shape[1]
    shapes = {RESID_POST: (p, D), ATTN_OUT: (p, D), Z: (p, HEADS, D_HEAD), V: (all_p, HEADS, D_HEAD)}
    recorded = {site: torch.from_numpy(rng.normal(size=(LAYERS, n, *shape))) for site, shape in shapes.items()}
    return planted_run(trials, recorded, seed=seed)


def row_of(report: ValueManifoldReport, site: str) -> int:
    return report.sites.index(site)


def test_shapes_are_those_of_heads_side_by_side_at_scored_positions() -> None:
    run = lively()
    report = ValueManifold().measure(run)
    for layer in range(LAYERS):
        clouds = {
            "v": torch.stack([v[run.trials.scored[i]] for i, v in enumerate(run.at(V)[layer])]).reshape(
                -1, HEADS * D_HEAD
            ),
            "z": run.at(Z)[layer].reshape(-1, HEADS * D_HEAD),
            "attn_out": run.at(ATTN_OUT)[layer].reshape(-1, D),
            "resid_post": run.at(RESID_POST)[layer].reshape(-1, D),
        }
        for site, cloud in clouds.items():
            shares = variance_shares(principal_axes(covariance(cloud))[0])
            at = (row_of(report, site), layer)
            assert report.pc1_share.value[at] == pytest.approx(float(shares[0]))
            assert report.pc12_share.value[at] == pytest.approx(float(shares[:2].sum()))
            assert report.participation_ratio.value[at] == pytest.approx(float(1 / (shares**2).sum()))
        for head in range(HEADS):
            alone = variance_shares(principal_axes(covariance(clouds["v"].reshape(-1, HEADS, D_HEAD)[:, head]))[0])
            assert report.head_pc1_share.value[layer, head] == pytest.approx(float(alone[0]))


def test_values_outside_scored_positions_do_not_count() -> None:
    run = lively()
    values = run.at(V).clone()
    values[:, ~run.trials.scored] = 1e6
    report, disturbed = (ValueManifold().measure(r) for r in (run, replace(run, recorded={**run.recorded, V: values})))
    np.testing.assert_array_equal(report.pc1_share.value, disturbed.pc1_share.value)
    np.testing.assert_array_equal(report.head_spearman.value, disturbed.head_spearman.value)


def test_a_model_without_attention_is_measured() -> None:
    run = lively()
    report = ValueManifold().measure(replace(run, recorded={RESID_POST: run.at(RESID_POST)}))
    assert report.sites == report.shown_sites == ("resid_post",)
    assert np.isnan(report.head_pc1_share.value).all()
    assert str(report.headlines()[0]).startswith("PC1 share of resid_post")
    assert report.plot().data


def test_entropy_within_positions_is_found_where_keys_return() -> None:
    run = lively()
    entropy = torch.from_numpy(run.exact_behavior.exact_entropy_bits)
    residual = run.at(RESID_POST).clone()
    residual[1, :, :, 0] += 20 * entropy
    report = ValueManifold().measure(replace(run, recorded={RESID_POST: residual}))
    assert report.identified
    within, curve = report.spearman[WITHIN, 0], report.curve_share[0]
    assert within.value[1] > 0.9 > 0.3 > within.value[0]
    assert curve.value[1] > 0.9 > 0.1 > curve.value[0]
    assert within.baseline(SHUFFLE).value[1] < 0.2 and curve.baseline(SHUFFLE).value[1] < curve.value[1]


def test_without_returning_keys_nothing_is_identified() -> None:
    report = ValueManifold().measure(lively(DISTINCT))
    assert not report.identified and np.isnan(report.spearman.value[WITHIN]).all()
    for own in (report.spearman[OVERALL], report.pearson, report.entropy_r2, report.curve_share):
        np.testing.assert_allclose(own.value, own.baseline(SHUFFLE).value, atol=1e-6)
    related = [line for line in report.headlines() if line.metric in ("spearman", "entropy_r2", "curve_share")]
    assert len(related) == 4 and all(line.verdict == Verdict.NOT_IDENTIFIED for line in related)
    assert Verdict.NOT_IDENTIFIED not in {line.verdict for line in ValueManifold().measure(lively()).headlines()}


def test_the_level_of_a_relation_is_its_mean_over_shuffles() -> None:
    run = lively()
    report = ValueManifold().measure(run)
    entropy = run.reference_entropy_bits().round(9)
    scale = shuffled_scale(entropy, run.trials.scored_positions().numpy(), shuffles=10, seed=run.seed)
    found = cloud_statistics(run.at(RESID_POST)[1].flatten(0, 1), scale).relation
    at = (row_of(report, "resid_post"), 1)
    pairs = {
        "pearson": report.pearson[at],
        "curve_share": report.curve_share[at],
        "entropy_r2": report.entropy_r2[at],
        "spearman": report.spearman[(OVERALL, *at)],
        "partial_spearman": report.spearman[(WITHIN, *at)],
    }
    for name, own in pairs.items():
        assert float(own) == found[name][0]
        assert float(own.baseline(SHUFFLE).value) == pytest.approx(found[name][1:].mean())


def test_shares_have_intervals_everywhere_and_the_order_at_the_sites_that_are_shown() -> None:
    report = ValueManifold().measure(lively())
    is_known = np.isfinite(report.pc1_share.ends[0])
    gaussian = report.pc1_share.baseline("Gaussian points").value
    np.testing.assert_array_equal(is_known, report.pc1_share.value > 1.25 * gaussian)
    for own in (report.pc1_share, report.pc12_share):
        low, high = own.ends
        assert (np.isfinite(low) == np.isfinite(high)).all() and (low[is_known] < high[is_known]).all()
        assert ((low < own.value + 0.05) & (own.value - 0.05 < high))[is_known].all()
    is_shown = np.zeros_like(is_known)
    is_shown[[row_of(report, "v"), row_of(report, "resid_post")]] = True
    low, high = report.signed_spearman.ends
    is_shown = np.broadcast_to(is_shown, low.shape)
    assert (np.isfinite(low) == is_shown).all() and np.isfinite(report.p_value.value).all()
    np.testing.assert_allclose(np.abs(report.signed_spearman.value), report.spearman.value, atol=1e-6)
    includes = is_shown & (low <= 0) & (high >= 0)
    least, most = report.spearman.ends
    assert (np.isfinite(least) == is_shown).all() and (least[is_shown] < most[is_shown]).all()
    assert ((codes_of(report.spearman) == Reason.CONSERVATIVE) == includes).all() and (least[includes] == 0).all()
    assert (codes_of(report.spearman)[~is_shown] == Reason.NOT_COMPUTED).all()


def test_an_absolute_value_is_at_least_zero_where_the_interval_with_the_sign_includes_it() -> None:
    low, high = np.array([0.1, -0.5, -0.1, np.nan]), np.array([0.3, -0.2, 0.2, np.nan])
    codes = np.array([0, 0, 0, Reason.FEW])
    found = absolute_interval(Interval(lo=low, hi=high, code=codes, n_different=codes, n=31))
    np.testing.assert_array_equal(found.lo, [0.1, 0.2, 0, np.nan])
    np.testing.assert_array_equal(found.hi, [0.3, 0.5, 0.2, np.nan])
    assert found.code.tolist() == [0, 0, Reason.CONSERVATIVE, Reason.FEW]


def test_standardized_clouds_do_not_depend_on_the_size_of_a_coordinate() -> None:
    run = lively()
    wide = run.at(RESID_POST) * torch.tensor([1e4, 1, 1, 1, 1, 1, 1])
    stretched = replace(run, recorded={**run.recorded, RESID_POST: wide})
    plain, unit = (ValueManifold(standardized=s).measure(stretched) for s in (False, True))
    row = row_of(plain, "resid_post")
    assert (plain.pc1_share.value[row] > 0.999).all() and not plain.conditions
    assert (unit.pc1_share.value[row] < 0.5).all() and unit.conditions == (STANDARDIZED,)
    plainly = ValueManifold(standardized=True).measure(run)
    np.testing.assert_allclose(unit.pc1_share.value, plainly.pc1_share.value, atol=1e-6)
    for layer in range(LAYERS):
        cloud = run.at(RESID_POST)[layer].reshape(-1, D).numpy()
        variances = np.linalg.eigvalsh(np.corrcoef(cloud.T))
        assert unit.pc1_share.value[row, layer] == pytest.approx(variances[-1] / D, abs=1e-6)
        assert unit.pc12_share.value[row, layer] == pytest.approx(variances[-2:].sum() / D, abs=1e-6)
    assert "standardized" in str(unit.headlines()[0]) and "standardized" not in str(plain.headlines()[0])


def test_sequences_beyond_the_budget_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_manifold, "MAX_POINTS", 17 * REPEATS.n_pairs)
    run = lively()
    report = ValueManifold().measure(run)
    assert report.n == 17
    first = {site: values[:, :17] for site, values in run.recorded.items()}
    alone = ValueManifold().measure(planted_run(run.trials.rows(slice(0, 17)), first))
    np.testing.assert_array_equal(report.spearman.value, alone.spearman.value)


def test_long_sequences_do_not_leave_a_handful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_manifold, "MAX_POINTS", REPEATS.n_pairs)
    assert ValueManifold().measure(lively()).n == 16, "the least that `diagnose` lets a probe use"


@pytest.mark.parametrize("n", [1, 2])
def test_few_sequences_give_fewer_answers_and_no_fault(n: int) -> None:
    report = ValueManifold().measure(lively(n=n))
    assert report.n == n and np.isfinite(report.pc1_share.value).all()
    assert np.isnan(report.entropy_r2.value).all() == (n == 1)
    assert report.plot().data and report.headlines()


def test_shown_points_are_a_sample_of_the_cloud_with_their_entropies() -> None:
    run = lively()
    report = ValueManifold().measure(run)
    n_points = N * REPEATS.n_pairs
    assert report.shown_points.shape == (4, n_points, 3)
    assert [np.isfinite(own).all() for own in report.shown_points] == [True, False, False, True]
    np.testing.assert_allclose(report.shown_entropy_bits, run.exact_behavior.exact_entropy_bits.ravel(), atol=1e-8)
    np.testing.assert_array_equal(report.shown_position, np.tile(np.arange(REPEATS.n_pairs), N))
    axes = principal_axes(covariance(run.at(RESID_POST)[-1].flatten(0, 1)))[1]
    cloud = run.at(RESID_POST)[-1].flatten(0, 1)
    np.testing.assert_allclose(
        np.abs(report.shown_points[report.sites.index("resid_post")]),
        ((cloud - cloud.mean(0)) @ axes[:, :3]).abs().numpy(),
        atol=1e-9,
    )


def test_hmm_entropies_are_no_function_of_position() -> None:
    task = HMM(n_states=3, n_symbols=2, length=5, floor=0.1, grid=0.05)
    assert ValueManifold().measure(lively(task)).identified
