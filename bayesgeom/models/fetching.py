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
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bayesgeom.core import CheckpointFault, OutputFault, phase
from bayesgeom.core.errors import optional_package
from bayesgeom.core.files import atomic_directory, is_file

BASE_VARIABLE, CACHE_VARIABLE = "BAYESGEOM_CHECKPOINTS_URL", "BAYESGEOM_CACHE"
REGISTRY = Path(__file__).with_name("registry.json")
_SILENT_S, _IDLE_S = 1.0, 30.0  # waiting for another process, before a warning says so; without a byte of a reply
_PATIENCE_S, _SLOWEST = 60.0, 20_000  # for a reply, and in addition a second for every so many bytes
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
        CheckpointFault: It cannot be fetched, or a file, there or in the cache, has another size or hash.
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
        return _intact(target)
    base = (base_url or os.environ.get(BASE_VARIABLE) or _of_release()).rstrip("/")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.parent / ".lock")  # of this checkpoint alone
        with phase(f"fetching {name}", len(entry["files"]), "file") as shown, _acquired(lock, name):
            if missing_bytes(target):  # otherwise another process has just fetched it
                with atomic_directory(target) as temporary:
                    for file, expected in entry["files"].items():
                        _fetch(f"{base}/{name}/{file}", temporary / file, expected)
                        shown.update(1)
    except OSError as error:  # among them an `OutputFault`
        reason = error if isinstance(error, OutputFault) else f"cannot write {root}: {error.strerror or error}."
        raise OutputFault(f"{reason} Set ${CACHE_VARIABLE} to a folder for fetched checkpoints.") from error
    return _intact(target)


def _acquired(lock: Any, name: str) -> Any:
    """The lock, which a `with` releases; a warning says that another process has it."""
    from filelock import Timeout

    try:
        return lock.acquire(timeout=_SILENT_S)
    except Timeout:
        warnings.warn(f"waiting for another process, which is fetching {name} ({lock.lock_file}).", stacklevel=4)
    return lock.acquire()


def _intact(folder: Path) -> Path:
    """The directory of a checkpoint in the cache, whose files may have been damaged since they were fetched."""
    for file, expected in registered()[folder.name]["files"].items():
        try:
            digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        except OSError:
            digest = ""
        if digest != expected["sha256"]:
            raise CheckpointFault(f"{folder / file} is damaged or unreadable: delete {folder}, it is fetched again.")
    return folder


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
    """Write the file at an address, BASE/NAME/FILE, and check its size and hash."""
    import httpx
    from anyio.from_thread import start_blocking_portal

    name, size = url.split("/")[-2], expected["bytes"]
    recipe = registered()[name]["recipe"]
    made = f"bayesgeom train {recipe}{', then bayesgeom pack' if recipe != name else ''}"
    limit_s = _PATIENCE_S + size / _SLOWEST
    try:
        with start_blocking_portal() as portal:  # its thread can be left at any time, also while headers arrive
            content = portal.start_task_soon(_content, url, size).result(limit_s)
    except TimeoutError:
        reason = f"incomplete after {limit_s:.0f} s"
    except httpx.TimeoutException:
        reason = f"no byte in {_IDLE_S:g} s"
    except httpx.HTTPError as error:
        reason = without_login(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    except (httpx.InvalidURL, ValueError):  # their messages may quote a password
        reason = "it is no valid address"
    else:
        digest = hashlib.sha256(content).hexdigest()
        if digest == expected["sha256"]:
            file.write_bytes(content)
            return
        amount = f"{len(content):,} bytes and SHA-256 {digest[:16]}…" if len(content) <= size else "more bytes"
        listed = f"{size:,} bytes and SHA-256 {expected['sha256'][:16]}…"
        reason = f"it has {amount}, the registry of this version says {listed}: it is damaged or of another version"
    raise CheckpointFault(
        f"this installation lacks the weights of {name}, and {without_login(url.replace(' ', '%20'))} cannot be "
        f"fetched ({reason}). Name another address by ${BASE_VARIABLE}, or train it: {made}."
    )


async def _content(url: str, size: int) -> bytes:
    """The body of the reply from an address, until it exceeds the size."""
    import httpx

    address, content = httpx.URL(url), bytearray()
    login = (address.username, address.password) if address.userinfo else None
    public = address.copy_with(username=None, password=None)  # the client logs it
    client = httpx.AsyncClient(auth=login, timeout=_IDLE_S, follow_redirects=True)
    async with client, client.stream("GET", public, headers={"Accept-Encoding": "identity"}) as response:
        if not response.is_success:
            raise httpx.HTTPError(f"{response.status_code} {httpx.codes.get_reason_phrase(response.status_code)}")
        async for part in response.aiter_raw():
            content += part
            if len(content) > size:
                break
    return bytes(content)
