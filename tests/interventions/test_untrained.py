"""Untrained networks, whose answers follow any swap through the direct path, are never called causal."""

import pytest

from bayesgeom.core.run import RESID_PRE
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.run import intervene
from bayesgeom.models.resolve import load
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import InterventionSite

FEW = Design(n_control=8, n_fit=256)
# Once by hand, 1000 to 1009, with rrxor-transformer in place of product-transformer: none of 40 causal in any layer.
SEEDS = range(1000, 1004)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mess3-small", "sticky-small", "dice-transformer", "product-transformer"])
def test_no_untrained_network_is_causal(name: str) -> None:
    model = load(name)
    sites = InterventionSite(RESID_PRE, range(1, model.spec.n_layers))
    for seed in SEEDS:
        network = model.untrained_copy(seed)
        report = intervene(network, model.task, fits.leace("belief"), kind=FEW, sites=sites, n=32, seed=seed)
        verdicts = set(report.verdict_by_layer) - {""}
        assert verdicts and verdicts <= {"undecided", "inert", "by construction"}, (seed, report.table())
        assert report.movement.value[1:, 0].max() > 0.2, "the swap moves the answer"


@pytest.mark.slow
def test_a_trained_network_is_causal_in_the_layer_after_which_later_ones_compute() -> None:
    sites = InterventionSite(RESID_PRE, (1, 2))
    trained = intervene("mess3-small", subspace=fits.covariance("belief"), kind=FEW, sites=sites, n=32)
    assert trained.among_layers(1).verdict == "causal"
