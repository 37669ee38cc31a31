"""Checks of the files and implementations that a Hugging Face config names, before transformers is called.

transformers opens every file that an index names, including pickles and paths outside the directory. It downloads and
runs an attention implementation that looks like a hub name. Both are checked first.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.reading import read_json

# transformers' own implementations, without flash attention: if not installed, it is downloaded from the hub.
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
_WEIGHTS, _INDEX = ".safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NAMES_A_FILE = "transformers_weights"  # a key of config.json that replaces the usual file names


def check_config(raw: Mapping[str, Any], source: str | Path) -> None:
    """Check the entries of a config that could make transformers run foreign code or read other files.

    Args:
        raw: The parsed `config.json`.
        source: Directory or hub name, for the message.

    Raises:
        InvalidArgument: An attention or experts implementation is not one of transformers' own, or the config names
            a weights file other than a safetensors file in the same directory.
    """
    for key, value in _implementations(raw):
        if value not in IMPLEMENTATIONS:
            raise InvalidArgument(
                f"the config of {source} sets {key} to {value!r}, which transformers may fetch from the hub and run. "
                f"Allowed are {', '.join(IMPLEMENTATIONS)}. Remove the entry, or, from Python, read that code and "
                f"pass trust_remote_code=True."
            )
    named = raw.get(_NAMES_A_FILE)
    if named is not None and not (_is_bare(named) or named == _INDEX):
        raise InvalidArgument(
            f"the config of {source} sets {_NAMES_A_FILE} to {named!r}; only a *{_WEIGHTS} file in the same directory "
            f"is read. Remove the entry."
        )


def check_weight_files(source: str | Path, options: Mapping[str, Any] | None = None) -> None:
    """Check that all weights are safetensors files inside the directory, or in the hub repository.

    Args:
        source: Directory or hub name.
        options: Revision, token and `local_files_only` of a hub name.

    Raises:
        CheckpointFault: There are no safetensors, or an index names another kind of file or a file elsewhere.
    """
    path = Path(source)
    if not path.is_dir():
        _check_hub_index(str(source), options or {})
        return
    if not any(path.glob(f"*{_WEIGHTS}")):
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        there = (
            f"there is {', '.join(pickles[:3])}, and opening a pickle can run any code" if pickles else "it has none"
        )
        raise CheckpointFault(
            f"{path} contains no safetensors ({there}). If you trust it, load it with transformers once and "
            f"save it to another directory with save_pretrained."
        )
    for index in sorted(path.glob("*.index.json")):
        if _WEIGHTS in index.name:  # with use_safetensors transformers reads no other index
            _check_index(index, path)


def _check_index(index: Path, folder: Path | None) -> None:
    """Check the file names of one index; with `folder`, also that the files are there."""
    stored = read_json(index)
    weight_map = stored.get("weight_map") if isinstance(stored, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointFault(f"{index} has no weight_map from tensor names to files. Save the model again.")
    for name in dict.fromkeys(map(str, weight_map.values())):
        if not _is_bare(name):
            raise CheckpointFault(
                f"{index} names {name!r} as a file of weights. Only *{_WEIGHTS} files in the same directory are read: "
                f"opening anything else could run code or read other models' weights. Save the model again with "
                f"save_pretrained."
            )
        if folder is not None and not (folder / name).is_file():
            raise CheckpointFault(f"{index} names {name!r}, which is not in {folder}. Copy all parts of the model.")


def _check_hub_index(name: str, options: Mapping[str, Any]) -> None:
    """Check the index of a hub repository, if it has one and the hub can be reached."""
    from transformers.utils.hub import cached_file

    found = cached_file(
        name,
        _INDEX,
        **options,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    if found is not None:
        _check_index(Path(found), None)


def _is_bare(name: object) -> bool:
    """Whether a name is that of a safetensors file without a folder."""
    return (
        isinstance(name, str)
        and name.endswith(_WEIGHTS)
        and PurePosixPath(name).name == name
        and "\\" not in name
        and not name.startswith(".")
    )


def _implementations(stored: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every attention or experts implementation that a config names, nested configs included."""
    if not isinstance(stored, Mapping):
        return
    for key, value in stored.items():
        if key.lstrip("_").removesuffix("_internal") in ("attn_implementation", "experts_implementation"):
            nested = value.items() if isinstance(value, Mapping) else [("", value)]
            yield from ((f"{at}{key}{'.' * bool(part)}{part}", own) for part, own in nested if own is not None)
        elif isinstance(value, Mapping):
            yield from _implementations(value, f"{at}{key}.")
