"""Checkpoints that an installation lacks: their files by SHA-256, and the cache into which each is fetched once.

A wheel carries what describes every named checkpoint and the weights of a few (`hatch_build.py`). `registry.json` lists
the files of each; `python -m tests.models.test_fetching` writes it. A fetched file is data, as in a checkout: weights
are safetensors, the rest is JSON and text, and loading checks them in the same way.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bayesgeom.core import CheckpointFault, OutputFault, atomic_directory, is_file, optional, phase

BASE_VARIABLE, CACHE_VARIABLE = "BAYESGEOM_CHECKPOINTS_URL", "BAYESGEOM_CACHE"
REGISTRY = Path(__file__).with_name("registry.json")
_TIMEOUT_S, _CHUNK = 30.0, 2**18  # without a byte; bytes that are written at a time


@cache
def registered() -> Mapping[str, Any]:
    """Return the registry: for each checkpoint the recipe that makes it, and size and SHA-256 of its files."""
    listed: Mapping[str, Any] = json.loads(REGISTRY.read_text(encoding="utf-8"))
    return listed


def missing_bytes(folder: Path) -> int:
    """Return the size of the registered files that a directory without weights lacks; one with weights is its own."""
    files = registered().get(folder.name, {"files": {}})["files"]
    if any(file.endswith(".safetensors") and is_file(folder / file) for file in files):
        return 0
    return sum(own["bytes"] for file, own in files.items() if not is_file(folder / file))


def fetched(name: str, *, base_url: str | None = None) -> Path:
    """Return the directory of a checkpoint in the cache, and fetch it if it is not there.

    Its path has a hash of the registry's entry: a version of bayesgeom with another checkpoint of that name fetches
    its own. Processes that need one at the same time fetch it once.

    Args:
        name: Name of a registered checkpoint.
        base_url: Address of a folder of checkpoints. Default: $BAYESGEOM_CHECKPOINTS_URL, or the project's repository.

    Raises:
        CheckpointFault: It cannot be fetched, or a file has another hash.
        InvalidArgument: The packages that fetch are not installed.
        OutputFault: The cache cannot be written.
    """
    with optional("fetch", f"the checkpoint {name}, which is fetched on first use,"):
        import pooch  # noqa: F401  (before anything is made)
        from filelock import FileLock
        from platformdirs import user_cache_path
    entry = registered()[name]
    root = Path(os.environ.get(CACHE_VARIABLE) or user_cache_path("bayesgeom"))
    digest = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]
    target = root.absolute() / digest / name
    if target.is_dir() and not missing_bytes(target):
        return target
    base = (base_url or os.environ.get(BASE_VARIABLE) or _of_release()).rstrip("/")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with phase(f"fetching {name}", len(entry["files"]), "file") as shown, FileLock(root / ".lock"):
            if target.is_dir() and not missing_bytes(target):  # another process has just fetched it
                return target
            with atomic_directory(target) as temporary:
                for file, expected in entry["files"].items():
                    _fetch(f"{base}/{name}/{file}", temporary / file, expected["sha256"])
                    shown.update(1)
    except OSError as error:  # among them an `OutputFault`
        reason = error if isinstance(error, OutputFault) else f"cannot write {root}: {error.strerror or error}."
        raise OutputFault(f"{reason} Set ${CACHE_VARIABLE} to a folder for fetched checkpoints.") from error
    return target


def _of_release() -> str:
    """The checkpoints in the repository that `pyproject.toml` names, at the tag of the installed version."""
    about = importlib.metadata.metadata("bayesgeom")
    places = dict(entry.split(", ", 1) for entry in about.get_all("Project-URL", []))
    if "Repository" not in places:
        raise CheckpointFault(f"this installation names no repository to fetch from: set ${BASE_VARIABLE}.")
    return f"{places['Repository']}/raw/v{about['Version']}/checkpoints"


def _fetch(url: str, file: Path, expected: str) -> None:
    """Write the file at an address, BASE/NAME/FILE, and check its hash."""
    import pooch
    from requests import RequestException

    name = url.split("/")[-2]
    recipe = registered()[name]["recipe"]
    made = f"bayesgeom train {recipe}{', then bayesgeom pack' if recipe != name else ''}"
    otherwise = f"Name another address by ${BASE_VARIABLE}, or train it: {made}."
    try:
        pooch.HTTPDownloader(timeout=_TIMEOUT_S, chunk_size=_CHUNK)(url, str(file), None)
    except RequestException as error:
        raise CheckpointFault(
            f"this installation lacks the weights of {name}, and {url} cannot be fetched ({_reason(error)}). "
            f"{otherwise}"
        ) from error
    if (found := pooch.file_hash(str(file))) != expected:
        raise CheckpointFault(
            f"{url} has SHA-256 {found[:16]}…, the registry of this version says {expected[:16]}…: it is damaged or of "
            f"another version. {otherwise}"
        )


def _reason(error: BaseException) -> str:
    """The status of the reply, or the first of the exceptions that led to this one, in words."""
    from requests import HTTPError

    if isinstance(error, HTTPError) and error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
