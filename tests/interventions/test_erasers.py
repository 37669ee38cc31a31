"""Erasers by their defining properties and against the authors' package; controls by their share; R² by a slow twin."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.interventions._evidence import erasure
from bayesgeom.interventions.matching import HEADROOM, TOLERANCE, matched_subspaces, n_distinct
from bayesgeom.selftest.planted import PlantedTask
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import Subspace
from bayesgeom.subspaces.erasers import JointMoments, covariance_subspace, leace_subspace, without
from bayesgeom.subspaces.quantity import ENTROPY, code_values, confounds, strongest_code

N, D, K = 4_001, 13, 3


def mixed(seed: int = 0, n: int = N) -> tuple[Tensor, Tensor]:
    """Activations with very unequal variances, and quantities that they hold under noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64) * torch.logspace(1, -2, D, dtype=torch.float64)
    weights = torch.randn(D, K, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    mixing = torch.randn(D, D, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    y = (x / x.std(dim=0)) @ weights + torch.randn(n, K, generator=generator, dtype=torch.float64)
    return x @ mixing + 3.0, y


def cross(x: Tensor, y: Tensor) -> Tensor:
    return (x - x.mean(0)).T @ (y - y.mean(0)) / len(x)


@pytest.mark.parametrize("make", [covariance_subspace, leace_subspace])
def test_nothing_covaries_with_the_quantity_after_erasure(make: object) -> None:
    x, y = mixed()
    eraser = make("y", JointMoments.of(x, y))  # type: ignore[operator]
    assert eraser.rank == K
    left = without(x, eraser)
    assert float(cross(left, y).abs().max()) < 1e-9 < 0.1 < float(cross(x, y).abs().max())
    torch.testing.assert_close(left.mean(dim=0), x.mean(dim=0), atol=1e-9, rtol=0)
    projector = eraser.projector()
    torch.testing.assert_close(projector @ projector, projector, atol=1e-6, rtol=0)


def test_leace_changes_least_of_all_projectors_that_erase() -> None:
    """Theorem 4.2: every other P with P Σxy = Σxy, here P + C with C Σxy = 0, moves the points further."""
    x, y = mixed()
    moments = JointMoments.of(x, y)
    least, orthogonal = leace_subspace("y", moments), covariance_subspace("y", moments)

    def moved(projector: Tensor) -> float:
        return float((projector @ moments.within @ projector.T).diagonal().sum())

    assert moved(least.projector()) < moved(orthogonal.projector())
    for seed in range(11):
        other = torch.randn(D, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        other = other - other @ orthogonal.projector()
        for step in (1e-3, -1e-3, 0.1, -0.1):
            changed = least.projector() + step * other
            torch.testing.assert_close(changed @ moments.cross, moments.cross, atol=1e-6, rtol=0)
            assert moved(changed) > moved(least.projector())


def test_leace_is_the_authors_own() -> None:
    """Against `concept-erasure` 0.2.4 without its shrinkage and truncation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package calls what torch deprecates
        from concept_erasure import LeaceFitter

    for x, y in (mixed(), (mixed()[0], mixed()[1][:, :1])):
        fitter = LeaceFitter.fit(x, y, shrinkage=False, svd_tol=1e-9, constrain_cov_trace=False)
        torch.testing.assert_close(
            without(x, leace_subspace("y", JointMoments.of(x, y))), fitter.eraser(x), atol=1e-6, rtol=1e-6
        )


def test_a_direction_that_does_not_vary_does_no_harm() -> None:
    x, y = mixed()
    flat = torch.cat([x, torch.full((N, 1), 2.0, dtype=torch.float64)], dim=1)
    padded, plain = leace_subspace("y", JointMoments.of(flat, y)), leace_subspace("y", JointMoments.of(x, y))
    torch.testing.assert_close(padded.projector()[:D, :D], plain.projector(), atol=1e-6, rtol=0)
    with pytest.raises(InvalidArgument, match=r"does not vary here, so there is no subspace\. Choose later layers"):
        leace_subspace("y", JointMoments.of(x, torch.ones(N, 1, dtype=torch.float64)))


def test_the_decoder_leaves_the_quantity_and_its_covariance_does_not() -> None:
    """Haufe et al. 2014: with a large nuisance on its direction, what reads y out is not where y lies."""
    generator = torch.Generator().manual_seed(3)
    y, nuisance, *noise = torch.randn(D + 1, 60, 31, generator=generator, dtype=torch.float64)
    # Coordinate 0 holds y and a nuisance, coordinate 1 the nuisance alone, coordinates 2 and 3 y again, faintly.
    parts = [y + 3 * nuisance, 3 * nuisance, y + 0.3 * noise[0], y + 0.3 * noise[1], *noise[2 : D - 2]]
    points, values = torch.stack(parts, dim=-1), y[..., None]
    moments = JointMoments.of(points.flatten(0, 1), values.flatten(0, 1))
    weights = torch.linalg.solve(moments.within + 1e-6 * torch.eye(D, dtype=torch.float64), moments.cross)
    read = erasure(points, values, Subspace("decoder", weights / weights.norm()), n_fit=41, seed=0)
    erased = erasure(points, values, covariance_subspace("covariance", moments), n_fit=41, seed=0)
    assert read.before > 0.99 and read.after > 0.9 and not read.is_complete
    assert abs(erased.after) < 0.05 and erased.before == read.before


def test_r2_after_an_edit_is_that_of_least_squares_on_edited_points() -> None:
    x, y = mixed(n=1_001)
    points, values = x.unflatten(0, (77, 13)), y.unflatten(0, (77, 13))
    half = Subspace("half", random_subspaces(D, 5, draws=1, seed=0)[0])
    found = erasure(points, values, half, n_fit=53, seed=0)
    for eraser, r2 in ((None, found.before), (half, found.after)):
        a, b = (
            (x if eraser is None else x @ (torch.eye(D, dtype=torch.float64) - eraser.projector()).T)
            for x in (points[:53].flatten(0, 1), points[53:].flatten(0, 1))
        )
        target, mean, rest = values[:53].flatten(0, 1), values[:53].mean(dim=(0, 1)), values[53:].flatten(0, 1)
        weights = torch.linalg.lstsq(a - a.mean(0), target - mean, driver="gelsd").solution
        error = rest - mean - (b - a.mean(0)) @ weights
        expected = 1 - error.square().sum() / (rest - mean).square().sum()
        assert r2 == pytest.approx(float(expected), abs=1e-3)
    assert found.permuted < 0.02 < found.after


def test_r2_of_activations_that_are_not_finite_is_undefined() -> None:
    """scikit-learn would raise; a model in half precision may overflow at one position."""
    x, y = mixed(n=1_001)
    points, values = x.unflatten(0, (77, 13)), y.unflatten(0, (77, 13))
    eraser = covariance_subspace("covariance", JointMoments.of(x, y))
    points[3, 2, 1] = torch.inf
    found = erasure(points, values, eraser, n_fit=53, seed=0)
    assert math.isnan(found.before) and not found.is_complete and not found.has_quantity


def test_r2_does_not_depend_on_the_unit_of_activations() -> None:
    x, y = mixed(n=1_001)
    points, values = x.unflatten(0, (77, 13)), y.unflatten(0, (77, 13))
    own, small = (
        erasure(part, values, covariance_subspace("y", JointMoments.of(part.flatten(0, 1), y)), n_fit=53, seed=0)
        for part in (points, 1e-6 * points)
    )
    assert (small.before, small.after) == pytest.approx((own.before, own.after), abs=1e-6)


def covariance_of(*variances: float) -> Tensor:
    turned = random_subspaces(len(variances), len(variances), draws=1, seed=5)[0]
    return turned @ torch.diag(torch.tensor(variances, dtype=torch.float64)) @ turned.T


def test_controls_carry_the_same_share_of_variance_and_lie_outside() -> None:
    covariance = covariance_of(7.0, 5.0, 3.0, 2.0, 2.0, *[0.1] * 12)
    for rank, seed in ((1, 0), (3, 1), (5, 2)):
        own = Subspace("own", random_subspaces(17, rank, draws=1, seed=seed)[0])
        found = matched_subspaces(own, covariance, draws=23, seed=4)
        assert [basis.shape for basis in found.bases] == [(17, rank)] * 23
        assert found.is_matched and found.n_distinct == 23
        share = own.variance_share(covariance)
        for basis in found.bases:
            assert Subspace("draw", basis).variance_share(covariance) == pytest.approx(share, rel=TOLERANCE)
            assert float((basis.T @ own.basis).abs().max()) < 1e-9
        spread = torch.linalg.svdvals(torch.cat(found.bases, dim=1))
        assert float(spread[16 - rank]) > 0.05, "the draws differ in every direction that is left"


def test_where_the_complement_lacks_variance_controls_come_from_the_whole_site() -> None:
    """Before, one whole complement was the only control, and its effect was counted 20 times."""
    covariance = covariance_of(7.0, 6.0, 5.0, 4.0, 3.0, *[0.5] * 8)
    values, vectors = np.linalg.eigh(covariance.numpy())
    leading = torch.from_numpy(np.ascontiguousarray(vectors[:, ::-1]))
    own = Subspace("PC1 to PC3", leading[:, :3])
    found = matched_subspaces(own, covariance, draws=20, seed=0)
    *drawn, last = found.bases
    assert (found.is_matched, found.n_distinct, len(drawn)) == (True, 20, 19)
    wanted = own.variance_share(covariance)
    for basis in drawn:
        assert Subspace("draw", basis).variance_share(covariance) == pytest.approx(wanted, rel=TOLERANCE)
    assert float((last.T @ own.basis).abs().max()) < 1e-9 and last.shape == (13, 10), "the whole complement"
    part = torch.stack([basis.T @ own.basis for basis in drawn])
    own_values = torch.from_numpy(values[::-1][:3].copy())
    shares = [(own_values * cross.square().sum(dim=0)).sum() / own_values.sum() for cross in part]
    assert 0.3 < float(np.mean(shares)) < 0.95, "the draws hold a part of the subspace"


def test_one_direction_that_holds_most_variance_leaves_no_distinct_controls() -> None:
    """With 85 % of the variance in one direction, every subspace with as much variance contains that direction."""
    covariance = covariance_of(17.0, *[0.5] * 6)
    leading = torch.linalg.eigh(covariance)[1].flip(1)
    found = matched_subspaces(Subspace("PC1", leading[:, :1]), covariance, draws=20, seed=0)
    assert min(float((basis.T @ leading[:, :1]).square().sum()) for basis in found.bases[:-1]) > 0.85
    assert found.n_distinct < 20, "subspaces with 95 % of their variance in common are one control"


def test_copies_of_one_subspace_are_one_control() -> None:
    basis = torch.eye(7, dtype=torch.float64)[:, :2]
    other = torch.eye(7, dtype=torch.float64)[:, 1:3]
    spread = torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    assert n_distinct([basis] * 20, spread) == 1
    assert n_distinct([basis, other, basis, other], spread) == 2
    nearly = torch.linalg.qr(basis + 1e-2 * torch.eye(7, dtype=torch.float64)[:, 3:5]).Q
    assert n_distinct([basis, nearly, other], spread) == 2


def test_subspaces_that_cannot_be_matched_are_reported() -> None:
    covariance = covariance_of(7.0, 5.0, 3.0, 0.1, 0.1, 0.1, 0.1)
    leading = torch.linalg.eigh(covariance)[1].flip(1)
    second = matched_subspaces(Subspace("PC1", leading[:, :1]), covariance, draws=20, seed=0)
    assert {basis.shape for basis in second.bases} == {(7, 2)} and second.is_matched
    assert max(float((basis.T @ leading[:, :1]).abs().max()) for basis in second.bases) < 1e-9, "of the complement"
    most = matched_subspaces(Subspace("PC1 to PC3", leading[:, :3]), covariance, draws=20, seed=0)
    assert [basis.shape for basis in most.bases] == [(7, 4)], "the whole complement"
    assert (most.n_distinct, most.is_matched) == (1, False)
    assert most.share == pytest.approx(0.4 / 15.4) and 1 / HEADROOM < 15.0 / 15.4
    everything = matched_subspaces(Subspace("all", torch.eye(7, dtype=torch.float64)), covariance, draws=20, seed=0)
    assert not everything.is_matched


def test_the_strongest_code_is_the_one_with_fewest_values_that_explains_most() -> None:
    """On the planted task the posterior and the token both explain all of the entropy: 15 and 225 values."""
    task = PlantedTask()
    trials = task.sample(512, seed=0)
    category, token = (code_values(trials, name) for name in ("category", "token"))
    assert int(category.max()) + 1 == 15 and int(token.max()) + 1 == 225
    exact = ENTROPY.exact(trials)
    for value in range(15):
        assert float(exact[category == value].std()) < 1e-9
    assert strongest_code(trials, exact, most=1_000) == "category"
    assert strongest_code(trials, exact, most=14) == "", "no code is that small"
    previous = code_values(trials, "previous")
    assert torch.equal(previous[:, 1:] == previous[:1, 1:], trials.tokens[:, :-1] == trials.tokens[:1, :-1])
    with pytest.raises(InvalidArgument, match="given=token has 93 values on 119 points; at least 8"):
        confounds(task.sample(17, seed=0), ("token",))
