"""Checks of what a Hugging Face directory declares, before and after transformers reads it.

A small config can declare a billion layers, or tables that fill the memory before the first weight is read. The size of
a safetensors file, in contrast, must match its header. transformers opens every file that an index names, including
pickles and paths outside the directory. It downloads and runs an attention implementation that looks like a hub name.

transformers drops tensors without a place, and draws those that are missing or of another shape at random. In all three
cases the numbers are those of another model. Examples are a layer that the config does not declare and a bias that it
switches off.
"""

import contextlib
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Any

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.files import check_regular, read_json
from bayesgeom.core.text import counted
from bayesgeom.models.checkpoint import read_header
from bayesgeom.models.checkpoint_files import CONFIG
from bayesgeom.models.config import shapes_only

# Numbers that a config or a model loops over: of layers and blocks of any kind, of experts, of slices, and of labels.
_LOOPED = re.compile(r"(_|^)(layers?|blocks?|experts?|tp)$|^num_labels$")
_MOST_LOOPS = 1_024  # or as many as there are tensors; `max_window_layers` and the like have defaults
_PATTERNS = "attention_types"  # GPT-Neo repeats each list in it as often as the number after it says
_OPENED_BY_OTHERS = ("tokenizer.json", "vocab.json", ".index.json")  # large, or checked elsewhere
_QUANTIZED = "quantization_config"
_TIMES, _FREE = 32, (2**24, 2**31)  # float32 of 1-bit weights; bytes of weights, and of buffers, that no file needs


def check_files(path: Path) -> None:
    """Check that a directory contains no pipes or devices, and no JSON that overflows a parser.

    Raises:
        CheckpointFault: It contains a pipe, a device or a socket, or JSON that is invalid or nested too deep.
    """
    for entry in sorted(path.iterdir()):
        if entry.is_dir():
            continue
        try:
            check_regular(entry)
        except FileNotFoundError:  # a link to nothing
            continue
        if entry.name.endswith(".json") and not entry.name.endswith(_OPENED_BY_OTHERS):
            read_json(entry)


def check_loops(raw: Mapping[str, Any], path: Path) -> None:
    """Check the numbers of layers, experts and the like in a config against the tensors in the directory.

    Args:
        raw: The parsed `config.json`.
        path: The directory.

    Raises:
        CheckpointFault: The config declares more than the files contain.
        SafetensorError: A file is truncated.
    """
    n_tensors = sum(len(read_header(file)[0]) for file in path.glob(f"*{_WEIGHTS}"))
    for key, value in _looped(raw):
        if value > max(n_tensors, _MOST_LOOPS):
            raise CheckpointFault(
                f"{path / CONFIG} sets {key} to {value:,}, but the files there hold {n_tensors:,} tensors. Restore it."
            )


def check_memory(config: Any, path: Path) -> None:
    """Check that the model of a config is not much larger than its files.

    It is built on torch's meta device, without memory for weights.

    Args:
        config: The config, as loaded by transformers.
        path: The directory.

    Raises:
        CheckpointFault: Its weights or its buffers need more than 32 times the memory of the files, and more than 16 MB
            or 2 GB.
    """
    from transformers import AutoModelForCausalLM

    plain = deepcopy(config)
    vars(plain).pop(_QUANTIZED, None)
    needed = [0, 0]
    # If the model cannot be built, transformers reports it when it loads the model.
    with (
        contextlib.suppress(RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError),
        shapes_only(),
    ):
        model = AutoModelForCausalLM.from_config(plain)
        needed = [
            sum(own.numel() * own.element_size() for own in tensors)
            for tensors in (model.parameters(), model.buffers())
        ]
    there = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if any(size > _TIMES * there + free for size, free in zip(needed, _FREE, strict=True)):
        raise CheckpointFault(
            f"{path / CONFIG} declares a model of {sum(needed) / 1e9:,.3g} GB, but the safetensors there hold "
            f"{there / 1e9:,.3g} GB. Restore the {CONFIG} that was saved with them."
        )


