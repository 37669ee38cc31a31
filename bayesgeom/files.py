"""Writing so that nothing is ever half-written: aside first, then renamed into place; and what lies there already."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, Literal

from bayesgeom.errors import OutputFault

_LONGEST = 40  # characters of a value that a message quotes
RUNS = Path("runs/train")  # of trainings: what `train` made is found by whatever needs it, not made again


@contextlib.contextmanager
def file_aside(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed onto it if the block ends well, removed if it does not.

    **Raises** `OutputFault` where the folder cannot be written to.
    """
    _make_parent(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        yield aside
        os.replace(aside, path)
    except OSError as error:
        raise OutputFault(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def directory_aside(path: Path) -> Iterator[Path]:
    """A temporary directory beside `path`; takes its place, whole, if the block ends well.

    A directory that stood there before is replaced only then. **Raises** `OutputFault` where it cannot be written.
    """
    check_directory(path)
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        yield aside
        aside.chmod(0o755)
        if path.exists():
            former = aside.with_name(aside.name + ".former")
            os.replace(path, former)
            try:
                os.replace(aside, path)
            except BaseException:
                os.replace(former, path)
                raise
            shutil.rmtree(former)
        else:
            os.replace(aside, path)
    except OSError as error:
        raise OutputFault(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_directory(path: Path) -> None:
    """**Raises** `OutputFault` unless a directory can be written at `path`; leaves nothing there."""
    if path.exists() and not path.is_dir():
        raise OutputFault(f"{path} is a file; name a directory.")
    _make_parent(path)
    try:
        Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)).rmdir()
    except OSError as error:
        raise _unwritable(path.parent, error) from error


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((own for own in path.parents if own.is_file()), None)
        reason = error.strerror or error if file is None else f"{file} is a file"
        raise OutputFault(f"cannot make the folder {path.parent}: {reason}. Name another directory.") from error


def _unwritable(folder: Path, error: OSError) -> OutputFault:
    # The kernel's own folders answer "No such file or directory" to whoever makes something in them.
    reason = "nothing can be made in it" if error.errno == errno.ENOENT else error.strerror or error
    return OutputFault(f"cannot write to {folder}: {reason}. Name a directory that you can write to.")


def apart(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Where what lies there and what is asked for differ, field by field; empty where they agree."""
    return "; ".join(_differences(there, asked))


def _differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*there, *asked]):
        one, other = there.get(key), asked.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from (f"{key}.{difference}" for difference in _differences(one, other))
        elif one != other:
            shown = [_short(value) for value in (one, other)]
            yield f"{key}: {shown[0]} there, {shown[1]} asked" if shown[0] != shown[1] else f"{key}: another one"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    if len(text) <= _LONGEST:
        return text
    return f"{len(value)} entries" if isinstance(value, Sized) and not isinstance(value, str) else f"{text[:_LONGEST]}…"


def read_safetensors(path: Path, *, framework: Literal["numpy", "pt"]) -> tuple[dict[str, Any], dict[str, str]]:
    """A file's tensors by name, as numpy's arrays or as torch's, and its metadata.

    **Raises** what safetensors raises; who reads says what the file was for.
    """
    from safetensors import safe_open

    with safe_open(path, framework=framework) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        return tensors, file.metadata() or {}
