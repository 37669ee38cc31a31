"""Every fit, kind of edit and law of interventions in half precision: finite numbers near those of float32."""

import numpy as np
import pytest
import torch

from bayesgeom.core.edits import SUBSPACE_KINDS
from bayesgeom.core.run import RESID_POST, RESID_PRE
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.onwards import erase_onwards
from bayesgeom.interventions.run import fit_subspace, intervene
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import Fit, InterventionSite
from tests.interventions.worlds import SIZES, TASK
from tests.weights import perturbed

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FITS: dict[str, Fit] = {
    "covariance": fits.covariance("entropy"),
    "leace": fits.leace("belief"),
    "given": fits.leace("entropy", given=("position", "answer")),
    "code": fits.covariance("entropy", given=("token",)),
    "decoder": fits.decoder("belief"),
    "entropy axis": fits.entropy_axis("pc1_standardized"),
    "frame": fits.frame(),
    "keys": fits.frame("keys", head=1),
    "values": fits.frame("ov", head=1),
    "jacobian": fits.top_jacobian(3),
    "trained swap, entropy": fits.trained_swap(2, "entropy", steps=2),
    "trained swap, belief": fits.trained_swap(2, "belief", steps=2),
    "random": fits.random(3),
}
FEW = Design(n_random=2, n_matched=2, n_control=5, n_untrained=1, n_fit=101)


def model_in(dtype: torch.dtype) -> HookedModel:
    module = perturbed(Transformer(SIZES, seed=0), 0.05)
    return HookedModel(module.to(dtype), name="half", task=TASK)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("fit", FITS)
def test_every_fit_runs_in_half_precision(fit: str, dtype: str) -> None:
    place = InterventionSite(RESID_POST, (0,))
    found = fit_subspace(model_in(HALF[dtype]), None, FITS[fit], sites=place)[0]
    expected = fit_subspace(model_in(torch.float32), None, FITS[fit], sites=place)[0]
    assert found.rank == expected.rank and bool(found.basis.isfinite().all())
    report = intervene(model_in(HALF[dtype]), subspace=FITS[fit], kind=FEW, sites=place, n=17)
    assert np.isfinite(report.movement.value[0, 0]) and np.isfinite(report.kl_increase_bits.value[0]).all()


@pytest.mark.parametrize("kind", SUBSPACE_KINDS)
def test_every_kind_of_edit_runs_in_half_precision(kind: str) -> None:
    place = InterventionSite(RESID_PRE, (1,))
    reports = [
        intervene(model_in(own), subspace=fits.random(7), kind=Design(kind, **_FEW), sites=place, n=17)  # type: ignore[arg-type]
        for own in (torch.bfloat16, torch.float32)
    ]
    half, whole = (own.kl_increase_bits.value[1, 0] for own in reports)
    assert half == pytest.approx(whole, abs=0.05)


_FEW = {"n_random": 2, "n_matched": 2, "n_control": 5, "n_untrained": 0, "n_fit": 101}


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", HALF)
def test_joint_edits_and_erasure_onwards_run_in_half_precision(dtype: str) -> None:
    model = model_in(HALF[dtype])
    sites = [InterventionSite(RESID_PRE, (0, 1))]
    joint = intervene(model, None, "covariance:entropy", kind="remove", sites=sites, n=9)
    assert np.isfinite(joint.kl_increase_bits.value).all() and np.isfinite(joint.axis_correlation.value[0, 1]).all()
    onwards = erase_onwards(model, quantity="belief", sites=InterventionSite(RESID_PRE, (1,)), n=9)
    assert np.isfinite(onwards.kl_increase_bits.value[1]) and onwards.r2_after.value[1] < 0.1
