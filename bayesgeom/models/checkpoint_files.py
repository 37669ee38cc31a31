"""Files of checkpoints: the folder of the named ones, and `config.json`, with the hash that ties it to the weights.

Nothing here loads torch.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, final

from bayesgeom.core import CheckpointFault, UnknownName, unknown_name
from bayesgeom.core.files import is_temporary, read_json, restore_directories, restore_directory
from bayesgeom.models.fetching import fetched, missing_bytes

SCHEMA = 2  # 2: a hash ties model, task, recipe and scores to the weights
OURS = "bayesgeom"  # key of bayesgeom's description in a `config.json` that Hugging Face reads, too
CONFIG_HASH = "config_hash"  # key of the hash over everything else in the file
SOURCE = "exported_from"  # key of the transformer config and the task in an exported Hugging Face directory
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "card.md"
FINISHED = "checkpoint"  # folder of a run's finished checkpoint
_HUB_NAME, _LONGEST = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII), 96
VERSIONED = ("torch", "transformer-lens", "numpy", "safetensors")


def hashed(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a description the hash of its content.

    Args:
        whole: Content of `config.json` or `formation.json`.

    Returns:
        The same with `config_hash`, which `check_hashed` compares; in a Hugging Face config, inside bayesgeom's entry.
    """
    plain: dict[str, Any] = json.loads(json.dumps(whole))  # as it is read back: tuples become lists
    _described(plain)[CONFIG_HASH] = config_hash(plain)
    return plain


