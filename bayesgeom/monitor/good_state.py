"""The last good state of a training: weights and optional optimizer state, in memory or on disk.

On disk it is one safetensors file, written atomically.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError
from torch import Tensor, nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.files import atomic_file, read_safetensors, write_arrays
from bayesgeom.models.checkpoint import weights_hash

FILE = "last_good.safetensors"
_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."

Tensors = dict[str, Shaped[Tensor, "..."]]


@final
class GoodState:
    """Stores one state and restores it; in memory if `folder` is None.

    Learning rates and other optimizer settings are not restored: they follow their schedule.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer | None, folder: str | Path | None) -> None:
        self.step: int | None = None
        self._module, self._optimizer, self._folder = module, optimizer, None if folder is None else Path(folder)
        self._stored: Tensors = {}
        self._digest = ""  # of the stored file, which another process may change
        self._endless = frozenset(name for name, value in module.named_buffers() if non_finite([value]))

    def non_finite(self) -> dict[str, int]:
        """Return the number of NaN or infinite entries of the weights, and of the optimizer's state.

        Buffers that held such entries from the start, such as a mask of −∞, do not count.
        """
        state = self._module.state_dict()
        weights = (value for name, value in state.items() if name not in self._endless)
        return {
            "weights": non_finite(weights),
            "optimizer": 0 if self._optimizer is None else non_finite(_flat(self._optimizer).values()),
        }

    def keep(self, step: int) -> None:
        """Store the current state and replace the previous one. A state with NaN or infinite entries is not stored.

        Raises:
            OutputFault: The folder cannot be written.
        """
        tensors = {_WEIGHTS + name: value for name, value in self._module.state_dict().items()}
        if self._optimizer is not None:
            tensors |= _flat(self._optimizer)
        if any(self.non_finite().values()):
            return
        # Copies: training modifies weights in place, and safetensors does not support shared memory.
        copies = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
        if self._folder is None:
            self._stored = copies
        else:
            with atomic_file(self._folder / FILE) as temporary:
                on_cpu = {name: value.cpu() for name, value in copies.items()}
                write_arrays(on_cpu, temporary, {"step": str(step)}, framework="pt")
            self._digest = weights_hash(on_cpu)
        self.step = step

    @torch.no_grad()
    def put_back(self) -> int:
        """Restore the stored state in place and return its step.

        Raises:
            InvalidArgument: No state was stored.
            CheckpointFault: Its file cannot be read, or holds another state.
        """
        if self.step is None:
            raise InvalidArgument("no good state has been stored yet, so there is nothing to restore.")
        tensors = self._stored if self._folder is None else self._read(self._folder / FILE)
        weights = {name.removeprefix(_WEIGHTS): t for name, t in tensors.items() if name.startswith(_WEIGHTS)}
        self._module.load_state_dict(weights, strict=True)
        if self._optimizer is not None:
            _restore(self._optimizer, tensors)
        return self.step

    def _read(self, path: Path) -> Tensors:
        try:
            found: Tensors = read_safetensors(path, framework="pt")[0]
        except (OSError, SafetensorError) as error:
            raise CheckpointFault(
                f"{path}, the last good state, cannot be read back: {error}. Restart from a checkpoint."
            ) from error
        if weights_hash(found) != self._digest:
            raise CheckpointFault(
                f"{path}, the last good state, was changed after it was stored, or another monitor writes there. Name "
                f"a folder for each monitor."
            )
        return found


def non_finite(tensors: Iterable[Shaped[Tensor, "..."]]) -> int:
    """Return the number of NaN or infinite entries of these tensors."""
    floating = (tensor.detach() for tensor in tensors if tensor.is_floating_point())
    return sum(tensor.numel() - int(tensor.isfinite().sum()) for tensor in floating)


def _flat(optimizer: torch.optim.Optimizer) -> Tensors:
    """The tensors of an optimizer's state, by parameter and key; numbers become scalar tensors."""
    return {
        f"{_OPTIMIZER}{index}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
        if isinstance(value, (Tensor, int, float))
    }


def _restore(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    now = optimizer.state_dict()
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith(_OPTIMIZER):
            index, _, key = name.removeprefix(_OPTIMIZER).partition(".")
            former = now["state"].get(int(index), {}).get(key)
            is_tensor = isinstance(former, Tensor) or former is None
            state.setdefault(int(index), {})[key] = value.clone() if is_tensor else value.item()
    optimizer.load_state_dict({"state": state, "param_groups": now["param_groups"]})
