"""A Hugging Face model as a whole: its sizes from the config, its forward pass, and untrained networks like it.

The pass has no cache, and logits at the scored positions only. Weights of an untrained network are drawn in CPU memory.
If the model is spread over devices, the untrained network is spread in the same way. If some weights are on disk, an
untrained network would not fit in memory, and none is available.
"""

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core.errors import InvalidArgument, NoCopy
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.torch_state import PROCESS_STATE, default_dtype
from bayesgeom.core.trials import Trials
from bayesgeom.models.huggingface.anatomy import HeadSizes
from bayesgeom.models.huggingface.weights import n_parameters, quantization_of, weights_identity

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_MLP_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff")
_CONTEXTS = ("max_position_embeddings", "n_positions", "context_length", "max_seq_len")


def sizes_of(hf: "PreTrainedModel") -> HeadSizes:
    """Return the numbers of heads and their width; zeros if there are no heads."""
    config = _config(hf)
    n_heads = _first(config, _HEADS) or 0
    is_attention = bool(n_heads) and config.get("model_type") not in ("mamba", "mamba2")
    if not is_attention:
        return HeadSizes(n_heads=0, n_kv_heads=0, d_head=0)
    d_head = config.get("head_dim") or _first(config, _WIDTHS, 0) // n_heads
    return HeadSizes(n_heads=n_heads, n_kv_heads=_first(config, _KV_HEADS) or n_heads, d_head=d_head)


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
        quantization=quantization_of(hf),
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


@final
class Forward:
    """Maps tokens to logits, without a padding mask: pad on the right, which causal models do not see."""

    def __init__(self, hf: "PreTrainedModel") -> None:
        self._hf = hf
        self._takes = frozenset(inspect.signature(hf.forward).parameters)

    def logits(self, tokens: Int64[Tensor, "batch pos"], **options: Any) -> Float[Tensor, "batch *kept_d_vocab"]:
        """Return the logits at every position, or at those in the option `logits_to_keep`.

        Raises:
            InvalidArgument: The model returns no logits.
        """
        known: Mapping[str, Any] = {"use_cache": False, "attention_mask": torch.ones_like(tokens), **options}
        output: Mapping[str, Tensor] = self._hf(
            input_ids=tokens, return_dict=True, **{name: value for name, value in known.items() if name in self._takes}
        )
        if "logits" not in output:
            raise InvalidArgument(
                f"{type(self._hf).__name__} returns no logits: it is not a causal language model. Load it with "
                f"AutoModelForCausalLM."
            )
        return output["logits"]

    def at_scored(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        """Return the logits at the scored positions; others are not computed if the model supports it."""
        if "logits_to_keep" not in self._takes:
            return trials.at_scored(self.logits(trials.tokens))
        positions, place = trials.scored_positions().unique(return_inverse=True)
        logits = self.logits(trials.tokens, logits_to_keep=positions)
        if len(positions) == trials.n_scored:  # the same positions in every sequence
            return logits
        return logits.gather(1, place.to(logits.device)[..., None].expand(*place.shape, logits.shape[-1]))


DISK = "disk"


def untrained_copy(
    hf: "PreTrainedModel", seed: int, *, device: str, rebuild: "Callable[[int], PreTrainedModel] | None"
) -> "PreTrainedModel":
    """Return a model of the same class with new weights, in evaluation mode, on `device` or spread like `hf`.

    Raises:
        NoCopy: Part of `hf` is on disk.
    """
    places: dict[str, Any] = vars(hf).get("hf_device_map", {})  # from accelerate; empty if there is one device
    if DISK in places.values():
        raise NoCopy(
            f"part of {type(hf).__name__} is on disk, and an untrained network would have to fit in memory: untrained "
            f"baselines are omitted. Load the model with a device_map that needs no disk, or a smaller dtype."
        )
    with PROCESS_STATE, torch.random.fork_rng(), default_dtype(hf.dtype):
        torch.manual_seed(seed)  # transformers initializes from the global generator
        copy: PreTrainedModel = (
            rebuild(seed) if rebuild is not None else type(hf)(deepcopy(hf.config))
        )  # a copy, because transformers sets the attention implementation in it
    module: nn.Module = copy.eval()
    if len({str(place) for place in places.values()}) > 1:
        import accelerate

        accelerate.dispatch_model(module, device_map=places)
    else:
        module.to(device)
    return copy
