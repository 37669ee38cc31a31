"""The tables in docs/families.md: which sites each Hugging Face family has, and the proof errors of its states.

`python -m tests.supported > docs/families.md` makes it anew, from tiny models that are built from configs.
"""

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bayesgeom.core import run as s
from bayesgeom.models.huggingface.model import HFModel
from tests.families import ALL, D_VOCAB, HYBRID, N_CTX, Family, _sizes

SITES = (
    s.RESID_PRE,
    s.ATTN_OUT,
    s.RESID_MID,
    s.MLP_OUT,
    s.RESID_POST,
    s.Q,
    s.Q_ROT,
    s.K,
    s.K_ROT,
    s.V,
    s.PATTERN,
    s.Z,
)
INSIDE_MLP = (s.MLP_POST, s.ROUTER_LOGITS, s.EXPERT_WEIGHTS)
WEIGHTS = (s.TOKEN_EMBEDDINGS, s.TOKEN_INPUTS, s.TOKEN_KEYS, s.NORM_WEIGHT, s.W_K, s.W_K_GRAM, s.W_V, s.W_O)
_EXPERTS: dict[str, Any] = {
    "intermediate_size": 28,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 28,
}
# What one set of sizes builds, by `model_type`.
_PLAIN = (
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "bitnet",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "diffllama",
    "doge",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "falcon_mamba",
    "flex_olmo",
    "gemma",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "hyperclovax",
    "internlm3",
    "jamba",
    "jetmoe",
    "lfm2",
    "llama4_text",
    "minimax",
    "minimax_m2",
    "ministral3",
    "nemotron",
    "olmo",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
    "phimoe",
    "qwen3_moe",
    "recurrent_gemma",
    "seed_oss",
    "smollm3",
    "solar_open",
    "stablelm",
    "starcoder2",
    "vaultgemma",
)
_MAMBA2 = {"mamba_n_heads": 6, "mamba_d_head": 20, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
_MIXED = ["linear_attention", "full_attention", "linear_attention"]
_WIDE = {"vocab_size": D_VOCAB, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 6}
_OLD = {"vocab_size": D_VOCAB, "n_positions": N_CTX, "n_embd": 64, "n_layer": 3, "n_head": 4}
_OWN: dict[str, dict[str, Any]] = {
    "bamba": _sizes(**_MAMBA2, attn_layer_indices=[1]),
    "biogpt": _WIDE | {"intermediate_size": 28, "max_position_embeddings": N_CTX},
    "codegen": _OLD | {"rotary_dim": 8},
    "deepseek_v3": _sizes(
        **_EXPERTS | {"num_key_value_heads": 6, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=6,
        v_head_dim=10,
    ),
    "falcon_h1": _sizes(**_MAMBA2, mamba_d_ssm=120),
    "falcon": _WIDE | {"alibi": False},  # of 7B: one key-value head
    "falcon (new decoder)": _WIDE | {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "falcon (ALiBi)": _WIDE
    | {"alibi": True, "multi_query": False, "parallel_attn": False, "attn_implementation": "eager"},
    "gemma4_unified_text": _sizes(
        head_dim=10, sliding_window=5, layer_types=["sliding_attention", "sliding_attention", "full_attention"]
    ),
    "gpt_bigcode": _OLD,
    "granitemoehybrid": _sizes(
        **_MAMBA2, layer_types=_MIXED, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=28
    ),
    "jamba (with attention)": _sizes(
        **_EXPERTS, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1
    ),
    "lfm2 (with convolutions)": _sizes(layer_types=["conv", "full_attention", "conv"]),
    "nemotron_h": _sizes(
        layers_block_type=["linear_attention", "full_attention", "mlp"],
        mamba_num_heads=6,
        mamba_head_dim=20,
        ssm_state_size=8,
        n_groups=2,
        chunk_size=4,
        head_dim=10,
    ),
    "gpt_neo": {
        "vocab_size": D_VOCAB,
        "max_position_embeddings": N_CTX,
        "hidden_size": 35,
        "num_layers": 4,
        "num_heads": 5,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 5,
    },
    "hunyuan_v1_dense": _sizes(head_dim=10),
    "hunyuan_v1_moe": _sizes(**_EXPERTS, head_dim=10),
    "mpt": {"vocab_size": D_VOCAB, "d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": N_CTX},
    "openai-gpt": _OLD,
    "qwen3_5_text": _sizes(**HYBRID),
    "qwen3_next": _sizes(**_EXPERTS, **HYBRID),
    "zamba2": _sizes(
        layers_block_type=["mamba", "hybrid", "mamba"],
        num_key_value_heads=6,
        n_mamba_heads=6,
        mamba_d_state=8,
        mamba_ngroups=2,
        chunk_size=4,
        num_mem_blocks=1,
    ),
    "xglm": {
        "vocab_size": D_VOCAB,
        "d_model": 60,
        "num_layers": 3,
        "attention_heads": 6,
        "ffn_dim": 28,
        "max_position_embeddings": N_CTX,
    },
}
FAMILIES = tuple(sorted({*ALL, *_PLAIN, *_OWN}))


def tiny(name: str) -> Any:
    """A model of the family with random weights, large enough that every part matters."""
    import transformers

    torch.manual_seed(0)
    if name in ALL:
        kind: Family | Callable[[Any], Any] = ALL[name]
        hf = (kind.build if isinstance(kind, Family) else kind)(transformers)
    else:
        config = transformers.CONFIG_MAPPING[name.partition(" ")[0]](
            **(_OWN[name] if name in _OWN else _sizes(**_EXPERTS))
        )
        hf = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8 / parameter.shape[-1] ** 0.5)
    return hf.eval()


def row(name: str) -> tuple[list[str], list[str]]:
    """Return the cells of a family in the two tables.

    Name, then each site's largest error, or – where it is withheld, and how many sites of weights there are; the second
    is empty without a state, else its layers, its numbers, and the error of its proof.
    """
    model = HFModel(tiny(name))
    errors = model.proof_errors()
    n_layers, found = model.spec.n_layers, list[str]()
    for site in (*SITES, *INSIDE_MLP):
        layers = model.layers_of(site)
        where = "" if len(layers) == n_layers else f" ({len(layers)} of {n_layers})"
        found.append(f"{errors.get(site, 0.0):.0e}{where}" if layers else "–")
    layers = model.layers_of(s.STATE)
    state = [f"{len(layers)} of {n_layers}", str(model.spec.d_state), f"{errors[s.STATE]:.0e}"] if layers else []
    return [name, *found, f"{sum(bool(model.layers_of(site)) for site in WEIGHTS)} of {len(WEIGHTS)}"], state


def summary(cells: list[str]) -> tuple[str, str, str]:
    """What the page says of a `row`: its sites, those inside the MLP, and how many of those of weights there are."""
    own = {f"`{site.name}`": cell for site, cell in zip((*SITES, *INSIDE_MLP), cells[1:-1], strict=True)}
    inside = {name: own.pop(name) for name in [f"`{site.name}`" for site in INSIDE_MLP]}
    missing = [site for site, cell in own.items() if cell == "–"]
    text = "all but " + " ".join(missing) if missing else "all"
    places = {site: cell.partition(" ")[2] for site, cell in own.items()}
    for layers in sorted(set(places.values()) - {""}):
        text += f"; {layers.strip('()')} layers: " + " ".join(site for site, where in places.items() if where == layers)
    present = {site: cell.partition(" ")[2] for site, cell in inside.items() if cell != "–"}
    return text, " ".join(f"{site} {where}".strip() for site, where in present.items()) or "–", cells[-1]


def table() -> str:
    """The page."""
    import transformers

    rows = {name: row(name) for name in FAMILIES}
    states = {name: state for name, (_, state) in rows.items() if state}
    return page({name: summary(cells) for name, (cells, _) in rows.items()}, states, transformers.__version__)


def page(found: dict[str, tuple[str, str, str]], states: dict[str, list[str]], version: str) -> str:
    """The page: families in groups that have the same sites, the largest group first, then those with a state."""
    groups = {sites: [name for name in found if found[name] == sites] for sites in found.values()}
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = [f"| {' | '.join(cells)} | {', '.join(names)} |" for cells, names in ordered]
    of_states = [f"| {' | '.join([name, *cells])} |" for name, cells in states.items()]
    return f"""# Hugging Face families

Look up which [sites](pretrained.md#available-sites) bayesgeom finds in {len(found)} families of causal language
models (transformers {version}, torch {torch.__version__.split("+")[0]}; tiny models with random weights).
`python -m tests.supported > docs/families.md` makes this page; `make test-tiers` checks it.

- **Sites**: those of the residual stream, sublayers and heads. `model.withheld` gives the reason for a missing one.
  "1 of 3 layers": only so many layers have these sites.
- **Inside the MLP**: hidden units, or the router's logits and the weights of the experts.
- **From weights**: of the eight sites read from the weights (token embeddings, W_K, …).

The equations that tie the sites to each other hold to 1e-4 of the largest entry, with every site perturbed, in float32.

| sites | inside the MLP | from weights | families |
| --- | --- | --- | --- |
{chr(10).join(lines)}

## States

The site `state` of a recurrent layer: what the recurrence carries after each position, heads × key × value one after
the other (Mamba-1: channels × states; RG-LRU: channels). The last column is the largest error of the layer's output as
read out of the states, relative to its largest entry. From 1e-5 on, the site is withheld.

| family | layers with a state | numbers per layer | error |
| --- | --- | --- | --- |
{chr(10).join(of_states)}

## Refused

| what | error |
| --- | --- |
| encoders with a decoder (T5, BART for translation) | an encoder with a decoder, not a causal language model |
| encoders (BERT, RoBERTa) | not causal: changing the last token changes earlier predictions |
| no language-modeling head (`LlamaModel`, classifiers, token classifiers) | no logits, or of a wrong shape |
| models on the meta device that nothing loads | shapes but no weights |
| tensor-parallel models | heads are spread over processes |
| models without a list of as many blocks as their config has layers (HRM) | layout not known |
"""


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.stdout.write(table())
