"""The weights of a Hugging Face model: the hash that identifies them, and quantized ones.

The hash is SHA-256 over the config and pieces of every tensor, in as many threads as torch uses. It reads each weight
once. Weights that accelerate offloads are on the meta device between passes. They are read through accelerate, one
module at a time. A hash of the files, or of their sizes and dates, would not suffice: weights can be changed in memory,
and two files of one architecture have the same size and header.

The sites need nothing of quantized weights: matrices are computed with the model's own modules, which dequantize.
Libraries keep scales where `parameters()` and `buffers()` do not list them, though, and the hash must cover them.
"""

import contextlib
import enum
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from bayesgeom.core import CheckpointFault, InvalidArgument
from bayesgeom.models.checkpoint_files import CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QUANTIZATION = "quantization_config"
_BITSANDBYTES = "bitsandbytes"


def check_readable(raw: Mapping[str, Any], source: str | Path) -> None:
    """Check that transformers knows the format of a quantized checkpoint.

    Of another format it would read the stored numbers as if they were weights, without their scales.

    Args:
        raw: The parsed `config.json`.
        source: Directory or hub name, for the message.

    Raises:
        CheckpointFault: The entry is no JSON object.
        InvalidArgument: transformers does not know the format.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as KNOWN

    members = raw.get(QUANTIZATION)
    if members is None:
        return
    if not isinstance(members, Mapping):
        raise CheckpointFault(
            f"{CONFIG} of {source} sets {QUANTIZATION} to {members!r}, not to a JSON object. Restore the file."
        )
    method = members.get("quant_method")
    if method is not None and not any(str(known).startswith(str(method)) for known in KNOWN):
        raise InvalidArgument(
            f"{source} is quantized as {method!r}. transformers reads {', '.join(map(str, KNOWN))}: load such a copy."
        )


def quantization_of(hf: "PreTrainedModel") -> str:
    """Return the format of a model's weights, or "" if they are not quantized."""
    kinds = sorted(
        {type(parameter).__name__ for parameter in hf.parameters() if type(parameter) not in (Tensor, nn.Parameter)}
    )
    method, bits = _format(hf)
    if not (kinds or method):
        return ""
    stored = f"{method} of {bits} bits" if bits else method
    by = f"weights of class {', '.join(kinds)}" if kinds else ""
    product = "multiplied in 8 bits" if "Int8Params" in kinds else "dequantized in every product"
    return ", ".join(part for part in (stored, by, product) if part)


def n_parameters(hf: "PreTrainedModel") -> int:
    """Return the number of parameters of the model that was quantized.

    Libraries pack several in one number, or keep them in buffers.
    """
    if not _format(hf)[0]:
        return sum(parameter.numel() for parameter in hf.parameters())
    plain = type(hf.config).from_dict({key: value for key, value in hf.config.to_dict().items() if key != QUANTIZATION})
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in type(hf)(plain).parameters())


@torch.no_grad()
def settle(module: nn.Module, dtype: torch.dtype) -> None:
    """Bring a module of bitsandbytes into the form that it takes at its first product.

    It packs codes and moves scales then, so that hashes before and after would differ.
    """
    if _library(module) == _BITSANDBYTES and isinstance(module, nn.Linear):
        module(torch.zeros(1, module.in_features, dtype=dtype, device=module.weight.device))


