"""Attach-time identities: they hold for our transformer, break where they should, and withhold with a reason."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import final

import pytest
import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from bayesgeom.core import run as s
from bayesgeom.core.errors import MissingSite
from bayesgeom.core.run import ModelSpec, Site
from bayesgeom.models.adapters.hooked import POINTS, HookedModel
from bayesgeom.models.adapters.proof import (
    Functions,
    Passage,
    examined,
    per_query_head,
    sentinel_trials,
)
from bayesgeom.models.native.transformer import NORMS, POSITIONS, Transformer, TransformerConfig
from tests.weights import perturbed

SIZES = TransformerConfig(d_vocab=23, n_ctx=11, n_layers=2, n_heads=3, d_model=30, d_mlp=17)
EXPOSED = set(s.ALL_SITES) - {s.STATE, s.ROUTER_LOGITS, s.EXPERT_WEIGHTS}
SCORES, MIX = {s.Q, s.K, s.Q_ROT, s.K_ROT}, {s.PATTERN, s.V, s.Z}
RESIDUAL = {s.RESID_PRE, s.ATTN_OUT, s.MLP_OUT, s.RESID_POST}
Held = dict[Site, Tensor]


def lively(config: TransformerConfig = SIZES) -> Transformer:
    return perturbed(Transformer(config, seed=0), 0.4)


def attention_by_hand(n_kv_heads: int = 3) -> Held:
    """Attention computed head by head and query by query; neighboring query heads share keys and values."""
    return dict(_attention_by_hand(n_kv_heads))


@cache
def _attention_by_hand(n_kv_heads: int) -> Held:
    n_layers, batch, n_pos, n_heads, d_head, d_model = 2, 5, 7, 6, 13, 31
    generator = torch.Generator().manual_seed(2)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k, v = (some(n_layers, batch, n_pos, h, d_head) for h in (n_heads, n_kv_heads, n_kv_heads))
    pattern = torch.zeros(n_layers, batch, n_heads, n_pos, n_pos)
    z = torch.zeros(n_layers, batch, n_pos, n_heads, d_head)
    for layer, row, head, query in itertools.product(*map(range, (n_layers, batch, n_heads, n_pos))):
        shared = head // (n_heads // n_kv_heads)
        scores = torch.stack([q[layer, row, query, head] @ k[layer, row, key, shared] for key in range(query + 1)])
        pattern[layer, row, head, query, : query + 1] = (scores / math.sqrt(d_head)).softmax(0)
        z[layer, row, query, head] = pattern[layer, row, head, query] @ v[layer, row, :, shared]
    attn_out = torch.stack([written(z[layer], layer) for layer in range(n_layers)])
    mlp_out, first = some(n_layers, batch, n_pos, d_model), some(1, batch, n_pos, d_model)
    post = first + (attn_out + mlp_out).cumsum(0)
    residual = {s.RESID_PRE: torch.cat([first, post[:-1]]), s.MLP_OUT: mlp_out}
    signs = torch.ones(n_pos, d_head)
    signs[1:, 0] = -1  # a rotation keeps lengths, and turns nothing at position 0
    return {
        s.Q: q * signs[:, None],
        s.K: k * signs[:, None],
        s.Q_ROT: q,
        s.K_ROT: k,
        s.V: v,
        s.PATTERN: pattern,
        s.Z: z,
        s.ATTN_OUT: attn_out,
        s.RESID_MID: residual[s.RESID_PRE] + attn_out,
        s.RESID_POST: post,
    } | residual


def written(z: Tensor, layer: int) -> Tensor:
    """W_O z + b, with other weights in every layer."""
    weights = torch.randn(6 * 13, 31, generator=torch.Generator().manual_seed(100 + layer))
    return z.flatten(2) @ weights + 0.5


SPEC = ModelSpec(
    name="by hand",
    architecture="by hand",
    n_layers=2,
    n_heads=6,
    n_kv_heads=3,
    d_model=31,
    d_head=13,
    d_mlp=1,
    d_vocab=2,
    n_ctx=None,
    n_parameters=1,
    dtype="float32",
    device="cpu",
    weights_hash="",
)


def pattern_of(q: Tensor, k: Tensor, scale: float = 1 / math.sqrt(13), bias: Tensor | None = None) -> Tensor:
    scores = scale * torch.einsum("bqhd,bhkd->bhqk", q, per_query_head(k.transpose(1, 2), 6))
    scores = scores if bias is None else scores + bias
    return scores.masked_fill(torch.ones(7, 7).triu(1) > 0, -math.inf).softmax(-1)


def broken(recorded: Held, **attention: object) -> dict[Site, str]:
    """The sites that fail, of activations that no noise was added to."""
    passages = {
        (site, layer): Passage(arrived=[own], left=[own])
        for site, values in recorded.items()
        for layer, own in enumerate(values)
    }
    n_kv_heads = recorded[s.K_ROT].shape[3] if s.K_ROT in recorded else 3
    functions = Functions(
        written=written,
        pattern=lambda q, k, _layer: pattern_of(q, k, **attention),
        mid_given=dict(enumerate(attention_by_hand(n_kv_heads)[s.RESID_MID])).get,
    )
    found = examined(passages, functions, replace(SPEC, n_kv_heads=n_kv_heads), 7)[0]
    return {site: reason for site, reason in found.items() if not site.is_static}


@pytest.mark.parametrize(("positions", "norm"), list(itertools.product(POSITIONS, NORMS)))
@pytest.mark.parametrize("build", [lively, Transformer], ids=["lively", "fresh"])
def test_every_native_site_passes_its_identities(
    build: Callable[[TransformerConfig], Transformer], positions: str, norm: str
) -> None:
    model = HookedModel(build(replace(SIZES, positions=positions, norm=norm)))
    assert model.withheld == {} and model.sites == EXPOSED


def test_attachment_leaves_no_trace() -> None:
    module = lively().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    HookedModel(module)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert module.training and all(parameter.grad is None for parameter in module.parameters())
    assert not any(part._forward_hooks or part._backward_hooks for part in module.modules())


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
def test_identities_hold_for_attention_by_hand(n_kv_heads: int) -> None:
    assert broken(attention_by_hand(n_kv_heads)) == {}


PLANTED: dict[Site, set[Site]] = {
    s.Q: {s.Q},
    s.K: {s.K},
    s.Q_ROT: SCORES,
    s.K_ROT: SCORES,
    s.PATTERN: SCORES | MIX,
    s.V: MIX,
    s.Z: MIX | {s.ATTN_OUT},
    s.ATTN_OUT: RESIDUAL | {s.Z, s.RESID_MID},
    s.MLP_OUT: RESIDUAL,
    s.RESID_PRE: RESIDUAL | {s.RESID_MID},
    s.RESID_MID: RESIDUAL | {s.RESID_MID},
    s.RESID_POST: RESIDUAL,
}
PLACES = {"first layer": 0, "last layer": 1}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("site", PLANTED, ids=lambda site: site.name)
@pytest.mark.parametrize("fault", [0.1, math.nan])
def test_one_wrong_number_breaks_what_it_enters(site: Site, place: str, fault: float) -> None:
    recorded = attention_by_hand()
    recorded[site] = recorded[site].clone()
    recorded[site][PLACES[place]].view(-1)[-1] += fault  # the last query and key: no mask hides them
    found = broken(recorded)
    assert set(found) == PLANTED[site]
    assert all(reason.startswith("identity ") and " fails by " in reason for reason in found.values())


def test_wrong_scales_biases_and_groups_are_found() -> None:
    recorded = attention_by_hand()
    unscaled, steep = broken(recorded, scale=1.0), broken(recorded, bias=torch.arange(7.0).expand(6, 7, 7))
    biased = broken(recorded, bias=torch.ones(6, 7, 7).tril())
    assert set(unscaled) == set(steep) == SCORES and biased == {}, "a constant changes no softmax"
    interleaved = recorded | {s.K_ROT: recorded[s.K_ROT].flip(3)}
    assert set(broken(interleaved)) == SCORES


def test_identities_whose_sites_are_absent_are_not_tried() -> None:
    recorded = attention_by_hand()
    assert broken({site: values for site, values in recorded.items() if site in RESIDUAL}) == {} == broken({})
    without_pattern = {site: values for site, values in recorded.items() if site in RESIDUAL | {s.Z}}
    assert broken(without_pattern) == {}, "W_O vouches for z"
    partial = {s.Z: recorded[s.Z] + 1, s.ATTN_OUT: recorded[s.ATTN_OUT]}
    assert {s.Z, s.ATTN_OUT} <= set(broken(partial))


@pytest.mark.parametrize("missing", PLANTED, ids=lambda site: site.name)
def test_what_no_identity_vouches_for_is_not_believed(missing: Site) -> None:
    """Without one of its sites an identity cannot be tried; what it alone vouched for is withheld."""
    alone: dict[Site, set[Site]] = {
        s.Q_ROT: SCORES - {s.Q_ROT},
        s.K_ROT: SCORES - {s.K_ROT},
        s.PATTERN: SCORES | {s.V},
        s.V: {s.PATTERN},
        s.Z: {s.PATTERN, s.V},
        s.ATTN_OUT: {s.MLP_OUT},
        s.RESID_PRE: {s.MLP_OUT},
        s.RESID_POST: {s.MLP_OUT},
    }
    recorded = attention_by_hand()
    del recorded[missing]
    found = broken(recorded)
    assert set(found) == alone.get(missing, set())
    assert all(reason.startswith("no identity holds it, layer ") for reason in found.values())


@pytest.mark.parametrize(("n_ctx", "n_pos"), [(5, 5), (None, 7), (31, 7)])
def test_sentinel_tokens_fit_the_model(n_ctx: int | None, n_pos: int) -> None:
    trials = sentinel_trials(3, n_ctx, "cpu")
    assert trials.tokens.shape == (2, n_pos) and set(trials.tokens.unique().tolist()) <= {0, 1, 2}


def test_withheld_sites_are_refused_with_the_reason() -> None:
    module = lively()
    module.blocks[1].attn.hook_v.add_hook(lambda value, hook: 1.5 * value)
    upstream = HookedModel(module).withheld.keys()
    assert s.W_V in upstream, "W_V alone no longer gives v"
    assert not {s.V, s.Z, s.RESID_POST} & upstream, "an edit upstream of the site is what the model does"
    module.blocks[1].hook_mlp_out.register_forward_hook(lambda m, i, o: 1.5 * o)
    module.blocks[1].hook_mlp_out.forward = lambda value: value
    module.blocks[1].register_forward_hook(lambda m, i, o: o + 1)
    assert not {s.MLP_OUT, s.RESID_POST} & HookedModel(module).withheld.keys()
    module.blocks[0].forward = lambda resid: resid + module.blocks[0].hook_attn_out(resid)
    model = HookedModel(module, name="planted")
    assert s.RESID_POST not in model.sites
    assert model.withheld[s.ATTN_OUT] == "no identity holds it, layer 0", "it fires, all alone"
    with pytest.raises(
        MissingSite,
        match=r"probe 'p' requires site 'resid_post', which planted does not provide \(met 0 times in layer 0",
    ):
        model.require((s.RESID_POST,), by="probe 'p'")


@final
class Deaf(HookPoint):
    """A hook point that ignores what its hooks return."""

    def __call__(self, x: Tensor) -> Tensor:
        super().__call__(x)
        return x


@pytest.mark.parametrize(
    "site", [site for site in s.ALL_SITES if site in EXPOSED and not site.is_static], ids=lambda site: site.name
)
def test_a_site_whose_edits_have_no_effect_is_withheld(site: Site) -> None:
    module = lively(replace(SIZES, positions="rotary"))
    module.set_submodule(f"blocks.0.{POINTS[site][0]}", Deaf())
    assert site in HookedModel(module).withheld


def test_a_module_that_breaks_an_identity_is_not_believed() -> None:
    module = lively()
    attention = module.blocks[1].attn
    plain = attention.forward
    attention.forward = lambda x: plain(x) + 0.1  # a bias that W_O does not have
    model = HookedModel(module, name="planted")
    withheld = {s.Z, s.ATTN_OUT, s.W_O}  # W_O is verified by z only
    assert set(model.withheld) == withheld and model.sites == EXPOSED - withheld
    with pytest.raises(
        MissingSite, match=r"'z', which planted does not provide \(identity W_O z \+ b = attn_out fails by \d\.\de"
    ):
        model.require((s.K, s.Z), by="this run")
