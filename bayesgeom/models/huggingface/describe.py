"""Sizes of a Hugging Face model from its config, and a check that it can be attached."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ModelSpec
from bayesgeom.models.huggingface.identity import weights_identity
from bayesgeom.models.huggingface.projection import Sizes
from bayesgeom.models.huggingface.quantized import described, n_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_MLP_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff")
_CONTEXTS = ("max_position_embeddings", "n_positions", "context_length", "max_seq_len")


def sizes_of(hf: "PreTrainedModel") -> Sizes:
    """Return the numbers of heads and their width; zeros if there are no heads."""
    config = _config(hf)
    n_heads = _first(config, _HEADS) or 0
    is_attention = bool(n_heads) and config.get("model_type") not in ("mamba", "mamba2")
    if not is_attention:
        return Sizes(n_heads=0, n_kv_heads=0, d_head=0)
    d_head = config.get("head_dim") or _first(config, _WIDTHS, 0) // n_heads
    return Sizes(n_heads=n_heads, n_kv_heads=_first(config, _KV_HEADS) or n_heads, d_head=d_head)


def spec_of(hf: "PreTrainedModel", name: str, digest: str | None) -> ModelSpec:
    """Return the spec; `score_scale` is 1 / √d_head until it is read from the attention.

    Raises:
        InvalidArgument: The config does not state the number of layers or the width.
    """
    config, sizes = _config(hf), sizes_of(hf)
    n_layers, d_model = _first(config, _LAYERS), _first(config, _WIDTHS)
    if n_layers is None or d_model is None:
        raise InvalidArgument(
            f"the config of {name} does not state the number of layers or the width: its layout is not supported."
        )
    if n_layers < 1:
        raise InvalidArgument(f"{name} has {n_layers} layers; a model needs at least one to be measured.")
    if min(sizes.n_heads, sizes.n_kv_heads, sizes.d_head) < 0:
        raise InvalidArgument(
            f"the config of {name} states {sizes.n_heads} heads, {sizes.n_kv_heads} key-value heads and a width of "
            f"{sizes.d_head}; none can be negative."
        )
    weight = hf.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return ModelSpec(
        name=name,
        architecture=str(config.get("model_type", type(hf).__name__)),
        n_layers=n_layers,
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        d_model=d_model,
        d_head=sizes.d_head,
        d_mlp=_first(config, _MLP_WIDTHS) or 4 * d_model,
        d_vocab=weight.shape[0],
        n_ctx=_first(config, _CONTEXTS),
        score_scale=sizes.d_head**-0.5 if sizes.d_head else 1.0,
        n_parameters=n_parameters(hf),
        dtype=str(hf.dtype).removeprefix("torch."),
        device="cpu" if weight.device.type == "meta" else str(weight.device),
        weights_hash=digest or weights_identity(hf),
        quantization=described(hf),
    )


def refuse_sharded(hf: "PreTrainedModel") -> None:
    """Check that heads are not spread over processes, so that every site is complete.

    Raises:
        InvalidArgument: They are.
    """
    from torch.distributed.tensor import DTensor

    is_sharded = any(isinstance(parameter, DTensor) for parameter in hf.parameters())
    if is_sharded or (hf.tp_size or 1) > 1:
        raise InvalidArgument(
            f"{type(hf).__name__} is loaded with a tensor-parallel plan, which spreads heads over processes. Load it "
            f"with device_map='auto', which keeps layers whole."
        )


def _config(hf: "PreTrainedModel") -> dict[str, Any]:
    config: dict[str, Any] = hf.config.get_text_config(decoder=True).to_dict()
    return config


def _first(config: Mapping[str, Any], names: tuple[str, ...], otherwise: int | None = None) -> Any:
    """The first integer in the config under one of these names."""
    return next((config[name] for name in names if isinstance(config.get(name), int)), otherwise)
