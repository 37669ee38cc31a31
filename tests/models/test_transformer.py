"""The transformer against a twin with loops over heads and queries, its hooks, its identities and its refusals."""

import itertools
import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor, nn

from bayesgeom.core.errors import TaskMismatch
from bayesgeom.models.native.positions import sinusoids
from bayesgeom.models.native.transformer import (
    FUSED_TRAINING_FROM,
    NORMS,
    POSITIONS,
    Attention,
    Transformer,
    TransformerConfig,
)
from tests.weights import perturbed

SMALL = TransformerConfig(d_vocab=11, n_ctx=7, n_layers=2, n_heads=3, d_model=30, d_mlp=13)
FUSED = nn.functional.scaled_dot_product_attention
KINDS = [
    replace(SMALL, positions=positions, norm=norm, tied=tied)
    for positions, norm, tied in itertools.product(POSITIONS, NORMS, (True, False))
]


every_kind = pytest.mark.parametrize(
    "config", KINDS, ids=lambda c: f"{c.positions}-{c.norm}-{'tied' if c.tied else 'untied'}"
)
every_position = pytest.mark.parametrize("positions", POSITIONS)


def lively(config: TransformerConfig, attention: Attention = "auto") -> Transformer:
    """A transformer whose weights, biases and norms included, are large enough for every term to show."""
    return perturbed(Transformer(config, seed=0, attention=attention), 0.4).eval()


def some_tokens(n_pos: int = 7, seed: int = 2) -> Tensor:
    return torch.randint(11, (5, n_pos), generator=torch.Generator().manual_seed(seed))


def twin_norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    is_layernorm = f"{name}.b" in weights
    centered = x - x.mean(-1, keepdims=True) if is_layernorm else x
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.w"] + (weights[f"{name}.b"] if is_layernorm else 0)


