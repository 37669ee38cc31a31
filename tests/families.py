"""Tiny Hugging Face models of every family, and attention written by hand for each: what the adapter is compared with.

Widths are primes wherever a family lets them be: heads divide the width in most, and rotations want pairs.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

D_VOCAB, N_CTX, N_LAYERS = 97, 61, 3
Split = Callable[[nn.Module, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family: how to build it, and what its attention computes.

    - `attention`: its path in a block; `output`: the projection's path in it; `adds`: what is added to the stream.
    - `split`: attention module and its input to q, k, v, heads apart. `normed`: norm of q or k before the rotation.
    - `n_rot` coordinates of each head turn, at base `base(layer)`. `late`: norm of q or k after the rotation.
    """

    build: Callable[[Any], Any]
    blocks: str
    attention: str
    output: str
    adds: tuple[str, str]
    split: Split
    d_head: int
    n_rot: int = 0
    is_interleaved: bool = False
    base: Callable[[int], float] = lambda layer: 10_000.0
    scale: float | None = None
    q_factor: float = 1.0
    softcap: float | None = None
    window: Callable[[int], int | None] = lambda layer: None
    normed: Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda attention, q, k: (q, k)
    late: Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda attention, q, k: (q, k)
    is_alibi: bool = False
    is_parallel: bool = False
    withheld: frozenset[str] = field(default_factory=frozenset)

    @property
    def score_scale(self) -> float:
        return self.d_head**-0.5 if self.scale is None else self.scale


def lively(hf: Any, seed: int = 0) -> Any:
    """Weights large enough that patterns are sharp, norms not trivial and every part matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8 / parameter.shape[-1] ** 0.5)
            elif not name.endswith(("A_log", "D", "dt_bias", "time_decay", "time_first", "dt_proj.bias")):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return hf


def saved(name: str, path: Path) -> Path:
    """A lively model of the family, saved the way that real ones are."""
    import transformers

    kind = {**ALL, **OTHERS}[name]
    torch.manual_seed(0)
    hf = lively((kind.build if isinstance(kind, Family) else kind)(transformers))
    hf.save_pretrained(path)
    return path


def rotated(x: Tensor, n_rot: int, base: float, *, is_interleaved: bool) -> Tensor:
    """Rotary positions, pair by pair and position by position. `x`: batch, pos, head, d_head."""
    out = x.clone()
    for i in range(n_rot // 2):
        a, b = (2 * i, 2 * i + 1) if is_interleaved else (i, i + n_rot // 2)
        for pos in range(x.shape[1]):
            angle = pos * base ** (-2 * i / n_rot)
            out[:, pos, :, a] = x[:, pos, :, a] * math.cos(angle) - x[:, pos, :, b] * math.sin(angle)
            out[:, pos, :, b] = x[:, pos, :, b] * math.cos(angle) + x[:, pos, :, a] * math.sin(angle)
    return out


def alibi_slopes(n_heads: int) -> list[float]:
    """BLOOM's: a geometric series over the next lower power of two, and every other one of the next higher's."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]