def _looped(stored: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """The integers that something loops over, nested configs included, and the lengths of repeated patterns."""
    if isinstance(stored, Mapping):
        for name, value in stored.items():
            yield from _looped(value, name)
    elif key == _PATTERNS and isinstance(stored, list):
        pairs = [own for own in stored if isinstance(own, list) and len(own) == 2]
        yield from ((key, n * max(1, len(kinds))) for kinds, n in pairs if type(n) is int and isinstance(kinds, list))
    elif type(stored) is int and _LOOPED.search(key):
        yield key, stored


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
                f"Allowed are {', '.join(IMPLEMENTATIONS)}. Remove it, or read that code and trust_remote_code=True."
            )
    named = raw.get(_NAMES_A_FILE)
    if named is not None and not (_is_bare(named) or named == _INDEX):
        raise InvalidArgument(
            f"the config of {source} sets {_NAMES_A_FILE} to {named!r}, no *{_WEIGHTS} file beside it. Remove this."
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
                f"{index} names {name!r} as a file of weights, but only *{_WEIGHTS} files beside it are read: others "
                f"could run code or belong to other models. Save the model again with save_pretrained."
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
    if not isinstance(name, str) or name.startswith(".") or not name.endswith(_WEIGHTS):
        return False
    return PurePosixPath(name).name == name and "\\" not in name


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


_NUMBER = re.compile(r"\.\d+(?=\.|$)")
# Masks and tables of positions, which earlier versions of transformers saved and later ones compute.
_COMPUTED = re.compile(r"(^|\.)((attn|attention)\.(masked_)?bias|rotary_emb\..*|position_ids)$")
_SHOWN = 4


def check_weights(hf: Any, found: Mapping[str, Collection[Any]], source: str | Path, *, remedy: str) -> None:
    """Check that the weights of a loaded model are complete, of its shapes, and all used.

    Tensors outside of the model, such as those of a second head, lead to a warning.

    Args:
        hf: The model, as transformers built it from the config.
        found: What `from_pretrained` returned with `output_loading_info=True`.
        source: Directory, file or hub name, for the message.
        remedy: What to do about tensors of other shapes, for the message.

    Raises:
        CheckpointFault: A tensor has another shape or is missing, or a dropped one is part of the model.
    """
    if wrong := sorted(found["mismatched_keys"]):
        shapes = (f"{name} is {tuple(there)}, not {tuple(required)}" for name, there, required in wrong[:_SHOWN])
        raise CheckpointFault(
            f"the weights of {source} do not have the shapes that its config requires in "
            f"{counted(len(wrong), 'tensor')}: {'; '.join(shapes)}. {remedy}"
        )
    if missing := sorted(found["missing_keys"]):
        raise CheckpointFault(
            f"the weights of {source} lack {counted(len(missing), 'tensor')} of {type(hf).__name__}: "
            f"{', '.join(missing[:_SHOWN])}. They would be random numbers: load a complete causal language model."
        )
    dropped = sorted(name for name in found["unexpected_keys"] if not _COMPUTED.search(name))
    modules = {name for name, _ in hf.named_modules() if name}
    repeated = {_NUMBER.sub(".N", name) for name in modules if _NUMBER.search(name)}
    # Names in files of models without a head lack a prefix.
    spelled = {name: (name, f"{hf.base_model_prefix}.{name}") for name in dropped}

    def is_part(name: str) -> bool:
        """Whether a tensor is part of a module that the model has, or of one more in a list of modules that it has."""
        ends = [found.end() for found in _NUMBER.finditer(name)]
        return name.rpartition(".")[0] in modules or any(_NUMBER.sub(".N", name[:end]) in repeated for end in ends)

    own = [name for name, full in spelled.items() if any(map(is_part, full))]
    if own:
        raise CheckpointFault(
            f"the weights of {source} hold {counted(len(own), 'tensor')} that {type(hf).__name__} has no place for "
            f"with this {CONFIG}: {', '.join(own[:_SHOWN])}. Restore the {CONFIG} that was saved with them."
        )
    if dropped:
        warnings.warn(
            f"the weights of {source} hold {counted(len(dropped), 'tensor')} outside of {type(hf).__name__}, not "
            f"used: {', '.join(dropped[:_SHOWN])}.",
            stacklevel=2,
        )
