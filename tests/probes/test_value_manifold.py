"""Value manifold: what counts as a point, where nulls and intervals come from, what is said where nothing can be."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom.core.run import Run
from bayesgeom.core.sites import ATTN_OUT, RESID_POST, V, Z
from bayesgeom.probes import value_manifold
from bayesgeom.probes.base import planted_run
from bayesgeom.probes.value_manifold import ValueManifold, ValueManifoldReport
from bayesgeom.stats.manifold import RELATIONS, SHAPES
from bayesgeom.stats.pca import covariance, principal_axes, variance_shares
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM

N, LAYERS, HEADS, D_HEAD, D = 29, 2, 3, 5, 7
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


def test_sites_keep_their_names_and_their_order() -> None:
    report = ValueManifold().measure(lively())
    assert report.sites == ("v", "z", "attn_out", "resid_post") and report.shown_sites == ("v", "resid_post")
    assert report.pc1_share.shape == (4, LAYERS) and report.head_pc1_share.shape == (LAYERS, HEADS)


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
            assert report.pc1_share[at] == pytest.approx(float(shares[0]))
            assert report.pc12_share[at] == pytest.approx(float(shares[:2].sum()))
            assert report.participation_ratio[at] == pytest.approx(float(1 / (shares**2).sum()))
        for head in range(HEADS):
            alone = variance_shares(principal_axes(covariance(clouds["v"].reshape(-1, HEADS, D_HEAD)[:, head]))[0])
            assert report.head_pc1_share[layer, head] == pytest.approx(float(alone[0]))


def test_values_outside_scored_positions_do_not_count() -> None:
    run = lively()
    values = run.at(V).clone()
    values[:, ~run.trials.scored] = 1e6
    report, disturbed = (ValueManifold().measure(r) for r in (run, replace(run, recorded={**run.recorded, V: values})))
    np.testing.assert_array_equal(report.pc1_share, disturbed.pc1_share)
    np.testing.assert_array_equal(report.head_spearman, disturbed.head_spearman)


def test_a_model_without_attention_is_served() -> None:
    run = lively()
    report = ValueManifold().measure(replace(run, recorded={RESID_POST: run.at(RESID_POST)}))
    assert report.sites == report.shown_sites == ("resid_post",)
    assert np.isnan(report.head_pc1_share).all()
    assert str(report.headlines()[0]).startswith("PC1 share of resid_post")
    assert report.figure().data


def test_entropy_within_positions_is_found_where_keys_return() -> None:
    run = lively()
    entropy = torch.from_numpy(run.exact_behaviour.exact_entropy_bits)
    residual = run.at(RESID_POST).clone()
    residual[1, :, :, 0] += 20 * entropy
    report = ValueManifold().measure(replace(run, recorded={RESID_POST: residual}))
    assert report.identified
    assert report.partial_spearman[0, 1] > 0.9 > 0.3 > report.partial_spearman[0, 0]
    assert report.curve_share[0, 1] > 0.9 > 0.1 > report.curve_share[0, 0]
    assert report.partial_spearman_null[0, 1] < 0.2 and report.curve_share_null[0, 1] < report.curve_share[0, 1]


def test_without_returning_keys_nothing_is_identified() -> None:
    report = ValueManifold().measure(lively(DISTINCT))
    assert not report.identified and np.isnan(report.partial_spearman).all()
    for metric in ("spearman", "pearson", "entropy_r2", "curve_share"):
        np.testing.assert_allclose(vars(report)[metric], vars(report)[f"{metric}_null"], atol=1e-6)
    assert "not identified" in report.figure().layout.title.text
    related = [line for line in report.headlines() if line.metric in RELATIONS]
    assert len(related) == 4 and all("not identified" in line.label for line in related)
    assert "not identified" not in " ".join(map(str, ValueManifold().measure(lively()).headlines()))


def test_nulls_at_initialisation_are_means_over_the_copies() -> None:
    run, probe = lively(), ValueManifold()
    copies = [probe.measure(lively(seed=seed)) for seed in (1, 2, 3)]
    alone, report = probe.measure(run), probe.measure(run, copies)
    suffixes = dict.fromkeys((*SHAPES, "head_pc1_share", "head_spearman"), "null")
    for metric, suffix in (suffixes | dict.fromkeys(RELATIONS, "initialisation")).items():
        mean = np.mean([vars(copy)[metric] for copy in copies], axis=0)
        np.testing.assert_allclose(vars(report)[f"{metric}_{suffix}"], mean, err_msg=metric)
        assert np.isnan(vars(alone)[f"{metric}_{suffix}"]).all()
        np.testing.assert_array_equal(vars(alone)[metric], vars(report)[metric])


def test_shares_have_intervals_everywhere_and_the_order_in_the_last_layer_of_what_is_shown() -> None:
    report = ValueManifold().measure(lively())
    for metric in ("pc1_share", "pc12_share", "spearman", "partial_spearman"):
        values, lo, hi = (vars(report)[f"{metric}{end}"] for end in ("", "_lo", "_hi"))
        known = np.full_like(lo, metric.endswith("share"), dtype=bool)
        known[[row_of(report, "v"), row_of(report, "resid_post")], -1] = True
        if not metric.endswith("share"):
            low, high, p = (vars(report)[f"{metric}_{end}"] for end in ("signed_lo", "signed_hi", "p"))
            assert (np.isfinite(low) == known).all() and np.isfinite(p).all()
            np.testing.assert_allclose(np.abs(vars(report)[f"{metric}_signed"]), values, atol=1e-6)
            known = known & ((low > 0) | (high < 0))
        else:
            known = values > 1.25 * report.pc1_share_gaussian if metric == "pc1_share" else np.isfinite(lo)
        assert (np.isfinite(lo) == known).all() and (np.isfinite(hi) == known).all()
        assert (lo[known] < hi[known]).all()
        if metric.endswith("share"):
            assert ((lo < values + 0.05) & (values - 0.05 < hi))[known].all()


def test_standardised_clouds_do_not_depend_on_the_size_of_a_coordinate() -> None:
    run = lively()
    wide = run.at(RESID_POST) * torch.tensor([1e4, 1, 1, 1, 1, 1, 1])
    stretched = replace(run, recorded={**run.recorded, RESID_POST: wide})
    plain, unit = (ValueManifold(standardised=s).measure(stretched) for s in (False, True))
    row = row_of(plain, "resid_post")
    assert (plain.pc1_share[row] > 0.999).all() and not plain.standardised
    assert (unit.pc1_share[row] < 0.5).all() and unit.standardised
    np.testing.assert_allclose(unit.pc1_share, ValueManifold(standardised=True).measure(run).pc1_share, atol=1e-6)
    for layer in range(LAYERS):
        cloud = run.at(RESID_POST)[layer].reshape(-1, D).numpy()
        variances = np.linalg.eigvalsh(np.corrcoef(cloud.T))
        assert unit.pc1_share[row, layer] == pytest.approx(variances[-1] / D, abs=1e-6)
        assert unit.pc12_share[row, layer] == pytest.approx(variances[-2:].sum() / D, abs=1e-6)
    assert "standardised" in str(unit.headlines()[0]) and "standardised" not in str(plain.headlines()[0])


def test_sequences_beyond_the_budget_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_manifold, "MAX_POINTS", 11 * REPEATS.n_pairs)
    run = lively()
    report = ValueManifold().measure(run)
    assert report.n == 11
    first = {site: values[:, :11] for site, values in run.recorded.items()}
    alone = ValueManifold().measure(planted_run(run.trials.rows(slice(0, 11)), first))
    np.testing.assert_array_equal(report.spearman, alone.spearman)


@pytest.mark.parametrize("n", [1, 2])
def test_few_sequences_give_fewer_answers_and_no_fault(n: int) -> None:
    report = ValueManifold().measure(lively(n=n))
    assert report.n == n and np.isfinite(report.pc1_share).all()
    assert np.isnan(report.entropy_r2).all() == (n == 1)
    assert report.figure().data and report.headlines()


def test_shown_points_are_a_sample_of_the_cloud_with_their_entropies() -> None:
    run = lively()
    report = ValueManifold().measure(run)
    n_points = N * REPEATS.n_pairs
    assert report.shown_points.shape == (2, n_points, 3)
    np.testing.assert_allclose(report.shown_entropy_bits, run.exact_behaviour.exact_entropy_bits.ravel(), atol=1e-8)
    np.testing.assert_array_equal(report.shown_position, run.trials.scored_positions().ravel())
    axes = principal_axes(covariance(run.at(RESID_POST)[-1].flatten(0, 1)))[1]
    cloud = run.at(RESID_POST)[-1].flatten(0, 1)
    np.testing.assert_allclose(
        np.abs(report.shown_points[1]), ((cloud - cloud.mean(0)) @ axes[:, :3]).abs().numpy(), atol=1e-9
    )


def test_a_report_comes_back_whole(tmp_path: Path) -> None:
    report = ValueManifold().measure(lively(DISTINCT))
    report.save(tmp_path / "report")
    restored = ValueManifoldReport.load(tmp_path / "report")
    for name, array in report.arrays().items():
        np.testing.assert_array_equal(restored.arrays()[name], array, err_msg=name)
    assert restored.scalars() == report.scalars() and restored.identified is False
    assert any(math.isnan(r.value) for r in restored.records())


def test_the_figure_draws_clouds_curves_and_nulls() -> None:
    run = lively()
    report = ValueManifold().measure(run, [ValueManifold().measure(lively(seed=1))])
    figure = report.figure()
    assert isinstance(figure, go.Figure) and figure.layout.title.text == report.title
    names = [trace.name for trace in figure.data]
    assert names.count("scored position") == 4 and names.count("smooth curve in entropy") == 2
    assert names.count("null: initialisation") == 4 and names.count("null: shuffle within position") == 4
    colours = [trace.marker.color for trace in figure.data if trace.name == "scored position"]
    np.testing.assert_array_equal(colours[0], report.shown_entropy_bits)
    np.testing.assert_array_equal(colours[1], report.shown_position)
    for axis in ("xaxis", "yaxis"):
        for panel in ("", "2", "3", "4", "5", "6"):
            assert figure.layout[f"{axis}{panel}"].title.text
    assert figure.layout.xaxis2.title.text == "exact entropy (bits)"


def test_hmm_entropies_are_no_function_of_position() -> None:
    task = HMM(n_states=3, n_symbols=2, length=5, floor=0.1, grid=0.05)
    assert ValueManifold().measure(lively(task)).identified
