"""Quantized weights: their description, what identifies them, and formats that transformers cannot read.

The sites need nothing from here: matrices are computed with the model's own modules, which dequantize. Libraries keep
scales where `parameters()` and `buffers()` do not list them, though, and the hash must cover them.
"""

import contextlib
import enum
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from bayesgeom.core.errors import BayesGeomError, CheckpointFault, InvalidArgument
from bayesgeom.models.description import CONFIG
from bayesgeom.models.shapes import shapes_only

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEY = "quantization_config"
_BITSANDBYTES = "bitsandbytes"
_REPEATED = "bitsandbytes.autograd._functions"  # its logger, which warns in every product
_OF_LIBRARIES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError)


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

    members = raw.get(KEY)
    if members is None:
        return
    if not isinstance(members, Mapping):
        raise CheckpointFault(
            f"{CONFIG} of {source} sets {KEY} to {members!r}; it must be a JSON object. Restore the {CONFIG} that was "
            f"saved with the weights."
        )
    method = members.get("quant_method")
    if method is not None and not any(str(known).startswith(str(method)) for known in KNOWN):
        raise InvalidArgument(
            f"{source} is quantized as {method!r}, which transformers cannot read. Load the model that was quantized, "
            f"or a copy in one of these formats: {', '.join(map(str, KNOWN))}."
        )


def described(hf: "PreTrainedModel") -> str:
    """Return the format of a model's weights, or "" if they are not quantized."""
    kinds = sorted({type(own).__name__ for own in hf.parameters() if type(own) not in (Tensor, nn.Parameter)})
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
    plain = type(hf.config).from_dict({key: own for key, own in hf.config.to_dict().items() if key != KEY})
    with shapes_only():
        return sum(parameter.numel() for parameter in type(hf)(plain).parameters())


@torch.no_grad()
def settle(module: nn.Module, dtype: torch.dtype) -> None:
    """Bring a module of bitsandbytes into the form that it takes at its first product.

    It packs codes and moves scales then, so that hashes before and after would differ.
    """
    if _library(module) == _BITSANDBYTES and isinstance(module, nn.Linear):
        logger = logging.getLogger(_REPEATED)
        if not any(isinstance(own, _Once) for own in logger.filters):
            logger.addFilter(_Once())
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


@contextlib.contextmanager
def named_faults(hf: "PreTrainedModel") -> Iterator[None]:
    """Convert what a quantization library raises in a pass to one sentence that names the format."""
    try:
        yield
    except BayesGeomError:
        raise
    except (*_OF_LIBRARIES, ValueError) as error:
        if not (stored := described(hf)):
            raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidArgument(
            f"{type(hf).__name__} is quantized ({stored}), and its library cannot run it here: {first}. Load the model "
            f"without quantization, or quantized otherwise."
        ) from error


@final
class _Once(logging.Filter):
    """Passes each message once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        is_new = record.msg not in self._seen
        self._seen.add(record.msg)
        return is_new


def _format(hf: "PreTrainedModel") -> tuple[str, int | None]:
    """The method and the bits that the config states, if the weights are quantized still; else ("", None)."""
    if vars(hf).get("hf_quantizer") is None:
        return "", None
    members: Any = hf.config.to_dict().get(KEY) or {}
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
            entry for key, own in sorted(members.items()) for entry in _tensors(f"{name}.{key}", own, depth - 1)
        )
    elif depth and type(members).__module__.partition(".")[0] == _BITSANDBYTES and not isinstance(members, nn.Module):
        yield from _tensors(name, vars(members), depth - 1)
