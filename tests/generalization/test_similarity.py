"""Linear CKA against a slow twin, and its laws: rotation, scale, itself, independence."""

from itertools import permutations

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.generalization.similarity import cka_replicates
from tests.generalization.test_comparison import TASK, diagnosed, model


def cloud(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_hsic(k: np.ndarray, g: np.ndarray) -> float:
    """HSIC by its definition: the mean over all four distinct samples of k_ij g_ij + k_ij g_qr − 2 k_ij g_iq."""
    quadruples = permutations(range(len(k)), 4)
    return float(np.mean([k[i, j] * (g[i, j] + g[q, r] - 2 * g[i, q]) for i, j, q, r in quadruples]))


def test_each_entry_is_the_ratio_of_mean_products_over_distinct_sequences() -> None:
    a, b = cloud(2, 7, 1, 5, seed=0), cloud(3, 7, 1, 4, seed=1)
    b = b + a[:1, ..., :4]
    found = cka_replicates(a, b, seed=0)
    for left_out in range(-1, 7):
        kept = [at for at in range(7) if at != left_out]
        one, other = ([own[kept, 0].double() @ own[kept, 0].double().T for own in of] for of in (a, b))
        for i, k in enumerate(one):
            for j, g in enumerate(other):
                own = [slow_hsic(x.numpy(), y.numpy()) for x, y in ((k, g), (k, k), (g, g))]
                assert found[1 + left_out, i, j] == pytest.approx(own[0] / (own[1] * own[2]) ** 0.5, abs=1e-10)


def test_rotation_scale_and_shift_change_nothing() -> None:
    a, b = cloud(3, 11, 7, 13, seed=0), cloud(2, 11, 7, 17, seed=1)
    turned = 2.5 * a @ torch.linalg.qr(cloud(13, 13, seed=2)).Q + 3
    np.testing.assert_allclose(cka_replicates(turned, b, seed=3), cka_replicates(a, b, seed=3), atol=1e-5)
    assert cka_replicates(a, turned, seed=3)[:, range(3), range(3)] == pytest.approx(1, abs=1e-5)


def test_independent_layers_have_0_however_wide_they_are() -> None:
    """Also if the positions of a sequence are alike, which pooled positions would take for likeness of the models."""
    many, width = 150, 61
    a, b = (cloud(many, 13, 1, width, seed=seed) + 0.3 * cloud(many, 13, 5, width, seed=seed + 2) for seed in (0, 1))
    found = np.array([cka_replicates(a[i, None], b[i, None], seed=0)[0, 0, 0] for i in range(many)])
    assert abs(found.mean()) < 3 * found.std() / many**0.5 < 0.03


def test_a_report_holds_every_layer_of_every_pair_next_to_untrained_ones() -> None:
    models = [model(0), model(1, noise=0.1), model(0)]
    report = bayesgeom.compare(models, n=23, seed=3, cka=True, n_untrained=2)
    assert report.cka.value.shape == (3, 2, 2) and report.cka.n == 23
    first, same = 0, 1
    assert report.cka.value[same].diagonal() == pytest.approx(1) and (report.cka.value[first] < 1).all()
    (level,) = report.cka.baselines
    assert level.low is not None and (level.low < level.value).all() and (level.value[same].diagonal() < 1).all()
    low, high = report.cka.ends
    assert (low[first] < report.cka.value[first]).all() and (report.cka.value[first] < high[first]).all()
    table = report.to_pandas("cka")
    assert len(table) == 12 and table["layer"].dtype == "Int64"
    assert len(report.panels()) - len(bayesgeom.compare(models, n=23, seed=3).panels()) == 3


def test_refusals() -> None:
    with pytest.raises(InvalidArgument, match=r"at least 5 .* got 4"):
        bayesgeom.compare([model(0), model(1)], n=4, cka=True)
    with pytest.raises(InvalidArgument, match="cka cannot be passed with diagnoses"):
        bayesgeom.compare([diagnosed(model(0)), diagnosed(model(1))], cka=True)
    with pytest.raises(MissingSite, match="cka requires site 'resid_post'"):
        bayesgeom.compare([model(0), bayesgeom.as_model(lambda ids: torch.zeros(*ids.shape, 14))], TASK, cka=True)
