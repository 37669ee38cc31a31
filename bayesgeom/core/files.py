"""Writing so that nothing is ever half-written: under a temporary name first, then renamed; and what lies there.

Temporary names say which process writes: `.NAME.HOST-PID-RANDOM.aside`. What a killed process left is removed by the
next run on that path, and a directory that it had moved away, to `….aside.former`, is put back.
"""

import contextlib
import errno
import os
import platform
import re
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from bayesgeom.core.errors import OutputFault

_LONGEST = 40  # characters of a value that a message quotes
RUNS = Path("runs/train")  # of trainings: what `train` made is found by whatever needs it, not made again
JOBS = Path("runs/jobs")  # of jobs: their results
_ASIDE, _FORMER = ".aside", ".former"
_REMAINS = re.compile(
    r"\.(?P<of>.+)\.(?P<host>[0-9a-f]{8})-(?P<pid>[0-9]{1,9})-\w+\.aside(?P<former>\.former)?", re.ASCII
)


@contextlib.contextmanager
def file_aside(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it onto `path` if the block ends well, else remove it.

    Where `path` is a symbolic link, its target is written and the link stays.

    Raises:
        OutputFault: the file cannot be written, for example because the disk is full.
    """
    from safetensors import SafetensorError

    target = _target(path)
    _make_parent(target)
    _remove_remains(target)
    aside = target.with_name(f".{target.name}.{_owner()}-{secrets.token_hex(4)}{_ASIDE}")
    try:
        yield aside
        os.replace(aside, target)
    except (OSError, SafetensorError) as error:
        raise OutputFault(f"cannot write {path}: {_reason(error)}.") from error
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def directory_aside(path: Path) -> Iterator[Path]:
    """Give a temporary directory beside `path`; it takes its place, whole, if the block ends well.

    A directory that stood there before is replaced only then. Where `path` is a symbolic link, its target is written
    and the link stays.

    Raises:
        OutputFault: the directory cannot be written, for example because the disk is full.
    """
    from safetensors import SafetensorError

    check_directory(path)
    target = _target(path)
    aside = _new_directory(target)
    try:
        yield aside
        aside.chmod(0o755)
        _take_place(aside, target)
    except (OSError, SafetensorError) as error:
        raise OutputFault(f"cannot write {path}: {_reason(error)}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_directory(path: Path) -> None:
    """Check that a directory can be written at `path`; put back or remove what a killed process left there.

    Raises:
        OutputFault: it cannot be written.
    """
    target = _target(path)
    if target.exists() and not target.is_dir():
        raise OutputFault(f"{path} is a file; name a directory.")
    if _holds_working_directory(target):
        raise OutputFault(f"{path} is the working directory, which cannot be replaced; name a directory inside it.")
    if os.path.ismount(target):
        raise OutputFault(f"{path} is a mount point, which cannot be replaced; name a directory inside it.")
    _make_parent(target)
    put_back(path)
    _remove_remains(target)
    _new_directory(target).rmdir()


def put_back(path: Path) -> None:
    """Put a directory back that a process was killed over, after it had moved it away to replace it.

    Where anything lies at `path` but an empty directory, nothing is done.
    """
    with contextlib.suppress(OSError):  # whoever reads or writes there says what is wrong
        target = _target(path)
        if (target.is_dir() and any(target.iterdir())) or target.is_file():
            return
        former = [own.path for own in _remains(target) if own.is_former]
        if former:
            os.replace(max(former, key=lambda own: own.stat().st_ctime), target)


def put_all_back(folder: Path) -> None:
    """Put back every directory in a folder that a process was killed over; see `put_back`."""
    try:
        found = [_REMAINS.fullmatch(entry.name) for entry in folder.iterdir()]
    except OSError:
        return
    for name in sorted({own["of"] for own in found if own is not None and own["former"] is not None}):
        put_back(folder / name)


def is_temporary(name: str) -> bool:
    """Whether a file name is a temporary one of this module, of whatever path and process."""
    return _REMAINS.fullmatch(name) is not None


def is_remains(name: str, of: set[str]) -> bool:
    """Whether a file name is a temporary one of this module for one of the names `of`."""
    found = _REMAINS.fullmatch(name)
    return found is not None and found["of"] in of


def write_arrays(arrays: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write numpy arrays as a safetensors file that other users can read too.

    Raises:
        OutputFault: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(arrays), path, metadata=None if metadata is None else dict(metadata))
        path.chmod(0o644)  # safetensors leaves it readable by its owner alone
    except (OSError, SafetensorError) as error:
        raise OutputFault(f"cannot write {path}: {_reason(error)}.") from error


@final
@dataclass(frozen=True, kw_only=True)
class _Remains:
    """What a process that no longer lives left beside a path: a half-written one, or the former one."""

    path: Path
    is_former: bool


def _remains(target: Path) -> list[_Remains]:
    """What processes of this machine that no longer live left beside this path."""
    try:
        named = [(entry, _REMAINS.fullmatch(entry.name)) for entry in target.parent.iterdir()]
    except OSError:
        return []
    return [
        _Remains(path=entry, is_former=found["former"] is not None)
        for entry, found in named
        if found and found["of"] == target.name and found["host"] == _here() and not _is_alive(int(found["pid"]))
    ]


def _remove_remains(target: Path) -> None:
    """Remove them; a former directory only where the path is taken again."""
    for own in _remains(target):
        if own.is_former and not target.exists():
            continue
        if own.path.is_dir() and not own.path.is_symlink():
            shutil.rmtree(own.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                own.path.unlink()


def _take_place(aside: Path, target: Path) -> None:
    """Rename a directory onto another one, or to where there is none."""
    if not target.exists():
        os.replace(aside, target)
        return
    former = aside.with_name(aside.name + _FORMER)
    try:
        os.replace(target, former)
        os.replace(aside, target)
    except BaseException:
        if former.exists() and not target.exists():
            os.replace(former, target)
        raise
    shutil.rmtree(former, ignore_errors=True)  # what cannot be removed now is tried again by the next run


def _new_directory(target: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=f".{target.name}.{_owner()}-", suffix=_ASIDE, dir=target.parent))
    except OSError as error:
        raise _unwritable(target.parent, error) from error


def _owner() -> str:
    return f"{_here()}-{os.getpid()}"


def _here() -> str:
    """Eight hex digits of this machine, and in a container of its own process numbers: elsewhere they mean others."""
    try:
        numbering = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # another system than Linux
        numbering = ""
    return f"{zlib.crc32(f'{platform.node()} {numbering}'.encode()):08x}"


def _is_alive(pid: int) -> bool:
    """Whether a process of this number runs; true where that cannot be known."""
    if os.name != "posix":  # elsewhere signal 0 ends the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's
        return True
    return True


def _target(path: Path) -> Path:
    """Where a path is written to: the end of a symbolic link, so that the link stays.

    Raises:
        OutputFault: the link leads back to itself.
    """
    if not path.is_symlink():
        return path
    end = Path(os.path.realpath(path))
    if end.is_symlink():
        raise OutputFault(f"{path} is a symbolic link that leads back to itself; name another path.")
    return end


def _holds_working_directory(target: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(os.path.realpath(target))
    except OSError:  # the working directory was removed
        return False


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((own for own in path.parents if own.is_file()), None)
        reason = _reason(error) if file is None else f"{file} is a file"
        raise OutputFault(f"cannot make the folder {path.parent}: {reason}. Name another directory.") from error


def _unwritable(folder: Path, error: OSError) -> OutputFault:
    # The kernel's own folders answer "No such file or directory" to whoever makes something in them.
    reason = "nothing can be made in it" if error.errno == errno.ENOENT else _reason(error)
    return OutputFault(f"cannot write to {folder}: {reason}. Name a directory that you can write to.")


def _reason(error: BaseException) -> str:
    """Why something could not be written, in the operating system's words where there are any."""
    if isinstance(error, OutputFault) and error.__cause__ is not None:
        return _reason(error.__cause__)
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    said = re.search(r"I/O error: (.+?) \(os error \d+\)", str(error))  # safetensors
    return " ".join((said[1] if said else str(error)).split()).rstrip(".")


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
