"""Untrained copies of a Hugging Face model: the same architecture with new weights, laid out as the model's own are.

A copy is drawn in the CPU's memory, one at a time. Where the model is spread over devices, so is the copy; where its
weights are partly on disk it would not fit in memory, and there is none.
"""

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bayesgeom.core.errors import NoCopy
from bayesgeom.core.threads import PROCESS_STATE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DISK = "disk"


def untrained_copy(
    hf: "PreTrainedModel", seed: int, *, device: str, rebuild: "Callable[[int], PreTrainedModel] | None"
) -> "PreTrainedModel":
    """The same class with new weights, in evaluation mode, on `device` or spread as `hf` is.

    **Raises** `NoCopy` where part of `hf` is kept on disk.
    """
    places = _places(hf)
    if DISK in places.values():
        raise NoCopy(
            f"part of {type(hf).__name__} is kept on disk, and an untrained copy would have to fit in memory: numbers "
            f"at initialization are left out. Load the model with a device_map that needs no disk, or a smaller dtype."
        )
    with PROCESS_STATE, torch.random.fork_rng(), _drawn_in(hf.dtype):
        torch.manual_seed(seed)  # transformers initializes from the global generator alone
        copy: PreTrainedModel = (
            rebuild(seed) if rebuild is not None else type(hf)(deepcopy(hf.config))
        )  # attention is set in it
    module: nn.Module = copy.eval()
    if len({str(place) for place in places.values()}) > 1:
        import accelerate

        accelerate.dispatch_model(module, device_map=places)
    else:
        module.to(device)
    return copy


def _places(hf: "PreTrainedModel") -> dict[str, Any]:
    """Which part is where, as accelerate was told; nothing where all is on one device."""
    places: dict[str, Any] = vars(hf).get("hf_device_map", {})
    return places


@contextlib.contextmanager
def _drawn_in(dtype: torch.dtype) -> Iterator[None]:
    """New weights have this type from the start: none are made in float32 first, and buffers keep their own."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(former)
