"""Hand-built models with a known answer: the battery finds the part that carries it, and nothing else."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom import ablations
from bayesgeom.ablations.batteries import Ablation, Component
from bayesgeom.ablations.report import AblationReport
from bayesgeom.ablations.run import attribution_preview
from bayesgeom.core.errors import HookFault
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.bijection import Bijection

V, PAIRS = 11, 7
TASK = Bijection(n_values=V, n_pairs=PAIRS)
N_IDS, D_HEAD = 2 * V, 13
CONFIG = TransformerConfig(
    d_vocab=N_IDS, n_ctx=TASK.n_pos, n_layers=3, n_heads=3, d_model=3 * D_HEAD, d_mlp=5, positions="none", tied=False
)
OUT, LOUD, SPARE = slice(N_IDS, N_IDS + V), N_IDS + V, slice(N_IDS + V + 1, 3 * D_HEAD)  # the stream's coordinates
LOUDNESS = 100.0  # one coordinate so large that norms only ever scale by a constant
DEAD = (0, 1)
BITS_LOST = np.mean([math.log2(V / (V - k)) for k in range(PAIRS)])  # by a model that eliminates nothing


def planted(*carriers: tuple[int, int]) -> HookedModel:
    """A model that answers exactly, by heads that say which values were shown.

    Each carrier attends to all earlier positions alike and writes what values it met into coordinates of their own; the
    output reads them, negated. All other parts but the dead head write noise into coordinates that nothing reads.
    """
    module, generator = Transformer(CONFIG), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.endswith(".w"):
                parameter.zero_()
        module.embed.weight[:, :N_IDS] = torch.eye(N_IDS)
        module.embed.weight[:, LOUD] = LOUDNESS
        gain = math.sqrt(CONFIG.d_model) / LOUDNESS  # of every norm
        module.unembed.weight[V:, OUT] = -40 * TASK.n_pos / gain * torch.eye(V)  # one mention is worth at least 40 nats
        for layer in range(CONFIG.n_layers):
            write_noise(module, layer, generator)
        for layer, head in carriers:
            own = slice(D_HEAD * head, D_HEAD * head + V)
            attention = module.get_submodule(f"blocks.{layer}.attn")
            attention.W_V.weight[D_HEAD * head : D_HEAD * (head + 1)] = 0.0
            attention.W_V.weight[own, V:N_IDS] = torch.eye(V) / gain
            attention.W_O.weight[:, D_HEAD * head : D_HEAD * (head + 1)] = 0.0
            attention.W_O.weight[OUT, own] = torch.eye(V)
    return HookedModel(module, name="planted", task=TASK)


def write_noise(module: Transformer, layer: int, generator: torch.Generator) -> None:
    n_spare = SPARE.stop - SPARE.start
    attention, mlp = module.get_submodule(f"blocks.{layer}.attn"), module.get_submodule(f"blocks.{layer}.mlp")
    attention.W_V.weight[:, :N_IDS] = 10 * torch.randn(CONFIG.d_model, N_IDS, generator=generator)
    attention.W_O.weight[SPARE] = torch.randn(n_spare, CONFIG.d_model, generator=generator)
    mlp.W_in.weight[:, :N_IDS] = 10 * torch.randn(CONFIG.d_mlp, N_IDS, generator=generator)
    mlp.W_out.weight[SPARE] = torch.randn(n_spare, CONFIG.d_mlp, generator=generator)
    if layer == DEAD[0]:
        attention.W_O.weight[:, D_HEAD * DEAD[1] : D_HEAD * (DEAD[1] + 1)] = 0.0


def found(report: AblationReport) -> list[str]:
    """The ablations that cost more than a hundredth of a bit."""
    return [label for label, bits in zip(report.ablations, report.kl_increase_bits.value, strict=True) if bits > 0.01]


def head(layer: int, number: int) -> Component:
    return Component(layer, "head", number)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_one_head_carries_the_answer_and_the_battery_finds_it_alone(mode: str) -> None:
    report = bayesgeom.ablate(planted((1, 2)), mode=mode, n=48)
    assert float(report.unablated_kl_bits) < 1e-6
    assert found(report) == ["L1H2", "L1 attention", "L1 block"]
    others = [i for i, label in enumerate(report.ablations) if label not in found(report)]
    assert np.abs(report.kl_increase_bits.value[others]).max() < 1e-6
    assert report.ablations[report.ranked()[0]] in found(report)
    assert float(report.top_to_second_ratio) > 1e3 or math.isnan(float(report.top_to_second_ratio))
    assert float(report.share_above_half_of_top) == 1 / 9
    assert np.nanargmax(report.kl_increase_bits_by_head) == 3 * 1 + 2 and report.kl_increase_bits_by_layer.argmax() == 1


def test_without_its_head_the_model_eliminates_nothing() -> None:
    report = bayesgeom.ablate(planted((1, 2)), battery=[Ablation((head(1, 2),))], mode="zero", n=48)
    by_position = [math.log2(V / (V - k)) for k in range(PAIRS)]
    np.testing.assert_allclose(report.kl_increase_bits_by_position[0], by_position, atol=1e-4)
    assert report.kl_increase_bits.value[0] == pytest.approx(BITS_LOST, abs=1e-4)
    assert report.entropy_mae_increase_bits.value[0] == pytest.approx(BITS_LOST, abs=1e-4)
    np.testing.assert_allclose(report.kl_increase_bits.ends, BITS_LOST, atol=1e-4)  # no sequence differs


@pytest.mark.parametrize("pair", [((0, 0), (2, 1)), ((1, 0), (1, 2))], ids=["two layers", "one layer"])
def test_a_redundant_pair_is_harmless_alone_and_fatal_together(pair: Sequence[tuple[int, int]]) -> None:
    model = planted(*pair)
    alone = bayesgeom.ablate(model, battery=ablations.every_head(model), mode="zero", n=16)
    assert found(alone) == [] and np.abs(alone.kl_increase_bits.value).max() < 1e-6
    together = bayesgeom.ablate(model, battery=ablations.every_pair_of_heads(model, scope="model"), mode="zero", n=16)
    assert len(together.ablations) == 36
    assert found(together) == [" + ".join(f"L{layer}H{number}" for layer, number in pair)]
    assert together.kl_increase_bits.value.max() == pytest.approx(BITS_LOST, abs=1e-4)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_a_dead_head_is_reported_to_have_no_effect(mode: str) -> None:
    report = bayesgeom.ablate(planted((1, 2)), mode=mode, n=16)
    assert [label for label, inert in zip(report.ablations, report.inert, strict=True) if inert] == ["L0H1"]
    assert report.kl_increase_bits.value[report.ablations.index("L0H1")] == 0.0
    assert report.no_effect == ("L0H1",)
    assert "no_effect" in report.table().splitlines()[1 + report.ranked().index(report.ablations.index("L0H1"))]


def test_a_battery_that_changes_nothing_anywhere_is_a_fault() -> None:
    with pytest.raises(
        HookFault, match=r"none of 1 ablations changed a logit of planted: .* Check that its hook points"
    ):
        bayesgeom.ablate(planted((1, 2)), battery=[Ablation((head(*DEAD),))], n=16)


def test_attribution_sees_the_head_and_misses_the_redundant_pair() -> None:
    """What a preview can and cannot do: a saturated answer has no gradient."""
    exact = bayesgeom.ablate(planted((1, 2)), mode="zero", n=16)
    both = attribution_preview(planted((1, 2)), mode="zero", n=16, exact=exact)
    assert both.attribution_bits[both.ablations.index("L0H1")] == 0.0
    assert np.isfinite(both.attribution_bits).all() and -1 <= float(both.attribution_rank_correlation) <= 1
