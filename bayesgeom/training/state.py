"""Resumable state of a training: saved state, log, and a lock against a second process.

The state has a hash over tensors, step and run, which is verified.
"""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bayesgeom.core import BayesGeomError, CheckpointFault, InvalidArgument, NonFinite, OutputFault
from bayesgeom.core.files import atomic_file, check_regular, differences, write_arrays
from bayesgeom.core.text import count_text
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe, deciding

STATE, LOG, LOCK = "state.safetensors", "log.jsonl", ".lock"
_PATIENCE = 0.5  # seconds; to find out whether a run is locked, other processes hold its lock for a moment
_OWN, _WEIGHTS, _OPTIMIZER = "state", "weights.", "optimizer."
_RECIPE = "recipe"  # key of what of the recipe determines the weights


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock the run's directory, which is created if missing, so that no second process trains in it.

    The operating system releases the lock of a killed process.

    Raises:
        InvalidArgument: Another process holds the lock.
        OutputFault: The directory cannot be created or written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(out / LOCK)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise InvalidArgument(
            f"another process is training in {out}: wait for it to end, or use another directory."
        ) from error
    except OSError as error:
        raise OutputFault(f"cannot write {out / LOCK}: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.release()


def check_finite(recipe: Recipe, module: nn.Module, step: int) -> None:
    """Check the weights after a number of steps.

    Raises:
        NonFinite: A weight is NaN or infinite.
    """
    if not all(bool(parameter.isfinite().all()) for parameter in module.parameters()):
        raise NonFinite(
            f"weights of {recipe.name} are not finite after {count_text(step, 'step')}; lower lr or matrix_lr in the "
            f"recipe."
        )


def save_state(path: Path, recipe: Recipe, module: nn.Module, optimizers: Optimizers, step: int) -> None:
    """Write weights, optimizer state and step atomically.

    Raises:
        NonFinite: A weight is NaN or infinite. The former state is not replaced.
        OutputFault: The file cannot be written.
    """
    check_finite(recipe, module, step)
    weights = {_WEIGHTS + name: tensor for name, tensor in module.state_dict().items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in (weights | optimizers.state()).items()}
    with atomic_file(path) as temporary:
        header = {"step": step, "hash": _state_hash(tensors, recipe, step), _RECIPE: deciding(recipe.to_dict())}
        # One entry, because several have no fixed order.
        write_arrays(tensors, temporary, {_OWN: json.dumps(header)}, framework="pt")


def steps_done(path: Path, recipe: Recipe) -> int:
    """Read the number of finished steps of a saved state, without its tensors.

    Raises:
        CheckpointFault: The file is corrupt, or its step is not one of the recipe.
    """
    return _step(_read(path, with_tensors=False)[1], path, recipe)


def restore_state(path: Path, recipe: Recipe, module: nn.Module, optimizers: Optimizers) -> int:
    """Load a saved state into the module and its optimizers.

    Returns:
        Number of finished steps.

    Raises:
        CheckpointFault: The file is corrupt, of another run, or its step is not one of the recipe.
    """
    tensors, header = _read(path)
    step = _step(header, path, recipe)
    if header.get("hash") != _state_hash(tensors, recipe, step):
        raise CheckpointFault(
            f"{path} was changed after it was written, or belongs to another run than {recipe.name}, seed "
            f"{recipe.seed}: its contents do not match the stored hash. {_REMEDY}"
        )
    check_recipe(header.get(_RECIPE), recipe, path, _REMEDY)
    weights = {name.removeprefix(_WEIGHTS): t for name, t in tensors.items() if name.startswith(_WEIGHTS)}
    try:
        module.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise CheckpointFault(f"{path} does not fit the model of {recipe.name}: {error}. {_REMEDY}") from error
    optimizers.restore({name: t for name, t in tensors.items() if name.startswith(_OPTIMIZER)})
    return step


def append_log(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line.

    Raises:
        OutputFault: The line cannot be written. The run can be resumed.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(_text(line))
    except OSError as error:
        raise OutputFault(f"cannot write {path}: {error.strerror or error}. Free some space, then --resume.") from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log; none if there is no log.

    Unreadable lines are skipped with a warning: a killed process or a full disk may leave an incomplete line.

    Raises:
        CheckpointFault: It is a pipe, a device or a directory, or cannot be read.
    """
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointFault(f"{path} cannot be read: {error.strerror or error}.") from error
    texts = text.splitlines()
    read = [_line(text) for text in texts]
    if dropped := [number for number, line in enumerate(read, start=1) if line is None]:
        warnings.warn(
            f"{path}: skipped {count_text(len(dropped), 'corrupt or incomplete line')} (line {dropped[0]}, …). The log "
            f"has a gap there; the weights are not affected.",
            stacklevel=2,
        )
    return [line for line in read if line is not None]


def cut_log(path: Path, step: int) -> None:
    """Remove the lines of steps that will be run again, and unreadable lines."""
    if path.exists():
        lines = [line for line in read_log(path) if line["step"] <= step]
        with atomic_file(path) as temporary:
            temporary.write_text("".join(map(_text, lines)), encoding="utf-8")


_REMEDY = "Delete it to train from the start, or restore it from a copy."


def _read(path: Path, *, with_tensors: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors, if they are wanted, and what `save_state` stored with them; empty if missing."""
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if with_tensors}  # noqa: SIM118  (not a dict)
            return tensors, json.loads((file.metadata() or {}).get(_OWN, "{}"))
    except (SafetensorError, OSError) as error:
        raise CheckpointFault(f"{path} is truncated or corrupt ({error}). {_REMEDY}") from error


def _step(own: Mapping[str, Any], path: Path, recipe: Recipe) -> int:
    step = own.get("step")
    if type(step) is not int or not 0 < step <= recipe.steps:
        stated = "an unknown number of" if step is None else f"{step!r:.20}"
        raise CheckpointFault(
            f"{path} states that {stated} steps are done; {recipe.name} has {recipe.steps}. {_REMEDY}"
        )
    return step


def _state_hash(tensors: Mapping[str, Shaped[Tensor, "..."]], recipe: Recipe, step: int) -> str:
    """16 hex digits of a hash over all tensors, the step, and the name and seed of the run."""
    content = f"{weights_hash(tensors)} {step} {recipe.name} {recipe.seed}"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def check_recipe(stored: Any, recipe: Recipe, file: Path, remedy: str) -> None:
    """Check that a stored recipe determines the same weights.

    Raises:
        CheckpointFault: It is another one, or not readable.
    """
    try:
        difference = differences(deciding(stored), deciding(recipe.to_dict()))
    except (BayesGeomError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointFault(f"{file} holds no readable recipe ({error}). {remedy}") from error
    if difference:
        raise CheckpointFault(f"{file} is of a run of a different recipe than {recipe.name!r} ({difference}). {remedy}")


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(dict(line)) + "\n"


def _line(text: str) -> dict[str, Any] | None:
    """A log line; None if it is corrupt."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return stored if isinstance(stored, dict) and isinstance(stored.get("step"), int) else None
