"""Ablation of hidden units: against the loop with hooks, against weights without the unit, and the choice of units."""

from copy import deepcopy

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom import ablations
from bayesgeom.ablations import Ablation, Component
from bayesgeom.ablations.engine import score_batch
from bayesgeom.core import MLP_POST, Replace, Z
from bayesgeom.core.errors import InvalidArgument, MissingSite, UnknownName
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.lstm import LSTMConfig
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.stats.regression import spearman
from tests.ablations.plain import LAYERS, TASK, heads, lively
from tests.ablations.test_engine import LAST, TRIALS


def neurons(layer: int, *units: int) -> tuple[Component, ...]:
    return tuple(Component(layer, "neuron", unit=unit) for unit in units)


SETS = [
    *(Ablation(neurons(layer, 3)) for layer in LAYERS),
    Ablation(neurons(1, 2, 5, 7)),
    Ablation(neurons(0, 1) + neurons(2, 4)),
    Ablation(heads((1, 2)) + neurons(1, 6)),
    Ablation((Component(0, "attention"), *neurons(1, 0))),
    Ablation((Component(1, "mlp"), *neurons(1, 6))),
]


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_a_replay_of_rank_one_equals_the_loop_with_hooks(mode: str, norm: str) -> None:
    model = lively(norm=norm)
    stored = PlainLoop(model).baseline(TRIALS, (MLP_POST,)).stored
    means = {place: values.mean(dim=0) for place, values in stored.items()}
    variants = [own.edits(mode) for own in SETS] + [(Replace(site=MLP_POST, layer=1, mode=mode),)]
    fast, slow = (score_batch(each, TRIALS, LAST, variants, means) for each in (model.replayer(), PlainLoop(model)))
    np.testing.assert_allclose(fast.variants, slow.variants, atol=2e-5, rtol=0)
    assert not fast.inert.any() and (fast.variants - fast.baseline).std() > 1e-3


def test_a_neuron_without_a_column_of_the_output_matrix_writes_nothing() -> None:
    module = deepcopy(lively().module)
    with torch.no_grad():
        module.get_parameter("blocks.1.mlp.W_out.weight")[:, 4] = 0
    without = HookedModel(module, task=TASK)
    report = bayesgeom.ablate(without, battery=[Ablation(neurons(1, 4)), Ablation(neurons(1, 5))], mode="zero", n=32)
    assert report.inert.tolist() == [True, False] and report.no_effect == ("L1N4",)
    assert report.unit_index.tolist() == [4, 5] and report.kinds == ("neuron", "neuron") and (report.head == -1).all()
    whole = bayesgeom.ablate(lively(), battery=[Ablation(neurons(1, 4))], mode="zero", n=32)
    assert whole.kl_increase_bits.value[0] == pytest.approx(
        float(report.unablated_kl_bits) - float(whole.unablated_kl_bits), abs=1e-6
    )
    assert list(report.to_pandas("kl_increase_bits")["unit_index"]) == [4, 5]


@pytest.mark.exhaustive
def test_the_strongest_neurons_come_first() -> None:
    """A trained network is near a minimum: the first-order estimate of 200 neurons has rank correlation 0.2 at most."""
    model = bayesgeom.load("sticky-small")
    ranked = ablations.strongest_neurons(model, n_neurons=10**6, layers=[1])
    assert {own.components for own in ranked} == {own.components for own in ablations.every_neuron(model, 1)}
    some = ranked[:: len(ranked) // 40]
    exact = bayesgeom.ablate(model, battery=some, n=64).kl_increase_bits.value
    assert spearman(-np.arange(len(some), dtype=float), exact) > 0.9
    assert ablations.strongest_neurons(model, n_neurons=5, layers=[1]) == ranked[:5]


def test_the_battery_is_that_of_the_strongest() -> None:
    report = bayesgeom.ablate(lively(), battery="neurons", n=8)
    strongest = ablations.strongest_neurons(lively())
    assert report.ablations == tuple(own.label for own in strongest) and report.layer.tolist().count(-1) == 0


def test_refusals() -> None:
    lstm = LSTMConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=2, d_model=8).build(seed=0)
    for call, error, told in (
        (lambda: Component(1, "neuron"), InvalidArgument, "a neuron or expert with its unit"),
        (lambda: Component(1, "mlp", unit=3), InvalidArgument, "a neuron or expert with its unit"),
        (
            lambda: bayesgeom.ablate(lively(), battery=[Ablation(neurons(1, 99))], n=4),
            InvalidArgument,
            r"has neurons 0 …",
        ),
        (lambda: ablations.strongest_neurons(lively(), n_neurons=0), InvalidArgument, "at least 1, got 0"),
        (lambda: ablations.strongest_neurons(lively(), layers=[]), InvalidArgument, "layers is empty"),
        (lambda: ablations.strongest_neurons(lively(), layers=[7]), InvalidArgument, "has layers 0 … 2"),
        (lambda: ablations.strongest_neurons(lively(), mode="most"), InvalidArgument, "mode must be"),
        (lambda: bayesgeom.ablate(lively(), battery="experts"), MissingSite, "requires site 'expert_weights'"),
        (lambda: bayesgeom.ablate(lstm, TASK, "neurons"), MissingSite, "requires site 'mlp_post'"),
        (lambda: bayesgeom.ablate(lively(), battery="neuron"), UnknownName, "neurons"),
        (lambda: Replace(site=Z, layer=0, mode="zero", units=(1,)), InvalidArgument, "units are those"),
    ):
        with pytest.raises(error, match=told):
            call()