def unlisted_state(module: nn.Module) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield the tensors of quantized weights that are neither parameters nor buffers, such as scales."""
    for name, parameter in module.named_parameters(recurse=False):
        if type(parameter) in (Tensor, nn.Parameter) or is_traceable_wrapper_subclass(parameter):
            continue
        members = vars(parameter)
        yield from _tensors(name, members.get("quant_state") if _library(module) == _BITSANDBYTES else members)
    if _library(module) == _BITSANDBYTES and (state := vars(module).get("state")) is not None:
        yield from _tensors("SCB", vars(state).get("SCB"))  # its other tensors are of the last input


def _format(hf: "PreTrainedModel") -> tuple[str, int | None]:
    """The method and the bits that the config states, if the weights are quantized still; else ("", None)."""
    if vars(hf).get("hf_quantizer") is None:
        return "", None
    members: Any = hf.config.to_dict().get(QUANTIZATION) or {}
    method = members.get("quant_method", "")
    bits = 4 if members.get("load_in_4bit") else 8 if members.get("load_in_8bit") else members.get("bits")
    return str(method.value if isinstance(method, enum.Enum) else method), bits


def _library(module: nn.Module) -> str:
    return type(module).__module__.partition(".")[0]


def _tensors(name: str, members: Any, depth: int = 3) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """The tensors among the attributes of an object, and of those attributes that belong to the same library."""
    if isinstance(members, Tensor):
        yield name, members
    elif isinstance(members, Mapping):
        yield from (
            entry for key, member in sorted(members.items()) for entry in _tensors(f"{name}.{key}", member, depth - 1)
        )
    elif depth and type(members).__module__.partition(".")[0] == _BITSANDBYTES and not isinstance(members, nn.Module):
        yield from _tensors(name, vars(members), depth - 1)


PIECE = 2**20  # bytes that one thread hashes at a time
_NOT_THE_FUNCTION = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")
_HOOK = "_hf_hook"  # where accelerate keeps its own
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_SWITCHES = ("_active_adapter", "_disable_adapters", "merged_adapters")  # PEFT's class attributes until they are set


@torch.no_grad()
def weights_identity(hf: "PreTrainedModel") -> str:
    """Return the first 16 hex digits of the SHA-256 over the config, every tensor of the state and PEFT's settings.

    Two models have the same hash only if they compute the same function with the same numbers. It does not depend on
    the device of the weights or on the directory they came from.
    """
    digest = hashlib.sha256(json.dumps(config_of(hf), sort_keys=True).encode())
    known: dict[tuple[Any, ...], bytes] = {}  # by storage: a matrix that is used twice is read once
    entries: dict[str, bytes] = {}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for path, module in hf.named_modules():
            with at_hand(module):
                settle(module, hf.dtype)
                for name, tensor in _own_state(module):
                    entry = f"{path}.{name}" if path else name
                    pointer = 0 if bool(is_traceable_wrapper_subclass(tensor)) else tensor.data_ptr()
                    place = (tensor.device, pointer, tuple(tensor.shape), tensor.stride(), tensor.dtype)
                    if _is_offloaded(module) or pointer == 0 or place not in known:
                        known[place] = _hashed(entry, tensor, pool)
                    entries[entry] = f"{entry} {tuple(tensor.shape)} {tensor.dtype}".encode() + known[place]
    for entry in sorted(entries):
        digest.update(entries[entry])
    if settings := {path: own for path, module in hf.named_modules() if (own := _adapter_settings(module))}:
        # An object, such as a variant of LoRA, counts by the name of its class.
        digest.update(json.dumps(settings, sort_keys=True, default=lambda own: type(own).__qualname__).encode())
    return digest.hexdigest()[:16]


def config_of(hf: "PreTrainedModel") -> dict[str, Any]:
    """Return the config as JSON types, without entries about its origin or its file format."""
    config: dict[str, Any] = json.loads(hf.config.to_json_string(use_diff=False))
    return {key: value for key, value in config.items() if key not in _NOT_THE_FUNCTION}


@contextlib.contextmanager
def at_hand(module: nn.Module) -> Iterator[None]:
    """Load a module's offloaded weights into CPU memory inside the block."""
    if not _is_offloaded(module):
        yield
        return
    from accelerate.utils import align_module_device

    with align_module_device(module, torch.device("cpu")):
        yield


def _is_offloaded(module: nn.Module) -> bool:
    if _HOOK not in vars(module):
        return False
    from accelerate.utils import has_offloaded_params

    return bool(has_offloaded_params(module))


def _own_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A module's parameters and buffers, without those of its parts, and the scales of quantized parameters.

    Buffers that are not saved follow from the config, except in PEFT's modules: there a seed may have drawn them.
    """
    yield from module.named_parameters(recurse=False)
    yield from unlisted_state(module)
    unsaved = module._non_persistent_buffers_set  # noqa: SLF001  (torch has no public way to read it)
    transient = frozenset[str]() if _is_of_peft(type(module)) else unsaved
    yield from ((name, buffer) for name, buffer in module.named_buffers(recurse=False) if name not in transient)


def _is_of_peft(kind: type) -> bool:
    return any(parent.__module__.partition(".")[0] == "peft" for parent in kind.__mro__)


def _adapter_settings(module: nn.Module) -> dict[str, Any]:
    """The values besides tensors that decide what a PEFT module computes; empty for other modules.

    They include the scaling, the active adapters, whether adapters are disabled or merged, and the variants (DoRA,
    rank-stabilized LoRA). PEFT's layers differ in their attributes, so all attributes with JSON values are included.
    """
    if not _is_of_peft(type(module)):
        return {}
    parents = [vars(kind) for kind in reversed(type(module).__mro__)]
    settings = {name: stored[name] for stored in parents for name in _SWITCHES if name in stored}
    settings |= {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    if isinstance(active := settings.get("_active_adapter"), str):
        settings["_active_adapter"] = [active]  # PEFT stores one name as text or as a list
    return {"class": type(module).__qualname__, **settings}


def _hashed(name: str, tensor: Shaped[Tensor, "..."], pool: Executor) -> bytes:
    """The digests of a tensor's pieces; for a tensor subclass with several tensors (quantized), those of each."""
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        return b"".join(part.encode() + _hashed(name, getattr(tensor, part), pool) for part in inner)
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
    pieces = (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))
    return b"".join(pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces))
