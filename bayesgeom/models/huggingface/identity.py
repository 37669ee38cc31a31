"""The hash that identifies a Hugging Face model, computed from all weights and the config.

Weights that accelerate offloads are on the meta device between passes. They are read through accelerate, one module at
a time. A hash of the files, or of their sizes and dates, would not suffice: weights can be changed in memory, and two
files of one architecture have the same size and header.

The hash is SHA-256 over pieces of every tensor, in as many threads as torch uses. It reads each weight once.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.huggingface.quantized import settle, unlisted_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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

    Raises:
        InvalidArgument: Weights are on the meta device and have no values.
    """
    digest = hashlib.sha256(json.dumps(described(hf), sort_keys=True).encode())
    known: dict[tuple[Any, ...], bytes] = {}  # by storage: a matrix that is used twice is read once
    entries: dict[str, bytes] = {}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for path, module in hf.named_modules():
            with at_hand(module):
                settle(module, hf.dtype)
                for name, tensor in _own_state(module):
                    entry = f"{path}.{name}" if path else name
                    place = (tensor.device, _pointer(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype)
                    if _is_offloaded(module) or place[1] == 0 or place not in known:
                        known[place] = _hashed(entry, tensor, pool)
                    entries[entry] = f"{entry} {tuple(tensor.shape)} {tensor.dtype}".encode() + known[place]
    for entry in sorted(entries):
        digest.update(entries[entry])
    if settings := {path: own for path, module in hf.named_modules() if (own := _adapter_settings(module))}:
        digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def described(hf: "PreTrainedModel") -> dict[str, Any]:
    """Return the config as JSON types, without entries about its origin or its file format."""
    config: dict[str, Any] = json.loads(hf.config.to_json_string(use_diff=False))
    return {key: value for key, value in config.items() if key not in _NOT_THE_FUNCTION}


def unreachable(hf: nn.Module) -> str | None:
    """Return the name of the first parameter on the meta device without values, or None.

    A forward pass of such a model returns no numbers.
    """
    for path, module in hf.named_modules():
        if _is_offloaded(module):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.device.type == "meta":
                return f"{path}.{name}" if path else name
    return None


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
    yield from ((name, own) for name, own in module.named_buffers(recurse=False) if name not in transient)


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
    switches = {
        name: stored[name] for stored in parents for name in _SWITCHES if name in stored and _is_plain(stored[name])
    }
    own = {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    found = {name: _plain(value) for name, value in {**switches, **own}.items()}
    if isinstance(active := found.get("_active_adapter"), str):
        found["_active_adapter"] = [active]  # PEFT stores one name as text or as a list
    return {"class": type(module).__qualname__, **found}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list | tuple | Mapping)


def _plain(value: object) -> Any:
    """A value as JSON types; of another object, the name of its class, such as that of a variant of LoRA."""
    if isinstance(value, Mapping):
        return {str(key): _plain(stored) for key, stored in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(stored) for stored in value]
    return value if _is_plain(value) else type(value).__qualname__


def _pointer(tensor: Shaped[Tensor, "..."]) -> int:
    is_made_of_several = bool(is_traceable_wrapper_subclass(tensor))
    return 0 if is_made_of_several else tensor.data_ptr()


def _hashed(name: str, tensor: Shaped[Tensor, "..."], pool: Executor) -> bytes:
    """The digests of a tensor's pieces; for a tensor subclass with several tensors (quantized), those of each."""
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        return b"".join(part.encode() + _hashed(name, getattr(tensor, part), pool) for part in inner)
    if tensor.device.type == "meta":
        raise InvalidArgument(
            f"{name} is on torch's meta device: the model has shapes but no weights. Load its weights, for example "
            f"with from_pretrained."
        )
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
    pieces = (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))
    return b"".join(pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces))
