"""Export of a `Transformer` to a Hugging Face directory with the same logits.

    rotary, RMSNorm                          Llama     its MLP gate is kept open: up(x) = 0·x + 1
    learned, sinusoidal or none, LayerNorm   GPT-2     sinusoids are stored as a table, no positions as zeros

No architecture supports learned positions with RMSNorm, ALiBi with these slopes, or another positional prior.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

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

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-5
Weights = dict[str, Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """A Hugging Face architecture that can represent a transformer.

    Attributes:
        name: Name of the architecture in transformers.
        sizes: Returns what its config states besides the sizes that all of them have.
        layers: Path of its blocks.
        outer: Its names of our weights outside of blocks.
        inner: Its names of our weights inside a block.
        joined: Returns its other weights of a block, given ours.
    """

    name: str
    sizes: Callable[[TransformerConfig], dict[str, Any]]
    layers: str
    outer: Mapping[str, str]
    inner: Mapping[str, str]
    joined: Callable[[TransformerConfig, Weights], Weights]

    def build(self, config: TransformerConfig) -> "PreTrainedModel":
        """Return a model of these sizes."""
        import transformers

        settings = transformers.AutoConfig.for_model(
            self.name,
            vocab_size=config.d_vocab,
            hidden_size=config.d_model,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            max_position_embeddings=config.n_ctx,
            tie_word_embeddings=config.tied,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
            **self.sizes(config),
        )
        built: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(settings)
        return built

    def weights(self, config: TransformerConfig, own: Weights) -> Weights:
        """Return its weights, given ours."""
        converted = {theirs: own[ours] for ours, theirs in self._names(config).items()}
        for layer in range(config.n_layers):
            joined = self.joined(config, _inside(f"blocks.{layer}.", own))
            converted |= {f"{self.layers}.{layer}.{name}": tensor for name, tensor in joined.items()}
        if self.name == "gpt2" and config.positions != "learned":
            table = sinusoids(config.n_ctx, config.d_model, own["embed.weight"])
            converted["transformer.wpe.weight"] = table if config.positions == "sinusoidal" else torch.zeros_like(table)
        return converted

    def _names(self, config: TransformerConfig) -> dict[str, str]:
        names = dict(self.outer) | ({} if config.tied else {"unembed.weight": "lm_head.weight"})
        names |= {"pos_embed.weight": "transformer.wpe.weight"} if config.positions == "learned" else {}
        for layer in range(config.n_layers):
            names |= {f"blocks.{layer}.{a}": f"{self.layers}.{layer}.{b}" for a, b in self.inner.items()}
        return names


def _inside(prefix: str, weights: Weights) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


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
    n_ctx, weight = module.config.n_ctx, module.embed.weight
    tokens = sentinel_trials(module.config.d_vocab, n_ctx, str(weight.device)).tokens
    with torch.no_grad():
        expected = module(tokens).cpu()
        error = float((hf.eval()(input_ids=tokens.cpu()).logits - expected).abs().max())
    scale = max(1.0, float(expected.abs().max()))
    assert error <= TOLERANCE * scale, f"the exported logits differ by {error:.1e}"
    # Extra attributes of the config are saved and loaded with it.
    hf.config.update({SOURCE: {"model": config.to_dict(), "task": None if task is None else task.config()}})
    with atomic_directory(path) as temporary, quiet():
        hf.save_pretrained(temporary)
    return target.name


def target_of(config: TransformerConfig) -> Target:
    """Return the Hugging Face architecture that can represent a transformer of this shape.

    Raises:
        InvalidArgument: There is none.
    """
    match config.norm, config.positions:
        case "rmsnorm", "rotary":
            return LLAMA
        case "layernorm", "learned" | "sinusoidal" | "none":
            return GPT2
    raise InvalidArgument(
        f"{config.positions} positions with {config.norm} cannot be exported. Supported: rotary with rmsnorm, and "
        f"learned, sinusoidal or none with layernorm."
    )


def _llama_sizes(config: TransformerConfig) -> dict[str, Any]:
    sizes = {"intermediate_size": config.d_mlp, "hidden_act": "gelu", "num_key_value_heads": config.n_heads}
    return {**sizes, "rms_norm_eps": EPS, "mlp_bias": True}


def _open_gate(config: TransformerConfig, _block: Weights) -> Weights:
    zeros, ones = torch.zeros(config.d_mlp, config.d_model), torch.ones(config.d_mlp)
    return {"mlp.up_proj.weight": zeros, "mlp.up_proj.bias": ones}


LLAMA = Target(
    name="llama",
    sizes=_llama_sizes,
    layers="model.layers",
    outer={"embed.weight": "model.embed_tokens.weight", "ln_final.w": "model.norm.weight"},
    inner={
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
    },
    joined=_open_gate,
)
_QKV = ("attn.W_Q.weight", "attn.W_K.weight", "attn.W_V.weight")
_TURNED = {  # GPT-2 stores these matrices transposed
    "attn.W_O.weight": "attn.c_proj.weight",
    "mlp.W_in.weight": "mlp.c_fc.weight",
    "mlp.W_out.weight": "mlp.c_proj.weight",
}


def _layernorm(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.w": f"{theirs}.weight", f"{ours}.b": f"{theirs}.bias"}


def _gpt2_joined(config: TransformerConfig, block: Weights) -> Weights:
    return {
        **{theirs: block[ours].T for ours, theirs in _TURNED.items()},
        "attn.c_attn.weight": torch.cat([block[name] for name in _QKV]).T,
        "attn.c_attn.bias": torch.zeros(3 * config.d_model),
        "attn.c_proj.bias": torch.zeros(config.d_model),
    }


GPT2 = Target(
    name="gpt2",
    sizes=lambda own: {"n_inner": own.d_mlp, "activation_function": "gelu", "layer_norm_epsilon": EPS},
    layers="transformer.h",
    outer={"embed.weight": "transformer.wte.weight"} | _layernorm("ln_final", "transformer.ln_f"),
    inner={
        **_layernorm("ln1", "ln_1"),
        **_layernorm("ln2", "ln_2"),
        "mlp.W_in.bias": "mlp.c_fc.bias",
        "mlp.W_out.bias": "mlp.c_proj.bias",
    },
    joined=_gpt2_joined,
)


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
