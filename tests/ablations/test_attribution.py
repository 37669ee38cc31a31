"""Attribution is the derivative: compared with finite differences of the exact KL increase, in float64."""

import contextlib
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor

import bayesgeom
from bayesgeom import ablations
from bayesgeom.ablations import Ablation, Component
from bayesgeom.ablations.run import attributed_kl_increase, attribution_preview
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ATTN_OUT, MLP_OUT, Site, Z
from bayesgeom.core.verdict import Verdict
from bayesgeom.models.adapters.hooked import HookedModel
from tests.ablations.plain import LAYERS, TASK, Plain, heads, lively, n_hooks, scored

POINTS = {Z: "attn.hook_z", ATTN_OUT: "hook_attn_out", MLP_OUT: "hook_mlp_out"}
TRIALS, OTHERS = TASK.sample(5, seed=2), TASK.sample(17, seed=3)
STEP = 1e-5


@final
@dataclass(frozen=True)
class Kept:
    """A reference that reads the twin's caches."""

    plain: Plain

    def mean(self, site: Site, layer: int) -> Tensor:
        return self.plain.means[f"blocks.{layer}.{POINTS[site]}"]

    def donor(self, site: Site, layer: int) -> Tensor:
        return self.plain.own[f"blocks.{layer}.{POINTS[site]}"].roll(1, dims=0)


def double(**changes: str) -> HookedModel:
    return HookedModel(lively(**changes).module.double(), name="tiny", task=TASK)


def kl_at(plain: Plain, ablation: Ablation, mode: str, share: float) -> np.ndarray:
    """Mean KL (bits) of each sequence with activations moved by this share of the way to their replacements."""
    handles = []
    for part in ablation.components:
        places = ["hook_attn_out", "hook_mlp_out"] if part.kind == "block" else []
        places = places or [{"head": "attn.hook_z", "attention": "hook_attn_out", "mlp": "hook_mlp_out"}[part.kind]]
        for place in places:
            name = f"blocks.{part.layer}.{place}"

            def move(m: object, inputs: object, out: Tensor, name: str = name, part: Component = part) -> Tensor:
                goal = plain.substitute(name, out, "zero" if part.kind == "block" else mode)
                moved = out + share * (goal - out)
                if part.head is None:
                    return moved
                chosen = torch.arange(out.shape[2])[:, None] == part.head
                return torch.where(chosen, moved, out)

            handles.append(plain.module.get_submodule(name).register_forward_hook(move))
    with torch.no_grad():
        logits = plain.trials.at_scored(plain.module(plain.trials.tokens))
    for handle in handles:
        handle.remove()
    kl: np.ndarray = scored(logits, plain.trials)[0].mean(axis=-1)
    return kl


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
@pytest.mark.parametrize("positions", ["rotary", "prior"])
def test_attribution_is_the_derivative_of_the_kl_increase(mode: str, positions: str) -> None:
    model = double(positions=positions)
    plain = Plain.of(model.module, TRIALS, OTHERS)
    battery = [*ablations.everything(model)[::2], Ablation((*heads((0, 1), (0, 3), (2, 2)), Component(1, "mlp")))]
    found = attributed_kl_increase(model, TRIALS, [a.edits(mode) for a in battery], Kept(plain))
    assert found.shape == (len(battery), 5)
    for ablation, row in zip(battery, found, strict=True):
        slope = (kl_at(plain, ablation, mode, STEP) - kl_at(plain, ablation, mode, -STEP)) / (2 * STEP)
        np.testing.assert_allclose(row, slope, atol=1e-5, rtol=1e-5, err_msg=ablation.label)


def test_nothing_is_left_behind() -> None:
    model = lively()
    plain, before = Plain.of(model.module, TRIALS, OTHERS), n_hooks(model.module)
    attributed_kl_increase(model, TRIALS, [a.edits("mean") for a in ablations.everything(model)], Kept(plain))
    assert n_hooks(model.module) == before and all(p.grad is None for p in model.module.parameters())


