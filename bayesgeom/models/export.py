"""Export of a `Transformer` to a Hugging Face directory with the same logits.

    rotary, RMSNorm                          Llama     its MLP gate is kept open: up(x) = 0·x + 1
    learned, sinusoidal or none, LayerNorm   GPT-2     sinusoids are stored as a table, no positions as zeros

No architecture supports learned positions with RMSNorm, ALiBi with these slopes, or another positional prior.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesgeom.core import InvalidArgument
from bayesgeom.core.files import atomic_directory
from bayesgeom.models.adapters.proof import sentinel_trials
from bayesgeom.models.checkpoint_files import SOURCE
from bayesgeom.models.config import quiet
from bayesgeom.models.native.positions import sinusoids
from bayesgeom.models.native.transformer import EPS, Transformer, TransformerConfig
from bayesgeom.models.resolve import load
from bayesgeom.tasks.base import WindTunnel

TOLERANCE = 1e-5
Weights = dict[str, Tensor]
# What the config of an architecture states besides the sizes that all of them have, and its weights, given ours.
Converted = Callable[[TransformerConfig, Weights], tuple[dict[str, Any], Weights]]


def export_huggingface(module: Transformer, path: Path, *, task: WindTunnel | None = None) -> str:
    """Write a directory that `AutoModelForCausalLM.from_pretrained` reads.

    Args:
        module: The transformer.
        path: Directory to write.
        task: Task on which it was trained, stored in the config.

    Returns:
        Name of the Hugging Face architecture.

    Raises:
        InvalidArgument: No Hugging Face architecture can represent this transformer.
        OutputFault: The directory cannot be written.
    """
    import transformers

    config = module.config
    own = {name: tensor.detach().float().cpu() for name, tensor in module.state_dict().items()}
    sizes, weights = converter_of(config)(config, own)
    sizes |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    theirs = transformers.AutoConfig.for_model(
        vocab_size=config.d_vocab,
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        max_position_embeddings=config.n_ctx,
        tie_word_embeddings=config.tied,
        **sizes,
    )
    with torch.random.fork_rng(devices=()):  # transformers initializes from the global generator
        hf: Any = transformers.AutoModelForCausalLM.from_config(theirs)
    if config.tied:
        hf.tie_weights()
    missing, unknown = hf.load_state_dict(weights, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}, "only the output matrix can be shared"
    tokens = sentinel_trials(config.d_vocab, config.n_ctx, str(module.embed.weight.device)).tokens
    with torch.no_grad():
        expected = module(tokens).cpu()
        error = float((hf.eval()(input_ids=tokens.cpu()).logits - expected).abs().max())
    scale = max(1.0, float(expected.abs().max()))
    assert error <= TOLERANCE * scale, f"the exported logits differ by {error:.1e}"
    # Extra attributes of the config are saved and loaded with it.
    hf.config.update({SOURCE: {"model": config.to_dict(), "task": None if task is None else task.config()}})
    with atomic_directory(path) as temporary, quiet():
        hf.save_pretrained(temporary)
    return str(sizes["model_type"])


def converter_of(config: TransformerConfig) -> Converted:
    """Return what converts a transformer of this shape to a Hugging Face architecture that can represent it.

    Raises:
        InvalidArgument: There is none.
    """
    match config.norm, config.positions:
        case "rmsnorm", "rotary":
            return _llama
        case "layernorm", "learned" | "sinusoidal" | "none":
            return _gpt2
    raise InvalidArgument(
        f"{config.positions} positions with {config.norm} cannot be exported. Supported: rotary with rmsnorm, and "
        f"learned, sinusoidal or none with layernorm."
    )


# Parts of our weights' names, and of theirs.
_OF_LLAMA = {
    "blocks": "model.layers",
    "unembed": "lm_head",
    "embed": "model.embed_tokens",
    "ln1.w": "input_layernorm.weight",
    "ln2.w": "post_attention_layernorm.weight",
    "ln_final.w": "model.norm.weight",
    "attn.W_Q": "self_attn.q_proj",
    "attn.W_K": "self_attn.k_proj",
    "attn.W_V": "self_attn.v_proj",
    "attn.W_O": "self_attn.o_proj",
    "mlp.W_in": "mlp.gate_proj",
    "mlp.W_out": "mlp.down_proj",
}
_OF_GPT2 = {
    "blocks": "transformer.h",
    "unembed": "lm_head",
    "pos_embed": "transformer.wpe",
    "embed": "transformer.wte",
    **{f"ln{i}.{ours}": f"ln_{i}.{theirs}" for i in (1, 2) for ours, theirs in (("w", "weight"), ("b", "bias"))},
    "ln_final.w": "transformer.ln_f.weight",
    "ln_final.b": "transformer.ln_f.bias",
    "W_O": "c_proj",
    "W_in": "c_fc",
    "W_out": "c_proj",
}


def _renamed(own: Weights, names: Mapping[str, str]) -> Weights:
    """Our weights, with the parts of their names replaced."""
    known = re.compile("|".join(names))
    return {known.sub(lambda part: names[part[0]], name): tensor for name, tensor in own.items()}


def _llama(config: TransformerConfig, own: Weights) -> tuple[dict[str, Any], Weights]:
    weights = _renamed(own, _OF_LLAMA)
    for layer in range(config.n_layers):
        up = f"model.layers.{layer}.mlp.up_proj"
        weights |= {f"{up}.weight": torch.zeros(config.d_mlp, config.d_model), f"{up}.bias": torch.ones(config.d_mlp)}
    sizes = {"intermediate_size": config.d_mlp, "hidden_act": "gelu", "num_key_value_heads": config.n_heads}
    return {"model_type": "llama", **sizes, "rms_norm_eps": EPS, "mlp_bias": True}, weights


def _gpt2(config: TransformerConfig, own: Weights) -> tuple[dict[str, Any], Weights]:
    weights, inside = _renamed(own, _OF_GPT2), "transformer.h."
    if config.positions != "learned":
        table = sinusoids(config.n_ctx, config.d_model, own["embed.weight"])
        weights["transformer.wpe.weight"] = table if config.positions == "sinusoidal" else torch.zeros_like(table)
    for attention in (f"{inside}{layer}.attn" for layer in range(config.n_layers)):
        qkv = [weights.pop(f"{attention}.{name}.weight") for name in ("W_Q", "W_K", "W_V")]
        weights |= {
            f"{attention}.c_attn.weight": torch.cat(qkv),
            f"{attention}.c_proj.bias": torch.zeros(config.d_model),
        }
        weights[f"{attention}.c_attn.bias"] = torch.zeros(3 * config.d_model)
    # GPT-2 stores the matrices of its blocks transposed.
    turned = {name: weight.T for name, weight in weights.items() if name.startswith(inside) and weight.ndim == 2}
    sizes = {"n_inner": config.d_mlp, "activation_function": "gelu", "layer_norm_epsilon": EPS}
    return {"model_type": "gpt2", **sizes}, weights | turned


def export_checkpoint(name: str | Path, out: Path) -> str:
    """Export a checkpoint as a Hugging Face directory.

    Args:
        name: Name or directory of a bayesgeom checkpoint.
        out: Directory to write.

    Returns:
        Name of the Hugging Face architecture.

    Raises:
        InvalidArgument: It is not a bayesgeom checkpoint. Errors of `load` and `export_huggingface` propagate.
    """
    model = load(name)
    if not isinstance(model.module, Transformer):
        raise InvalidArgument(
            f"{model.spec.name} is a {type(model.module).__name__}: only transformers of bayesgeom can be exported. A "
            f"model that Hugging Face's transformers loaded needs no export."
        )
    return export_huggingface(model.module, out, task=model.task)
