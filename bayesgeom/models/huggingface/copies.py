"""Untrained networks with the architecture of a Hugging Face model.

Weights are drawn in CPU memory. If the model is spread over devices, the untrained network is spread in the same way.
If some weights are on disk, an untrained network would not fit in memory, and none is available.
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
    """Return a model of the same class with new weights, in evaluation mode, on `device` or spread like `hf`.

    Raises:
        NoCopy: Part of `hf` is on disk.
    """
    places = _places(hf)
    if DISK in places.values():
        raise NoCopy(
            f"part of {type(hf).__name__} is on disk, and an untrained network would have to fit in memory: untrained "
            f"baselines are omitted. Load the model with a device_map that needs no disk, or a smaller dtype."
        )
    with PROCESS_STATE, torch.random.fork_rng(), _drawn_in(hf.dtype):
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


def _places(hf: "PreTrainedModel") -> dict[str, Any]:
    """The device of each part, from accelerate; empty if there is one device."""
    places: dict[str, Any] = vars(hf).get("hf_device_map", {})
    return places


@contextlib.contextmanager
def _drawn_in(dtype: torch.dtype) -> Iterator[None]:
    """Create new weights in this dtype; buffers keep their own."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(former)
