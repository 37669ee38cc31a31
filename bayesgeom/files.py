"""Writing so that nothing is ever half-written: aside first, then renamed into place."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from bayesgeom.errors import OutputFault

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
        raise OutputFault(f"cannot write to {path.parent}: {error.strerror or error}.") from error
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
        raise OutputFault(f"cannot write to {path.parent}: {error.strerror or error}.") from error


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFault(f"cannot make the folder {path.parent}: {error.strerror or error}.") from error


def read_safetensors(path: Path, *, framework: Literal["numpy", "pt"]) -> tuple[dict[str, Any], dict[str, str]]:
    """A file's tensors by name, as numpy's arrays or as torch's, and its metadata.

    **Raises** what safetensors raises; who reads says what the file was for.
    """
    from safetensors import safe_open

    with safe_open(path, framework=framework) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        return tensors, file.metadata() or {}
