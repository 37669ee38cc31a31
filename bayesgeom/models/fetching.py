"""Checkpoints that an installation lacks: their files by SHA-256, and the cache into which each is fetched once.

A wheel carries what describes every named checkpoint and the weights of a few (`hatch_build.py`). `registry.json` lists
the files of each; `python -m tests.models.test_fetching` writes it. A fetched file is data, as in a checkout: weights
are safetensors, the rest is JSON and text, and loading checks them in the same way.
"""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bayesgeom.core import CheckpointFault, OutputFault, phase
from bayesgeom.core.errors import optional_package
from bayesgeom.core.files import atomic_directory, is_file

BASE_VARIABLE, CACHE_VARIABLE = "BAYESGEOM_CHECKPOINTS_URL", "BAYESGEOM_CACHE"
REGISTRY = Path(__file__).with_name("registry.json")
_IDLE_S = 30.0  # without a byte of a reply
_LOGIN = re.compile(r"(?:(?<=://)|^(?!\w+://))(?:\S*:\S*|[^/\s]*)@")  # also where a password breaks the address's form


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
    return sum(entry["bytes"] for file, entry in files.items() if not is_file(folder / file))


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
    with optional_package("fetch", f"the checkpoint {name}, which is fetched on first use,"):
        import httpx  # noqa: F401  (before anything is made)
        from filelock import FileLock
        from platformdirs import user_cache_path
    entry = registered()[name]
    root = Path(os.environ.get(CACHE_VARIABLE) or user_cache_path("bayesgeom"))
    digest = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]
    target = root.absolute() / digest / name
    if not missing_bytes(target):
        return target
    base = (base_url or os.environ.get(BASE_VARIABLE) or _of_release()).rstrip("/")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.parent / ".lock")  # of this checkpoint alone
        with phase(f"fetching {name}", len(entry["files"]), "file") as shown, lock:
            if missing_bytes(target):  # otherwise another process has just fetched it
                with atomic_directory(target) as temporary:
                    for file, expected in entry["files"].items():
                        _fetch(f"{base}/{name}/{file}", temporary / file, expected)
                        shown.update(1)
    except OSError as error:  # among them an `OutputFault`
        reason = error if isinstance(error, OutputFault) else f"cannot write {root}: {error.strerror or error}."
        raise OutputFault(f"{reason} Set ${CACHE_VARIABLE} to a folder for fetched checkpoints.") from error
    return target


def without_login(text: str) -> str:
    """Return an address, or a text with one, without user and password."""
    return _LOGIN.sub("", text)


def _of_release() -> str:
    """The checkpoints in the repository that `pyproject.toml` names, at the tag of the installed version."""
    about = importlib.metadata.metadata("bayesgeom")
    places = dict(entry.split(", ", 1) for entry in about.get_all("Project-URL", []))
    if "Repository" not in places:
        raise CheckpointFault(f"this installation names no repository to fetch from: set ${BASE_VARIABLE}.")
    return f"{places['Repository']}/raw/v{about['Version']}/checkpoints"


def _fetch(url: str, file: Path, expected: Mapping[str, Any]) -> None:
    """Write the file at an address, BASE/NAME/FILE, and check its hash."""
    import httpx

    name = url.split("/")[-2]
    recipe = registered()[name]["recipe"]
    made = f"bayesgeom train {recipe}{', then bayesgeom pack' if recipe != name else ''}"
    try:
        response = httpx.get(url, timeout=_IDLE_S, follow_redirects=True)
        content = response.content if response.is_success else b""
        reason = f"status {response.status_code}"
    except httpx.HTTPError as error:
        content, reason = b"", without_login(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    except (httpx.InvalidURL, ValueError):  # their messages may quote a password
        content, reason = b"", "it is no valid address"
    if hashlib.sha256(content).hexdigest() == expected["sha256"]:
        file.write_bytes(content)
        return
    if content:
        reason = "it has another hash than the registry of this version says: it is damaged or of another version"
    raise CheckpointFault(
        f"this installation lacks the weights of {name}, and {without_login(url.replace(' ', '%20'))} cannot be "
        f"fetched ({reason}). Name another address by ${BASE_VARIABLE}, or train it: {made}."
    )
