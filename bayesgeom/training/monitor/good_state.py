"""The last good state of a training: weights, and the optimizer's where one is given; in memory or on disk.

On disk it is one safetensors file, written aside and then renamed, so that a state is there whole or not at all.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError
from torch import Tensor, nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.files import file_aside, read_safetensors
from bayesgeom.models.checkpoint import write_tensors

FILE = "last_good.safetensors"
_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."

Tensors = dict[str, Shaped[Tensor, "..."]]


@final
class GoodState:
    """Keeps one state and puts it back. `folder` None keeps it in memory.

    Learning rates and other settings of an optimizer are not put back: they follow their schedule.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer | None, folder: str | Path | None) -> None:
        self.step: int | None = None
        self._module, self._optimizer, self._folder = module, optimizer, None if folder is None else Path(folder)
        self._held: Tensors = {}

    def keep(self, step: int) -> None:
        """Keep the state as it is now, in place of the one before; a state that is not finite is never kept.

        Raises:
            OutputFault: the folder cannot be written to.
        """
        tensors = {_WEIGHTS + name: value for name, value in self._module.state_dict().items()}
        if self._optimizer is not None:
            tensors |= _flat(self._optimizer)
        # Copies: training goes on in place, and weights may share memory, which a file cannot.
        if non_finite(tensors.values()):
            return
        copies = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
        if self._folder is None:
            self._held = copies
        else:
            with file_aside(self._folder / FILE) as aside:
                on_cpu = {name: value.cpu() for name, value in copies.items()}
                write_tensors(on_cpu, aside, metadata={"step": str(step)})
        self.step = step

    @torch.no_grad()
    def put_back(self) -> int:
        """Put the kept state back, in place, and return its step.

        **Raises** `InvalidArgument` where none was kept, `CheckpointFault` where its file cannot be read.
        """
        if self.step is None:
            raise InvalidArgument("no good state has been kept yet: there is nothing to go back to.")
        tensors = self._held if self._folder is None else self._read(self._folder / FILE)
        weights = {name.removeprefix(_WEIGHTS): t for name, t in tensors.items() if name.startswith(_WEIGHTS)}
        self._module.load_state_dict(weights, strict=True)
        if self._optimizer is not None:
            _restore(self._optimizer, tensors)
        return self.step

    @staticmethod
    def _read(path: Path) -> Tensors:
        try:
            return read_safetensors(path, framework="pt")[0]
        except (OSError, SafetensorError) as error:
            raise CheckpointFault(f"{path}, the last good state, cannot be read back: {error}.") from error


def non_finite(tensors: Iterable[Shaped[Tensor, "..."]]) -> int:
    """How many entries of these tensors are NaN or infinite."""
    floating = (tensor.detach() for tensor in tensors if tensor.is_floating_point())
    return sum(tensor.numel() - int(tensor.isfinite().sum()) for tensor in floating)


def _flat(optimizer: torch.optim.Optimizer) -> Tensors:
    """The tensors of an optimizer's state, by parameter and key; numbers become tensors of no axes."""
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