def config_hash(whole: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 over a description as sorted JSON, without the hash itself."""
    description = _described(whole)
    rest = {key: value for key, value in description.items() if key != CONFIG_HASH}
    content = {**whole, OURS: rest} if OURS in whole else rest
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def check_hashed(whole: Mapping[str, Any], file: Path) -> None:
    """Check that a description was not changed after it was written.

    Raises:
        CheckpointFault: It was changed, or it comes from a version that did not store the hash.
    """
    if _described(whole).get(CONFIG_HASH) != config_hash(whole):
        raise CheckpointFault(
            f"{file} does not have its {CONFIG_HASH}: it was edited after it was written, or is older. Restore it; if "
            f"you trust it, run `bayesgeom checkpoints --seal {file.parent}`."
        )


def _described(whole: Mapping[str, Any]) -> dict[str, Any]:
    """bayesgeom's part of a description: all of it, or the value of its key in a Hugging Face config."""
    description: dict[str, Any] = whole.get(OURS, whole)
    return description


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect results."""
    return {"python": platform.python_version()} | {name: _version(name) for name in VERSIONED}


@cache
def _version(name: str) -> str:
    """The version of an installed library; its metadata file is read once."""
    return importlib.metadata.version(name)


def read_description(path: Path) -> dict[str, Any]:
    """Read a checkpoint's `config.json`.

    Raises:
        CheckpointFault: It is missing, unreadable, too new, incomplete, or was edited after it was written.
    """
    try:
        whole = read_json(path / CONFIG)
    except FileNotFoundError as error:
        raise missing_file(path / CONFIG) from error
    description = whole[OURS] if isinstance(whole, dict) and OURS in whole else whole
    schema = description.get("schema") if isinstance(description, dict) else None
    if type(schema) is not int:  # True is an int
        raise CheckpointFault(
            f"{path / CONFIG} is not a bayesgeom config: it has no schema number. Name a directory of a checkpoint."
        )
    if schema > SCHEMA:
        raise CheckpointFault(f"{path} has schema {schema}; this bayesgeom reads up to {SCHEMA}. Upgrade bayesgeom.")
    missing = {"model", "task", "recipe", "step", "weights_hash"} - description.keys()
    if missing:
        raise CheckpointFault(f"{path / CONFIG} lacks {', '.join(sorted(missing))}. Restore it from a copy.")
    if bad := [key for key in ("model", "task", "recipe") if not isinstance(description[key], dict)]:
        raise CheckpointFault(f"{path / CONFIG}: {bad[0]} must be an object of names and values. Restore it.")
    check_numbered(description, path / CONFIG)
    check_hashed(whole, path / CONFIG)
    typed: dict[str, Any] = description
    return typed


def check_numbered(description: Mapping[str, Any], file: Path) -> None:
    """Check the types of the step and of the weights' hash in a description.

    Raises:
        CheckpointFault: One of them is invalid.
    """
    step, digest = description["step"], description["weights_hash"]
    if type(step) is not int or step < 0:
        raise CheckpointFault(f"{file}: step must be a non-negative integer, got {step!r:.40}. Restore it.")
    if not isinstance(digest, str):
        raise CheckpointFault(f"{file}: weights_hash must be text, got {digest!r:.40}. Restore it.")


def missing_file(file: Path) -> CheckpointFault:
    """Return the error for a checkpoint that lacks this file."""
    return CheckpointFault(f"{file.parent} holds no {file.name}; a checkpoint is {WEIGHTS} and {CONFIG}.")


FOLDER_VARIABLE = "BAYESGEOM_CHECKPOINTS"
_PACKAGE = Path(__file__).resolve().parents[1]


def checkpoint_folder() -> Path:
    """Return the folder of named checkpoints: $BAYESGEOM_CHECKPOINTS, or the folder of the shipped ones.

    In a source checkout, which has a pyproject.toml, the shipped checkpoints are next to the package. In a package
    installed from a wheel they are inside it.
    """
    if FOLDER_VARIABLE in os.environ:
        return Path(os.environ[FOLDER_VARIABLE])
    is_checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    return _PACKAGE.parent / "checkpoints" if is_checkout else _PACKAGE / "_checkpoints"


@final
class Named(dict[str, Path]):
    """Directories by name. Looking one up fetches it if this installation lacks its weights; listing names does not."""

    def __getitem__(self, name: str) -> Path:
        return self.complete(name)

    @property
    def folders(self) -> dict[str, Path]:
        """The directories here; some may hold a description without weights."""
        return {**self}

    def complete(self, name: str, base_url: str | None = None) -> Path:
        """Return the directory with all files: this one, or that in the cache (see `fetching.fetched`)."""
        folder = super().__getitem__(name)
        return fetched(name, base_url=base_url) if bytes_to_fetch(folder) else folder


def bytes_to_fetch(folder: Path) -> int:
    """Return how many bytes the directory of a named checkpoint lacks; a folder that the user names lacks nothing."""
    return 0 if FOLDER_VARIABLE in os.environ else missing_bytes(folder)


def checkpoints() -> Named:
    """Return the directories of all named checkpoints.

    Unreadable directories are included; loading one reports the error. A directory that a killed process had moved away
    is restored first.

    Returns:
        Directory of each checkpoint, by name. A wheel carries the weights of a few; looking up another one fetches it.

    Raises:
        CheckpointFault: The folder itself cannot be listed.

    Example:
        >>> import bayesgeom
        >>> "bijection-v20" in bayesgeom.checkpoints()
        True
    """
    folder = checkpoint_folder()
    restore_directories(folder)
    try:
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise CheckpointFault(
            f"the checkpoint folder {folder} cannot be listed: {error.strerror or error}. Make it readable, or set "
            f"${FOLDER_VARIABLE} to another one."
        ) from error
    return Named({path.name: path for path in entries if not is_temporary(path.name) and _holds_config(path)})


def _holds_config(path: Path) -> bool:
    """Whether there is a config, of any kind; true if that cannot be determined."""
    try:
        return path.is_dir() and bool((path / CONFIG).lstat())
    except FileNotFoundError:
        return False
    except OSError:  # no permission to look
        return True


def path_of(name: str | Path, *, base_url: str | None = None) -> Path | None:
    """Return the path of a checkpoint; None for a name on the hub.

    Args:
        name: Name or path.
        base_url: Where a named checkpoint is fetched from, as for `fetching.fetched`.

    Raises:
        UnknownName: There is no such directory and no such checkpoint.
        CheckpointFault: The checkpoint cannot be fetched.
    """
    path = Path(name)
    if not _has_separator(str(name)) and str(name) in (named := checkpoints()):  # a path needs no list of names
        path = named.complete(str(name), base_url)
    if isinstance(name, Path) or not is_hub_name(name):
        restore_directory(path)
    if os.path.exists(path):  # noqa: PTH110  (false for a name that is too long for the file system)
        return path
    if isinstance(name, Path) or (len(name) <= _LONGEST and _has_separator(name) and not is_hub_name(name)):
        where = "" if Path(name).is_absolute() else f" ({Path(name).absolute()})"
        raise UnknownName(f"there is no directory {str(name)!r}{where}; `bayesgeom checkpoints` lists names.")
    if not is_hub_name(name):
        missing = unknown_name("checkpoint", str(name), checkpoints())
        raise UnknownName(
            f"{missing} Specify a directory by its path, and a model on the Hugging Face hub as owner/name."
        )
    return None


def _has_separator(name: str) -> bool:
    return "/" in name or os.sep in name


def is_hub_name(name: str | Path) -> bool:
    """Whether a name can be owner/name on the hub."""
    return isinstance(name, str) and len(name) <= _LONGEST and bool(_HUB_NAME.fullmatch(name))
