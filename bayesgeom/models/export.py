"""Export of a `Transformer` to a Hugging Face directory with the same logits, and bit-exact import.

    rotary, RMSNorm                          Llama     its MLP gate is kept open: up(x) = 0·x + 1
    learned, sinusoidal or none, LayerNorm   GPT-2     sinusoids are stored as a table, no positions as zeros
    rotary, LayerNorm                        GPT-NeoX  in its sequential form
    none, RMSNorm                            SmolLM3   with rotations switched off

No architecture supports learned positions with RMSNorm, ALiBi with these slopes, or another positional prior.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from einops import rearrange
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.files import atomic_directory, read_json
from bayesgeom.models.adapters.identities import sentinel_trials
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.checkpoint_files import CONFIG, SOURCE
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.huggingface.transformers_logging import without_bars, without_warnings
from bayesgeom.models.native.positions import sinusoids
from bayesgeom.models.native.transformer import EPS, Transformer, TransformerConfig
from bayesgeom.models.resolve import load
from bayesgeom.tasks.base import WindTunnel, task_from_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-5
Weights = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Target:
    """A Hugging Face architecture that can represent a transformer, and the mapping of the weights."""

    name: str
    build: "Callable[[TransformerConfig], PreTrainedModel]"
    weights: Callable[[TransformerConfig, Weights], Weights]
    ours: Callable[[TransformerConfig, Weights], Weights]


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
    config = module.config
    target = target_of(config)
    own = {name: tensor.detach().float().cpu() for name, tensor in module.state_dict().items()}
    with torch.random.fork_rng(devices=()):  # transformers initializes from the global generator
        hf = target.build(config)
    weights = {name: tensor.contiguous().clone() for name, tensor in target.weights(config, own).items()}
    if config.tied:
        hf.tie_weights()
    missing, unknown = hf.load_state_dict(weights, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}, "only the output matrix can be shared"
    _check_equal(module, hf)
    # Extra attributes of the config are saved and loaded with it.
    hf.config.update({SOURCE: {"model": config.to_dict(), "task": None if task is None else task.config()}})
    with atomic_directory(path) as temporary, without_bars():
        hf.save_pretrained(temporary)
    return target.name


def import_huggingface(path: Path) -> Transformer:
    """Return the transformer that was exported to this directory.

    Raises:
        CheckpointFault: It is not such an export, or it is broken.
    """
    source = exported_from(path)
    if source is None:
        raise CheckpointFault(f"{path} is not an export of a bayesgeom transformer: its {CONFIG} has no {SOURCE!r}.")
    config = config_from_dict(source["model"])
    assert isinstance(config, TransformerConfig), "only transformers are exported"
    module, target = config.build(seed=0), target_of(config)
    assert isinstance(module, Transformer)
    try:
        with without_bars(), without_warnings():
            found = type(target.build(config)).from_pretrained(path, use_safetensors=True).state_dict()
        module.load_state_dict(target.ours(config, found), strict=True)
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointFault(f"{path} does not hold the transformer that its {CONFIG} names: {error}.") from error
    return module.eval()


def exported_from(path: Path) -> Mapping[str, Any] | None:
    """Return the config of the transformer and of its task from an exported directory; None for any other model."""
    try:
        config = read_json(path / CONFIG)
    except (OSError, CheckpointFault):
        return None
    found = config.get(SOURCE) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else None


def target_of(config: TransformerConfig) -> Target:
    """Return the Hugging Face architecture that can represent a transformer of this shape.

    Raises:
        InvalidArgument: There is none.
    """
    match config.norm, config.positions:
        case "rmsnorm", "rotary":
            return Target("llama", _llama, _llama_weights, _from_llama)
        case "rmsnorm", "none":
            return Target("smollm3", _smollm3, _llama_weights, _from_llama)
        case "layernorm", "learned" | "sinusoidal" | "none":
            return Target("gpt2", _gpt2, _gpt2_weights, _from_gpt2)
        case "layernorm", "rotary":
            return Target("gpt_neox", _gpt_neox, _gpt_neox_weights, _from_gpt_neox)
    raise InvalidArgument(
        f"no Hugging Face architecture supports {config.positions} positions with {config.norm}. Supported: rotary "
        f"or no positions with either norm, and learned or sinusoidal positions with layernorm."
    )


def _check_equal(module: Transformer, hf: "PreTrainedModel") -> None:
    n_ctx, weight = module.config.n_ctx, module.embed.weight
    tokens = sentinel_trials(module.config.d_vocab, n_ctx, str(weight.device)).tokens
    with torch.no_grad():
        expected = module(tokens).cpu()
        error = float((hf.eval()(input_ids=tokens.cpu()).logits - expected).abs().max())
    scale = max(1.0, float(expected.abs().max()))
    assert error <= TOLERANCE * scale, f"the exported logits differ by {error:.1e}"


def _sizes(config: TransformerConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.d_vocab,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_mlp,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "max_position_embeddings": config.n_ctx,
        "hidden_act": "gelu",
        "tie_word_embeddings": config.tied,
        **_NO_IDS,
    }


_NO_IDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def _llama(config: TransformerConfig) -> "PreTrainedModel":
    import transformers

    sizes = {**_sizes(config), "num_key_value_heads": config.n_heads, "rms_norm_eps": EPS, "mlp_bias": True}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def _smollm3(config: TransformerConfig) -> "PreTrainedModel":
    import transformers

    sizes = {**_sizes(config), "num_key_value_heads": config.n_heads, "rms_norm_eps": EPS, "mlp_bias": True}
    return transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**sizes, no_rope_layers=[0] * config.n_layers))


_LLAMA = {
    "ln1.w": "input_layernorm.weight",
    "ln2.w": "post_attention_layernorm.weight",
    "attn.W_Q.weight": "self_attn.q_proj.weight",
    "attn.W_K.weight": "self_attn.k_proj.weight",
    "attn.W_V.weight": "self_attn.v_proj.weight",
    "attn.W_O.weight": "self_attn.o_proj.weight",
    "mlp.W_in.weight": "mlp.gate_proj.weight",
    "mlp.W_in.bias": "mlp.gate_proj.bias",
    "mlp.W_out.weight": "mlp.down_proj.weight",
    "mlp.W_out.bias": "mlp.down_proj.bias",
}


def _llama_names(config: TransformerConfig) -> dict[str, str]:
    """Map bayesgeom's parameter names to Llama's."""
    names = {"embed.weight": "model.embed_tokens.weight", "ln_final.w": "model.norm.weight"}
    for layer in range(config.n_layers):
        names |= {f"blocks.{layer}.{a}": f"model.layers.{layer}.{b}" for a, b in _LLAMA.items()}
    return names if config.tied else names | {"unembed.weight": "lm_head.weight"}


def _llama_weights(config: TransformerConfig, own: Weights) -> Weights:
    found = {theirs: own[ours] for ours, theirs in _llama_names(config).items()}
    for layer in range(config.n_layers):
        found[f"model.layers.{layer}.mlp.up_proj.weight"] = torch.zeros(config.d_mlp, config.d_model)
        found[f"model.layers.{layer}.mlp.up_proj.bias"] = torch.ones(config.d_mlp)
    return found


def _from_llama(config: TransformerConfig, found: Weights) -> Weights:
    return {ours: found[theirs] for ours, theirs in _llama_names(config).items()}


def _gpt2(config: TransformerConfig) -> "PreTrainedModel":
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.d_vocab,
            n_positions=config.n_ctx,
            n_embd=config.d_model,
            n_layer=config.n_layers,
            n_head=config.n_heads,
            n_inner=config.d_mlp,
            activation_function="gelu",
            layer_norm_epsilon=EPS,
            tie_word_embeddings=config.tied,
            **_NO_IDS,
        )
    )


_GPT2 = {
    "ln1.w": "ln_1.weight",
    "ln1.b": "ln_1.bias",
    "ln2.w": "ln_2.weight",
    "ln2.b": "ln_2.bias",
    "mlp.W_in.bias": "mlp.c_fc.bias",
    "mlp.W_out.bias": "mlp.c_proj.bias",
}
_GPT2_TURNED = {
    "attn.W_O.weight": "attn.c_proj.weight",
    "mlp.W_in.weight": "mlp.c_fc.weight",
    "mlp.W_out.weight": "mlp.c_proj.weight",
}
_QKV = ("attn.W_Q.weight", "attn.W_K.weight", "attn.W_V.weight")


def _gpt2_names(config: TransformerConfig) -> dict[str, str]:
    names = {
        "embed.weight": "transformer.wte.weight",
        "ln_final.w": "transformer.ln_f.weight",
        "ln_final.b": "transformer.ln_f.bias",
    }
    names |= {"pos_embed.weight": "transformer.wpe.weight"} if config.positions == "learned" else {}
    for layer in range(config.n_layers):
        names |= {f"blocks.{layer}.{a}": f"transformer.h.{layer}.{b}" for a, b in _GPT2.items()}
    return names if config.tied else names | {"unembed.weight": "lm_head.weight"}


def _gpt2_weights(config: TransformerConfig, own: Weights) -> Weights:
    found = {theirs: own[ours] for ours, theirs in _gpt2_names(config).items()}
    if config.positions != "learned":
        table = sinusoids(config.n_ctx, config.d_model, own["embed.weight"])
        found["transformer.wpe.weight"] = table if config.positions == "sinusoidal" else torch.zeros_like(table)
    for layer in range(config.n_layers):
        block, home = f"blocks.{layer}", f"transformer.h.{layer}"
        found |= {f"{home}.{b}": own[f"{block}.{a}"].T for a, b in _GPT2_TURNED.items()}
        found[f"{home}.attn.c_attn.weight"] = torch.cat([own[f"{block}.{name}"] for name in _QKV]).T
        found[f"{home}.attn.c_attn.bias"] = torch.zeros(3 * config.d_model)
        found[f"{home}.attn.c_proj.bias"] = torch.zeros(config.d_model)
    return found


def _from_gpt2(config: TransformerConfig, found: Weights) -> Weights:
    own = {ours: found[theirs] for ours, theirs in _gpt2_names(config).items()}
    for layer in range(config.n_layers):
        block, home = f"blocks.{layer}", f"transformer.h.{layer}"
        own |= {f"{block}.{a}": found[f"{home}.{b}"].T for a, b in _GPT2_TURNED.items()}
        parts = found[f"{home}.attn.c_attn.weight"].T.chunk(3)
        own |= {f"{block}.{name}": part for name, part in zip(_QKV, parts, strict=True)}
    return own


def _gpt_neox(config: TransformerConfig) -> "PreTrainedModel":
    import transformers

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    sizes = {**_sizes(config), "layer_norm_eps": EPS, "attention_bias": False, "use_parallel_residual": False}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes, rope_parameters=rope))


_GPT_NEOX = {
    "ln1.w": "input_layernorm.weight",
    "ln1.b": "input_layernorm.bias",
    "ln2.w": "post_attention_layernorm.weight",
    "ln2.b": "post_attention_layernorm.bias",
    "attn.W_O.weight": "attention.dense.weight",
    "mlp.W_in.weight": "mlp.dense_h_to_4h.weight",
    "mlp.W_in.bias": "mlp.dense_h_to_4h.bias",
    "mlp.W_out.weight": "mlp.dense_4h_to_h.weight",
    "mlp.W_out.bias": "mlp.dense_4h_to_h.bias",
}


def _gpt_neox_names(config: TransformerConfig) -> dict[str, str]:
    names = {
        "embed.weight": "gpt_neox.embed_in.weight",
        "ln_final.w": "gpt_neox.final_layer_norm.weight",
        "ln_final.b": "gpt_neox.final_layer_norm.bias",
    }
    for layer in range(config.n_layers):
        names |= {f"blocks.{layer}.{a}": f"gpt_neox.layers.{layer}.{b}" for a, b in _GPT_NEOX.items()}
    return names if config.tied else names | {"unembed.weight": "lm_head.weight"}


def _gpt_neox_weights(config: TransformerConfig, own: Weights) -> Weights:
    found = {theirs: own[ours] for ours, theirs in _gpt_neox_names(config).items()}
    for layer in range(config.n_layers):
        parts = torch.stack([own[f"blocks.{layer}.{name}"] for name in _QKV])
        by_head = rearrange(parts, "three (h d) m -> (h three d) m", h=config.n_heads)
        found[f"gpt_neox.layers.{layer}.attention.query_key_value.weight"] = by_head
    return found


def _from_gpt_neox(config: TransformerConfig, found: Weights) -> Weights:
    own = {ours: found[theirs] for ours, theirs in _gpt_neox_names(config).items()}
    for layer in range(config.n_layers):
        by_head = found[f"gpt_neox.layers.{layer}.attention.query_key_value.weight"]
        parts: Float[Tensor, "three d m"] = rearrange(
            by_head, "(h three d) m -> three (h d) m", h=config.n_heads, three=3
        )
        own |= {f"blocks.{layer}.{name}": part for name, part in zip(_QKV, parts, strict=True)}
    return own


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


def import_checkpoint(name: str | Path, out: Path) -> str:
    """Convert the output of `export_checkpoint` back to a bayesgeom checkpoint.

    Args:
        name: Directory that `export_checkpoint` wrote.
        out: Directory to write.

    Returns:
        Name of the architecture.

    Raises:
        CheckpointFault: The directory is not such an export.
    """
    path = Path(name)
    module = import_huggingface(path)
    task = (exported_from(path) or {}).get("task")
    if task is None:
        raise CheckpointFault(
            f"{path} does not state the task of its transformer, which a checkpoint needs. Export a model with a task."
        )
    save_checkpoint(
        out,
        module,
        module.config,
        recipe={"task": task},
        step=0,
        card=f"# {path.name}\n\nTask: `{task_from_config(task)}`\nWeights: `{{weights_hash}}`\n\n"
        f"Read back from a Hugging Face directory.\n",
    )
    return module.config.name
