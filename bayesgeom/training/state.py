"""What a stopped training goes on from: its state, its log, and a lock against a second process.

Nothing here is believed unread: the state carries a hash over tensors, step and run, every log line a checksum.
"""

import contextlib
import hashlib
import json
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from safetensors import SafetensorError
from torch import Tensor, nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, OutputFault
from bayesgeom.core.files import file_aside, read_safetensors
from bayesgeom.models.checkpoint import weights_hash, write_tensors
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipe import Recipe

STATE, LOG, LOCK = "state.safetensors", "log.jsonl", ".lock"
_CHECK = "check"  # the key of a log line's checksum
_OWN, _WEIGHTS, _OPTIMIZER = "state", "weights.", "optimizer."


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the run's directory, so that no second process trains in it.

    The operating system releases the lock of a process that was killed.

    Raises:
        InvalidArgument: another process holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InvalidArgument(
            f"another process is training in {out}: wait for it to end, or name another directory."
        ) from error
    except OSError as error:
        raise OutputFault(f"cannot write {out / LOCK}: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.release()


def save_state(path: Path, recipe: Recipe, module: nn.Module, optimizers: Optimizers, step: int) -> None:
    """Write weights, optimizer state and step, atomically. Raises `OutputFault` where it cannot be written."""
    weights = {_WEIGHTS + name: tensor for name, tensor in module.state_dict().items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in (weights | optimizers.state()).items()}
    with file_aside(path) as aside:
        own = {"step": step, "hash": _state_hash(tensors, recipe, step)}
        write_tensors(tensors, aside, metadata={_OWN: json.dumps(own)})  # one entry: several have no fixed order


def steps_done(path: Path, recipe: Recipe) -> int:
    """Read how many steps a saved state has behind it, without its tensors.

    Raises:
        CheckpointFault: the file is damaged, or says a step that the recipe does not have.
    """
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointFault(f"{path} is truncated or damaged ({error}). {_REMEDY}") from error
    return _step(_own(metadata), path, recipe)


def restore_state(path: Path, recipe: Recipe, module: nn.Module, optimizers: Optimizers) -> int:
    """Load what `save_state` wrote into the module and its optimizers.

    Returns:
        The number of steps done.

    Raises:
        CheckpointFault: the file is damaged, of another run, or says a step that the recipe does not have.
    """
    try:
        tensors, metadata = read_safetensors(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointFault(f"{path} is truncated or damaged ({error}). {_REMEDY}") from error
    own = _own(metadata)
    step = _step(own, path, recipe)
    if own.get("hash") != _state_hash(tensors, recipe, step):
        raise CheckpointFault(
            f"{path} was changed after it was written, or belongs to another run than {recipe.name}, seed "
            f"{recipe.seed}: its contents do not have the hash that it stores. {_REMEDY}"
        )
    weights = {name.removeprefix(_WEIGHTS): t for name, t in tensors.items() if name.startswith(_WEIGHTS)}
    try:
        module.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise CheckpointFault(f"{path} does not fit the model of {recipe.name}: {error}. {_REMEDY}") from error
    optimizers.restore({name: t for name, t in tensors.items() if name.startswith(_OPTIMIZER)})
    return step


def append_log(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line with its checksum. Raises `OutputFault` where it cannot be written; the run can be resumed."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, _CHECK: _checksum(line)}) + "\n")
    except OSError as error:
        raise OutputFault(f"cannot write {path}: {error.strerror or error}. Make room, then --resume.") from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, without their checksums; none where there is no log.

    Lines that cannot be read are dropped with a warning: a process that is killed, or a full disk, leaves half a line.
    """
    if not path.exists():
        return []
    texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    read = [_line(text) for text in texts]
    if dropped := [number for number, line in enumerate(read, start=1) if line is None]:
        warnings.warn(
            f"{path}: dropped {len(dropped)} line(s) that are damaged or half-written (line {dropped[0]}, …); the log "
            f"has a gap there, the weights do not depend on it.",
            stacklevel=2,
        )
    return [line for line in read if line is not None]


def cut_log(path: Path, step: int) -> None:
    """Drop the lines of steps that will be run again, and those that cannot be read."""
    if path.exists():
        lines = [line for line in read_log(path) if line["step"] <= step]
        with file_aside(path) as aside:
            kept = (json.dumps({**line, _CHECK: _checksum(line)}) + "\n" for line in lines)
            aside.write_text("".join(kept), encoding="utf-8")


_REMEDY = "Delete it to train from the start, or restore it from a copy."


def _own(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What `save_state` stored beside the tensors; empty where it is not there or cannot be read."""
    try:
        held = json.loads(metadata.get(_OWN, "{}"))
    except (ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _step(own: Mapping[str, Any], path: Path, recipe: Recipe) -> int:
    step = own.get("step")
    if type(step) is not int or not 0 < step <= recipe.steps:
        said = "an unknown number of" if step is None else f"{step!r:.20}"
        raise CheckpointFault(f"{path} says that {said} steps are done; {recipe.name} has {recipe.steps}. {_REMEDY}")
    return step


def _state_hash(tensors: Mapping[str, Shaped[Tensor, "..."]], recipe: Recipe, step: int) -> str:
    """16 hex digits over all tensors, the step, and which run it is."""
    content = f"{weights_hash(tensors)} {step} {recipe.name} {recipe.seed}"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _checksum(line: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(dict(line), sort_keys=True).encode()):08x}"


def _line(text: str) -> dict[str, Any] | None:
    """A log line without its checksum; None where it is damaged."""
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(held, dict):
        return None
    check = held.pop(_CHECK, None)
    return held if check == _checksum(held) and isinstance(held.get("step"), int) else None
