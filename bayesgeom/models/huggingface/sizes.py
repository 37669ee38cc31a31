"""Checks of a Hugging Face config against the files in its directory, before transformers builds the model.

A small config can declare a billion layers, or tables that fill the memory before the first weight is read. The size of
a safetensors file, in contrast, must match its header.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.core.reading import check_regular, read_json
from bayesgeom.models.declared import Shapes, read_header
from bayesgeom.models.description import CONFIG
from bayesgeom.models.shapes import shapes_only

_LAYERS = {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers"}
_EXPERTS = {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}
_WIDTHS = {
    "vocab_size",
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "head_dim",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "state_size",
    "attention_hidden_size",
}
# Numbers that a config or a model loops over: of layers and blocks of any kind, of slices, and of labels.
_LOOPED = re.compile(r"(_|^)(layers?|blocks?|tp)$|^num_labels$")
_MOST_LOOPS = 1_024  # or as many as there are tensors; `max_window_layers` and the like have defaults
_PATTERNS = "attention_types"  # GPT-Neo repeats each list in it as often as the number after it says
_OPENED_BY_OTHERS = ("tokenizer.json", "vocab.json", ".index.json")  # large, or checked elsewhere
_QUANTIZED = "quantization_config"
_TIMES, _SMALL = 32, 2 * 2**30  # float32 of 1-bit weights; buffers of small models


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


def check_sizes(raw: Mapping[str, Any], path: Path) -> None:
    """Check layers, experts and widths of a config against the tensors in the directory.

    Args:
        raw: The parsed `config.json`.
        path: The directory.

    Raises:
        CheckpointFault: The config declares more than the files contain.
        SafetensorError: A file is truncated.
    """
    shapes = _shapes(path)
    if not shapes:
        return  # `check_weight_files` reports this
    n_weights = sum(map(math.prod, shapes.values()))
    longest = max((size for shape in shapes.values() for size in shape), default=0)
    bounds = (
        (_LAYERS, len(shapes), "tensors"),
        (_EXPERTS, max(len(shapes), longest), "rows of a tensor at most"),
        (_WIDTHS, n_weights, "weights"),
    )
    for key, value in _numbers(raw):
        for keys, most, what in bounds:
            if key in keys and value > most:
                raise CheckpointFault(
                    f"{path / CONFIG} sets {key} to {value:,}, but the safetensors in its directory hold {most:,} "
                    f"{what}: they do not belong together. Restore the {CONFIG} that was saved with them."
                )
    most = max(len(shapes), _MOST_LOOPS)
    for key, value in _looped(raw):
        if value > most:
            raise CheckpointFault(
                f"{path / CONFIG} sets {key} to {value:,}; at most {most:,} make sense for the {len(shapes):,} tensors "
                f"in its directory. Restore the {CONFIG} that was saved with them."
            )


def check_memory(config: Any, path: Path) -> None:
    """Check that the model of a config is not much larger than its files.

    It is built on torch's meta device, without memory for weights.

    Args:
        config: The config, as loaded by transformers.
        path: The directory.

    Raises:
        CheckpointFault: It needs more than 32 times the memory of the files, and more than 2 GB.
    """
    from transformers import AutoModelForCausalLM

    plain = deepcopy(config)
    vars(plain).pop(_QUANTIZED, None)
    needed = 0
    # If the model cannot be built, transformers reports it when it loads the model.
    with (
        contextlib.suppress(RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError),
        shapes_only(),
    ):
        model = AutoModelForCausalLM.from_config(plain)
        needed = sum(part.numel() * part.element_size() for part in (*model.parameters(), *model.buffers()))
    there = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if needed > _TIMES * there + _SMALL:
        raise CheckpointFault(
            f"{path / CONFIG} declares a model of {needed / 1e9:,.1f} GB, but the safetensors in its directory hold "
            f"{there / 1e9:,.3g} GB: they do not belong together. Restore the {CONFIG} that was saved with them."
        )


def _shapes(path: Path) -> Shapes:
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(path.glob("*.safetensors")):
        shapes, _ = read_header(file)
        found |= shapes
    return found


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


def _numbers(raw: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The integers of a config, and of its `text_config` if there is one."""
    for part in (raw, raw.get("text_config")):
        if isinstance(part, Mapping):
            yield from ((key, value) for key, value in part.items() if type(value) is int)