def test_parts_add_up_to_first_order() -> None:
    model = double()
    plain, parts = Plain.of(model.module, TRIALS, OTHERS), heads((0, 1), (0, 4), (2, 0))
    variants = [Ablation(parts).edits("mean"), *(Ablation((part,)).edits("mean") for part in parts)]
    together, *alone = attributed_kl_increase(model, TRIALS, variants, Kept(plain))
    np.testing.assert_allclose(together, sum(alone), atol=1e-9)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_small_replacement_costs_what_attribution_says(layer: int) -> None:
    """Where the change is small the first order is the whole: here a head that writes next to nothing."""
    model = double()
    with torch.no_grad():
        model.module.get_submodule(f"blocks.{layer}.attn.W_O").weight[:, :6] *= 1e-5
    plain, ablation = Plain.of(model.module, TRIALS, OTHERS), Ablation(heads((layer, 0)))
    (found,) = attributed_kl_increase(model, TRIALS, [ablation.edits("zero")], Kept(plain))
    exact = kl_at(plain, ablation, "zero", 1.0) - kl_at(plain, ablation, "zero", 0.0)
    assert np.abs(exact).max() > 1e-7
    np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-9)


def test_both_methods_report_their_rank_correlation() -> None:
    model = lively()
    exact, preview = bayesgeom.ablate(model, n=17), attribution_preview(model, n=17)
    both = attribution_preview(model, n=17, exact=exact)
    assert preview.is_preview and preview.headlines()[0].verdict == Verdict.PREVIEW
    assert not any(own.is_preview or own.headlines()[0].verdict == Verdict.PREVIEW for own in (exact, both))
    methods = [own.provenance["arguments"]["method"] for own in (exact, preview, both)]
    assert methods == ["exact", "attribution", "both"]
    np.testing.assert_array_equal(both.kl_increase_bits.value, exact.kl_increase_bits.value)
    np.testing.assert_array_equal(both.attribution_bits, preview.attribution_bits)
    np.testing.assert_allclose(preview.kl_increase_bits.value, preview.attribution_bits, atol=1e-12)
    assert np.isnan(exact.attribution_bits).all() and np.isnan(float(exact.attribution_rank_correlation))
    order = [np.argsort(np.argsort(values)) for values in (both.attribution_bits, both.kl_increase_bits.value)]
    assert float(both.attribution_rank_correlation) == pytest.approx(np.corrcoef(*order)[0, 1])
    assert float(preview.attribution_rank_correlation) == pytest.approx(1.0)
    assert np.isnan(preview.entropy_mae_increase_bits.value).all() and not preview.inert.any()


@pytest.mark.parametrize(
    ("mode", "n_frozen"),
    [(contextlib.nullcontext, 1), (contextlib.nullcontext, 3), (torch.inference_mode, 0), (torch.inference_mode, 3)],
)
def test_the_preview_needs_no_weight_with_a_gradient(mode: type, n_frozen: int) -> None:
    """Frozen: nothing, the first blocks with the embedding, or all."""
    expected = ablations.attribution_preview(lively(), n=9).attribution_bits
    model = lively()
    for part in (model.module.embed, *model.module.blocks[:n_frozen]) if n_frozen else ():
        part.requires_grad_(requires_grad=False)
    if n_frozen == len(LAYERS):
        model.module.requires_grad_(requires_grad=False)
    with mode():
        found = ablations.attribution_preview(model, n=9).attribution_bits
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [p.requires_grad for p in model.module.parameters()].count(False) >= n_frozen


def test_weights_made_in_inference_mode_are_refused_before_work_begins() -> None:
    with torch.inference_mode():
        model = lively()
    passes: list[int] = []
    model.module.embed.register_forward_hook(lambda *_: passes.append(1))
    with pytest.raises(InvalidArgument, match=r"tiny .*inference_mode"):
        ablations.attribution_preview(model, n=9)
    assert passes == [] and bayesgeom.ablate(model, n=9, battery="mlps").n == 9
    model = lively()
    with torch.device("meta"), pytest.raises(InvalidArgument, match="meta"):
        ablations.attribution_preview(model, n=9)
