"""The positional prior: its special cases to the last digit, its gradients, and attention that is off in top layers."""

import json
from array import array
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.edits import Replace
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ATTN_OUT, Z
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Variant
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.native.positions import PositionalPrior, alibi_bias, alibi_slopes
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe
from tests.shape_checks import ARE_ON

HEADS, POS = 3, 11
SIZES = TransformerConfig(d_vocab=22, n_ctx=13, n_layers=3, n_heads=HEADS, d_model=30, d_mlp=17, positions="prior")
TASK = Bijection(n_values=11, n_pairs=7)
LIKE = torch.zeros(1)
SLOPES = (0.5, 0.25, 1.5)


def lively(config: TransformerConfig, seed: int = 1) -> Transformer:
    module, generator = Transformer(config, seed=0), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and "prior" not in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return module.eval()


def logits(config: TransformerConfig) -> Tensor:
    with torch.no_grad():
        out: Tensor = lively(config)(TASK.sample(5, seed=2).tokens)
    return out


@pytest.mark.parametrize("n_heads", [1, 3, 8])
def test_exponent_one_with_alibis_slopes_is_alibi(n_heads: int) -> None:
    visible = torch.ones(POS, POS).tril()
    for is_learned in (True, False):
        prior = PositionalPrior(n_heads, is_learned=is_learned)(POS, LIKE).detach()
        torch.testing.assert_close(prior * visible, alibi_bias(n_heads, POS, LIKE) * visible, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("is_learned", [True, False])
def test_models_agree_with_alibi_and_with_none(is_learned: bool) -> None:
    shape = replace(SIZES, prior_is_learned=is_learned)
    torch.testing.assert_close(logits(shape), logits(replace(SIZES, positions="alibi")), atol=2e-5, rtol=1e-5)
    flat = replace(SIZES, prior_is_learned=False, prior_slopes=(0.0,) * HEADS, prior_exponents=(1.0, 2.0, 0.5))
    torch.testing.assert_close(logits(flat), logits(replace(SIZES, positions="none")), atol=2e-5, rtol=1e-5)
    assert (logits(shape) - logits(flat)).abs().max() > 0.1, "the decay acts"


def test_exponent_two_is_a_gaussian() -> None:
    scales = torch.tensor([1.5, 4.0, 20.0])
    prior = PositionalPrior(HEADS, slopes=(1 / scales).tolist(), exponents=(2.0,) * HEADS, is_learned=False)
    bias = prior(POS, LIKE)
    for head, scale in enumerate(scales.tolist()):
        for query in range(POS):
            by_hand = torch.tensor([-(((query - key) / scale) ** 2) for key in range(POS)])
            torch.testing.assert_close(bias[head, query], by_hand, atol=1e-4, rtol=1e-5)
    # Uniform scores under it attend as the density does.
    pattern = bias[1, POS - 1].softmax(-1)
    density = torch.exp(-((torch.arange(POS) - (POS - 1)) ** 2) / 16.0)
    torch.testing.assert_close(pattern, density / density.sum(), atol=1e-6, rtol=1e-5)


def test_gradients_are_those_of_the_formula_and_finite_everywhere() -> None:
    prior = PositionalPrior(HEADS, exponents=(0.5, 1.0, 2.0))
    weight = torch.randn(HEADS, POS, POS, generator=torch.Generator().manual_seed(0))
    (prior(POS, LIKE) * weight).sum().backward()
    slope, exponent = alibi_slopes(HEADS).requires_grad_(), torch.tensor([0.5, 1.0, 2.0]).requires_grad_()
    apart = (torch.arange(POS)[:, None] - torch.arange(POS)[None, :]).abs().float()
    written = torch.where(apart > 0, (slope[:, None, None] * apart.clamp_min(1)) ** exponent[:, None, None], 0.0)
    (-written * weight).sum().backward()
    assert slope.grad is not None and exponent.grad is not None
    torch.testing.assert_close(prior.log_slope_shift.grad, slope.grad * slope.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(prior.log_exponent_shift.grad, exponent.grad * exponent.detach(), atol=1e-4, rtol=1e-4)


def test_a_step_of_training_moves_a_learned_prior_and_no_fixed_one() -> None:
    for is_learned in (True, False):
        recipe = Recipe(name="tiny", task=TASK, sizes=sizes(prior_is_learned=is_learned), steps=5)
        module = recipe.model_config().build(seed=0)
        before = {name: tensor.clone() for name, tensor in module.state_dict().items() if "prior" in name}
        assert len(before) == (2 * SIZES.n_layers if is_learned else 0)
        trials, optimizers = TASK.sample(7, seed=1), Optimizers(recipe, module)
        module(trials.tokens).square().mean().backward()
        optimizers.step(3)
        assert all(not torch.equal(module.state_dict()[name], value) for name, value in before.items())


def sizes(**changes: object) -> dict[str, object]:
    fields = SIZES.to_dict() | changes
    return {name: value for name, value in fields.items() if name not in ("d_vocab", "n_ctx")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior_slopes": (0.5,)}, "one finite slope per head"),
        ({"prior_slopes": (0.5, -0.1, 1.0), "prior_is_learned": False}, "at least 0"),
        ({"prior_exponents": (1.0, 0.0, 1.0)}, "exponent per head, above 0"),
        ({"prior_slopes": (0.5, 0.0, 1.0)}, "cannot be learned"),
        ({"top_attention_off": 4}, "must be 0 to 3 layers"),
        ({"positions": "learned", "prior_slopes": (0.5, 0.5, 0.5)}, "require positions 'prior'; .* 'learned'"),
        ({"positions": "alibi", "prior_is_learned": False}, "require positions 'prior'; .* 'alibi'"),
    ],
)
def test_what_no_prior_is(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        config_from_dict(SIZES.to_dict() | changes)


@pytest.mark.parametrize("positions", ["prior", "alibi", "learned"])
def test_replay_agrees_with_whole_passes(positions: str) -> None:
    model = HookedModel(lively(replace(SIZES, positions=positions)), task=TASK)
    assert model.withheld == {}
    trials, replayer = TASK.sample(5, seed=4), model.replayer()
    baseline = replayer.baseline(trials)
    torch.testing.assert_close(baseline.logits, model.logits(trials).detach(), atol=1e-4, rtol=1e-4)
    for layer in range(SIZES.n_layers):
        variant: Variant = (Replace(site=Z, layer=layer, mode="zero", heads=(1,)),)
        hook = (f"blocks.{layer}.attn.hook_z", silence_head_one)
        module = model.module
        assert isinstance(module, Transformer)
        with torch.no_grad():
            whole = trials.at_scored(module.run_with_hooks(trials.tokens, fwd_hooks=[hook]))
        replayed = replayer.logits(baseline, [variant], _Nothing())[0]
        torch.testing.assert_close(replayed, whole, atol=1e-4, rtol=1e-4)


def silence_head_one(z: Tensor, hook: object) -> Tensor:
    return torch.where(torch.arange(HEADS)[:, None] == 1, 0.0, z)


class _Nothing:
    def mean(self, site: object, layer: int) -> Tensor:
        raise AssertionError

    donor = mean


def test_attention_that_is_off_writes_nothing_and_stays_off() -> None:
    config = replace(SIZES, top_attention_off=2)
    module = lively(config)
    with torch.no_grad():
        cache = module.run_with_cache(TASK.sample(5, seed=2).tokens)[1]
    written = [float(cache[f"blocks.{layer}.hook_attn_out"].abs().max()) for layer in range(3)]
    assert written[0] > 0 and written[1:] == [0, 0]
    assert HookedModel(module).withheld == {} and ATTN_OUT in HookedModel(module).sites
    recipe = Recipe(name="tiny", task=TASK, sizes=sizes(top_attention_off=2), steps=5, weight_decay=0.1)
    trained = recipe.model_config().build(seed=0)
    optimizers = Optimizers(recipe, trained)
    for step in range(3):
        trained(TASK.sample(7, seed=step).tokens).square().mean().backward()
        optimizers.step(step + 1)
    weights = [trained.state_dict()[f"blocks.{layer}.attn.W_O.weight"] for layer in range(3)]
    assert weights[0].abs().max() > 0 and not weights[1].any() and not weights[2].any()
    Optimizers(recipe, trained).restore(optimizers.state())


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
@pytest.mark.parametrize("given", [memoryview(array("d", SLOPES)), array("d", SLOPES), deque(SLOPES), np.array(SLOPES)])
def test_slopes_can_be_any_sequence_of_numbers_and_are_saved_as_a_list(given: Any) -> None:
    own, plain = (replace(SIZES, prior_slopes=slopes, prior_exponents=slopes) for slopes in (given, SLOPES))
    assert torch.equal(logits(own), logits(plain))
    assert config_from_dict(json.loads(json.dumps(own.to_dict()))) == config_from_dict(plain.to_dict())


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
def test_a_memoryview_with_two_axes_is_no_sequence_of_numbers() -> None:
    with pytest.raises(InvalidArgument, match=r"prior_slopes must be .*, got a memoryview"):
        replace(SIZES, prior_slopes=memoryview(np.ones((HEADS, 2))))  # type: ignore[arg-type]
