"""The environment of a run: what affects its weights in addition to recipe and precision.

The order in which a processor adds numbers depends on the number of threads, the instruction set, the version of torch
and whether numba compiles the loops. Sums in another order differ in the last digits, and training amplifies the
difference. Each kind of device draws other data from the same seed.
"""

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, final

import torch

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, check_types
from bayesgeom.core.files import atomic_file, read_json
from bayesgeom.models.native.compiled import has_numba

ENVIRONMENT = "environment.json"


@final
@dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a run.

    Attributes:
        device: Kind of device: cpu, cuda, …
        processor: Instruction set that torch uses on a CPU, such as AVX2; otherwise the name of the GPU.
        n_threads: Number of threads of an operation.
        has_numba: Whether numba compiles the loops of some architectures.
        torch_version: Version of torch.
    """

    device: str
    processor: str
    n_threads: int
    has_numba: bool
    torch_version: str

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def here(cls, device: str | torch.device) -> Self:
        """Return the environment of this process for training on a device.

        Example:
            >>> Environment.here("cpu").device
            'cpu'
        """
        kind = torch.device(device).type
        is_cuda = kind == "cuda"
        return cls(
            device=kind,
            processor=torch.cuda.get_device_name(device) if is_cuda else torch.backends.cpu.get_cpu_capability(),
            n_threads=torch.get_num_threads(),
            has_numba=has_numba(),
            torch_version=str(torch.__version__),
        )


def record_environment(out: Path, device: str | torch.device) -> None:
    """Write the environment of the run in `out`, which starts now on this device."""
    with atomic_file(out / ENVIRONMENT) as temporary:
        temporary.write_text(json.dumps(asdict(Environment.here(device))) + "\n", encoding="utf-8")


def recorded_environment(out: Path) -> Environment | None:
    """Return the environment in which the run in `out` started, or None if there is no record.

    Raises:
        CheckpointFault: The record cannot be read.
    """
    try:
        return Environment(**read_json(out / ENVIRONMENT))
    except FileNotFoundError:
        return None
    except (TypeError, InvalidArgument) as error:
        raise CheckpointFault(
            f"{out / ENVIRONMENT} cannot be read ({error}). Restore it, or delete it to resume without this check."
        ) from error


def check_device_kind(out: Path, device: str | torch.device) -> None:
    """Check that a run continues on the kind of device on which it started.

    Raises:
        InvalidArgument: It started on another kind, which draws other data from the same seeds.
        CheckpointFault: The record cannot be read.
    """
    started, kind = recorded_environment(out), torch.device(device).type
    if started is not None and started.device != kind:
        raise InvalidArgument(
            f"the run in {out} was started on {started.device} and cannot continue on {kind}, which draws other "
            f"data from the same seeds. Use --device {started.device} (Python: device={started.device!r}), or train "
            f"in another directory."
        )


def warn_of_changes(out: Path, device: str | torch.device) -> None:
    """Warn if a training continues in another environment than that in which the run in `out` started.

    Raises:
        CheckpointFault: The record cannot be read.
    """
    started = recorded_environment(out)
    if started is None:
        return
    now = asdict(Environment.here(device))
    changed = [f"{name}: {value}, now {now[name]}" for name, value in asdict(started).items() if value != now[name]]
    if changed:
        warnings.warn(
            f"training continues in another environment than that in which {out} started ({'; '.join(changed)}). The "
            f"weights may differ from those of an uninterrupted run: first in the last digits, later in more of them.",
            stacklevel=2,
        )
