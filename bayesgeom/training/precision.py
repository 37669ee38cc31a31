"""Which precision the matrix products of a training run in: bfloat16 where the processor is fast at it, else float32.

A processor without bfloat16 instructions emulates them: 20 to 200 times slower than float32, and without an LSTM. The
names of instruction sets do not decide it, because a virtual machine, an environment variable or another library can
disable them. A timed product does.
"""

import functools
import json
import time
from pathlib import Path
from typing import Literal

import torch

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.files import file_aside
from bayesgeom.core.reading import read_json
from bayesgeom.models.config import ModelConfig

Precision = Literal["bfloat16", "float32"]
RequestedPrecision = Literal["auto", "bfloat16", "float32"]
REQUESTS = ("auto", "bfloat16", "float32")
PRECISION = "precision.json"
BEFORE_RECORDS: Precision = "bfloat16"  # every run that has no record was made so
# At this size a native bfloat16 product takes half the time of float32 and an emulated one 20 to 200 times as long.
_PROBE_SIZE, _PROBE_ROUNDS, _HOPELESS = 256, 16, 8.0
_NO_KERNEL = ("could not create a primitive", "not implemented for 'BFloat16'", "Unsupported dtype")


def resolve_precision(requested: RequestedPrecision, config: ModelConfig, device: str | torch.device) -> Precision:
    """Return the precision that a training of this architecture on this device runs in.

    Args:
        requested: "auto" is bfloat16 where the device computes it at least as fast as float32 and has a kernel for
            every layer of the architecture, else float32.
        config: The architecture.
        device: Where the training runs.

    Raises:
        InvalidArgument: For an unknown precision, or for bfloat16 where the architecture has no kernel for it.
    """
    if requested not in REQUESTS:
        raise InvalidArgument(f"precision must be one of {', '.join(REQUESTS)}, got {requested!r}.")
    kind = torch.device(device).type
    if requested == "float32" or (requested == "auto" and not is_bfloat16_fast(kind)):
        return "float32"
    missing = missing_kernel(config, device)
    if missing and requested == "bfloat16":
        raise InvalidArgument(
            f"{config.name} cannot be trained in bfloat16 on this {kind}: {missing}. "
            f"Use --precision float32 (Python: precision='float32')."
        )
    return "float32" if missing else "bfloat16"


@functools.cache
def is_bfloat16_fast(kind: str) -> bool:
    """Whether products in bfloat16 take no longer than in float32 on this kind of device.

    On a CPU it is measured once per process. Products of both kinds alternate, and the least processor time of each
    counts, so that other programs on the machine do not decide it. A GPU says so itself. False for all other devices.

    Example:
        >>> is_bfloat16_fast("meta")
        False
    """
    if kind == "cuda":
        return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False))
    return kind == "cpu" and _is_measured_fast()


def missing_kernel(config: ModelConfig, device: str | torch.device) -> str:
    """Return what torch reports when one sequence is trained on in bfloat16 and a kernel is missing, else ""."""
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices):
        module = config.build(seed=0).to(device)
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    try:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            logits = module(tokens)
        logits.float().sum().backward()
    except RuntimeError as error:
        found = str(error)
        if not any(known in found for known in _NO_KERNEL):
            raise
        return found.split(". ", maxsplit=1)[0].rstrip(".")
    return ""


def recorded_precision(out: Path) -> Precision | None:
    """Return the precision that the run in `out` was begun with, or None where no run was begun.

    Raises:
        CheckpointFault: Where the record cannot be read.
    """
    try:
        found = read_json(out / PRECISION)["precision"]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError) as error:
        raise CheckpointFault(f"{out / PRECISION} cannot be read ({error}). Restore it, or train anew.") from error
    if found not in REQUESTS[1:]:
        raise CheckpointFault(f"{out / PRECISION} must name bfloat16 or float32, got {found!r}.")
    precision: Precision = found
    return precision


def record_precision(out: Path, precision: Precision) -> None:
    """Write the precision of the run in `out`, where `recorded_precision` finds it."""
    with file_aside(out / PRECISION) as aside:
        aside.write_text(json.dumps({"precision": precision}) + "\n", encoding="utf-8")


def check_precision(out: Path, begun: Precision, requested: RequestedPrecision) -> None:
    """**Raises** `InvalidArgument` where a run would go on in another precision than it was begun with."""
    if requested not in ("auto", begun):
        raise InvalidArgument(
            f"the run in {out} was begun in {begun} and cannot go on in {requested}: its weights would be those of "
            f"neither. Leave the precision out, or train in another directory."
        )


def _is_measured_fast() -> bool:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(_PROBE_SIZE, _PROBE_SIZE, generator=generator)
    half = whole.bfloat16()
    own, other = float("inf"), float("inf")
    for index in range(_PROBE_ROUNDS):
        other, own = min(other, _product_seconds(whole)), min(own, _product_seconds(half))
        if index >= 2 and own > _HOPELESS * other:  # the first ones allocate
            return False
    return own <= other


def _product_seconds(square: torch.Tensor) -> float:
    start = time.process_time()
    square @ square
    return time.process_time() - start
