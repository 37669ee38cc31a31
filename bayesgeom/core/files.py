"""Reading and writing of files: untrusted files are read safely, and everything is written atomically.

Opening a named pipe or reading a device may never return, so only regular files are read.

Files and directories are written under a temporary name, `.NAME.RANDOM.tmp`, then renamed. A directory takes two
renames: the old one gets the marker `….tmp.former` until the new one has its name. If a process is killed between the
two, the next read or write puts the old directory back.
"""

import contextlib
import importlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, OutputFault


def check_regular(path: Path) -> None:
    """Check that a path is a regular file or a symbolic link to one.

    Raises:
        FileNotFoundError: Nothing is there.
        CheckpointFault: It is something else, or cannot be accessed.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointFault(f"{path} cannot be read: {error.strerror or error}.") from error
    if not stat.S_ISREG(mode):
        raise CheckpointFault(f"{path} is no regular file, and only these are read. Put the file itself there.")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: A regular file in UTF-8.

    Returns:
        The parsed content.

    Raises:
        FileNotFoundError: Nothing is there.
        CheckpointFault: It is not such a file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "config.json"
        ...     _ = file.write_text('{"n_layers": 2}')
        ...     read_json(file)
        {'n_layers': 2}
    """
    check_regular(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointFault(f"{path} cannot be read as JSON: {error}. Restore it from a copy.") from error


def encoded_json(value: Any) -> Any:
    """Return a value as strict JSON, with NaN and infinities as {"float": "nan"}.

    Raises:
        InvalidArgument: JSON does not support the value.
    """
    match value:
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case np.floating() | np.integer() | np.bool_():
            return encoded_json(value.item())
        case Mapping():
            return {str(key): encoded_json(item) for key, item in value.items()}
        case str() | int() | float() | bool() | None:
            return value
        case Sequence():
            return [encoded_json(item) for item in value]
        case _:
            raise InvalidArgument(f"a report field cannot hold a {type(value).__name__}: use numbers, text, arrays.")


def decoded_json(value: Any) -> Any:
    """Return the inverse of `encoded`; lists become tuples, as in reports."""
    match value:
        case {"float": str(text)} if text in ("nan", "inf", "-inf"):
            return float(text)
        case dict():
            return {key: decoded_json(item) for key, item in value.items()}
        case list():
            return tuple(decoded_json(item) for item in value)
        case _:
            return value


Framework = Literal["numpy", "pt"]  # of the arrays in a safetensors file, as safetensors names them
RUNS = Path("runs/train")  # default folder of training runs, where other commands look for finished ones
JOBS = Path("runs/jobs")  # default folder of the results of jobs
_TEMPORARY, _FORMER = ".tmp", ".former"
_TEMPORARIES = re.compile(r"\.(?P<of>.+)\.[\w-]+\.tmp(?P<former>\.former)?")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, and rename it to `path` if the block succeeds.

    The temporary path lies in a directory of its own: libraries that write there leave their own temporaries in it. If
    `path` is a symbolic link, its target is written.

    Raises:
        OutputFault: The file cannot be written, for example because the disk is full.
    """
    target = _target(path)
    if not target.name:
        raise OutputFault(f"{path} names no file; name one, for example report.html.")
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OutputFault(f"{path} is a device or a pipe, which is not replaced; name a file.")
    _make_parent(target)
    with _beside(target, path) as folder:
        yield folder / target.name
        os.replace(folder / target.name, target)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Write a directory atomically: yield a temporary directory, and rename it to `path` if the block succeeds.

    An existing directory is replaced only then. If `path` is a symbolic link, its target is written.

    Raises:
        OutputFault: The directory cannot be written, for example because the disk is full.
    """
    check_directory(path)
    target = _target(path)
    with _beside(target, path) as temporary:
        yield temporary
        temporary.chmod(0o755)
        _take_place(temporary, target)


@contextlib.contextmanager
def _beside(target: Path, path: Path) -> Iterator[Path]:
    """Yield a new directory next to the target, and remove it; `path` is the name of the target in errors."""
    from safetensors import SafetensorError

    temporary = _new_directory(target)
    try:
        yield temporary
    except (OSError, SafetensorError) as error:
        raise OutputFault(f"cannot write {path}: {_reason(error)}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_directory(path: Path) -> None:
    """Check that a directory can be written at `path`.

    Raises:
        OutputFault: It cannot be written.
    """
    target = _target(path)
    if target.exists() and not target.is_dir():
        raise OutputFault(f"{path} is a file; name a directory.")
    with contextlib.suppress(FileNotFoundError):  # the working directory was removed
        if Path.cwd().is_relative_to(os.path.realpath(target)):
            raise OutputFault(f"{path} is the working directory, which cannot be replaced; name a directory inside it.")
    _make_parent(target)
    restore_directory(path)
    tried = _new_directory(target)
    try:
        tried.rmdir()
    except OSError as error:
        raise _unwritable(target.parent, error) from error


def restore_directory(path: Path) -> None:
    """Restore a directory that a killed process had moved away in order to replace it.

    Do nothing if `path` is a file or a directory that is not empty.
    """
    with contextlib.suppress(OSError):  # later reads or writes at this path report the error
        target = _target(path)
        if target.is_file() or (target.is_dir() and any(target.iterdir())):
            return
        if former := [entry for name, entry in _former_directories(target.parent) if name == target.name]:
            os.replace(max(former, key=lambda entry: entry.stat().st_ctime), target)


def restore_directories(folder: Path) -> None:
    """Apply `put_back` to every directory in a folder that a killed process had moved away."""
    with contextlib.suppress(OSError):  # the caller that lists the folder reports the error
        for name in {name for name, _ in _former_directories(folder)}:
            restore_directory(folder / name)


def _former_directories(folder: Path) -> list[tuple[str, Path]]:
    """Directories that were moved away, with the names that they had."""
    named = [(_TEMPORARIES.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    return [(matched["of"], entry) for matched, entry in named if matched and matched["former"]]


def is_file(path: Path) -> bool:
    """Return whether a regular file is there; False where the system refuses to look: the next read says why."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_temporary(name: str) -> bool:
    """Return whether a file name is a temporary one of this module."""
    return _TEMPORARIES.fullmatch(name) is not None


def holds_others(folder: Path, own: Collection[str] = ()) -> bool:
    """Return whether a folder holds anything but temporaries and these names; False if there is no folder."""
    return folder.is_dir() and any(not is_temporary(entry.name) and entry.name not in own for entry in folder.iterdir())


def write_arrays(
    arrays: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None, *, framework: Framework = "numpy"
) -> None:
    """Write numpy arrays or torch tensors to a safetensors file that all users can read.

    Call it inside `atomic_file` or `atomic_directory`, which say what could not be written, and why.
    """
    library = importlib.import_module("safetensors.torch" if framework == "pt" else "safetensors.numpy")
    library.save_file(dict(arrays), path, metadata=None if metadata is None else dict(metadata))
    path.chmod(0o644)  # safetensors makes the file readable by its owner only


def _take_place(temporary: Path, target: Path) -> None:
    """Rename a directory to `target`, replacing a directory there."""
    former = temporary.with_name(f"{temporary.name}{_FORMER}")
    try:
        with contextlib.suppress(FileNotFoundError):  # there is none
            os.replace(target, former)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.replace(former, target)
        raise
    with contextlib.suppress(OSError):  # there was none
        os.replace(former, temporary)  # the caller that made the temporary directory removes it


def _new_directory(target: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_TEMPORARY, dir=target.parent))
    except OSError as error:
        raise _unwritable(target.parent, error) from error


def _target(path: Path) -> Path:
    """The path that is written: the target of a symbolic link, so that the link is kept."""
    try:
        return Path(os.path.realpath(os.fsdecode(os.fsencode(path))))
    except ValueError as error:  # a NUL, or half of a letter
        raise InvalidArgument(f"{str(path)!r} is no path.") from error


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFault(f"cannot make the folder {path.parent}: {_reason(error)}. Name another directory.") from error


def _unwritable(folder: Path, error: OSError) -> OutputFault:
    return OutputFault(f"cannot write to {folder}: {_reason(error)}. Name a directory that you can write to.")


def _reason(error: BaseException) -> str:
    """The reason for a failed write, in the operating system's words if available."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error).rstrip(".")


def differences(there: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """Return the differences between stored and requested fields as text; empty if there are none.

    Args:
        there: The stored fields. They may be nested.
        requested: The requested fields.
    """
    return "; ".join(_differences(there, requested, ""))


def _differences(there: Mapping[str, Any], requested: Mapping[str, Any], at: str) -> Iterator[str]:
    for key in dict.fromkeys([*there, *requested]):
        one, other = there.get(key), requested.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{at}{key}.")
        elif one != other:
            yield f"{at}{key}: {one!s:.40} there, {other!s:.40} requested"


def read_safetensors(path: Path, *, framework: Framework) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file's tensors by name, as numpy arrays or torch tensors, and its metadata.

    Exceptions of safetensors propagate: the caller knows what the file is for.

    Raises:
        CheckpointFault: It is a pipe, a device or a directory.
    """
    from safetensors import safe_open

    check_regular(path)
    with safe_open(path, framework=framework) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        return tensors, file.metadata() or {}
