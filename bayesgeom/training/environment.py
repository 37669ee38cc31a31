"""What affects the weights of a run in addition to its recipe: the environment, and the precision of matrix products.

The order in which a processor adds numbers depends on the number of threads, the instruction set and the version of
torch. Sums in another order differ in the last digits, and training amplifies the
difference. Each kind of device draws other data from the same seed.

Matrix products run in bfloat16 if the processor computes it fast, else in float32. A processor without bfloat16
instructions emulates them 20 to 200 times slower than float32, and not for LSTMs. torch reports which processors have
them.
"""

import functools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from bayesgeom.core import CheckpointFault, InvalidArgument
from bayesgeom.core.files import atomic_file, read_json
from bayesgeom.core.torch_state import reduced_precision

ENVIRONMENT = "environment.json"
Precision = Literal["bfloat16", "float32"]
RequestedPrecision = Literal["auto", "bfloat16", "float32"]
PRECISION = "precision.json"


def environment(device: str | torch.device) -> dict[str, str | int | bool]:
    """Return the environment of this process for training on a device.

    Returns:
        `device`: the kind, such as cpu or cuda; `processor`: the instruction set that torch uses on a CPU, such as
        AVX2, or the name of the GPU; `n_threads` of an operation; `torch_version`; `float32_precision`: to what torch
        may reduce products in float32.

    Example:
        >>> environment("cpu")["device"]
        'cpu'
    """
    kind = torch.device(device).type
    is_cuda = kind == "cuda"
    return {
        "device": kind,
        "processor": torch.cuda.get_device_name(device) if is_cuda else torch.backends.cpu.get_cpu_capability(),
        "n_threads": torch.get_num_threads(),
        "torch_version": str(torch.__version__),
        "float32_precision": reduced_precision(),
    }


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Write a record of a run, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


def recorded_environment(out: Path) -> dict[str, str | int | bool] | None:
    """Return the environment in which the run in `out` started, or None if there is no record.

    Raises:
        CheckpointFault: The record cannot be read.
    """
    try:
        started: Any = read_json(out / ENVIRONMENT)
    except FileNotFoundError:
        return None
    if not isinstance(started, dict) or started.keys() != environment("cpu").keys():
        raise CheckpointFault(
            f"{out / ENVIRONMENT} names no environment. Restore it, or delete it to resume without this check."
        )
    return dict(started)


def check_device_kind(out: Path, device: str | torch.device) -> None:
    """Check that a run continues on the kind of device on which it started.

    Raises:
        InvalidArgument: It started on another kind, which draws other data from the same seeds.
        CheckpointFault: The record cannot be read.
    """
    started, kind = recorded_environment(out), torch.device(device).type
    if started is not None and (begun := started["device"]) != kind:
        raise InvalidArgument(
            f"the run in {out} was started on {begun} and cannot continue on {kind}, which draws other data from the "
            f"same seeds. Use --device {begun} (Python: device={begun!r}), or train in another directory."
        )


def warn_of_changes(out: Path, device: str | torch.device) -> None:
    """Warn if a training continues in another environment than that in which the run in `out` started.

    Raises:
        CheckpointFault: The record cannot be read.
    """
    started = recorded_environment(out)
    if started is None:
        return
    now = environment(device)
    changed = [f"{name}: {value}, now {now[name]}" for name, value in started.items() if value != now[name]]
    if changed:
        warnings.warn(
            f"training continues in another environment than that in which {out} started ({'; '.join(changed)}). The "
            f"weights may differ from those of an uninterrupted run: first in the last digits, later in more of them.",
            stacklevel=2,
        )


def resolve_precision(requested: RequestedPrecision, device: str | torch.device) -> Precision:
    """Return the precision of a training on this device: for "auto", bfloat16 where it is native, else float32."""
    if requested != "auto":
        return requested
    return "bfloat16" if is_bfloat16_fast(torch.device(device).type) else "float32"


def is_bfloat16_fast(kind: str) -> bool:
    """Return whether torch reports that this kind of device computes bfloat16 products natively.

    Example:
        >>> is_bfloat16_fast("meta")
        False
    """
    if kind == "cuda":
        return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False))
    # torch has no public way to ask for instructions, and a variable may forbid them to the library that multiplies.
    return kind == "cpu" and torch.cpu._is_avx512_bf16_supported() and _has_kernels()  # noqa: SLF001


@functools.cache
def _has_kernels() -> bool:
    try:
        with torch.random.fork_rng(devices=()), torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(8, 8, dtype=torch.float32)(torch.zeros(1, 2, 8, dtype=torch.float32))
    except RuntimeError:
        return False
    return True


def recorded_precision(out: Path) -> Precision:
    """Return the precision of the run in `out`.

    Raises:
        CheckpointFault: The record is missing or cannot be read.
    """
    try:
        stored: Precision = read_json(out / PRECISION)["precision"]
    except (FileNotFoundError, KeyError, TypeError) as error:
        raise CheckpointFault(f"{out / PRECISION} cannot be read ({error}). Restore it, or train anew.") from error
    if stored not in get_args(Precision):
        raise CheckpointFault(f"{out / PRECISION} must name bfloat16 or float32, got {stored!r}. Restore it.")
    return stored