def turned(x: np.ndarray) -> np.ndarray:
    """Rotary positions as complex numbers: coordinate i is the real part, coordinate i + d/2 the imaginary one."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    turned_by = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([turned_by.real, turned_by.imag], axis=-1)


def twin_attention(x: np.ndarray, weights: dict[str, np.ndarray], name: str, config: TransformerConfig) -> np.ndarray:
    """One sequence, one head, one query at a time."""
    out, d = np.zeros_like(x), config.d_head
    for head in range(config.n_heads):
        rows = slice(head * d, (head + 1) * d)
        q, k, v = (x @ weights[f"{name}.W_{which}.weight"][rows].T for which in "QKV")
        if config.positions == "rotary":
            q, k = turned(q), turned(k)
        for query in range(len(x)):
            scores = np.array([q[query] @ k[key] / math.sqrt(d) for key in range(query + 1)])
            if config.positions == "alibi":
                scores -= 2 ** (-8 * (head + 1) / config.n_heads) * np.arange(query, -1, -1)
            if config.positions == "prior":
                slope = 2 ** (-8 * (head + 1) / config.n_heads) * np.exp(weights[f"{name}.prior.log_slope_shift"][head])
                exponent = np.exp(weights[f"{name}.prior.log_exponent_shift"][head])
                scores -= (slope * np.arange(query, -1, -1)) ** exponent
            pattern = np.exp(scores - scores.max())
            z = (pattern / pattern.sum()) @ v[: query + 1]
            out[query] += weights[f"{name}.W_O.weight"][:, rows] @ z
    return out


def twin_logits(module: Transformer, tokens: list[int]) -> np.ndarray:
    config = module.config
    weights = {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}
    x = weights["embed.weight"][tokens]
    if config.positions == "learned":
        x = x + weights["pos_embed.weight"][: len(tokens)]
    if config.positions == "sinusoidal":
        x = x + np.array([[twin_wave(p, i, config.d_model) for i in range(config.d_model)] for p in range(len(tokens))])
    for layer in range(config.n_layers):
        block = f"blocks.{layer}"
        x = x + twin_attention(twin_norm(x, weights, f"{block}.ln1"), weights, f"{block}.attn", config)
        hidden = twin_norm(x, weights, f"{block}.ln2") @ weights[f"{block}.mlp.W_in.weight"].T
        hidden = hidden + weights[f"{block}.mlp.W_in.bias"]
        gelu = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
        x = x + gelu @ weights[f"{block}.mlp.W_out.weight"].T + weights[f"{block}.mlp.W_out.bias"]
    output = weights["embed.weight" if config.tied else "unembed.weight"]
    return twin_norm(x, weights, "ln_final") @ output.T


def twin_wave(pos: int, i: int, d_model: int) -> float:
    angle = pos / 10_000 ** ((i - i % 2) / d_model)
    return 0.02 * math.sqrt(2) * (math.cos(angle) if i % 2 else math.sin(angle))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@every_kind
def test_logits_match_a_loop_over_heads_and_queries(config: TransformerConfig, attention: Attention) -> None:
    module, tokens = lively(config, attention), some_tokens()
    with torch.no_grad():
        logits = module(tokens)
    twin = np.stack([twin_logits(module, row) for row in tokens.tolist()])
    np.testing.assert_allclose(logits.numpy(), twin, atol=3e-5 * np.abs(twin).max())


@pytest.mark.parametrize("kind", ["learned", "alibi", "rotary"])
def test_long_sequences_are_trained_with_fused_attention(kind: str) -> None:
    """Fused gradients equal eager ones up to rounding; without training mode, gradients stay eager."""
    n_pos = FUSED_TRAINING_FROM
    config = replace(SMALL, positions=kind, n_ctx=n_pos)
    tokens = torch.randint(config.d_vocab, (1, n_pos), generator=torch.Generator().manual_seed(0))
    gradients = []
    for attention in ("auto", "eager"):
        module = lively(config, attention).train()
        with mock.patch.object(nn.functional, "scaled_dot_product_attention", wraps=FUSED) as fused:
            module(tokens).square().mean().backward()
            assert bool(fused.call_count) is (attention == "auto")
            fused.reset_mock()
            module(tokens[:, :-1])
            module.eval()(tokens)
            assert not fused.call_count, "neither shorter sequences nor gradients of a finished network"
        gradients.append([parameter.grad for parameter in module.parameters()])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-3)


def test_sinusoids_of_odd_width_match_their_formula() -> None:
    twin = np.array([[twin_wave(p, i, 5) for i in range(5)] for p in range(7)])
    np.testing.assert_allclose(sinusoids(7, 5, torch.zeros(1)).numpy(), twin, atol=1e-7)


def expected_hooks(config: TransformerConfig) -> set[str]:
    rotary = {"attn.hook_rot_q", "attn.hook_rot_k"} if config.positions == "rotary" else set()
    in_block = rotary | {
        *("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post"),
        *("ln1.hook_normalized", "ln2.hook_normalized", "mlp.hook_pre", "mlp.hook_post"),
        *(f"attn.hook_{name}" for name in ("q", "k", "v", "z", "attn_scores", "pattern")),
    }
    outside = {"hook_embed", "ln_final.hook_normalized"}
    outside |= {"hook_pos_embed"} if config.positions in ("learned", "sinusoidal") else set()
    return outside | {f"blocks.{layer}.{name}" for layer in range(config.n_layers) for name in in_block}


@every_position
def test_every_hook_has_its_transformer_lens_name_and_fires(positions: str) -> None:
    module = lively(replace(SMALL, positions=positions))
    logits, cache = module.run_with_cache(some_tokens())
    assert set(module.hook_dict) == set(cache) == expected_hooks(module.config)
    torch.testing.assert_close(logits, module(some_tokens()), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("head", range(3))
def test_zeroing_one_heads_z_is_cutting_its_output_matrix(head: int) -> None:
    module, tokens = lively(SMALL), some_tokens()

    def silence(z: Tensor, hook: object) -> Tensor:
        return torch.where(torch.arange(3)[:, None] == head, 0.0, z)

    with torch.no_grad():
        before = module(tokens)
        silenced = module.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", silence)])
        assert (silenced - before).abs().max() > 0.1
        torch.testing.assert_close(module(tokens), before, atol=0, rtol=0, msg="hooks leave no trace")
        module.blocks[1].attn.W_O.weight[:, 10 * head : 10 * (head + 1)] = 0
        torch.testing.assert_close(silenced, module(tokens), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("site", ["attn_scores", "pattern"])
def test_editing_attention_takes_effect(site: str) -> None:
    module, tokens = lively(SMALL), some_tokens()

    def look_here(x: Tensor, hook: object) -> Tensor:
        return torch.eye(7).expand_as(x).log() if site == "attn_scores" else torch.eye(7).expand_as(x)

    with torch.no_grad():
        edited = module.run_with_hooks(tokens, fwd_hooks=[(f"blocks.0.attn.hook_{site}", look_here)])
        own_value = module.run_with_cache(tokens)[1]["blocks.0.attn.hook_v"]
        by_z = module.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: own_value)])
    torch.testing.assert_close(edited, by_z, atol=1e-4, rtol=1e-5)
    assert (edited - module(tokens)).abs().max() > 0.1


def test_auto_attention_is_fused_unless_watched_or_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    module, tokens, fused = lively(SMALL), some_tokens(), torch.nn.functional.scaled_dot_product_attention
    calls: list[None] = []
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: (calls.append(None), fused(*a, **k))[1]
    )

    def n_fused(names: list[str]) -> int:
        calls.clear()
        module.run_with_cache(tokens, names_filter=names)
        return len(calls)

    assert n_fused([]) == 0, "gradients are taken on a CPU"
    with torch.no_grad():
        assert n_fused(["blocks.0.hook_resid_pre"]) == 2
        assert n_fused(["blocks.1.attn.hook_pattern"]) == n_fused(["blocks.0.attn.hook_attn_scores"]) == 1
        assert n_fused([]) == 2, "former hooks are gone"


def test_learned_positions_end_where_their_table_ends() -> None:
    with pytest.raises(TaskMismatch, match=r"the sequence has 13 tokens, the model learned positions for 7; shorten"):
        SMALL.build(seed=0)(some_tokens(13))