def by_hand(family: Family, attention: nn.Module, x: Tensor, layer: int) -> dict[str, Tensor]:
    """What this attention module makes of its input, loop by loop."""
    q, k, v = family.split(attention, x)
    turned = [
        rotated(part, family.n_rot, family.base(layer), is_interleaved=family.is_interleaved)
        for part in family.normed(attention, q, k)
    ]
    q_rot, k_rot = family.late(attention, turned[0] * family.q_factor, turned[1])
    n_heads, group = q.shape[2], q.shape[2] // k.shape[2]
    n, n_pos = x.shape[:2]
    pattern = torch.zeros(n, n_heads, n_pos, n_pos)
    for head in range(n_heads):
        scores = family.score_scale * q_rot[:, :, head] @ k_rot[:, :, head // group].transpose(1, 2)
        if family.softcap is not None:
            scores = family.softcap * torch.tanh(scores / family.softcap)
        for query in range(n_pos):
            window = family.window(layer)
            first = 0 if window is None else max(0, query - window + 1)
            row = scores[:, query, first : query + 1]
            if family.is_alibi:
                row = row + alibi_slopes(n_heads)[head] * torch.arange(first, query + 1)
            pattern[:, head, query, first : query + 1] = row.softmax(-1)
    z = torch.stack([pattern[:, head] @ v[:, :, head // group] for head in range(n_heads)], dim=2)
    return {"q": q, "k": k, "v": v, "q_rot": q_rot, "k_rot": k_rot, "pattern": pattern, "z": z}


def _heads(x: Tensor, d_head: int) -> Tensor:
    return x.reshape(*x.shape[:2], -1, d_head)


def _linear(part: Any, x: Tensor) -> Tensor:
    out = x @ part.weight.T
    return out if part.bias is None else out + part.bias


def _separate(d_head: int) -> Split:
    def split(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (_heads(_linear(part, x), d_head) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
        return q, k, v

    return split


def _gpt2(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (_heads(part, 7) for part in (x @ attention.c_attn.weight + attention.c_attn.bias).split(35, dim=-1))
    return q, k, v


def _thirds(d_head: int) -> Split:
    """Head by head: its query, its key, its value."""

    def split(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = _linear(attention.query_key_value, x).reshape(*x.shape[:2], -1, 3 * d_head)
        q, k, v = heads.split(d_head, dim=-1)
        return q, k, v

    return split


def _phi3(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (_heads(part, 10) for part in _linear(attention.qkv_proj, x).split([60, 20, 20], dim=-1))
    return q, k, v


def _fused(name: str, *widths: int, d_head: int) -> Split:
    """One matrix: all queries, then all keys, then all values."""

    def split(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = _linear(attention.get_submodule(name), x).split(list(widths), dim=-1)
        return _heads(q, d_head), _heads(k, d_head), _heads(v, d_head)

    return split


def _codegen(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Head by head, since as many heads as shards: its query, its value, its key."""
    heads = _linear(attention.qkv_proj, x).reshape(*x.shape[:2], 4, 3 * 16)
    q, v, k = heads.split(16, dim=-1)
    return q, k, v


def _hunyuan_norm(a: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return _rms(q, a.query_layernorm.weight, 1e-5), _rms(k, a.key_layernorm.weight, 1e-5)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _qwen3_norm(a: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return _rms(q, a.q_norm.weight, 1e-6), _rms(k, a.k_norm.weight, 1e-6)


def _gemma3_norm(a: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return _rms(q, 1 + a.q_norm.weight, 1e-6), _rms(k, 1 + a.k_norm.weight, 1e-6)


def _olmo2_norm(a: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    parts = ((q, a.q_norm), (k, a.k_norm))
    q, k = (_rms(x.flatten(2), norm.weight, 1e-5).reshape(x.shape) for x, norm in parts)
    return q, k


def _sizes(**changed: Any) -> dict[str, Any]:
    return {
        "vocab_size": D_VOCAB,
        "hidden_size": 60,
        "intermediate_size": 29,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": N_CTX,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **changed,
    }


_LLAMA: dict[str, Any] = {
    "blocks": "model.layers",
    "attention": "self_attn",
    "output": "o_proj",
    "adds": ("self_attn", "mlp"),
    "split": _separate(10),
    "d_head": 10,
    "n_rot": 10,
}
_WIDE = _LLAMA | {"split": _separate(14), "d_head": 14, "n_rot": 14}
_POST = ("post_attention_layernorm", "post_feedforward_layernorm")
_NORMED_WRITE = frozenset({"W_O"})  # a norm stands between W_O and the stream
_NO_IDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
# Sizes of models with linear attention in all layers but the last.
HYBRID: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
_SLIDING: dict[str, Any] = {"sliding_window": 5, "layer_types": _TYPES, "query_pre_attn_scalar": 11, "head_dim": 14}

# The default tests take one family of each kind: the plain one, one of packed projections and biases, one whose
# attention and MLP are parallel, one with norms after its sublayers, and a recurrent one. `make test-all` takes all.
TYPICAL = ("llama", "gpt2", "gptj", "gemma2", "mamba")


def each(names: Iterable[str]) -> list[Any]:
    """The names as parameters of a test, those that are not typical marked `families`."""
    return [pytest.param(name, marks=() if name in TYPICAL else pytest.mark.families) for name in names]


ATTENTION: dict[str, Family] = {
    "gpt2": Family(
        build=lambda t: t.GPT2LMHeadModel(
            t.GPT2Config(vocab_size=D_VOCAB, n_positions=N_CTX, n_embd=35, n_layer=3, n_head=5, n_inner=53, **_NO_IDS)
        ),
        blocks="transformer.h",
        attention="attn",
        output="c_proj",
        adds=("attn", "mlp"),
        split=_gpt2,
        d_head=7,
    ),
    "gpt_neox": Family(
        build=lambda t: t.GPTNeoXForCausalLM(
            t.GPTNeoXConfig(
                vocab_size=D_VOCAB,
                hidden_size=60,
                num_hidden_layers=3,
                num_attention_heads=5,
                intermediate_size=53,
                rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
                max_position_embeddings=N_CTX,
                **_NO_IDS,
            )
        ),
        blocks="gpt_neox.layers",
        attention="attention",
        output="dense",
        adds=("attention", "mlp"),
        split=_thirds(12),
        d_head=12,
        n_rot=6,
        is_parallel=True,
    ),
    "llama": Family(build=lambda t: t.LlamaForCausalLM(t.LlamaConfig(**_sizes())), **_LLAMA),
    "mistral": Family(
        build=lambda t: t.MistralForCausalLM(t.MistralConfig(**_sizes(sliding_window=5))),
        **_LLAMA | {"window": lambda layer: 5},
    ),
    "qwen2": Family(build=lambda t: t.Qwen2ForCausalLM(t.Qwen2Config(**_sizes())), **_LLAMA),
    "qwen3": Family(
        build=lambda t: t.Qwen3ForCausalLM(t.Qwen3Config(**_sizes(head_dim=14))), **_WIDE | {"normed": _qwen3_norm}
    ),
    "phi": Family(
        build=lambda t: t.PhiForCausalLM(
            t.PhiConfig(
                **_sizes(num_key_value_heads=6),
                rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.4},
            )
        ),
        **_LLAMA | {"output": "dense", "n_rot": 4, "is_parallel": True},
    ),
    "phi3": Family(build=lambda t: t.Phi3ForCausalLM(t.Phi3Config(**_sizes())), **_LLAMA | {"split": _phi3}),
    "gemma2": Family(
        build=lambda t: t.Gemma2ForCausalLM(t.Gemma2Config(**_sizes(**_SLIDING), attn_logit_softcapping=2.0)),
        **_WIDE
        | {
            "adds": _POST,
            "scale": 11**-0.5,
            "softcap": 2.0,
            "window": lambda layer: None if layer == 1 else 5,
            "withheld": _NORMED_WRITE,
        },
    ),
    "gemma3": Family(
        build=lambda t: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**_sizes(**_SLIDING))),
        **_WIDE
        | {
            "adds": _POST,
            "scale": 11**-0.5,
            "normed": _gemma3_norm,
            "base": lambda layer: 1e6 if layer == 1 else 1e4,
            "window": lambda layer: None if layer == 1 else 5,
            "withheld": _NORMED_WRITE,
        },
    ),
    "olmo2": Family(
        build=lambda t: t.Olmo2ForCausalLM(t.Olmo2Config(**_sizes())),
        **_LLAMA | {"adds": _POST, "normed": _olmo2_norm, "withheld": _NORMED_WRITE},
    ),
    "opt": Family(
        build=lambda t: t.OPTForCausalLM(
            t.OPTConfig(
                vocab_size=D_VOCAB,
                hidden_size=35,
                num_hidden_layers=3,
                num_attention_heads=5,
                ffn_dim=53,
                max_position_embeddings=N_CTX,
                word_embed_proj_dim=35,
                **_NO_IDS,
            )
        ),
        blocks="model.decoder.layers",
        attention="self_attn",
        output="out_proj",
        adds=("self_attn", "fc2"),
        split=_separate(7),
        d_head=7,
        scale=1.0,
        q_factor=7**-0.5,
    ),
    "mixtral": Family(
        build=lambda t: t.MixtralForCausalLM(
            t.MixtralConfig(**_sizes(intermediate_size=28), num_local_experts=3, num_experts_per_tok=2)
        ),
        **_LLAMA | {"base": lambda layer: 1e6},
    ),
    "gptj": Family(
        build=lambda t: t.GPTJForCausalLM(
            t.GPTJConfig(
                vocab_size=D_VOCAB,
                n_positions=N_CTX,
                n_embd=60,
                n_layer=3,
                n_head=5,
                rotary_dim=6,
                n_inner=53,
                tie_word_embeddings=False,
                **_NO_IDS,
            )
        ),
        blocks="transformer.h",
        attention="attn",
        output="out_proj",
        adds=("attn", "mlp"),
        split=_separate(12),
        d_head=12,
        n_rot=6,
        is_interleaved=True,
        is_parallel=True,
    ),
    "bloom": Family(
        build=lambda t: t.BloomForCausalLM(
            t.BloomConfig(vocab_size=D_VOCAB, hidden_size=35, n_layer=3, n_head=5, **_NO_IDS)
        ),
        blocks="transformer.h",
        attention="self_attention",
        output="dense",
        adds=("self_attention.dense", "mlp.dense_4h_to_h"),
        split=_thirds(7),
        d_head=7,
        is_alibi=True,
        withheld=frozenset({"token_embeddings", "token_inputs", "token_keys"}),
    ),
}
# Families whose attention calls torch's functions itself, whose keys are normed after the rotation, or whose heads
# share one key; transformer-lens does not know most of them.
OTHERS: dict[str, Family] = {
    "codegen": Family(
        build=lambda t: t.CodeGenForCausalLM(
            t.CodeGenConfig(
                vocab_size=D_VOCAB, n_positions=N_CTX, n_embd=64, n_layer=3, n_head=4, rotary_dim=6, **_NO_IDS
            )
        ),
        blocks="transformer.h",
        attention="attn",
        output="out_proj",
        adds=("attn", "mlp"),
        split=_codegen,
        d_head=16,
        n_rot=6,
        is_interleaved=True,
        is_parallel=True,
    ),
    "falcon": Family(
        build=lambda t: t.FalconForCausalLM(
            t.FalconConfig(
                vocab_size=D_VOCAB, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, alibi=False, **_NO_IDS
            )
        ),
        blocks="transformer.h",
        attention="self_attention",
        output="dense",
        adds=("self_attention", "mlp"),
        split=_fused("query_key_value", 60, 10, 10, d_head=10),
        d_head=10,
        n_rot=10,
        is_parallel=True,
    ),
    "gpt_bigcode": Family(
        build=lambda t: t.GPTBigCodeForCausalLM(
            t.GPTBigCodeConfig(vocab_size=D_VOCAB, n_positions=N_CTX, n_embd=35, n_layer=3, n_head=5, **_NO_IDS)
        ),
        blocks="transformer.h",
        attention="attn",
        output="c_proj",
        adds=("attn", "mlp"),
        split=_fused("c_attn", 35, 7, 7, d_head=7),
        d_head=7,
    ),
    "gpt_neo": Family(
        build=lambda t: t.GPTNeoForCausalLM(
            t.GPTNeoConfig(
                vocab_size=D_VOCAB,
                max_position_embeddings=N_CTX,
                hidden_size=35,
                num_layers=4,
                num_heads=5,
                attention_types=[[["global", "local"], 2]],
                window_size=5,
                **_NO_IDS,
            )
        ),
        blocks="transformer.h",
        attention="attn.attention",
        output="out_proj",
        adds=("attn", "mlp"),
        split=_separate(7),
        d_head=7,
        scale=1.0,
        window=lambda layer: 5 if layer % 2 else None,
    ),
    "hunyuan_v1_dense": Family(
        build=lambda t: t.HunYuanDenseV1ForCausalLM(t.HunYuanDenseV1Config(**_sizes(head_dim=14))),
        **_WIDE | {"late": _hunyuan_norm},
    ),
    "llama4_text": Family(
        build=lambda t: t.Llama4ForCausalLM(
            t.Llama4TextConfig(**_sizes(head_dim=14, intermediate_size_mlp=29, num_local_experts=3, moe_layers=[]))
        ),
        **_WIDE
        | {
            "adds": ("self_attn", "feed_forward"),
            "base": lambda layer: 500_000.0,
            "is_interleaved": True,
            "late": lambda _, q, k: (_rms(q, torch.ones(14), 1e-5), _rms(k, torch.ones(14), 1e-5)),
        },
    ),
    "mpt": Family(
        build=lambda t: t.MptForCausalLM(
            t.MptConfig(vocab_size=D_VOCAB, d_model=60, n_layers=3, n_heads=4, max_seq_len=N_CTX, **_NO_IDS)
        ),
        blocks="transformer.blocks",
        attention="attn",
        output="out_proj",
        adds=("attn", "ffn.down_proj"),
        split=_fused("Wqkv", 60, 60, 60, d_head=15),
        d_head=15,
        is_alibi=True,
    ),
}
RECURRENT: dict[str, Callable[[Any], Any]] = {
    "mamba": lambda t: t.MambaForCausalLM(
        t.MambaConfig(vocab_size=D_VOCAB, hidden_size=34, num_hidden_layers=3, state_size=7, **_NO_IDS)
    ),
    "mamba2": lambda t: t.Mamba2ForCausalLM(
        t.Mamba2Config(
            vocab_size=D_VOCAB,
            hidden_size=36,
            num_hidden_layers=3,
            state_size=8,
            num_heads=6,
            head_dim=12,
            n_groups=2,
            **_NO_IDS,
        )
    ),
    "rwkv": lambda t: t.RwkvForCausalLM(
        t.RwkvConfig(
            vocab_size=D_VOCAB,
            hidden_size=34,
            num_hidden_layers=7,
            attention_hidden_size=34,
            intermediate_size=53,
            context_length=N_CTX,
            **_NO_IDS,
        )
    ),
}
ALL: dict[str, Any] = ATTENTION | RECURRENT
